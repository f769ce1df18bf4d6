"""What a prompt is made of, without its words: lengths, checksums, and how many of the documents it holds.

Recorded with content off, so that two recordings can be compared (`neuronscope.diagnosis.comparing`).  The
service's own texts, system prompts and tool definitions, have a fingerprint of 64 bits.  Whatever may hold a
user's words has checksums of 12 bits only: one text in 4,096 has the same, so that they tell a changed
template in a hundred calls, and confirm no guess about one of them.

Run by the worker, which keeps the beginnings and ends of lately retrieved documents in memory, bounded.
"""

from __future__ import annotations

import json
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final

from neuronscope.instrumentation import Hit, Message, Request
from neuronscope.signals import names

BITS: Final = 12
MAX_LINES: Final = 16  # from the beginning of a prompt, and as many from its end
MAX_TRACES: Final = 512
MAX_DOCUMENTS: Final = 64
BURST: Final = 256  # traces that are read at once, and a second after them
RATE: Final = 20
_LABEL: Final = 48  # characters within which a colon ends a label
_LINE: Final = 64
_EDGE: Final = 48  # characters of a document's beginning and end
_SYSTEM: Final = frozenset({"system", "developer"})
_MASK: Final = (1 << BITS) - 1
Document = tuple[str, str]
Facts = dict[str, Any]


class Structure:
    """Reads the structure of requests.  For one thread.

    Joins what was retrieved in a trace with the prompts that follow in it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._retrieved: OrderedDict[int, list[Document]] = OrderedDict()
        self._admitted: OrderedDict[int, None] = OrderedDict()
        self._clock = clock
        self._left, self._at = float(BURST), clock()

    def admits(self, trace_id: int) -> bool:
        """Is this trace's structure read?  All of a trace's calls are, or none.

        A comparison needs some hundred traces, not every one; a busy service must not pay for more.
        """
        if trace_id in self._admitted:
            return True
        now = self._clock()
        self._left, self._at = min(BURST, self._left + RATE * (now - self._at)), now
        if self._left < 1:
            return False
        self._left -= 1
        self._admitted[trace_id] = None
        if len(self._admitted) > MAX_TRACES:
            self._admitted.popitem(last=False)
        return True

    def of_request(self, trace_id: int, request: Request) -> Facts:
        """Attributes of a request that was read with its content."""
        facts: Facts = {}
        if request.inputs:
            facts |= _inputs(request.inputs)
        if request.tools:
            facts[names.TOOLS_FINGERPRINT] = _fingerprint(
                json.dumps(list(request.tools), sort_keys=True, default=str)
            )
        if request.messages is None and not request.system:
            return facts
        messages = request.messages or ()
        system = [*_texts(request.system or ()), *_said(messages, system=True)]
        if system:
            facts[names.SYSTEM_FINGERPRINT] = _fingerprint("\n".join(system))
            facts[names.SYSTEM_CHARACTERS] = sum(map(len, system))
        prompt = "\n".join(_said(messages, system=False))
        if prompt:
            facts[names.PROMPT_CHARACTERS] = len(prompt)
            facts[names.PROMPT_CHECKSUM] = checksum(prompt)
            facts[names.PROMPT_PIECES] = [checksum(piece) for piece in pieces(prompt)]
        return facts | self._documents(trace_id, prompt if not system else "\n".join([*system, prompt]))

    def of_hits(self, trace_id: int, hits: Iterable[Sequence[Hit]]) -> None:
        """Remember what a search found, for the prompts that follow in its trace."""
        found = [edges for each in hits for hit in each if (edges := _edges(hit)) is not None]
        if not found:
            return
        known = self._retrieved.setdefault(trace_id, [])
        known.extend(found[: MAX_DOCUMENTS - len(known)])
        if len(self._retrieved) > MAX_TRACES:
            self._retrieved.popitem(last=False)

    def _documents(self, trace_id: int, prompt: str) -> Facts:
        documents = self._retrieved.get(trace_id)
        if not documents or not prompt:
            return {}
        begun = [tail in prompt for head, tail in documents if head in prompt]
        return {
            names.PROMPT_DOCUMENTS_RETRIEVED: len(documents),
            names.PROMPT_DOCUMENTS_WHOLE: sum(begun),
            names.PROMPT_DOCUMENTS_CUT: len(begun) - sum(begun),
        }


def checksum(text: str) -> int:
    """Twelve bits: too few to tell which text it was."""
    return zlib.crc32(text.encode("utf-8", "replace")) & _MASK


def pieces(text: str) -> Iterator[str]:
    """What of a prompt may be its template: lines, and of lines that have a label the label alone."""
    lines = [stripped for line in text.splitlines() if (stripped := line.strip())]
    if len(lines) > 2 * MAX_LINES:
        lines = lines[:MAX_LINES] + lines[-MAX_LINES:]
    for line in lines:
        end = line.find(":", 0, _LABEL)
        yield line[: end + 1] if end > 0 else line[:_LINE]


def _inputs(inputs: Sequence[str]) -> Facts:
    first = inputs[0]
    end = first.find(":", 0, _LABEL)
    return {
        names.PROMPT_CHARACTERS: sum(map(len, inputs)),
        names.PROMPT_CHECKSUM: checksum("\n".join(inputs)),
        names.PROMPT_PIECES: [checksum(first[: end + 1])] if end > 0 else [],
    }


def _fingerprint(text: str) -> str:
    return blake2b(text.encode("utf-8", "replace"), digest_size=8).hexdigest()


def _said(messages: Iterable[Message], *, system: bool) -> Iterator[str]:
    for message in messages:
        if (message.role in _SYSTEM) is system:
            yield from _texts(message.parts)


def _texts(parts: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for part in parts:
        content = part.get("content")
        if isinstance(content, str) and content:
            yield content


def _edges(hit: Hit) -> Document | None:
    """How a document begins and ends: its text, or the longest text of its metadata."""
    text = hit.text
    if text is None and hit.metadata:
        texts = [value for value in tuple(hit.metadata.values()) if isinstance(value, str)]
        text = max(texts, key=len, default=None)
    text = text.strip() if text else ""
    return (text[:_EDGE].strip(), text[-_EDGE:].strip()) if len(text) >= _LINE // 2 else None

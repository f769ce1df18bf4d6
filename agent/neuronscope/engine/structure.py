"""What a prompt is made of, without its words: lengths, checksums, and how many of the documents it holds.

Recorded with content off, so that two recordings can be compared (`neuronscope.diagnosis.comparing`).  The
service's own texts, system prompts and tool definitions, have a fingerprint of 64 bits.  Whatever may hold a
user's words has checksums of 12 bits only: one text in 4,096 has the same, so that they tell a changed
template in a hundred calls.  One alone confirms no guess; those of many lines and the length together can,
unless they have a key (docs/decisions/0012).

Run by the worker, which keeps the beginnings and ends of lately retrieved documents in memory, bounded.
"""

from __future__ import annotations

import json
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

from neuronscope.engine.keys import key_id
from neuronscope.instrumentation import Hit, Request
from neuronscope.signals import names

BITS: Final = 12
MAX_LINES: Final = 16  # from the beginning of a prompt, and as many from its end
MAX_TRACES: Final = 512
MAX_DOCUMENTS: Final = 64
MAX_CHARACTERS: Final = 262_144  # of a longer prompt the beginning and the end are read, half as many each
BURST: Final = 256  # traces that are read at once
RATE: Final = 2  # a second are earned after them,
REFILL: Final = 128  # and read once they are so many
GRACE_S: Final = 5.0  # in which the last traces' later calls are read, too
_LABEL: Final = 48  # characters within which a colon ends a label
_LINE: Final = 64
_LINES_WITHIN: Final = 16_384  # characters of a prompt's beginning, and of its end
_EDGE: Final = 48  # characters of a document's beginning and end
_SYSTEM: Final = frozenset({"system", "developer"})
_MASK: Final = (1 << BITS) - 1
Document = tuple[str, str]
Facts = dict[str, Any]


class Structure:
    """Reads the structure of requests.  For one thread.

    Joins what was retrieved in a trace with the prompts that follow in it.

    Args:
        on_want: told when texts need not be kept any more, and when they must be again.
        key: of checksums and fingerprints; empty for none.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        on_want: Callable[[bool], None] = lambda _: None,
        key: bytes = b"",
    ) -> None:
        self._key = key
        self._key_id = key_id(key)
        self._retrieved: OrderedDict[int, list[Document]] = OrderedDict()
        self._admitted: OrderedDict[int, None] = OrderedDict()
        self._clock = clock
        self._left, self._at = float(BURST), clock()
        self._on_want = on_want
        self._wanted = True
        self._spent_at: float | None = None
        self._closed_until = 0.0  # nothing changes before; this is asked at every call

    def admits(self, trace_id: int) -> bool:
        """Is this trace's structure read?  All calls of a trace are, or none (in `GRACE_S`).

        A comparison needs some hundred traces, not every one; a busy service must not pay for more, so
        that most of the time not even a reference to its texts is kept.
        """
        if trace_id in self._admitted:
            return True
        now = self._clock()
        if now < self._closed_until:
            return False
        self._left, self._at = min(BURST, self._left + RATE * (now - self._at)), now
        if self._spent_at is not None:
            if self._left < REFILL:
                return self._stay_closed(self._spent_at + GRACE_S, now)
            self._spent_at = None
            self._want(True)
        elif self._left < 1:
            self._spent_at = now
            return self._stay_closed(now + GRACE_S, now)
        self._left -= 1
        self._admitted[trace_id] = None
        if len(self._admitted) > MAX_TRACES:
            self._admitted.popitem(last=False)
        return True

    def _stay_closed(self, graced_until: float, now: float) -> bool:
        if now > graced_until:
            self._want(False)
            self._closed_until = now + (REFILL - self._left) / RATE
        else:
            self._closed_until = min(graced_until, now + (REFILL - self._left) / RATE)
        return False

    def _want(self, wanted: bool) -> None:
        if wanted is not self._wanted:
            self._wanted = wanted
            self._on_want(wanted)

    def of_request(self, trace_id: int, request: Request) -> Facts:
        """Attributes of a request that was read with its content."""
        facts = self._of_request(trace_id, request)
        if self._key_id and facts:
            facts[names.HASH_KEY] = self._key_id
        return facts

    def _of_request(self, trace_id: int, request: Request) -> Facts:
        facts: Facts = {}
        key = self._key
        if request.inputs:
            facts |= _inputs(request.inputs, key)
        if request.tools:
            facts[names.TOOLS_FINGERPRINT] = _fingerprint(
                (json.dumps(tool, sort_keys=True, default=str) for tool in request.tools), key
            )
        if request.messages is None and not request.system:
            return facts
        system, said = _texts_of(request)
        if system:
            facts[names.SYSTEM_FINGERPRINT] = _fingerprint(system, key)
            facts[names.SYSTEM_CHARACTERS] = sum(map(len, system))
        prompt, characters = _joined(said)
        if prompt:
            facts[names.PROMPT_CHARACTERS] = characters
            facts[names.PROMPT_CHECKSUM] = checksum(prompt, key)
            facts[names.PROMPT_PIECES] = [checksum(piece, key) for piece in pieces(prompt)]
        if trace_id in self._retrieved and (prompt or system) and characters <= MAX_CHARACTERS:
            facts |= self._documents(trace_id, f"{_joined(system)[0]}\n{prompt}" if system else prompt)
        return facts

    def of_hits(self, trace_id: int, hits: Iterable[Sequence[Hit]]) -> None:
        """Remember what a search found, for the prompts that follow in its trace."""
        # Of a huge batch's later queries there is but the number of hits, as a range.
        lists: Iterable[Any] = hits
        each_hit = (hit for each in lists if not isinstance(each, range) for hit in each)
        found = list(islice((edges for hit in each_hit if (edges := _edges(hit)) is not None), MAX_DOCUMENTS))
        if not found:
            return
        known = self._retrieved.setdefault(trace_id, [])
        known.extend(found[: MAX_DOCUMENTS - len(known)])
        if len(self._retrieved) > MAX_TRACES:
            self._retrieved.popitem(last=False)

    def _documents(self, trace_id: int, prompt: str) -> Facts:
        documents = self._retrieved[trace_id]
        begun = [tail in prompt for head, tail in documents if head in prompt]
        return {
            names.PROMPT_DOCUMENTS_RETRIEVED: len(documents),
            names.PROMPT_DOCUMENTS_WHOLE: sum(begun),
            names.PROMPT_DOCUMENTS_CUT: len(begun) - sum(begun),
        }


def checksum(text: str, key: bytes = b"") -> int:
    """Twelve bits: too few to tell which text it was, and with a key no guess can be tested at all."""
    plain = text.encode("utf-8", "replace")
    if not key:
        return zlib.crc32(plain) & _MASK
    return int.from_bytes(blake2b(plain, digest_size=2, key=key).digest()) & _MASK


def pieces(text: str) -> Iterator[str]:
    """What of a prompt may be its template: lines, and of lines that have a label the label alone."""
    if len(text) > 2 * _LINES_WITHIN:
        text = f"{text[:_LINES_WITHIN]}\n{text[-_LINES_WITHIN:]}"
    lines = [stripped for line in text.splitlines() if (stripped := line.strip())]
    if len(lines) > 2 * MAX_LINES:
        lines = lines[:MAX_LINES] + lines[-MAX_LINES:]
    for line in lines:
        end = line.find(":", 0, _LABEL)
        yield line[: end + 1] if end > 0 else line[:_LINE]


def _inputs(inputs: Sequence[str], key: bytes) -> Facts:
    text, characters = _joined(inputs)
    first = inputs[0]
    end = first.find(":", 0, _LABEL)
    return {
        names.PROMPT_CHARACTERS: characters,
        names.PROMPT_CHECKSUM: checksum(text, key),
        names.PROMPT_PIECES: [checksum(first[: end + 1], key)] if end > 0 else [],
    }


def _fingerprint(texts: Iterable[str], key: bytes) -> str:
    digest = blake2b(digest_size=8, key=key)
    for text in texts:
        digest.update(text.encode("utf-8", "replace"))
        digest.update(b"\n")
    return digest.hexdigest()


def _joined(texts: Sequence[str]) -> tuple[str, int]:
    """Texts in one, of long ones the beginning and the end, and how many characters they have."""
    characters = sum(map(len, texts)) + max(0, len(texts) - 1)
    if characters <= MAX_CHARACTERS:
        return "\n".join(texts), characters
    half = MAX_CHARACTERS // 2
    beginning = _within(texts, half, lambda text, room: text[:room])
    end = _within(tuple(reversed(texts)), half, lambda text, room: text[-room:])
    return "\n".join([*beginning, *reversed(end)]), characters


def _within(texts: Sequence[str], room: int, cut: Callable[[str, int], str]) -> list[str]:
    """As many of the texts as have room, the last of them cut."""
    found: list[str] = []
    for text in texts:
        if room <= 0:
            break
        found.append(cut(text, room))
        room -= len(found[-1]) + 1
    return found


def _texts_of(request: Request) -> tuple[list[str], list[str]]:
    """What the service tells the model, and what is said to it."""
    system = list(_texts(request.system or ()))
    said: list[str] = []
    for message in request.messages or ():
        (system if message.role in _SYSTEM else said).extend(_texts(message.parts))
    return system, said


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

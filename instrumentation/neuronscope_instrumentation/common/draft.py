"""A message that arrives in pieces: what folds over streamed chunks keep where content may be recorded."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import msgspec

from neuronscope.instrumentation import Message, Response
from neuronscope_instrumentation.common.asking import tools_called
from neuronscope_instrumentation.common.fields import text
from neuronscope_instrumentation.common.parts import Part, tool_call


@dataclass(slots=True)
class _Tool:
    """A tool call in pieces: id and name once, arguments bit by bit, or all at once."""

    id: str | None = None
    name: str | None = None
    arguments: Any = None

    def add(self, identifier: str | None, name: str | None, arguments: Any) -> None:
        self.id = identifier or self.id
        self.name = name or self.name
        if isinstance(arguments, str) and isinstance(self.arguments, str):
            self.arguments += arguments
        elif arguments is not None:
            self.arguments = arguments


@dataclass(slots=True)
class Draft:
    """One message so far."""

    reasoning: list[str] = field(default_factory=list[str])
    text: list[str] = field(default_factory=list[str])
    tools: dict[Hashable, _Tool] = field(default_factory=dict[Hashable, _Tool])
    others: list[Part] = field(default_factory=list[Part])
    finish_reason: str | None = None

    def tool(self, key: Hashable, identifier: str | None, name: str | None, arguments: Any) -> None:
        """Add a piece of the tool call that `key` stands for."""
        self.tools.setdefault(key, _Tool()).add(identifier, name, arguments)

    def part(self, part: Part) -> None:
        """Add a part: texts and reasoning are joined, tool calls and others come whole."""
        pieces = {"reasoning": self.reasoning, "text": self.text}.get(part["type"])
        if pieces is not None:
            pieces.append(part["content"])
        else:
            self.others.append(part)

    def message(self) -> Message:
        """The message that the pieces make."""
        return Message("assistant", list(self._parts()), self.finish_reason)

    def _parts(self) -> Iterator[Part]:
        for kind, pieces in (("reasoning", self.reasoning), ("text", self.text)):
            if pieces:
                yield {"type": kind, "content": "".join(pieces)}
        for tool in self.tools.values():
            yield tool_call(tool.id, tool.name, tool.arguments)
        yield from self.others


class Drafts(Sequence[Message]):
    """The messages so far, by index of their choice; put together when they are read."""

    def __init__(self) -> None:
        self._drafts: dict[int, Draft] = {}

    def of(self, index: int = 0) -> Draft:
        """The draft of a choice."""
        return self._drafts.setdefault(index, Draft())

    def __len__(self) -> int:
        return len(self._drafts)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return [self._drafts[key].message() for key in sorted(self._drafts)][index]


class Streamed(Response, frozen=True, kw_only=True):
    """A response in the making.  Its drafts grow in place (a fold owns them).

    Attributes:
        drafts: None where content may not be recorded.
        reasons: finish reason of each choice that has ended.
        done: the provider has said that the stream is over.
        called: name of each tool that the model has called.
    """

    drafts: Drafts | None = None
    reasons: dict[int, str] = msgspec.field(default_factory=dict[int, str])
    done: bool = False
    called: dict[Hashable, str] = msgspec.field(default_factory=dict[Hashable, str])


def start(so_far: Response, content: bool) -> Streamed:
    """The response to fold into: the one so far, or an empty one."""
    if isinstance(so_far, Streamed):
        return so_far
    drafts = Drafts() if content else None
    return Streamed(drafts=drafts, messages=drafts)


def note_call(streamed: Streamed, changes: dict[str, Any], key: Hashable, name: Any) -> None:
    """Note which tool a piece of a call names, if it does; `changes` has what is to be replaced."""
    told = text(name)
    if told is not None and key not in streamed.called:
        streamed.called[key] = told
        changes["extra"] = {
            **streamed.extra,
            **changes.get("extra", {}),
            **tools_called(streamed.called.values()),
        }


def is_done(response: Response) -> bool:
    """Did the provider say that the stream was over?"""
    return isinstance(response, Streamed) and response.done

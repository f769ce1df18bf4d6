"""Streamed chat completions are folds over their chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import msgspec
from msgspec.structs import replace

from neuronscope.instrumentation import Message, Response
from neuronscope.signals import names
from neuronscope_instrumentation.common.fields import count, document, fields, items, text
from neuronscope_instrumentation.common.fields import field as read
from neuronscope_instrumentation.common.parts import Part, thought, tool_call
from neuronscope_instrumentation.openai.answers import head, usage, usage_by_modality
from neuronscope_instrumentation.openai.facts import known
from neuronscope_instrumentation.openai.messages import finish_reason_name, reasoning


@dataclass(slots=True)
class _Tool:
    """A tool call that arrives in pieces: id and name once, arguments bit by bit."""

    id: str | None = None
    name: str | None = None
    arguments: list[str] = field(default_factory=list[str])


@dataclass(slots=True)
class _Choice:
    """One choice so far; pieces of content only where content may be recorded."""

    finish_reason: str | None = None
    text: list[str] = field(default_factory=list[str])
    reasoning: list[str] = field(default_factory=list[str])
    refusal: list[str] = field(default_factory=list[str])
    tools: list[_Tool] = field(default_factory=list[_Tool])
    latest: dict[Any, _Tool] = field(default_factory=dict[Any, _Tool])  # by index
    refused: bool = False
    logprobs: bool = False

    def message(self) -> Message:
        return Message("assistant", list(self._parts()), finish_reason_name(self.finish_reason))

    def _parts(self) -> Iterator[Part]:
        for kind, pieces in (("reasoning", self.reasoning), ("text", self.text), ("refusal", self.refusal)):
            if pieces:
                yield {"type": kind, "content": "".join(pieces)}
        for tool in self.tools:
            yield tool_call(tool.id, tool.name, "".join(tool.arguments))


class _Messages(Sequence[Message]):
    """The messages of the choices so far, put together when they are read."""

    def __init__(self, choices: dict[int, _Choice]) -> None:
        self._choices = choices

    def __len__(self) -> int:
        return len(self._choices)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        return [self._choices[key].message() for key in sorted(self._choices)][index]


class StreamedChat(Response, frozen=True, kw_only=True):
    """A chat response in the making.

    The pieces grow in place, since copying them at every chunk would cost the square of a stream's length;
    a fold owns its pieces, so nobody sees an earlier value change.
    """

    choices: dict[int, _Choice] = msgspec.field(default_factory=dict[int, _Choice])


def fold_chat_chunk(so_far: Response, chunk: Any, content: bool) -> Response:
    """The response after one more chunk."""
    seen = fields(document(chunk))
    streamed = so_far if isinstance(so_far, StreamedChat) else _start(content)
    changes = head(seen) if streamed.id is None else {}
    told = False
    for delta in items(seen.get("choices")):
        told |= _fold_choice(streamed.choices, fields(delta), content)
    if told:
        changes.update(_facts(streamed))
    reported = seen.get("usage")
    if reported is None and told:
        reported = _usage_elsewhere(seen)
    if reported is not None:
        changes.update(usage(reported))
        changes["extra"] = {**changes.get("extra", streamed.extra), **usage_by_modality(reported)}
    return replace(streamed, **changes) if changes else streamed


def _usage_elsewhere(chunk: Mapping[str, Any]) -> Any:
    """Usage where Groq and Moonshot have it: beside the choices, and in the one that ends."""
    inside = (read(choice, "usage") for choice in items(chunk.get("choices")))
    return next((each for each in (read(chunk.get("x_groq"), "usage"), *inside) if each is not None), None)


def _start(content: bool) -> StreamedChat:
    choices: dict[int, _Choice] = {}
    return StreamedChat(choices=choices, messages=_Messages(choices) if content else None)


def _facts(streamed: StreamedChat) -> dict[str, Any]:
    """What the choices so far tell without their content."""
    choices = [streamed.choices[index] for index in sorted(streamed.choices)]
    extra = {
        names.TOOLS_CALLED: [tool.name for each in choices for tool in each.tools if tool.name] or None,
        names.REFUSED: any(each.refused for each in choices) or None,
        names.LOGPROBS: any(each.logprobs for each in choices) or None,
    }
    reasons = [each.finish_reason for each in choices if each.finish_reason is not None]
    return {"finish_reasons": reasons or None, "extra": {**streamed.extra, **known(extra)}}


def _fold_choice(choices: dict[int, _Choice], delta: Mapping[str, Any], content: bool) -> bool:
    """Add a choice's delta; True if it tells more than a piece of text."""
    index = count(delta.get("index")) or 0
    choice = choices.get(index)
    if choice is None:
        choice = choices[index] = _Choice()
    piece = fields(delta.get("delta"))
    told = _fold_tools(choice, piece, content)
    refusal, reason = text(piece.get("refusal")), text(delta.get("finish_reason"))
    if content:
        for pieces, each in (
            (choice.reasoning, reasoning(piece)),
            (choice.text, text(piece.get("content"))),
            (choice.refusal, refusal),
        ):
            if each is not None:
                pieces.append(each)
        for part in items(piece.get("content")):  # Mistral's models that think
            choice.text += filter(None, [text(read(part, "text"))])
            choice.reasoning += filter(None, [thought(read(part, "thinking"))])
    if refusal is not None and not choice.refused:
        choice.refused = told = True
    if not choice.logprobs and delta.get("logprobs"):
        choice.logprobs = told = True
    if reason is not None:
        choice.finish_reason = reason
    return told or reason is not None


def _fold_tools(choice: _Choice, delta: Mapping[str, Any], content: bool) -> bool:
    """Add the pieces of tool calls; True if a new tool is called."""
    known_before = len(choice.tools)
    calls = delta.get("tool_calls")
    if calls:
        for position, call in enumerate(items(calls)):
            index = count(read(call, "index"))
            _fold_tool(choice, position if index is None else index, call, content)
    function = delta.get("function_call")
    if function is not None:
        _fold_tool(choice, "function_call", {"function": function}, content)
    return len(choice.tools) > known_before


def _fold_tool(choice: _Choice, index: Any, call: Any, content: bool) -> None:
    function, custom = read(call, "function"), read(call, "custom")
    body = function if function is not None else custom
    identifier, name = text(read(call, "id")), text(read(body, "name"))
    tool = choice.latest.get(index)
    # Gemini begins every call at the same index; others repeat id or name, or give each piece another id.
    if tool is None or (name and identifier and tool.id and identifier != tool.id):
        tool = choice.latest[index] = _Tool()
        choice.tools.append(tool)
    tool.id = tool.id or identifier
    tool.name = name or tool.name
    piece = text(read(body, "arguments" if function is not None else "input")) if content else None
    if piece is not None:
        tool.arguments.append(piece)


def has_content(chunk: Any) -> bool:
    """Does a chunk carry something the model has written: text, a tool call, reasoning, a refusal, sound?"""
    for choice in items(read(document(chunk), "choices")):
        delta = fields(read(choice, "delta"))
        if delta.get("content") or delta.get("tool_calls") or delta.get("function_call"):
            return True
        if delta.get("refusal") or reasoning(delta) or delta.get("audio"):
            return True
    return False

"""Answers of OpenAI's Responses API, for `FakeOpenAI`: whole, as events, failed, or still at work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from neuronscope.testing.fake_provider import MODEL, NAMED_EVENTS, Reply

__all__ = [
    "custom_call",
    "function_call",
    "message",
    "reasoning",
    "refusal",
    "response",
    "response_events",
    "response_stream",
]

USAGE: Final[Mapping[str, Any]] = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
    "output_tokens": 5,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 16,
}
# What streams of each type of item are made of: the event's name, and where the item keeps its text.
_DELTAS: Final = {
    "function_call": ("function_call_arguments", "arguments"),
    "custom_tool_call": ("custom_tool_call_input", "input"),
    "code_interpreter_call": ("code_interpreter_call_code", "code"),
    "mcp_call": ("mcp_call_arguments", "arguments"),
}


def message(text: str = "Hello from the fake.", **part: Any) -> dict[str, Any]:
    """A message item; `part` adds to its text part (``logprobs=…``)."""
    return _message({"type": "output_text", "text": text, "annotations": [], **part})


def refusal(text: str = "No.") -> dict[str, Any]:
    """A message item in which the model refuses."""
    return _message({"type": "refusal", "refusal": text})


def _message(part: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "message",
        "id": "msg-fake",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }


def reasoning(summary: str) -> dict[str, Any]:
    """A reasoning item with a summary."""
    return {"type": "reasoning", "id": "rs-fake", "summary": [{"type": "summary_text", "text": summary}]}


def function_call(name: str, arguments: str, call_id: str = "call-fake") -> dict[str, Any]:
    """A call of the service's function."""
    head = {"type": "function_call", "id": f"fc-{call_id}", "call_id": call_id, "status": "completed"}
    return {**head, "name": name, "arguments": arguments}


def custom_call(name: str, text: str, call_id: str = "call-fake") -> dict[str, Any]:
    """A call of the service's custom tool."""
    head = {"type": "custom_tool_call", "id": f"ct-{call_id}", "call_id": call_id}
    return {**head, "name": name, "input": text}


def response(text: str = "Hello from the fake.", **changes: Any) -> Reply:
    """An answer of one message; `changes` replace top-level fields (``output=…``, ``status=…``)."""
    return Reply(body=_body({"output": [message(text)], **changes}))


def _body(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": "resp-fake",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": MODEL,
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "service_tier": "default",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": dict(USAGE),
        **changes,
    }


def response_stream(text: str = "Hello from the fake.", **reply: Any) -> Reply:
    """A streamed answer of one message, a word an event; `reply` are fields of `Reply`."""
    return response_events([message(text)], reply=reply)


def response_events(
    output: Sequence[Mapping[str, Any]], *, reply: Mapping[str, Any] | None = None, **changes: Any
) -> Reply:
    """A streamed answer of these items; `changes` are of the last event's answer (``status=…``)."""
    events = [
        {**event, "sequence_number": number} for number, event in enumerate(_events(list(output), changes))
    ]
    return Reply(events=events, framing=NAMED_EVENTS, **(reply or {}))


def _events(output: list[Mapping[str, Any]], changes: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    begun = _body({"output": [], "status": "in_progress", "usage": None})
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(output):
        yield from _item_events(index, item)
    ended = _body({"output": output, **changes})
    yield {"type": f"response.{ended['status']}", "response": ended}


def _item_events(index: int, item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    where = {"output_index": index, "item_id": str(item.get("id"))}
    yield {"type": "response.output_item.added", "output_index": index, "item": _begun(item)}
    if item["type"] == "message":
        yield from _part_events(where, item["content"][0])
    elif item["type"] == "reasoning":
        for piece in _words(item["summary"][0]["text"]):
            yield {
                "type": "response.reasoning_summary_text.delta",
                **where,
                "summary_index": 0,
                "delta": piece,
            }
    elif item["type"] in _DELTAS:
        name, key = _DELTAS[item["type"]]
        for piece in _words(item[key]):
            yield {"type": f"response.{name}.delta", **where, "delta": piece}
        done = {"name": item["name"]} if name == "function_call_arguments" else {}
        yield {"type": f"response.{name}.done", **where, key: item[key], **done}
    yield {"type": "response.output_item.done", "output_index": index, "item": dict(item)}


def _part_events(where: Mapping[str, Any], part: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    key = "refusal" if part["type"] == "refusal" else "text"
    name = "refusal" if part["type"] == "refusal" else "output_text"
    logprobs: dict[str, Any] = {} if key == "refusal" else {"logprobs": []}
    at = {**where, "content_index": 0}
    yield {"type": "response.content_part.added", **at, "part": {**part, key: ""}}
    for piece in _words(part[key]):
        yield {"type": f"response.{name}.delta", **at, "delta": piece, **logprobs}
    yield {"type": f"response.{name}.done", **at, key: part[key], **logprobs}
    yield {"type": "response.content_part.done", **at, "part": dict(part)}


def _begun(item: Mapping[str, Any]) -> dict[str, Any]:
    kind = item["type"]
    if kind in _DELTAS:
        return {**item, _DELTAS[kind][1]: ""}
    empty = {"message": "content", "reasoning": "summary"}.get(kind)
    return dict(item) if empty is None else {**item, empty: []}


def _words(text: str) -> list[str]:
    return [word + " " for word in text.split(" ")[:-1]] + text.split(" ")[-1:]


def answer(asked: Mapping[str, Any]) -> Reply:
    """What a request for a response gets when nothing else is scripted."""
    if asked.get("background"):
        return response(status="queued", output=[], usage=None, background=True)
    return response_stream() if asked.get("stream") else response()

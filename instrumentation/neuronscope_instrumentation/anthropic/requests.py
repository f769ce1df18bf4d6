"""What is asked: which requests call a model, what to keep of them, and how to read that afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from neuronscope.instrumentation import Endpoint, Operation, Request, Snapshot
from neuronscope_instrumentation.anthropic.chunks import fold_message_event, has_content, is_complete
from neuronscope_instrumentation.anthropic.messages import content_parts, read_message
from neuronscope_instrumentation.anthropic.peers import peer
from neuronscope_instrumentation.anthropic.responses import read_error, read_response
from neuronscope_instrumentation.common.fields import count, field, items, mapping, number, text
from neuronscope_instrumentation.common.headers import header_reader
from neuronscope_instrumentation.common.parts import without_none

# Parameters kept of a request's body: scalars, which nobody can change afterwards.
_KEPT: Final = frozenset({"max_tokens", "model", "stream", "temperature", "top_k", "top_p"})


def snapshot(client: Any, arguments: dict[str, Any], content: bool) -> Snapshot | None:
    """What to keep of a call to the client's `request`; None for requests that call no model."""
    options = arguments["options"]
    body = mapping(options.json_data)
    if body is None or not calls_model(options.url) or options.method.lower() != "post":
        return None
    extra = mapping(options.extra_json)
    if extra:
        body = {**body, **extra}  # as the SDK merges `extra_body`
    kept = {key: value for key, value in body.items() if key in _KEPT}
    # A list is copied, never anything that reading would use up.
    messages = body.get("messages")
    if isinstance(messages, list | tuple):
        kept["message_count"] = len(items(messages))
    if "output_config" in body or "output_format" in body:
        kept["output_type"] = _output_type(body)
    if content:
        kept["messages"] = list(items(messages))
        kept["tools"] = list(items(body.get("tools")))
        kept["stop_sequences"] = list(items(body.get("stop_sequences")))
        system = body.get("system")
        kept["system"] = system if isinstance(system, str) else list(items(system))
    return Snapshot(MESSAGES, text(body.get("model")), kept, peer(client, options.url))


@lru_cache(maxsize=256)
def calls_model(url: str) -> bool:
    """Is this path the one that creates a message?  Counting tokens and batches are not."""
    return url.partition("?")[0].rstrip("/").endswith("/v1/messages")


def _output_type(body: Mapping[str, Any]) -> str | None:
    formats = (field(body.get("output_config"), "format"), body.get("output_format"))
    kinds = [text(field(wanted, "type")) for wanted in formats]
    return "json" if "json_schema" in kinds else None


def read_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """A request in our words."""
    stops = [stop for stop in arguments.get("stop_sequences", ()) if isinstance(stop, str)]
    system = list(content_parts(arguments.get("system"))) if content else []
    return Request(
        model=text(arguments.get("model")),
        stream=arguments.get("stream") is True,
        temperature=number(arguments.get("temperature")),
        top_p=number(arguments.get("top_p")),
        top_k=count(arguments.get("top_k")),
        max_tokens=count(arguments.get("max_tokens")),
        output_type=text(arguments.get("output_type")),
        message_count=count(arguments.get("message_count")),
        messages=[read_message(message) for message in arguments["messages"]]
        if content and "messages" in arguments
        else None,
        system=system or None,
        tools=[_tool(tool) for tool in arguments["tools"]] if content and arguments.get("tools") else None,
        stop_sequences=stops if content and stops else None,
    )


def _tool(tool: Any) -> Mapping[str, Any]:
    """A tool's definition: type and name, as the semantic conventions want by default."""
    kind = text(field(tool, "type")) or "custom"
    name = text(field(tool, "name"))
    return without_none({"type": "function" if kind == "custom" else kind, "name": name})


MESSAGES: Final = Endpoint(
    operation=Operation.CHAT,
    read_request=read_request,
    read_response=read_response,
    fold_chunk=fold_message_event,
    is_content=has_content,
    is_complete=is_complete,
    read_error=read_error,
    # Anthropic's own, then those of cloud platforms.
    read_headers=header_reader(
        "anthropic-ratelimit-{unit}-{bound}", ("request-id", "x-request-id", "x-amzn-requestid")
    ),
)

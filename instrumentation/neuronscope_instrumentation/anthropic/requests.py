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
from neuronscope_instrumentation.common.asking import asked, parameters, spoken
from neuronscope_instrumentation.common.fields import field, items, mapping, text
from neuronscope_instrumentation.common.headers import header_reader

# Parameters kept of a request's body: scalars, which nobody can change afterwards.
_KEPT: Final = frozenset({"max_tokens", "model", "service_tier", "stream", "temperature", "top_k", "top_p"})


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
        kept["effort"] = field(body.get("output_config"), "effort")
    kept["tools"] = list(items(body.get("tools")))
    if content:
        kept["messages"] = list(items(messages))
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


_PARAMETERS: Final = parameters(
    "model", "temperature", "top_p", "top_k", "max_tokens", "output_type", "message_count", "service_tier"
)


def read_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """A request in our words."""
    tools = arguments["tools"]
    return asked(
        arguments,
        _PARAMETERS,
        tools=tools,
        effort=arguments.get("effort"),
        content=spoken(
            [read_message(message) for message in arguments.get("messages", ())],
            list(content_parts(arguments.get("system"))),
            map(_tool, tools),
            arguments.get("stop_sequences"),
        )
        if content
        else None,
    )


def _tool(tool: Any) -> Any:
    """Its type is the API's word for what a service has defined itself."""
    return {"name": field(tool, "name")} if field(tool, "type") == "custom" else tool


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

"""What is asked of vLLM: prompts are counted, and read only with content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from neuronscope.instrumentation import Endpoint, Message, Operation, Peer, Request, Snapshot
from neuronscope.signals import names
from neuronscope_instrumentation.common.asking import asked, parameters, spoken
from neuronscope_instrumentation.common.draft import is_done
from neuronscope_instrumentation.common.fields import count, field, items, number, text
from neuronscope_instrumentation.common.parts import content_parts
from neuronscope_instrumentation.vllm.outputs import fold_output, has_text, read_embeddings, read_outputs

PEER: Final = Peer("vllm")
_SAMPLING: Final = (
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "seed",
    "n",
    "frequency_penalty",
    "presence_penalty",
)
_DELTA: Final = 1  # RequestOutputKind.DELTA: outputs hold what is new


def snapshot_generate(engine: Any, arguments: dict[str, Any], content: bool) -> Snapshot:
    """A completion of one prompt or several, at once or as a stream."""
    asked = arguments.get("prompts", arguments.get("prompt"))
    return _snapshot(Operation.TEXT_COMPLETION, engine, arguments, asked, content)


def snapshot_chat(engine: Any, arguments: dict[str, Any], content: bool) -> Snapshot:
    """A conversation, or several."""
    return _snapshot(Operation.CHAT, engine, arguments, arguments.get("messages"), content)


def snapshot_embed(engine: Any, arguments: dict[str, Any], content: bool) -> Snapshot:
    """Embeddings."""
    asked = arguments.get("prompts")
    return Snapshot(EMBEDDINGS, _model(engine), {"input_count": len(items(asked)) or 1}, PEER)


def _snapshot(
    operation: Operation, engine: Any, arguments: Mapping[str, Any], asked: Any, content: bool
) -> Snapshot:
    given = arguments.get("sampling_params")
    params: Any = items(given)[0] if items(given) else given
    model = _model(engine)
    kept: dict[str, Any] = {
        "model": model,
        "params": {name: getattr(params, name, None) for name in _SAMPLING},
        "stop": getattr(params, "stop", None) if content else None,
        "tools": list(items(arguments.get("tools"))),
        "json": _wants_json(params),
        "asked": list(items(asked) or _one(asked)) if content else None,
        "message_count": _message_count(asked) if operation is Operation.CHAT else None,
    }
    kind = field(params, "output_kind")
    delta = getattr(kind, "value", kind) == _DELTA
    return Snapshot(_ENDPOINTS[operation, delta], model, kept, PEER)


def _one(asked: Any) -> Sequence[Any]:
    """A prompt by itself; what comes piece by piece is the engine's to read."""
    return [asked] if isinstance(asked, str | Mapping) else ()


def _wants_json(params: Any) -> bool:
    """Is the output to follow a schema, or to be any JSON?  Older releases call it guided decoding."""
    wanted = field(params, "structured_outputs") or field(params, "guided_decoding")
    return bool(field(wanted, "json") or field(wanted, "json_object"))


def _message_count(asked: Any) -> int | None:
    conversations = items(asked)
    several = bool(conversations) and isinstance(conversations[0], list | tuple)
    return None if several else len(conversations) or None


def _model(engine: Any) -> str | None:
    """The name that the model is served under, or loaded from."""
    for holder in (engine, *(field(engine, name) for name in ("llm_engine", "vllm_config", "engine"))):
        config = field(holder, "model_config")
        served = field(config, "served_model_name")
        name = (
            text(served) or next((text(each) for each in items(served)), None) or text(field(config, "model"))
        )
        if name is not None:
            return name
    return None


_PARAMETERS: Final = parameters("temperature", "top_p", "max_tokens", "seed", choice_count="n")


def _read_request(kept: Mapping[str, Any], content: bool) -> Request:
    params, tools = kept["params"], kept["tools"]
    top_k = count(params["top_k"])
    return asked(
        params,
        _PARAMETERS,
        tools=tools,
        top_k=top_k if top_k is not None and top_k > 0 else None,  # 0 and -1: all tokens
        frequency_penalty=number(params["frequency_penalty"]) or None,
        presence_penalty=number(params["presence_penalty"]) or None,
        output_type="json" if kept["json"] else None,
        message_count=kept["message_count"],
        extra={names.MODEL_NAME: kept["model"]},
        content=spoken(_messages(kept["asked"]), (), tools, kept["stop"]) if content else None,
    )


def _messages(asked: Any) -> list[Message]:
    """Prompts and conversations in OpenTelemetry's schema; prompts given as tokens stay out."""
    found: list[Message] = []
    for each in items(asked):
        words = text(each) or text(field(each, "prompt"))
        if words is not None:
            found.append(Message("user", [{"type": "text", "content": words}]))
        elif field(each, "role") is not None:
            found.append(
                Message(str(field(each, "role")), list(content_parts(field(each, "content"), _part)))
            )
        elif items(each):
            found.extend(_messages(each))
    return found


def _part(block: Any) -> Mapping[str, Any]:
    kind = text(field(block, "type")) or "unknown"
    return {"type": "text", "content": text(field(block, "text")) or ""} if kind == "text" else {"type": kind}


def _read_embedding_request(kept: Mapping[str, Any], content: bool) -> Request:
    return Request(input_count=kept["input_count"])


def _generating(operation: Operation, delta: bool) -> Endpoint:
    return Endpoint(
        operation=operation,
        read_request=_read_request,
        read_response=read_outputs,
        fold_chunk=partial(fold_output, delta),
        is_content=has_text,
        is_complete=is_done,
    )


_ENDPOINTS: Final = {
    (operation, delta): _generating(operation, delta)
    for operation in (Operation.CHAT, Operation.TEXT_COMPLETION)
    for delta in (False, True)
}
EMBEDDINGS: Final = Endpoint(
    operation=Operation.EMBEDDINGS,
    read_request=_read_embedding_request,
    read_response=read_embeddings,
)

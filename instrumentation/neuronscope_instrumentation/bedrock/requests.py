"""What is asked: which operations call a model, what to keep of a call, and who is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from neuronscope.engine.invocation import type_name
from neuronscope.instrumentation import (
    Endpoint,
    ErrorFacts,
    Operation,
    ReadRequest,
    Request,
    Response,
    Snapshot,
)
from neuronscope.signals import names
from neuronscope_instrumentation.bedrock import converse, invoke, jobs
from neuronscope_instrumentation.bedrock.metadata import with_metadata
from neuronscope_instrumentation.common.draft import is_done
from neuronscope_instrumentation.common.fields import count, field, items, mapping, text
from neuronscope_instrumentation.common.peers import peer_at

SERVICE: Final = "bedrock-runtime"
MAX_BODY: Final = 8 << 20  # a larger request is not read: its parameters stay unknown


class ParametersWithHeaders(dict[str, Any]):
    """Our copy of a call's parameters, with trace headers for the request that is made of them."""

    trace_headers: Mapping[str, str] = {}


def snapshot(client: Any, arguments: dict[str, Any], content: bool) -> Snapshot | None:
    """What to keep of an API call; None for other services and for operations that call no model."""
    meta = client.meta
    if meta.service_model.service_name != SERVICE:
        return None
    name, asked = arguments.get("operation_name"), mapping(arguments.get("api_params"))
    if asked is None or name not in _OPERATIONS:
        return None
    model = text(asked.get("modelId"))
    kept: dict[str, Any] = {"modelId": model, "stream": name in _STREAMING}
    if name in ("Converse", "ConverseStream"):
        endpoint = CONVERSE
        _keep_conversation(kept, asked, content)
    elif name == "StartAsyncInvoke":
        endpoint = _JOBS[jobs.job_of(model or "")]
        jobs.keep_job(kept, asked, content)
    else:
        endpoint = _INVOKE[invoke.operation_of(model or "")]
        body = asked.get("body")
        # Anything else would be used up by reading it; a bytearray may change.
        if isinstance(body, str | bytes) and len(body) <= MAX_BODY:
            kept["body"] = body
        kept["output_type"] = "image" if endpoint is _IMAGE else None
        kept["service_tier"] = asked.get("serviceTier")
    guardrail = field(asked.get("guardrailConfig"), "guardrailIdentifier") or asked.get("guardrailIdentifier")
    kept["guardrail"] = text(guardrail)
    return Snapshot(endpoint, model, kept, peer_at(str(meta.endpoint_url), _provider))


_STREAMING: Final = frozenset({"ConverseStream", "InvokeModelWithResponseStream"})
_OPERATIONS: Final = _STREAMING | {"Converse", "InvokeModel", "StartAsyncInvoke"}


def _provider(host: str) -> str:
    return "aws.bedrock"


def _keep_conversation(kept: dict[str, Any], asked: Mapping[str, Any], content: bool) -> None:
    """Scalars are copied; lists too, where their words may be read."""
    for name in ("inferenceConfig", "additionalModelRequestFields", "outputConfig"):
        value = mapping(asked.get(name))
        if value is not None:
            kept[name] = dict(value)
    kept["message_count"] = len(items(asked.get("messages")))
    kept["toolConfig"] = {"tools": list(items(field(asked.get("toolConfig"), "tools")))}
    kept["serviceTier"] = asked.get("serviceTier")
    if content:
        kept["messages"] = list(items(asked.get("messages")))
        kept["system"] = list(items(asked.get("system")))


def inject_headers(client: Any, arguments: dict[str, Any], headers: Mapping[str, str]) -> None:
    """Hand trace headers to the request that botocore makes of the parameters."""
    asked = ParametersWithHeaders(arguments["api_params"])
    asked.trace_headers = headers
    arguments["api_params"] = asked


def add_headers(request: dict[str, Any], parameters: Any) -> None:
    """Put the trace headers that parameters carry on their request, unless it has such headers already."""
    if isinstance(parameters, ParametersWithHeaders):
        present = {str(name).lower() for name in request["headers"]}
        for name, value in parameters.trace_headers.items():
            if name not in present:
                request["headers"][name] = value


def _guarded(read: ReadRequest) -> ReadRequest:
    """A reader of requests that also tells the guardrail in force."""

    def read_request(kept: Mapping[str, Any], content: bool) -> Request:
        request = read(kept, content)
        guardrail = kept.get("guardrail")
        return replace(request, extra={names.BEDROCK_GUARDRAIL: guardrail}) if guardrail else request

    return read_request


def read_converse(answer: Any, content: bool) -> Response:
    """An answer of the Converse API, with what botocore tells of its request."""
    metadata = mapping(field(answer, "ResponseMetadata")) or {}
    return with_metadata(converse.read_converse(answer, content), metadata)


def read_error(error: BaseException) -> ErrorFacts:
    """A failed call: AWS's own error code where there is one, which says more than the exception's class."""
    told = mapping(getattr(error, "response", None)) or {}
    code = text(field(told.get("Error"), "Code"))
    status = count(field(told.get("ResponseMetadata"), "HTTPStatusCode"))
    # Events of a stream begin the same codes with a small letter.
    return ErrorFacts(code[0].upper() + code[1:] if code else type_name(error), status)


def _invoking(operation: Operation) -> Endpoint:
    return Endpoint(
        operation=operation,
        read_request=_guarded(invoke.read_invoke_request),
        read_response=invoke.read_invoke,
        fold_chunk=invoke.fold_invoke,
        is_content=invoke.has_content,
        is_complete=invoke.is_complete,
        read_error=read_error,
    )


CONVERSE: Final = Endpoint(
    operation=Operation.CHAT,
    read_request=_guarded(converse.read_converse_request),
    read_response=read_converse,
    fold_chunk=converse.fold_converse,
    is_content=converse.has_content,
    is_complete=is_done,
    read_error=read_error,
)
_IMAGE: Final = _invoking(Operation.GENERATE_CONTENT)
_INVOKE: Final[Mapping[Operation, Endpoint]] = {
    Operation.CHAT: _invoking(Operation.CHAT),
    Operation.TEXT_COMPLETION: _invoking(Operation.TEXT_COMPLETION),
    Operation.GENERATE_CONTENT: _IMAGE,
    Operation.EMBEDDINGS: Endpoint(
        operation=Operation.EMBEDDINGS,
        read_request=invoke.read_embeddings_request,
        read_response=invoke.read_invoke_embeddings,
        read_error=read_error,
    ),
    Operation.RERANK: Endpoint(
        operation=Operation.RERANK,
        read_request=invoke.read_rerank_request,
        read_response=invoke.read_invoke_rerank,
        read_error=read_error,
    ),
}
_JOBS: Final[Mapping[Operation, Endpoint]] = {
    operation: Endpoint(
        operation=operation, read_request=read_request, read_response=read_response, read_error=read_error
    )
    for operation, read_request, read_response in (
        (Operation.GENERATE_CONTENT, jobs.read_video_request, jobs.read_video),
        (Operation.EMBEDDINGS, jobs.read_embeddings_request, jobs.read_embeddings),
    )
}

"""OpenTelemetry's conventions as published, and what a span, event or metric has against them.

Written from the published texts, not from our registry, so that the two can disagree: GenAI spans and
metrics of semantic-conventions v1.41.0 with the span attributes of semantic-conventions-genai's main branch,
databases, HTTP, processes and hardware of v1.44.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from opentelemetry.trace import SpanKind, StatusCode

from neuronscope.signals import names
from neuronscope.signals.records import SpanEvent, SpanRecord

SERVER = {"server.address": "string", "server.port": "int", "error.type": "string"}
HTTP_CLIENT = {"http.response.status_code": "int", "http.request.resend_count": "int"}
MODEL = {"gen_ai.request.model": "string", "gen_ai.response.model": "string"}
_USAGE = {
    f"gen_ai.usage.{name}": "int"
    for name in (
        "input_tokens", "output_tokens", "cache_read.input_tokens", "cache_write.input_tokens",
        "reasoning.output_tokens", "text.input_tokens", "image.input_tokens", "audio.input_tokens",
        "text.output_tokens", "image.output_tokens", "audio.output_tokens",
    )
}  # fmt: skip
INFERENCE = {
    **SERVER,
    **MODEL,
    **_USAGE,
    "gen_ai.conversation.id": "string",
    "gen_ai.conversation.compacted": "boolean",
    "gen_ai.output.type": "string",
    "gen_ai.prompt.name": "string",
    "gen_ai.prompt.version": "string",
    "gen_ai.request.choice.count": "int",
    "gen_ai.request.seed": "int",
    "gen_ai.request.stream": "boolean",
    "gen_ai.request.frequency_penalty": "double",
    "gen_ai.request.max_tokens": "int",
    "gen_ai.request.presence_penalty": "double",
    "gen_ai.request.previous_response.id": "string",
    "gen_ai.request.reasoning.level": "string",
    "gen_ai.request.stop_sequences": "string[]",
    "gen_ai.request.stream_cursor": "string",
    "gen_ai.request.temperature": "double",
    "gen_ai.request.top_k": "int",
    "gen_ai.request.top_p": "double",
    "gen_ai.response.finish_reasons": "string[]",
    "gen_ai.response.id": "string",
    "gen_ai.response.time_to_first_chunk": "double",
    "gen_ai.input.messages": "any",
    "gen_ai.output.messages": "any",
    "gen_ai.system_instructions": "any",
    "gen_ai.tool.definitions": "any",
    "openai.api.type": "string",
    "openai.request.service_tier": "string",
    "openai.response.service_tier": "string",
    "openai.response.system_fingerprint": "string",
    "aws.request_id": "string",
    "aws.bedrock.guardrail.id": "string",
}
EMBEDDINGS = {
    **SERVER,
    **MODEL,
    "gen_ai.embeddings.dimension.count": "int",
    "gen_ai.request.encoding_formats": "string[]",
    "gen_ai.usage.input_tokens": "int",
    "aws.request_id": "string",
}
DATABASE = {
    **SERVER,
    "db.system.name": "string",
    "db.collection.name": "string",
    "db.namespace": "string",
    "db.operation.name": "string",
    "db.operation.batch.size": "int",
    "db.query.summary": "string",
    "db.response.returned_rows": "int",
    "db.response.status_code": "string",
}
RETRIEVAL = {
    **DATABASE,
    "gen_ai.data_source.id": "string",
    "gen_ai.request.model": "string",
    "gen_ai.retrieval.top_k": "int",
    "gen_ai.retrieval.documents": "any",
    "gen_ai.retrieval.query.text": "string",
}
TOOL = {
    "error.type": "string",
    "gen_ai.tool.name": "string",
    "gen_ai.tool.call.id": "string",
    "gen_ai.tool.description": "string",
    "gen_ai.tool.type": "string",
    "gen_ai.tool.call.arguments": "any",
    "gen_ai.tool.call.result": "any",
}
WORKFLOW = {
    "error.type": "string",
    "gen_ai.workflow.name": "string",
    "gen_ai.input.messages": "any",
    "gen_ai.output.messages": "any",
}
AGENT = {
    **{key: kind for key, kind in INFERENCE.items() if not key.startswith(("openai.", "aws."))},
    "gen_ai.agent.name": "string",
    "gen_ai.agent.id": "string",
    "gen_ai.agent.description": "string",
    "gen_ai.data_source.id": "string",
}
FETCH = {
    **SERVER,
    **MODEL,
    "gen_ai.response.id": "string",
    "gen_ai.response.status": "string",
    "gen_ai.response.finish_reasons": "string[]",
    "gen_ai.output.messages": "any",  # of a call made in the background it comes nowhere else
    "openai.api.type": "string",
    "openai.response.service_tier": "string",
    "gen_ai.request.stream": "boolean",
    "gen_ai.request.stream_cursor": "string",
    "gen_ai.response.time_to_first_chunk": "double",
}
HTTP_SERVER = {
    **SERVER,
    "http.request.method": "string",
    "http.route": "string",
    "http.response.status_code": "int",
    "url.scheme": "string",
    "network.protocol.version": "string",
}
_BOTH = {"gen_ai.operation.name": "string", "gen_ai.provider.name": "string"}
# By gen_ai.operation.name: attributes, which of them are required, kinds.  An operation that is not listed
# (a provider's own: image generation, transcription, reranking, moderation) is read as an inference.
OPERATIONS: dict[str, tuple[Mapping[str, str], frozenset[str], frozenset[SpanKind]]] = {
    "embeddings": (EMBEDDINGS, frozenset(_BOTH), frozenset({SpanKind.CLIENT, SpanKind.INTERNAL})),
    "retrieval": (
        RETRIEVAL, frozenset({"gen_ai.operation.name"}), frozenset({SpanKind.CLIENT, SpanKind.INTERNAL})
    ),
    # No published span: a model call, which says what it reranks in a retrieval's words.
    "rerank": (
        {**INFERENCE, "gen_ai.retrieval.top_k": "int", "gen_ai.retrieval.query.text": "string"},
        frozenset(_BOTH), frozenset({SpanKind.CLIENT, SpanKind.INTERNAL})
    ),
    "execute_tool": (
        TOOL, frozenset({"gen_ai.operation.name", "gen_ai.tool.name"}), frozenset({SpanKind.INTERNAL})
    ),
    "invoke_workflow": (WORKFLOW, frozenset({"gen_ai.operation.name"}), frozenset({SpanKind.INTERNAL})),
    "invoke_agent": (
        AGENT, frozenset({"gen_ai.operation.name"}), frozenset({SpanKind.CLIENT, SpanKind.INTERNAL})
    ),
    "fetch_response": (FETCH, frozenset(_BOTH), frozenset({SpanKind.CLIENT})),
}  # fmt: skip
_INFERENCE = (INFERENCE, frozenset(_BOTH), frozenset({SpanKind.CLIENT, SpanKind.INTERNAL}))
# Namespaces that belong to OpenTelemetry: nobody invents names in them.
RESERVED = (
    "gen_ai.", "db.", "http.", "server.", "error.", "exception.", "openai.", "aws.", "url.", "network.",
    "client.", "user_agent.", "rpc.",
)  # fmt: skip
EVENTS = frozenset(
    {"gen_ai.client.inference.operation.details", "gen_ai.client.operation.exception", "exception"}
)

D = tuple(0.01 * 2**n for n in range(14))
T = tuple(float(4**n) for n in range(14))
_GENAI_LABELS = {
    "gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model",
    "server.address", "server.port",
}  # fmt: skip
# Metric: instrument, unit, buckets, attributes it may have.
_HARDWARE = {"hw.id", "hw.name", "hw.parent", "hw.model", "hw.vendor"}
METRICS: dict[str, tuple[str, str, tuple[float, ...], set[str]]] = {
    "gen_ai.client.token.usage": ("histogram", "{token}", T, {*_GENAI_LABELS, "gen_ai.token.type"}),
    "gen_ai.client.operation.duration": ("histogram", "s", D, {*_GENAI_LABELS, "error.type"}),
    "gen_ai.client.operation.time_to_first_chunk": ("histogram", "s", D, _GENAI_LABELS),
    "gen_ai.client.operation.time_per_output_chunk": ("histogram", "s", D, _GENAI_LABELS),
    "db.client.operation.duration": (
        "histogram", "s", (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0),
        {"db.system.name", "db.collection.name", "db.namespace", "db.operation.name", "error.type",
         "server.address", "server.port", "db.query.summary", "db.response.status_code"},
    ),
    "http.server.request.duration": (
        "histogram", "s", (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
        {"http.request.method", "http.route", "http.response.status_code", "url.scheme", "error.type",
         "network.protocol.version", "server.address", "server.port"},
    ),
    # Where the conventions have an UpDownCounter that is observed, we have a gauge: both are read alike.
    "process.cpu.time": ("counter", "s", (), {"cpu.mode"}),
    "process.memory.usage": ("gauge", "By", (), set()),
    "process.memory.virtual": ("gauge", "By", (), set()),
    "process.unix.file_descriptor.count": ("gauge", "{file_descriptor}", (), set()),
    "process.thread.count": ("gauge", "{thread}", (), set()),
    "process.context_switches": ("counter", "{context_switch}", (), {"process.context_switch.type"}),
    "hw.gpu.utilization": ("gauge", "1", (), {*_HARDWARE, "hw.gpu.task"}),
    "hw.gpu.memory.usage": ("gauge", "By", (), _HARDWARE),
    "hw.gpu.memory.limit": ("gauge", "By", (), _HARDWARE),
    "hw.temperature": ("gauge", "Cel", (), {*_HARDWARE, "hw.type"}),
    "hw.power": ("gauge", "W", (), {*_HARDWARE, "hw.type"}),
    "hw.energy": ("counter", "J", (), {*_HARDWARE, "hw.type"}),
}  # fmt: skip


def problems(record: SpanRecord) -> list[str]:
    """What a span has against the conventions and our registry; nothing, if all is well."""
    found = [f"{record.name!r}: {problem}" for problem in _problems(record)]
    for event in record.events:
        found += [f"{record.name!r}, event {event.name!r}: {problem}" for problem in _event(event)]
    return found


def _problems(record: SpanRecord) -> Iterator[str]:
    attributes = record.attributes
    operation = attributes.get("gen_ai.operation.name")
    if isinstance(operation, str):
        known, required, kinds = OPERATIONS.get(operation, _INFERENCE)
        known = {**known, **_BOTH, **HTTP_CLIENT}
        yield from (f"{key} is missing" for key in sorted(required - attributes.keys()))
        if record.kind not in kinds:
            yield f"a span of kind {record.kind} for {operation}"
    elif "db.system.name" in attributes:
        known = {**DATABASE, **HTTP_CLIENT}
        if "db.operation.name" not in attributes:
            yield "db.operation.name is missing"
    elif record.kind is SpanKind.SERVER:
        known = HTTP_SERVER
        for key in ("http.request.method", "url.scheme"):
            if key not in attributes:
                yield f"{key} is missing"
    else:
        known = {"error.type": "string"}
    for key, value in attributes.items():
        yield from _attribute(key, value, known)
    if "server.port" in attributes and "server.address" not in attributes:
        yield "server.port without server.address"
    if record.status is StatusCode.OK:
        yield "status OK is the service's to set"
    if ("error.type" in attributes) is not (record.status is StatusCode.ERROR):
        yield f"status {record.status} with error.type {attributes.get('error.type')!r}"


def _attribute(key: str, value: Any, known: Mapping[str, str]) -> Iterator[str]:
    if key.startswith("neuronscope."):
        if key not in names.ATTRIBUTES:
            yield f"{key} is not in the registry"
        elif not _is(names.ATTRIBUTES[key].type, value):
            yield f"{key} is {value!r}, not {names.ATTRIBUTES[key].type}"
    elif key.startswith(RESERVED):
        if key not in known:
            yield f"{key} is not in the conventions for this span"
        elif not _is(known[key], value):
            yield f"{key} is {value!r}, not {known[key]}"
        elif key not in names.ATTRIBUTES:
            yield f"{key} is not in our registry"


def _event(event: SpanEvent) -> Iterator[str]:
    if event.name == names.RETRIEVAL_QUERY:
        known = {**RETRIEVAL, **_BOTH}
    elif event.name == "exception":
        known = {f"exception.{name}": "string" for name in ("type", "message", "stacktrace", "escaped")}
    elif event.name.startswith(RESERVED) and event.name not in EVENTS:
        yield "is not in the conventions"
        return
    else:
        return  # the service's own
    for key, value in event.attributes.items():
        yield from _attribute(key, value, known)


def _is(kind: str, value: Any) -> bool:
    if kind.endswith("[]"):
        return isinstance(value, list | tuple) and all(
            _is(kind[:-2], item) for item in cast("Sequence[Any]", value)
        )
    if kind in ("string", "any"):
        return isinstance(value, str)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, int | float) and not isinstance(value, bool)

"""Recordings made by hand: an incident, strings meant to do harm, and very many spans and layers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from opentelemetry.trace import SpanKind, StatusCode

from neuronscope.artifact import Artifact, Telemetry
from neuronscope.signals import names
from neuronscope.signals.records import Fidelity, LayerRecord, LogRecord, SpanEvent, SpanLink, SpanRecord
from neuronscope.signals.tensors import TensorSummary

START: Final = 1_790_000_000_000_000_000
MS: Final = 1_000_000

# Each would show if anything in the page took text for markup or script.
HOSTILE: Final = (
    "</script><script>window.harmed = 1</script>",
    "<img src=x onerror='window.harmed = 2'>",
    "\"><svg onload=window.harmed=3>'",
    "{{script}} {{data}} ${window.harmed = 4} <!-- <script>",
    "javascript:window.harmed=5",
    "right \u202eto left\u202c and \u2066isolated\u2069, zero\u200bwidth",
    "bell\x07 escape\x1b[31m null\x00 lone \ud800 line\u2028end",
    "%s%n\\u003c/script\\u003e &lt;b&gt; &amp;",
)


def span(number: int, **changes: Any) -> SpanRecord:
    """A span; its trace, times and name follow from the number unless they are given."""
    fields: dict[str, Any] = {
        "trace_id": 0xA000 + number,
        "span_id": 0xB000 + number,
        "name": f"span {number}",
        "kind": SpanKind.INTERNAL,
        "start_unix_ns": START + number * MS,
        "end_unix_ns": START + (number + 1) * MS,
        "attributes": {},
    }
    return SpanRecord(**(fields | changes))


def summary(value: float = 1.0, nan: int = 0, inf: int = 0) -> TensorSummary:
    """Statistics around a value."""
    return TensorSummary(1000, value / 9, value / 3, value, -value, value, value, 10, nan, inf)


def layer(number: int, step: int, of: SpanRecord | None, **changes: Any) -> LayerRecord:
    """A record of block `number` at a step of a span."""
    fields: dict[str, Any] = {
        "model": "tiny",
        "layer_id": f"model.layers.{number}",
        "step": step,
        "time_unix_ns": START + step * MS,
        "shape": (1, 7, 64),
        "dtype": "BF16",
        "trace_id": of.trace_id if of else None,
        "span_id": of.span_id if of else None,
        "summary": summary(1.0 + number * 3 + math.sin(step)),
    }
    return LayerRecord(**(fields | changes))


def artifact(spans: Sequence[SpanRecord], layers: Sequence[LayerRecord] = (), **changes: Any) -> Artifact:
    """An artifact of one process, called ``service``."""
    services = {(one.trace_id, one.span_id): "service" for one in spans}
    fields: dict[str, Any] = {
        "resources": ({"service.name": "service"},),
        "services": services,
        "path": "run.nsz",
    }
    fields |= changes
    return Artifact(Telemetry(spans, layers), **fields)


def incident() -> Artifact:
    """Two processes; a model whose layers 3 and 4 overflow from step 6 on, some steps without a record."""
    trace = 0xC0FFEE
    ask = span(0, trace_id=trace, name="POST /ask", kind=SpanKind.SERVER, end_unix_ns=START + 3000 * MS)
    search = span(
        1,
        trace_id=trace,
        name="retrieval handbook",
        kind=SpanKind.CLIENT,
        parent_span_id=ask.span_id,
        end_unix_ns=START + 40 * MS,
        attributes={
            names.OPERATION_NAME: "retrieval",
            names.DB_SYSTEM: "qdrant",
            names.DB_COLLECTION: "handbook",
            names.RETRIEVAL_TOP_K: 4,
            names.RETRIEVAL_RETURNED: 3,
            names.RETRIEVAL_EMPTY: False,
            names.RETRIEVAL_METRIC: "cosine",
            names.RETRIEVAL_IDS: ["leave-policy", "travel", "expenses"],
            names.RETRIEVAL_SCORES: [0.81, 0.79, -0.12],
            names.RETRIEVAL_TOP_SCORE: 0.81,
            names.RETRIEVAL_KTH_SCORE: -0.12,
            names.RETRIEVAL_MARGIN: 1.148,
        },
    )
    chat = span(
        2,
        trace_id=trace,
        name="chat tiny",
        kind=SpanKind.CLIENT,
        parent_span_id=ask.span_id,
        start_unix_ns=START + 50 * MS,
        end_unix_ns=START + 2950 * MS,
        status=StatusCode.ERROR,
        status_message="connection lost",
        events=(
            SpanEvent("exception", START + 2900 * MS, {names.EXCEPTION_TYPE: "openai.APIConnectionError"}),
        ),
        links=(SpanLink(1, 2),),
        attributes={
            names.OPERATION_NAME: "chat",
            names.PROVIDER_NAME: "openai",
            names.REQUEST_MODEL: "tiny",
            names.INPUT_TOKENS: 247,
            names.TIME_TO_FIRST_CHUNK: 0.9,
            names.STREAM_CHUNKS: 11,
            names.STREAM_END: "error",
            names.ERROR_TYPE: "APIConnectionError",
        },
    )
    generate = span(
        3,
        trace_id=trace,
        name="text_completion tiny",
        parent_span_id=chat.span_id,
        start_unix_ns=START + 60 * MS,
        end_unix_ns=START + 2900 * MS,
        attributes={
            names.OPERATION_NAME: "text_completion",
            names.MODEL_NAME: "tiny",
            names.MODEL_FORWARDS: 12,
            names.MODEL_PREFILL: 0.8,
            names.LAYERS_OBSERVED: 6,
            names.LAYERS_RECORDS: 48,
            names.LAYERS_SKIPPED: 24,
            names.LAYERS_NON_FINITE: 640,
            names.FIDELITY: Fidelity.SUMMARY.value,
            names.FIDELITY_REASON: "budget",
            "neuronscope.overhead.accounted": 0.083,
        },
    )
    spans = [ask, search, chat, generate]
    services = {(trace, one.span_id): "model-server" if one is generate else "rag-service" for one in spans}
    lost = SpanEvent("nsz.lost", START, {"item": "span", "reason": "disk_full", "count": 7})
    return artifact(
        spans,
        list(_overflowing(generate)),
        services=services,
        resources=({"service.name": "rag-service"}, {"service.name": "model-server"}),
        damage=("1 chunks are missing",),
        events=(lost,),
    )


def _overflowing(call: SpanRecord) -> Iterator[LayerRecord]:
    for step in (0, 1, 2, 4, 5, 6, 8, 9):
        for number in range(6):
            bad = step >= 6 and number in (3, 4)
            values = summary(60000.0 if bad else 1.0 + 3 * number, nan=96 if bad else 0, inf=32 if bad else 0)
            yield layer(number, step, call, summary=values)


def hostile() -> Artifact:
    """Harmful strings in every place that takes one, a megabyte of them too."""
    spans = [
        span(
            number,
            name=text,
            library=text,
            status=StatusCode.ERROR,
            status_message=text,
            events=(SpanEvent(text, START, {text: text}),),
            attributes={
                names.OPERATION_NAME: "retrieval",
                names.ERROR_TYPE: text,
                names.RETRIEVAL_IDS: [text, text],
                names.RETRIEVAL_SCORES: [0.5],
                names.LAYERS_NOT_VISITED: [text],
                names.TIME_TO_FIRST_CHUNK: text,
                names.RETRIEVAL_MARGIN: text,
                text: text,
                "long": text * (1_000_000 // len(text)),
            },
        )
        for number, text in enumerate(HOSTILE)
    ]
    layers = [
        layer(0, 0, one, layer_id=one.name, model=one.name, role=one.name, dtype=one.name) for one in spans
    ]
    return artifact(
        spans,
        layers,
        services={(one.trace_id, one.span_id): one.name for one in spans},
        resources=tuple({"service.name": text, text: text} for text in HOSTILE),
        damage=HOSTILE,
        events=tuple(SpanEvent(text, START, {text: text}) for text in HOSTILE),
        logs=[
            LogRecord(START, 0, 9, text, text, {text: ({text: text},)}, one.trace_id, one.span_id, 0, text)
            for one, text in zip(spans, HOSTILE, strict=True)
        ],
        path=HOSTILE[0].replace("/", "_") + ".nsz",
    )


def many_spans(number: int, in_trace: int) -> Artifact:
    """Spans of the usual kind, so many to a trace."""
    about = {names.OPERATION_NAME: "chat", names.PROVIDER_NAME: "openai", names.REQUEST_MODEL: "tiny"}
    spans: list[SpanRecord] = []
    for place in range(number):
        first = place - place % in_trace
        parent = None if place == first else 0xB000 + first + (place - first - 1) // 5
        facts = about | {names.INPUT_TOKENS: place, names.OUTPUT_TOKENS: 7, names.RESPONSE_ID: f"id-{place}"}
        spans.append(span(place, trace_id=0xD0000 + first, parent_span_id=parent, attributes=facts))
    return artifact(spans)


def many_layers(layers: int, steps: int) -> Artifact:
    """One call with a record for every layer and step."""
    call = span(0, name="generate tiny", attributes={names.MODEL_NAME: "tiny", names.MODEL_FORWARDS: steps})
    return artifact([call], [layer(number, step, call) for step in range(steps) for number in range(layers)])

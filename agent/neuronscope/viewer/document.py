"""A recording as JSON-able data: what ``--format json`` prints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from msgspec.structs import asdict
from opentelemetry.trace import SpanKind

from neuronscope.artifact import Artifact
from neuronscope.signals.records import LayerRecord, LogRecord, SpanRecord
from neuronscope.signals.tensors import TensorSummary
from neuronscope.signals.views import LLMSpan, RetrievalSpan


def document(artifact: Artifact, *, layers: bool = True) -> dict[str, Any]:
    """Everything in the artifact but tensor values.  Non-finite numbers become text."""
    return {
        "resources": [dict(resource) for resource in artifact.resources],
        "spans": [span_document(span) for span in artifact.telemetry.spans],
        "llm_spans": [llm_document(span) for span in artifact.llm_spans],
        "retrieval_spans": [retrieval_document(span) for span in artifact.retrieval_spans],
        "layer_snapshots": [layer_document(record) for record in artifact.telemetry.layer_snapshots]
        if layers
        else [],
        "logs": [log_document(log) for log in artifact.logs],
        "events": [
            {
                "name": event.name,
                "time_unix_ns": event.time_unix_ns,
                "attributes": {key: plain(value) for key, value in event.attributes.items()},
            }
            for event in artifact.events
        ],
        "damage": list(artifact.damage),
    }


def span_document(span: SpanRecord) -> dict[str, Any]:
    """One span."""
    return {
        "trace_id": f"{span.trace_id:032x}",
        "span_id": f"{span.span_id:016x}",
        "parent_span_id": None if span.parent_span_id is None else f"{span.parent_span_id:016x}",
        "name": span.name,
        "kind": SpanKind(span.kind).name,
        "start_unix_ns": span.start_unix_ns,
        "duration_ms": span.duration_ms,
        "status": span.status.name,
        "library": span.library,
        "attributes": {key: plain(value) for key, value in span.attributes.items()},
    }


def llm_document(view: LLMSpan) -> dict[str, Any]:
    """One model call."""
    return {
        "trace_id": f"{view.span.trace_id:032x}",
        "span_id": f"{view.span.span_id:016x}",
        "operation": view.operation,
        "provider": view.provider,
        "model": view.model,
        "prompt_tokens": view.prompt_tokens,
        "completion_tokens": view.completion_tokens,
        "finish_reason": view.finish_reason,
        "latency_ms": view.latency_ms,
        "time_to_first_chunk_ms": view.time_to_first_chunk_ms,
        "error_type": view.error_type,
    }


def retrieval_document(view: RetrievalSpan) -> dict[str, Any]:
    """One similarity search."""
    return {
        "trace_id": f"{view.span.trace_id:032x}",
        "span_id": f"{view.span.span_id:016x}",
        "store": view.store,
        "collection": view.collection,
        "namespace": view.namespace,
        "index": view.index,
        "query_count": view.query_count,
        "k": view.k,
        "returned": view.returned,
        "filtered": view.filtered,
        "metric": view.metric,
        "ids": list(view.ids),
        "scores": [plain(score) for score in view.scores],
        "normalised_scores": [plain(score) for score in view.normalised_scores],
        "top_score": plain(view.top_score),
        "margin": plain(view.margin),
        "metadata_keys": list(view.metadata_keys),
        "stages": [{"kind": stage.kind, "name": stage.name, "k": stage.k} for stage in view.stages],
        "query_fingerprint": view.query_fingerprint,
        "latency_ms": view.latency_ms,
        "error_type": view.error_type,
    }


def layer_document(record: LayerRecord) -> dict[str, Any]:
    """One layer record, without the tensor's values."""
    summary = record.summary
    return {
        "trace_id": None if record.trace_id is None else f"{record.trace_id:032x}",
        "span_id": None if record.span_id is None else f"{record.span_id:016x}",
        "model": record.model,
        "layer_id": record.layer_id,
        "step": record.step,
        "role": record.role,
        "time_unix_ns": record.time_unix_ns,
        "shape": list(record.shape),
        "dtype": record.dtype,
        "fidelity": record.fidelity.value,
        "has_tensor": record.tensor is not None,
        "summary": None if summary is None else {key: plain(value) for key, value in _told(summary)},
    }


def log_document(log: LogRecord) -> dict[str, Any]:
    """One log record."""
    return {
        "trace_id": f"{log.trace_id:032x}" if log.trace_id else None,
        "span_id": f"{log.span_id:016x}" if log.span_id else None,
        "time_unix_ns": log.time_unix_ns,
        "severity": log.severity,
        "severity_text": log.severity_text,
        "event_name": log.event_name,
        "body": plain(log.body),
        "library": log.library,
        "attributes": plain(log.attributes),
    }


def _told(summary: TensorSummary) -> Iterator[tuple[str, Any]]:
    """The statistics; a histogram and a sketch only where they were asked for."""
    for key, value in asdict(summary).items():
        if value is not None:
            yield key, value


def plain(value: Any) -> Any:
    """JSON has no NaN: non-finite numbers become ``"NaN"``, ``"Infinity"``, ``"-Infinity"``."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("Sequence[object]", value)]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in cast("Mapping[str, object]", value).items()}
    if isinstance(value, bytes):
        return value.hex()
    return value

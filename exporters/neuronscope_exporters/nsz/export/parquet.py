"""Parquet tables of spans, layer records and log records: a fleet's recordings become one table for SQL.

Needs pyarrow (the extra `parquet`).  One row a record; common attributes have columns of their own, all of
them are in `attributes`, as text.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec

from neuronscope.exceptions import MissingDependencyError
from neuronscope.signals import names
from neuronscope.signals.records import LayerRecord, LogRecord, SpanRecord
from neuronscope_exporters.nsz.export import Progress, replacing
from neuronscope_exporters.nsz.reader import NszFile, Resource
from neuronscope_exporters.nsz.writer import ignore

_ROWS: Final = 10_000  # of a row group
_Row = dict[str, Any]
# Columns for attributes: name -> (key, Arrow type, Python types that fit it).
_PROMOTED: Final[Mapping[str, tuple[str, str, tuple[type, ...]]]] = {
    "operation": (names.OPERATION_NAME, "string", (str,)),
    "provider": (names.PROVIDER_NAME, "string", (str,)),
    "request_model": (names.REQUEST_MODEL, "string", (str,)),
    "response_model": (names.RESPONSE_MODEL, "string", (str,)),
    "input_tokens": (names.INPUT_TOKENS, "int64", (int,)),
    "output_tokens": (names.OUTPUT_TOKENS, "int64", (int,)),
    "error_type": (names.ERROR_TYPE, "string", (str,)),
    "collection": (names.DB_COLLECTION, "string", (str,)),
    "retrieval_empty": (names.RETRIEVAL_EMPTY, "bool_", (bool,)),
    "retrieval_top_score": (names.RETRIEVAL_TOP_SCORE, "float64", (float, int)),
    "retrieval_margin": (names.RETRIEVAL_MARGIN, "float64", (float, int)),
    "layers_non_finite": (names.LAYERS_NON_FINITE, "int64", (int,)),
}


def to_parquet(files: Sequence[NszFile], out: str | os.PathLike[str], progress: Progress = ignore) -> int:
    """Write `spans.parquet`, `layers.parquet` and `logs.parquet` into a directory; how many rows there were.

    Raises:
        MissingDependencyError: pyarrow is not installed.
    """
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise MissingDependencyError("export to Parquet", "pyarrow", "parquet") from error
    folder = Path(out)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        replacing(folder / "spans.parquet") as spans_file,
        replacing(folder / "layers.parquet") as layers_file,
        replacing(folder / "logs.parquet") as logs_file,
    ):
        spans = _Table(arrow, parquet, spans_file, _span_schema(arrow))
        layers = _Table(arrow, parquet, layers_file, _layer_schema(arrow))
        logs = _Table(arrow, parquet, logs_file, _log_schema(arrow))
        total, before = sum(file.size for file in files), 0
        for file in files:
            for number, place in enumerate(file.chunks):
                for record, resource in file.records(number, number + 1):
                    if isinstance(record, SpanRecord):
                        spans.add(_span_row(record, resource))
                    elif isinstance(record, LayerRecord):
                        layers.add(_layer_row(record, resource))
                    elif isinstance(record, LogRecord):
                        logs.add(_log_row(record, resource))
                progress(before + place.offset, total)
            before += file.size
        progress(total, total)
        return spans.close() + layers.close() + logs.close()


class _Table:
    """Rows on their way into a file."""

    def __init__(self, arrow: Any, parquet: Any, file: Any, schema: Any) -> None:
        self._arrow, self._schema = arrow, schema
        self._writer = parquet.ParquetWriter(file, schema, compression="zstd")
        self._rows: list[_Row] = []
        self._written = 0

    def add(self, row: _Row) -> None:
        """Add a row."""
        self._rows.append(row)
        if len(self._rows) == _ROWS:
            self._flush()

    def close(self) -> int:
        """Write the rest; how many rows there were."""
        self._flush()
        self._writer.close()
        return self._written

    def _flush(self) -> None:
        self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
        self._written += len(self._rows)
        self._rows = []


def _span_schema(arrow: Any) -> Any:
    time = arrow.timestamp("us", tz="UTC")  # Spark reads no nanoseconds
    text_map = arrow.map_(arrow.string(), arrow.string())
    return arrow.schema([
        ("trace_id", arrow.string()), ("span_id", arrow.string()), ("parent_span_id", arrow.string()),
        ("service", arrow.string()), ("name", arrow.string()), ("kind", arrow.string()),
        ("start", time), ("end", time), ("start_unix_ns", arrow.int64()), ("duration_ms", arrow.float64()),
        ("status", arrow.string()), ("status_message", arrow.string()), ("library", arrow.string()),
        *[(column, getattr(arrow, kind)()) for column, (_, kind, _) in _PROMOTED.items()],
        ("attributes", text_map), ("resource", text_map),
    ])  # fmt: skip


def _layer_schema(arrow: Any) -> Any:
    number = arrow.float64()
    return arrow.schema([
        ("service", arrow.string()), ("model", arrow.string()), ("layer", arrow.string()),
        ("step", arrow.int64()), ("time", arrow.timestamp("us", tz="UTC")), ("time_unix_ns", arrow.int64()),
        ("trace_id", arrow.string()), ("span_id", arrow.string()),
        ("role", arrow.string()), ("index", arrow.int64()),
        ("dtype", arrow.string()), ("shape", arrow.list_(arrow.int64())), ("fidelity", arrow.string()),
        *[(name, number) for name in ("mean", "std", "l2", "min", "max", "abs_max")],
        *[(name, arrow.int64()) for name in ("count", "zero_count", "nan_count", "inf_count")],
        ("tensor_bytes", arrow.int64()),
    ])  # fmt: skip


def _log_schema(arrow: Any) -> Any:
    time = arrow.timestamp("us", tz="UTC")
    text_map = arrow.map_(arrow.string(), arrow.string())
    return arrow.schema([
        ("service", arrow.string()), ("time", time), ("time_unix_ns", arrow.int64()),
        ("severity", arrow.int64()), ("severity_text", arrow.string()), ("event_name", arrow.string()),
        ("body", arrow.string()), ("trace_id", arrow.string()), ("span_id", arrow.string()),
        ("library", arrow.string()), ("attributes", text_map), ("resource", text_map),
    ])  # fmt: skip


def _span_row(span: SpanRecord, resource: Resource) -> _Row:
    promoted: _Row = {}
    for column, (key, _, kinds) in _PROMOTED.items():
        value = span.attributes.get(key)
        if isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool)):
            promoted[column] = value
    return {
        "trace_id": f"{span.trace_id:032x}",
        "span_id": f"{span.span_id:016x}",
        "parent_span_id": None if span.parent_span_id is None else f"{span.parent_span_id:016x}",
        "service": str(resource.get("service.name", "")),
        "name": span.name,
        "kind": span.kind.name.lower(),
        "start": _time(span.start_unix_ns) // 1000,
        "end": _time(span.end_unix_ns) // 1000,
        "start_unix_ns": _time(span.start_unix_ns),
        "duration_ms": span.duration_ms,
        "status": span.status.name.lower(),
        "status_message": span.status_message,
        "library": span.library,
        **promoted,
        "attributes": _texts(span.attributes),
        "resource": _texts(resource),
    }


def _layer_row(layer: LayerRecord, resource: Resource) -> _Row:
    summary = layer.summary
    statistics = {} if summary is None else {
        "mean": summary.mean, "std": summary.std, "l2": summary.l2, "min": summary.min,
        "max": summary.max, "abs_max": summary.abs_max, "count": _time(summary.count),
        "zero_count": _time(summary.zero_count), "nan_count": _time(summary.nan_count),
        "inf_count": _time(summary.inf_count),
    }  # fmt: skip
    return {
        "service": str(resource.get("service.name", "")),
        "model": layer.model,
        "layer": layer.layer_id,
        "step": layer.step,
        "time": _time(layer.time_unix_ns) // 1000,
        "time_unix_ns": _time(layer.time_unix_ns),
        "trace_id": None if layer.trace_id is None else f"{layer.trace_id:032x}",
        "span_id": None if layer.span_id is None else f"{layer.span_id:016x}",
        "role": layer.role,
        "index": layer.index,
        "dtype": layer.dtype,
        "shape": list(layer.shape),
        "fidelity": str(layer.fidelity),
        **statistics,
        "tensor_bytes": layer.nbytes,
    }


def _log_row(log: LogRecord, resource: Resource) -> _Row:
    return {
        "service": str(resource.get("service.name", "")),
        "time": _time(log.time_unix_ns) // 1000,
        "time_unix_ns": _time(log.time_unix_ns),
        "severity": log.severity,
        "severity_text": log.severity_text,
        "event_name": log.event_name or None,
        "body": None if log.body is None else _text(log.body),
        "trace_id": f"{log.trace_id:032x}" if log.trace_id else None,
        "span_id": f"{log.span_id:016x}" if log.span_id else None,
        "library": log.library,
        "attributes": _texts(log.attributes),
        "resource": _texts(resource),
    }


def _time(number: int) -> int:
    """A number as 64 signed bits can hold it."""
    return max(-(2**63), min(number, 2**63 - 1))


def _texts(attributes: Mapping[str, object]) -> list[tuple[str, str]]:
    return [(key, _text(value)) for key, value in attributes.items()]


def _text(value: object) -> str:
    return value if isinstance(value, str) else _encode(value).decode()


_encode: Callable[[object], bytes] = msgspec.json.Encoder(enc_hook=str).encode

"""OTLP/JSON lines, as the OpenTelemetry Collector's `otlpjsonfile` receiver reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from neuronscope.signals.records import LogRecord, SpanRecord
from neuronscope_exporters.nsz import codec
from neuronscope_exporters.nsz.export import Progress, replacing
from neuronscope_exporters.nsz.reader import NszFile, Resource
from neuronscope_exporters.nsz.writer import ignore

_RECORDS_A_LINE: Final = 500
_OURS: Final = ("scope", "foreign", "resource")  # what our documents have beyond OTLP's
_Json = dict[str, Any]
_Batch = list[tuple[SpanRecord, Resource]] | list[tuple[LogRecord, Resource]]


def to_otlp_json(files: Sequence[NszFile], out: str | os.PathLike[str], progress: Progress = ignore) -> int:
    """Write spans and log records, a `TracesData` or `LogsData` to a line; how many there were."""
    total = sum(file.size for file in files)
    before = written = 0
    with replacing(out) as target:
        for file in files:
            for batch in _batches(file, before, total, progress):
                target.write(msgspec.json.encode(_document(batch)) + b"\n")
                written += len(batch)
            before += file.size
    progress(total, total)
    return written


def _batches(file: NszFile, before: int, total: int, progress: Progress) -> Iterator[_Batch]:
    """Records of one kind, in the order of the file."""
    spans: list[tuple[SpanRecord, Resource]] = []
    logs: list[tuple[LogRecord, Resource]] = []
    for number, place in enumerate(file.chunks):
        for record, resource in file.records(number, number + 1):
            if isinstance(record, SpanRecord):
                spans.append((record, resource))
                if len(spans) == _RECORDS_A_LINE:
                    yield spans
                    spans = []
            elif isinstance(record, LogRecord):
                logs.append((record, resource))
                if len(logs) == _RECORDS_A_LINE:
                    yield logs
                    logs = []
        progress(before + place.offset, total)
    if spans:
        yield spans
    if logs:
        yield logs


def _document(batch: _Batch) -> _Json:
    """Records under their scope under their resource."""
    kind, of_scope, items = ("Spans", "scopeSpans", "spans")
    if isinstance(batch[0][0], LogRecord):
        kind, of_scope, items = ("Logs", "scopeLogs", "logRecords")
    resources: dict[int, tuple[Resource, dict[tuple[str, str], list[_Json]]]] = {}
    for record, resource in batch:
        _, scopes = resources.setdefault(id(resource), (resource, {}))
        data = codec.encode_span(record) if isinstance(record, SpanRecord) else codec.encode_log(record)
        document: _Json = msgspec.json.decode(data)
        for name in _OURS:
            document.pop(name, None)
        scopes.setdefault((record.library, record.library_version), []).append(document)
    return {
        f"resource{kind}": [
            {
                "resource": msgspec.to_builtins(codec.resource_document(resource)),
                of_scope: [
                    {"scope": {"name": name, "version": version}, items: documents}
                    for (name, version), documents in scopes.items()
                ],
            }
            for resource, scopes in resources.values()
        ]
    }

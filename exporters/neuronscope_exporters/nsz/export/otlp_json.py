"""OTLP/JSON lines, as the OpenTelemetry Collector's `otlpjsonfile` receiver reads them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from neuronscope.signals.records import SpanRecord
from neuronscope_exporters.nsz import codec
from neuronscope_exporters.nsz.export import Progress, replacing
from neuronscope_exporters.nsz.reader import NszFile, Resource
from neuronscope_exporters.nsz.writer import ignore

_SPANS_A_LINE: Final = 500
_OURS: Final = ("scope", "foreign", "resource")  # what our spans have beyond OTLP's
_Json = dict[str, Any]


def to_otlp_json(files: Sequence[NszFile], out: str | os.PathLike[str], progress: Progress = ignore) -> int:
    """Write the spans, a `TracesData` to a line; how many there were."""
    total = sum(file.size for file in files)
    before = written = 0
    with replacing(out) as target:
        for file in files:
            for spans in _batches(file, before, total, progress):
                target.write(msgspec.json.encode({"resourceSpans": _by_resource(spans)}) + b"\n")
                written += len(spans)
            before += file.size
    progress(total, total)
    return written


def _batches(
    file: NszFile, before: int, total: int, progress: Progress
) -> Iterator[list[tuple[SpanRecord, Resource]]]:
    batch: list[tuple[SpanRecord, Resource]] = []
    for number, place in enumerate(file.chunks):
        for record, resource in file.records(number, number + 1):
            if isinstance(record, SpanRecord):
                batch.append((record, resource))
                if len(batch) == _SPANS_A_LINE:
                    yield batch
                    batch = []
        progress(before + place.offset, total)
    if batch:
        yield batch


def _by_resource(spans: Sequence[tuple[SpanRecord, Resource]]) -> list[_Json]:
    """Spans under their scope under their resource."""
    resources: dict[int, tuple[Resource, dict[tuple[str, str], list[_Json]]]] = {}
    for span, resource in spans:
        _, scopes = resources.setdefault(id(resource), (resource, {}))
        document: _Json = msgspec.json.decode(codec.encode_span(span))
        for name in _OURS:
            document.pop(name, None)
        scopes.setdefault((span.library, span.library_version), []).append(document)
    return [
        {
            "resource": msgspec.to_builtins(codec.resource_document(resource)),
            "scopeSpans": [
                {"scope": {"name": name, "version": version}, "spans": documents}
                for (name, version), documents in scopes.items()
            ],
        }
        for resource, scopes in resources.values()
    ]

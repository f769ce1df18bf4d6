"""One pass over a side's recording, a record at a time; no span is kept.

Damaged and unfinished files are read as far as they go, and what is missing is told.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, TypeAlias, cast
from zlib import crc32

import numpy as np
from opentelemetry.trace import SpanKind

from neuronscope.artifact import Artifact, in_words
from neuronscope.diagnosis.comparing.columns import Columns, Table
from neuronscope.diagnosis.comparing.result import Side
from neuronscope.diagnosis.comparing.rows import CALLS, add_layer, add_span, weight_of
from neuronscope.exporters import registry
from neuronscope.signals import names
from neuronscope.signals.records import LayerRecord, SpanEvent, SpanRecord

StrPath: TypeAlias = str | PathLike[str]
Source: TypeAlias = "StrPath | Iterable[StrPath] | Artifact | Sequence[SpanRecord]"
Progress = Callable[[int, int], None]
_FOREVER: Final = 2**63
_ENVIRONMENT: Final = {
    "telemetry.sdk.version": "OpenTelemetry",
    "telemetry.distro.version": "NeuronScope",
    "process.runtime.version": "Python",
    "host.arch": "architecture",
    "host.cpu.model.name": "processor",
    "os.description": "system",
    "service.version": "service",
    names.HOST_CPUS: "processors",
    names.GPU_DRIVER: "GPU driver",
}
_ENVIRONMENT_LISTS: Final = (names.PACKAGES, names.GPUS)


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time, in unix nanoseconds; its end does not belong to it."""

    start: int = 0
    end: int = _FOREVER


@dataclass
class _Trace:
    """What a trace tells of its request."""

    route: str = ""
    service: str = ""
    root: tuple[int, int] | None = None
    status: float = math.nan
    error: str = ""
    weight: float = 1.0
    root_id: int = 0
    calls: list[tuple[int, int, int | None]] = field(default_factory=list[tuple[int, int, int | None]])
    spans: int = 0


class Reader:
    """Makes the columns of one side.  For one thread; to be closed when the columns' tensors were looked at.

    Args:
        window: only spans and layer records that began within it.
    """

    def __init__(self, window: Window | None = None) -> None:
        self.columns = Columns()
        self._window = window or Window()
        self._traces: dict[int, _Trace] = {}
        self._names: dict[int, str] = {}
        self._paths: tuple[str, ...] = ()
        self._open: list[Any] = []

    def read(self, source: Source, progress: Progress | None = None) -> None:
        """Read a source to its end.

        Raises:
            FileNotFoundError: a path does not exist.
            NszError: a file named is no `.nsz` file, or a directory has none that can be read.
        """
        if isinstance(source, Artifact):
            self._read_artifact(source)
        elif isinstance(source, Sequence) and not isinstance(source, str) and _holds_spans(source):
            self._read_records(cast("Sequence[SpanRecord]", source), {})
        else:
            self._read_files(cast("StrPath | Iterable[StrPath]", source), progress)
        self._finish()

    # --- sources -------------------------------------------------------------------------------------
    def _read_artifact(self, artifact: Artifact) -> None:
        self._paths = (artifact.path or "live recording",)
        resource: Any = artifact.resources[0] if artifact.resources else {}
        self._read_records(artifact.telemetry.spans, resource)
        for record in artifact.telemetry.layer_snapshots:
            self._take(record, resource)
        for event in artifact.events:
            self._take(event, resource)
        self.columns.damage.extend(artifact.damage)

    def _read_records(self, records: Sequence[SpanRecord], resource: Any) -> None:
        self._paths = self._paths or ("spans",)
        for record in records:
            self._take(record, resource)

    def _read_files(self, source: StrPath | Iterable[StrPath], progress: Progress | None) -> None:
        paths = [source] if isinstance(source, str | PathLike) else list(source)
        self._paths = tuple(fspath(path) for path in paths)
        recording = registry.nsz("read")([Path(path) for path in paths])
        total = sum(len(segment.chunks) for segment in recording.segments)
        done = 0
        self._open.append(recording)
        for segment in recording.segments:
            for first, end in self._within(segment.chunks):
                for record, resource in segment.records(first, end):
                    self._take(record, resource)
                if progress is not None:
                    progress(done + end, total)
            done += len(segment.chunks)
            self.columns.damage += [
                f"{segment.path.name}: {text}" for text in in_words(segment.damage_so_far)
            ]
            if not segment.finished:
                self.columns.damage.append(f"{segment.path.name}: unfinished; read as far as it goes")
        self.columns.damage += [f"{name}: {reason}" for name, reason in recording.unreadable]

    def close(self) -> None:
        """Let go of the files; tensors in the columns cannot be read any more."""
        for recording in self._open:
            recording.close()
        self._open.clear()

    def _within(self, chunks: Sequence[Any]) -> Iterator[tuple[int, int]]:
        """Stretches of chunks that may hold records of the window, a few chunks each."""
        for first in range(0, len(chunks), _STRETCH):
            end = min(first + _STRETCH, len(chunks))
            window = self._window
            if window.start == 0 and window.end == _FOREVER:
                yield first, end
                continue
            for place in range(first, end):
                chunk = chunks[place]
                if chunk.first_time < window.end and chunk.last_time >= window.start:
                    yield place, place + 1

    # --- records -------------------------------------------------------------------------------------
    def _take(self, record: object, resource: Any) -> None:
        window, columns = self._window, self.columns
        if isinstance(record, SpanRecord):
            if window.start <= record.start_unix_ns < window.end:
                self._take_span(record, resource)
        elif isinstance(record, LayerRecord):
            if window.start <= record.time_unix_ns < window.end:
                add_layer(columns, record)
        elif isinstance(record, SpanEvent) and window.start <= record.time_unix_ns < window.end:
            columns.events[record.name] += 1

    def _take_span(self, span: SpanRecord, resource: Any) -> None:
        columns, attributes = self.columns, span.attributes
        if columns.spans == 0 or id(resource) not in self._names:
            self._take_resource(resource)
        service = self._names[id(resource)]
        columns.spans += 1
        columns.services[service] += 1
        start, end = span.start_unix_ns, span.end_unix_ns
        if not columns.start_unix_ns or start < columns.start_unix_ns:
            columns.start_unix_ns = start
        columns.end_unix_ns = max(columns.end_unix_ns, end)
        trace_id = span.trace_id
        trace = self._traces.get(trace_id)
        if trace is None:
            trace = self._traces[trace_id] = _Trace()
        trace.spans += 1
        operation = attributes.get(names.OPERATION_NAME)
        if not isinstance(operation, str):
            operation = ""
        if operation in CALLS or operation == "retrieval":
            trace.calls.append((start, end, span.parent_span_id))
        if span.parent_span_id is None or span.kind is SpanKind.SERVER:
            self._take_root(trace, span, service, operation)
        add_span(columns, span, f"{trace_id:032x}")

    def _take_root(self, trace: _Trace, span: SpanRecord, service: str, operation: Any) -> None:
        if trace.root is not None and trace.root[0] <= span.start_unix_ns:
            return
        attributes = span.attributes
        route = attributes.get(names.HTTP_ROUTE)
        # A call that is its own root has no request around it.
        own = operation in CALLS or operation == "retrieval"
        trace.route = "" if own else str(route or attributes.get(names.SCOPE_NAME) or span.name)
        trace.service, trace.root_id = service, span.span_id
        trace.root = (span.start_unix_ns, span.end_unix_ns)
        status = attributes.get(names.HTTP_RESPONSE_STATUS_CODE)
        trace.status = float(status) if isinstance(status, int) else math.nan
        trace.error = str(attributes.get(names.ERROR_TYPE) or "")
        trace.weight = weight_of(attributes)
        if trace.weight != 1.0:
            self.columns.sampled = True

    def _take_resource(self, resource: Any) -> None:
        self._names[id(resource)] = str(resource.get("service.name", ""))
        environment = self.columns.environment
        for key, name in _ENVIRONMENT.items():
            value = resource.get(key)
            if value is not None:
                environment.setdefault(name, Counter())[str(value)] += 1
        for key in _ENVIRONMENT_LISTS:
            values = resource.get(key)
            texts = cast("Sequence[Any]", values) if isinstance(values, list | tuple) else ()
            for value in texts:
                name, _, version = str(value).rpartition(" ")
                environment.setdefault(name, Counter())[version] += 1

    # --- afterwards ----------------------------------------------------------------------------------
    def _finish(self) -> None:
        columns = self.columns
        traces = {f"{trace_id:032x}": trace for trace_id, trace in self._traces.items()}
        columns.traces = len(traces)
        columns.weight = sum(trace.weight for trace in traces.values())
        if columns.sampled:
            _thin(columns, traces)
        for table in (columns.searches, columns.calls):
            table.columns["route"] = [traces[name].route for name in table.columns["trace"]]
        add = columns.requests.columns
        for name, trace in traces.items():
            if trace.root is None or not trace.route:
                continue
            start, end = trace.root
            wait, own = _gaps(start, end, trace.calls)
            for column, value in (
                ("duration", (end - start) / 1e9),
                ("wait", wait),
                ("own", own),
                ("status", trace.status),
                ("start", start / 1e9),
                ("weight", trace.weight),
                ("spans", float(trace.spans)),
                ("trace", name),
                ("route", trace.route),
                ("error", trace.error),
                ("service", trace.service),
            ):
                add[column].append(value)
        self._traces = {}

    def side(self) -> Side:
        """What was read, for people."""
        columns = self.columns
        calls = Counter(columns.calls.labels("operation"))
        if len(columns.searches):
            calls["retrieval"] = len(columns.searches)
        return Side(
            paths=self._paths,
            traces=columns.traces,
            spans=columns.spans,
            calls=dict(sorted(calls.items())),
            start_unix_ns=columns.start_unix_ns,
            end_unix_ns=columns.end_unix_ns,
            services=tuple(sorted(name for name in columns.services if name)),
            damage=tuple(columns.damage),
            layers=columns.layer_records,
            tensors=columns.tensors,
            content=columns.content,
            sampled=columns.weight if columns.sampled else None,
            environment={
                name: ", ".join(sorted(values)) for name, values in sorted(columns.environment.items())
            },
            window=(self._window.start, 0 if self._window.end == _FOREVER else self._window.end),
        )


_STRETCH: Final = 16  # chunks between two looks at the progress


def _holds_spans(source: Sequence[Any]) -> bool:
    return all(isinstance(item, SpanRecord) for item in source[:1])


def _gaps(start: int, end: int, calls: list[tuple[int, int, int | None]]) -> tuple[float, float]:
    """Seconds before a request's first call, and all seconds in which none of its calls ran."""
    if not calls:
        return math.nan, (end - start) / 1e9
    covered, until = 0, start
    # What begins after the request's end was not waited for, or comes from a machine with another clock.
    ordered = sorted((max(start, first), min(end, last)) for first, last, _ in calls if first <= end)
    if not ordered:
        return math.nan, (end - start) / 1e9
    for first, last in ordered:
        if last > until:
            covered += last - max(first, until)
            until = last
    return max(0, ordered[0][0] - start) / 1e9, max(0, end - start - covered) / 1e9


def _thin(columns: Columns, traces: dict[str, _Trace]) -> None:
    """Make a sample without weights of a sampled recording: traces stay in proportion to their weight.

    A recording keeps what is out of the ordinary for certain (`neuronscope.sampling`); taken as it is, it
    would make the extraordinary look usual.
    """
    highest = max((trace.weight for trace in traces.values()), default=1.0)
    kept = {name for name, trace in traces.items() if crc32(name.encode()) / 2**32 * highest < trace.weight}
    for table in (columns.searches, columns.calls):
        _filter(table, np.fromiter((name in kept for name in table.labels("trace")), np.bool_, len(table)))
    for name in [name for name in traces if name not in kept]:
        if traces[name].root is not None:
            traces[name].root = None  # no row of requests; its layers stay


def _filter(table: Table, mask: Any) -> None:
    rows = np.flatnonzero(mask).tolist()
    for name, column in table.columns.items():
        table.columns[name] = [column[row] for row in rows]

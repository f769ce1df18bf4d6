"""Trace events (JSON), as https://ui.perfetto.dev and chrome://tracing open them.

Source: "Trace Event Format", the Chromium project: complete events (`X`), instants (`i`), names (`M`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from neuronscope.signals.records import LayerRecord, LogRecord, SpanRecord
from neuronscope_exporters.nsz.attributes import finite
from neuronscope_exporters.nsz.export import Progress, replacing
from neuronscope_exporters.nsz.reader import NszFile
from neuronscope_exporters.nsz.writer import ignore

_Event = dict[str, Any]
_encode = msgspec.json.Encoder(enc_hook=str).encode


@dataclass(slots=True)
class _Lanes:
    """Threads of the trace viewer: events of one must nest, so spans that overlap go to another.

    Attributes:
        ends: for each lane, the ends of the spans that are open in it.
        of: lane of each span.
    """

    ends: list[list[int]] = field(default_factory=list[list[int]])
    of: dict[int, int] = field(default_factory=dict[int, int])

    def place(self, span: SpanRecord) -> int:
        """The lane of a span; spans come in order of their start."""
        parent = self.of.get(span.parent_span_id or 0)
        order = list(range(len(self.ends)))
        if parent is not None:
            order.remove(parent)
            order.insert(0, parent)
        for lane in order:
            ends = self.ends[lane]
            while ends and ends[-1] <= span.start_unix_ns:
                ends.pop()
            if not ends or ends[-1] >= span.end_unix_ns:
                ends.append(span.end_unix_ns)
                self.of[span.span_id] = lane
                return lane
        self.ends.append([span.end_unix_ns])
        self.of[span.span_id] = len(self.ends) - 1
        return len(self.ends) - 1


def to_perfetto(files: Sequence[NszFile], out: str | os.PathLike[str], progress: Progress = ignore) -> int:
    """Write spans, layer records and log records; how many events there were.

    A process of the viewer is a process of the recording; a group of its threads is a trace.
    """
    written = 0
    base = min((span.start_unix_ns for file in files for span in file.spans[:1]), default=0)
    with replacing(out) as target:
        target.write(b'{"displayTimeUnit":"ns","otherData":')
        target.write(_encode({"start_unix_ns": str(base)}) + b',"traceEvents":[\n')
        for number, file in enumerate(files):
            for event in _events(file, number + 1, base):
                target.write((b",\n" if written else b"") + _encode(event))
                written += 1
            progress(number + 1, len(files))
        target.write(b"\n]}\n")
    return written


def _events(file: NszFile, process: int, base: int) -> Iterator[_Event]:
    name = str(file.resource.get("service.name", file.path.name))
    yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}
    traces: dict[int, _Lanes] = {}
    threads: dict[tuple[int, int], int] = {}
    # A parent that starts at the same time comes first.
    for span in sorted(file.spans, key=lambda span: (span.start_unix_ns, -span.end_unix_ns)):
        lane = traces.setdefault(span.trace_id, _Lanes()).place(span)
        if (span.trace_id, lane) not in threads:
            threads[span.trace_id, lane] = thread = len(threads) + 1
            args = {"name": f"trace {span.trace_id:032x}"}
            yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": args}
        yield _complete(span, process, threads[span.trace_id, lane], base)
    records: list[LayerRecord | LogRecord] = [*file.layers, *file.logs]
    for record in records:
        trace_id = record.trace_id or 0
        lanes = traces.get(trace_id)
        lane = lanes.of.get(record.span_id or 0, 0) if lanes is not None else 0
        thread = threads.get((trace_id, lane), 0)
        if isinstance(record, LogRecord):
            yield _logged(record, process, thread, base)
        else:
            yield _instant(record, process, thread, base)


def _complete(span: SpanRecord, process: int, thread: int, base: int) -> _Event:
    return {
        "ph": "X",
        "name": span.name,
        "cat": span.library or "span",
        "pid": process,
        "tid": thread,
        "ts": (span.start_unix_ns - base) / 1000,
        "dur": max(span.end_unix_ns - span.start_unix_ns, 0) / 1000,
        "args": {
            "span_id": f"{span.span_id:016x}",
            "status": span.status.name,
            **{key: _value(value) for key, value in span.attributes.items()},
        },
    }


def _instant(layer: LayerRecord, process: int, thread: int, base: int) -> _Event:
    args: dict[str, Any] = {"step": layer.step, "shape": list(layer.shape), "dtype": layer.dtype}
    if layer.summary is not None:
        args.update(mean=finite(layer.summary.mean), std=finite(layer.summary.std))
        args.update(abs_max=finite(layer.summary.abs_max), nan_count=layer.summary.nan_count)
    return {
        "ph": "i", "s": "t", "name": layer.layer_id, "cat": "layer", "pid": process, "tid": thread,
        "ts": (layer.time_unix_ns - base) / 1000, "args": args,
    }  # fmt: skip


def _logged(log: LogRecord, process: int, thread: int, base: int) -> _Event:
    args: dict[str, Any] = {"severity": log.severity_text or log.severity}
    if log.body is not None:
        args["body"] = _value(log.body)
    args.update({key: _value(value) for key, value in log.attributes.items()})
    return {
        "ph": "i", "s": "t", "name": log.event_name or log.severity_text or "log", "cat": "log",
        "pid": process, "tid": thread, "ts": (log.time_unix_ns - base) / 1000, "args": args,
    }  # fmt: skip


def _value(value: object) -> object:
    """JSON has no number that is not finite, and the viewer's integers end at 2^53."""
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, int) and abs(value) >= 1 << 53:
        return str(value)
    if isinstance(value, tuple | list):
        return [_value(item) for item in cast("Sequence[object]", value)]
    if isinstance(value, dict):
        return {key: _value(item) for key, item in cast("dict[str, object]", value).items()}
    return value

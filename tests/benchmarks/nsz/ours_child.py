"""Our side of the comparison: `.nsz`, and raw writes to compare everything with."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import ml_dtypes
import numpy as np
from opentelemetry.trace import SpanKind
from tests.benchmarks.children import serve
from tests.benchmarks.nsz import workload
from tests.benchmarks.nsz.workload import BURST, SPANS, TENSORS, timed

from neuronscope.signals.records import LayerRecord, SpanRecord
from neuronscope.signals.tensors import TensorSnapshot
from neuronscope_exporters import nsz
from neuronscope_exporters.nsz import codec


def span(number: int) -> SpanRecord:
    """The workload's span as a record."""
    start = 1_700_000_000_000_000_000 + number * 1_000_000
    attributes: dict[str, Any] = {
        key: int(value) if kind == "intValue" else value
        for key, kind, value in workload.span_attributes(number)
    }
    trace_id, span_id = workload.ids(number)
    return SpanRecord(trace_id, span_id, "chat gpt-4o", SpanKind.CLIENT, start, start + 900_000, attributes)


def layer(number: int, values: Any) -> LayerRecord:
    """The workload's tensor as a record; not copied."""
    snapshot = TensorSnapshot(values.shape, "BF16" if values.dtype.itemsize == 2 else "F32", values)
    return LayerRecord(
        "m",
        f"layers.{number % 40}",
        number // 40,
        time_of(number),
        values.shape,
        snapshot.dtype,
        tensor=snapshot,
    )


def time_of(number: int) -> int:
    """When a tensor was taken: during the span that was recorded just before it."""
    return 1_700_000_000_000_000_000 + number * (SPANS // TENSORS) * 1_000_000


def write_raw(path: str) -> float:
    """Seconds to `os.write` a burst of tensors."""
    Path(path).unlink(missing_ok=True)
    values = [workload.tensor(number) for number in range(BURST)]

    def work() -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for array in values:
            os.write(descriptor, array.data)
        os.close(descriptor)

    return timed(work)[0]


def write_tensors(path: str, compress: bool = False, bfloat16: bool = False) -> tuple[float, float]:
    """(seconds to write a burst of tensors, ratio of their size to the file's)."""
    Path(path).unlink(missing_ok=True)
    values: list[Any] = [workload.tensor(number) for number in range(BURST)]
    if bfloat16:
        scale = np.exp(np.random.default_rng(1).standard_normal(512))  # channels differ, as in a model
        wide = np.random.default_rng(2).standard_normal((1024, 512), dtype=np.float32) * scale
        values = [(wide * (1 + number / 100)).astype(ml_dtypes.bfloat16) for number in range(BURST)]
    records = [layer(number, array) for number, array in enumerate(values)]

    def work() -> None:
        writer = nsz.NszWriter(path, compress_tensors=compress)
        for record in records:
            writer.append_layer(record)
        writer.close()

    seconds = timed(work)[0]
    return seconds, sum(array.nbytes for array in values) / os.path.getsize(path)


def write_spans(path: str) -> dict[str, float]:
    """µs of CPU a span: whole, encoding alone; and the file's size over that of the JSON."""
    Path(path).unlink(missing_ok=True)
    records = [span(number) for number in range(SPANS)]
    start = time.process_time()
    size = sum(len(codec.encode_span(record)) for record in records)
    encoded = time.process_time() - start
    writer = nsz.NszWriter(path)
    start = time.process_time()
    for record in records:
        writer.append_span(record)
    writer.close()
    whole = time.process_time() - start
    return {
        "whole": whole / SPANS * 1e6,
        "encode": encoded / SPANS * 1e6,
        "size": os.path.getsize(path) / size,
    }


def write_spans_raw(path: str) -> float:
    """µs of CPU a span to write the same JSON, buffered and bare."""
    spans = [workload.span_json(number) for number in range(SPANS)]
    start = time.process_time()
    with open(path, "wb") as file:
        file.writelines(spans)
    return (time.process_time() - start) / SPANS * 1e6


def make(path: str) -> int:
    """The large file: tensors and spans as they come; its size."""
    Path(path).unlink(missing_ok=True)
    writer = nsz.NszWriter(path)
    each = SPANS // TENSORS
    for number in range(TENSORS):
        for index in range(each):
            writer.append_span(span(number * each + index))
        writer.append_layer(layer(number, workload.tensor(number)))
        if number % 10 == 9:
            writer.flush()
    writer.close()
    return os.path.getsize(path)


def list_spans(path: str, cold: bool) -> dict[str, float]:
    """ms to list all spans, and the disk's bytes."""
    if cold:
        workload.forget(path)
    before = workload.disk_bytes()

    def work() -> int:
        file = nsz.NszFile(path)
        count = len(file.span_heads)
        file.close()
        return count

    seconds, count = timed(work)
    assert count == SPANS
    return {"ms": seconds * 1e3, "disk": workload.disk_bytes() - before}


def read_spans(path: str) -> float:
    """ms to build all spans with everything in them."""
    seconds, spans = timed(lambda: nsz.NszFile(path).spans)
    assert len(spans) == SPANS
    return seconds * 1e3


def read_tensor(path: str, cold: bool) -> dict[str, float]:
    """µs to find a tensor by layer and step and check it; over a copy of as many bytes; the disk's bytes."""
    if cold:
        workload.forget(path)
        before = workload.disk_bytes()
        when = time_of(12 * 40 + 7)

        def find() -> Any:
            (found,) = nsz.NszFile(path).find_layers("layers.7", step=12, start=when, end=when + 1)
            return tensor_of(found)

        seconds, array = timed(find)
        assert array[0, 0] == 12 * 40 + 7
        return {"ms": seconds * 1e3, "disk": workload.disk_bytes() - before}
    _read_all(path)  # brings the file into the system's cache
    times, copies = _read_all(path)
    return {"us": times * 1e6, "copies": times / copies}


def _read_all(path: str) -> tuple[float, float]:
    """Median seconds to read a tensor, and to copy one that the processor's cache has forgotten."""
    records = {(record.layer_id, record.step): record for record in nsz.NszFile(path).layers}
    times, copies, arrays = list[float](), list[float](), list[Any]()
    target = np.empty(workload.SHAPE, np.float32)
    for number in range(200):
        seconds, array = timed(partial(tensor_of, records[f"layers.{number % 40}", number // 40]))
        assert array[0, 0] == number
        times.append(seconds)
        arrays.append(array)
        if number >= 100:
            copies.append(timed(partial(np.copyto, target, arrays[number - 100]))[0])
    return median(times), median(copies)


def tensor_of(record: LayerRecord) -> Any:
    """The values."""
    assert record.tensor is not None
    return record.tensor.numpy()


def disturb(path: str, seconds: float, undisturbed: bool) -> int:
    """Turns of the foreground beside 100 MiB and 10,000 spans a second."""
    Path(path).unlink(missing_ok=True)
    if undisturbed:
        return workload.foreground(None, seconds)
    writer = nsz.NszWriter(path)
    record, single = layer(0, workload.tensor(0)), span(1)

    def write(tensors: int, spans: int) -> None:
        for _ in range(spans):
            writer.append_span(single)
        for _ in range(tensors):
            writer.append_layer(record)
        writer.flush()

    turns = workload.foreground(lambda s: workload.paced(s, 100, 10_000, write), seconds)
    writer.close()
    return turns


COMMANDS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        write_raw, write_tensors, write_spans, write_spans_raw, make, list_spans, read_spans, read_tensor,
        disturb,
    )
}  # fmt: skip


def answer(command: str, **arguments: Any) -> Any:
    """Do what the parent asks."""
    return COMMANDS[command](**arguments)


if __name__ == "__main__":
    serve(answer)

"""A small recording with chunks of every class, and what must come back of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from opentelemetry.trace import SpanKind

from neuronscope.signals.records import LayerRecord, SpanEvent, SpanRecord
from neuronscope.signals.tensors import TensorSnapshot
from neuronscope.summaries.arrays import by_numpy
from neuronscope_exporters import nsz

SPANS = {
    number: SpanRecord(
        7,
        number,
        f"chat {number}",
        SpanKind.CLIENT,
        number,
        number + 5,
        {"text": f"{number:x}" * 9},
    )
    for number in range(1, 121)
}


def values_of(step: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(step).random((16, 16)).astype("f4")


def sample(path: Path, *, close: bool) -> bytes:
    """A small file of several chunks of every class."""
    writer = nsz.NszWriter(path, [{"service.name": "sample"}])
    for step, group in enumerate(range(1, 121, 20)):
        for number in range(group, group + 20):
            writer.append_span(SPANS[number])
        tensor = TensorSnapshot.from_numpy(values_of(step))
        summary = by_numpy(values_of(step))  # the same bytes with every summary kernel
        writer.append_layer(
            LayerRecord("m", "layers.0", step, step, (16, 16), "F32", summary=summary, tensor=tensor)
        )
        assert writer.flush()
    writer.append_event(SpanEvent("last", 1))
    assert writer.flush()
    if close:
        assert writer.close()
    return path.read_bytes()

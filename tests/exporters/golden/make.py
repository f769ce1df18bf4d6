"""Writes the golden files of the current version: ``python tests/exporters/golden/make.py``.

A golden file is made once, by the writer of its version, and never again: readers of every later
version must go on to read it.  The script refuses to touch files that exist.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
from opentelemetry.trace import SpanKind, StatusCode

from neuronscope.signals.records import (
    Attributes,
    Fidelity,
    LayerRecord,
    LogRecord,
    SpanEvent,
    SpanLink,
    SpanRecord,
)
from neuronscope.signals.tensors import DTYPE_NAMES, TensorSnapshot, TensorSummary
from neuronscope_exporters import nsz
from neuronscope_exporters.nsz import layout

HERE: Final = Path(__file__).parent
TRACE: Final = 0x0AF7651916CD43DD8448EB211C80319C
START: Final = 1_700_000_000_000_000_000
RESOURCES: Final[tuple[Attributes, ...]] = (
    {"service.name": "rag", "process.pid": 7},
    {"service.name": "model"},
)
# Values that OTLP allows and the SDK does not.
RICHER: Final[Any] = {"nested": {"key": ("value", 7)}, "raw": b"\x00\xff"}


def spans() -> list[SpanRecord]:
    """A root, a call with everything a span can have, and a span of the second resource."""
    return [
        SpanRecord(TRACE, 1, "answer", SpanKind.SERVER, START, START + 900, {"http.route": "/ask"}),
        SpanRecord(
            TRACE, 2, "chat gpt-4o", SpanKind.CLIENT, START + 100, START + 800,
            {
                "text": "grüße 🙂 \"quoted\"\n", "yes": True, "count": 2**62, "score": 0.1,
                "nan": float("nan"), "low": float("-inf"), "names": ("a", "b"), "numbers": (1, 2, 3),
                **RICHER,
            },
            parent_span_id=1, parent_is_remote=True,
            events=(SpanEvent("exception", START + 200, {"exception.type": "Timeout"}, 1),),
            links=(SpanLink(1 << 127, 1 << 63, {"why": "retry"}, "k=v", 1, 2),),
            status=StatusCode.ERROR, status_message="timed out", trace_state="vendor=1", trace_flags=1,
            library="neuronscope.openai", library_version="1.2", dropped_attributes=3, dropped_events=4,
            dropped_links=5, foreign=True,
        ),
        SpanRecord(TRACE, 3, "embed", SpanKind.INTERNAL, START + 300, START + 400, {}, parent_span_id=2),
    ]  # fmt: skip


def values(name: str, rows: int) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """Rows of four elements of a type: 0, 1, … or what comes of it."""
    dtype = np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)
    return np.arange(4 * rows).astype(dtype).reshape(rows, 4)


def layers(rows: int = 3) -> list[LayerRecord]:
    """A summary, and a tensor of every element type."""
    summary = TensorSummary.of(np.array([1.0, 0.0, np.nan, np.inf, -2.5]))
    records = [
        LayerRecord(
            "llama", "model.layers.0", 0, START + 500, (5,), "F32", trace_id=TRACE, span_id=3, summary=summary
        )
    ]
    for step, (name, stored) in enumerate((*DTYPE_NAMES.items(), ("complex128", "complex128"))):
        array = values(name, rows)
        records.append(
            LayerRecord(
                "llama", f"model.layers.{step % 3}.mlp", step, START + 501 + step, array.shape, stored,
                role="input" if step % 2 else "output", index=step % 2, trace_id=TRACE, span_id=3,
                fidelity=Fidelity.FULL, tensor=TensorSnapshot.from_numpy(array),
            )
        )  # fmt: skip
    return records


def logs() -> list[LogRecord]:
    """An event with content, and what a service logged (since 1.2)."""
    content: Any = ({"role": "user", "parts": ({"type": "text", "content": "grüße 🙂"},)},)
    return [
        LogRecord(
            START + 550, START + 560, 9, "INFO", None,
            {"gen_ai.input.messages": content, "count": 2**62, "raw": b"\x00\xff"},
            trace_id=TRACE, span_id=2, trace_flags=1,
            event_name="gen_ai.client.inference.operation.details",
            library="neuronscope.openai", library_version="1.2", dropped_attributes=1,
        ),
        LogRecord(START + 570, START + 580, 13, "WARN", "stock is low", library="shop"),
    ]  # fmt: skip


def fill(writer: nsz.NszWriter, rows: int) -> None:
    """Everything, in several chunks."""
    first, second, third = spans()
    writer.append_span(first)
    writer.append_span(second)
    writer.flush()
    writer.append_span(third, 1)
    for layer in layers(rows):
        writer.append_layer(layer)
    for number, log in enumerate(logs()):
        writer.append_log(log, number)
    writer.append_event(SpanEvent("governor.reduced", START + 600, {"fidelity": "summary"}))
    writer.flush()


def rows_of(path: Path) -> int:
    """Compressed files have tensors that are worth it."""
    return 300 if "planes" in path.name else 3


def main() -> int:
    """Make the files of this version."""
    for kind in ("finished", "unfinished", "parts", "planes"):
        path = HERE / f"v{layout.VERSION}-{kind}.nsz"
        if path.exists():
            print(f"{path.name} exists: golden files are never made again")
            continue
        writer = nsz.NszWriter(
            path,
            RESOURCES,
            tensor_part_bytes=16 if kind == "parts" else layout.TENSOR_PART_BYTES,
            compress_tensors=kind == "planes",
        )
        fill(writer, rows_of(path))
        if kind == "unfinished":
            writer.abandon()
        else:
            writer.close()
        path.chmod(0o644)
    return 0


if __name__ == "__main__":
    sys.exit(main())

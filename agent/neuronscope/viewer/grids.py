"""Layer records as grids of layers × steps, packed for the page.

A grid keeps a cell for each record and nothing for those that are missing: what was not recorded stays
distinguishable from a zero.  Numbers travel as base64 of little-endian float32; a value that float32
cannot hold becomes its largest one.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from neuronscope.signals.records import LayerRecord
from neuronscope.signals.tensors import TensorSummary

MAX_COLUMNS: Final = 65_536
MAX_CELLS: Final = 4_000_000
MAX_KINDS: Final = 65_535
_LARGEST: Final = float(np.finfo(np.float32).max)
_HAS_SUMMARY, _HAS_TENSOR = 1, 2
_PLANES: Final[dict[str, Callable[[TensorSummary], float]]] = {
    "mean": lambda summary: summary.mean,
    "std": lambda summary: summary.std,
    "abs_max": lambda summary: summary.abs_max,
    "min": lambda summary: summary.min,
    "max": lambda summary: summary.max,
    "zeros": lambda summary: max(0, min(summary.zero_count, summary.count)) / max(1, summary.count),
}

GridKey = tuple[int | None, int | None, str, str, int]


@dataclass(slots=True)
class Grid:
    """The records of one span, model, role and index."""

    model: str
    role: str
    index: int
    records: list[LayerRecord] = field(default_factory=list[LayerRecord])


def grids(records: Sequence[LayerRecord]) -> dict[GridKey, Grid]:
    """Records by trace, span, model, role and index, in order of their first."""
    found: dict[GridKey, Grid] = {}
    for record in records:
        key = (record.trace_id, record.span_id, record.model, record.role, record.index)
        grid = found.get(key)
        if grid is None:
            grid = found[key] = Grid(record.model, record.role, record.index)
        grid.records.append(record)
    return found


def pack(grid: Grid, forwards: int, text: Callable[[str], str]) -> dict[str, Any]:
    """A grid as JSON-able data.

    Args:
        forwards: forward passes of the call, 0 if unknown: later steps without a record are shown, too.
        text: makes a string fit for the page.
    """
    rows = {layer: row for row, layer in enumerate(dict.fromkeys(r.layer_id for r in grid.records))}
    width, steps = _columns(grid, forwards)
    height = max(1, MAX_CELLS // width)
    place = None if steps is None else {step: column for column, step in enumerate(steps)}
    cells: dict[int, LayerRecord] = {}
    left_out = 0
    for record in grid.records:
        row, column = rows[record.layer_id], record.step if place is None else place.get(record.step, -1)
        if row >= height or column < 0:
            left_out += 1
        else:
            cells[row * width + column] = record
    kept = list(cells.values())
    kinds: dict[tuple[Any, ...], int] = {}
    return {
        "model": text(grid.model),
        "role": text(grid.role),
        "index": grid.index,
        "layers": [text(layer) for layer in list(rows)[:height]],
        "width": width,
        "steps": steps,
        "records": len(kept),
        "repeated": len(grid.records) - left_out - len(kept),
        "left_out": left_out,
        "cells": _packed(np.fromiter(cells, np.uint32, len(cells))),
        "state": _packed(np.array([_state(record) for record in kept], np.uint8)),
        "kind": _packed(np.array([_kind(record, kinds) for record in kept], np.uint16)),
        "kinds": [[text(dtype), list(shape), text(level), part] for dtype, shape, level, part in kinds],
        "non_finite": _non_finite(kept),
        **{name: _packed(_plane(kept, read)) for name, read in _PLANES.items()},
    }


def _columns(grid: Grid, forwards: int) -> tuple[int, list[int] | None]:
    """How many columns there are, and their steps; None for steps that simply count from 0."""
    steps = sorted({record.step for record in grid.records})
    if steps[0] >= 0 and steps[-1] < MAX_COLUMNS:
        return max(steps[-1] + 1, min(forwards, MAX_COLUMNS)), None
    shown = steps[-MAX_COLUMNS:]
    return len(shown), shown


def _state(record: LayerRecord) -> int:
    return (_HAS_SUMMARY if record.summary is not None else 0) | (
        _HAS_TENSOR if record.tensor is not None else 0
    )


def _kind(record: LayerRecord, kinds: dict[tuple[Any, ...], int]) -> int:
    """Number of what many records have in common; the last one stands for all that are too many."""
    part = record.summary.sampled_fraction if record.summary is not None else 1.0
    kind = (record.dtype, record.shape, record.fidelity.value, part if 0 <= part <= 1 else 1.0)
    if kind not in kinds and len(kinds) >= MAX_KINDS:
        kind = ("?", (), "?", 1.0)
    return min(kinds.setdefault(kind, len(kinds)), MAX_KINDS)


def _non_finite(records: Sequence[LayerRecord]) -> list[list[int]]:
    """``[record, NaN, Inf, elements]`` of the records that have any."""
    return [
        [number, summary.nan_count, summary.inf_count, summary.count]
        for number, summary in enumerate(record.summary for record in records)
        if summary is not None and not summary.finite
    ]


def _plane(records: Sequence[LayerRecord], read: Callable[[TensorSummary], float]) -> NDArray[Any]:
    values = np.array([np.nan if r.summary is None else read(r.summary) for r in records], np.float64)
    return np.clip(values, -_LARGEST, _LARGEST).astype(np.float32)


def _packed(values: NDArray[Any]) -> str:
    return base64.b64encode(values.astype(values.dtype.newbyteorder("<")).tobytes()).decode("ascii")

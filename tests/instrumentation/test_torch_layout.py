"""What compiled code reads of a tensor itself: the same as torch's bindings say, or nothing."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Generator
from typing import Any

import pytest
import torch

from neuronscope.compiled import find
from neuronscope_instrumentation.torch import layout
from neuronscope_instrumentation.torch.summary import summarize

importlib.import_module("neuronscope_instrumentation.torch.telling")  # binds the layout

pytestmark = pytest.mark.skipif(find("laid_out") is None, reason="without compiled code nothing is read")
laid_out: Callable[[Any], tuple[int, ...] | None] = find("laid_out") or (lambda _: None)
bind: Callable[[Any], None] = find("bind_layout") or (lambda _: None)

BASE = torch.arange(120, dtype=torch.float32)
TENSORS: dict[str, Callable[[], torch.Tensor]] = {
    "whole": lambda: BASE,
    "part": lambda: BASE[7:31],
    "transposed": lambda: BASE.view(10, 12).t(),
    "strided": lambda: BASE[::3],
    "expanded": lambda: BASE[:1].expand(50),
    "scalar": lambda: torch.tensor(3.5),
    "empty": lambda: torch.empty(0, 4),
    "half": lambda: torch.ones(9, dtype=torch.float16),
    "bool": lambda: torch.ones(9, dtype=torch.bool),
    "complex": lambda: torch.ones(5, dtype=torch.complex64),
    "conjugated": lambda: torch.ones(5, dtype=torch.complex64).conj(),
    "negated": lambda: torch.ones(5, dtype=torch.complex64).conj().imag,
    "parameter": lambda: torch.nn.Parameter(torch.ones(4, 4)),
    "with a history": lambda: torch.ones(6, requires_grad=True) * 2,
    "of nobody's": lambda: torch.frombuffer(bytearray(64), dtype=torch.float32),
    "resized": lambda: torch.ones(2, 3).resize_(3, 5).fill_(1.0),
}


@pytest.fixture
def by_bindings() -> Generator[Callable[[], None]]:
    """Lets torch's bindings be asked, until the test ends."""
    found = layout.find()
    yield lambda: bind(None)
    bind(found)


@pytest.mark.skipif(sys.platform != "linux", reason="it is looked for on Linux alone")
def test_the_layout_is_found_in_this_torch() -> None:
    """Each answer is in one place, and nowhere else."""
    found = layout.find()
    assert found is not None
    assert laid_out(BASE) is not None


@pytest.mark.parametrize("kind", TENSORS)
def test_answers_are_those_of_torch(kind: str) -> None:
    """Keys, number, offset, address and size."""
    tensor = TENSORS[kind]()
    assert laid_out(tensor) == layout.answers(tensor)


@pytest.mark.parametrize("kind", TENSORS)
def test_summaries_are_the_same_in_both_ways(kind: str, by_bindings: Callable[[], None]) -> None:
    """Whether compiled code reads the answers or asks for them."""
    tensor = TENSORS[kind]()
    read = summarize(tensor)
    by_bindings()
    assert laid_out(tensor) is None
    asked = summarize(tensor)
    if math.isnan(read.mean):
        assert math.isnan(asked.mean)
        assert read.count == asked.count
    else:
        assert read == asked


def test_memory_that_was_freed_is_not_read() -> None:
    """FSDP frees a shard by shrinking its storage; a sparse tensor has none."""
    freed = torch.ones(32)
    freed.untyped_storage().resize_(0)
    told = laid_out(freed)
    assert told is not None
    assert told[4] == 0
    assert laid_out(torch.ones(2).to_sparse()) is None  # without a storage
    assert laid_out("no tensor") is None


@pytest.mark.parametrize(
    "offsets", [(1, 2), (0, 0, 0, 0, 0, 0, 3), (0, 0, 0, 0, 0, 0, -8), (8,) * 6 + (1 << 40,)]
)
def test_nonsense_is_refused(offsets: tuple[int, ...]) -> None:
    """What can be no layout is none, and nothing is read any more."""
    found = layout.find()
    try:
        with pytest.raises((TypeError, ValueError)):
            bind(offsets)
        assert laid_out(BASE) is None
    finally:
        bind(found)


def test_where_answers_cannot_be_told_apart_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that could be two answers' is none."""
    alike = [torch.zeros(8) for _ in range(3)]
    monkeypatch.setattr(layout, "samples", lambda: iter(alike))
    assert layout.find() is None

"""Output structures are walked within bounds, and none of the user's code runs."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch

from neuronscope_instrumentation.common.structures import NODE_LIMIT
from neuronscope_instrumentation.torch.outputs import first_tensor, tensor_leaves

ONE, TWO = torch.tensor(1.0), torch.tensor(2.0)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@dataclass
class Plain:
    label: str
    value: torch.Tensor | None = None


@dataclass(slots=True)
class Slotted:
    value: Any
    late: Any = field(init=False)


class Hostile:
    """Everything about it raises."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)


class HostileList(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise AssertionError


class HostileDict(dict[str, Any]):
    def values(self) -> Any:
        raise AssertionError


WITH_A_TENSOR: dict[str, object] = {
    "tensor": ONE,
    "tuple": (None, ONE, TWO),
    "nested": [None, [(), {"a": ONE}], TWO],
    "dict": {"loss": None, "logits": ONE, "cache": TWO},
    "OrderedDict": OrderedDict(a=ONE),
    "UserDict": UserDict(a=ONE),
    "namedtuple": Pair(ONE, TWO),
    "dataclass": Plain("x", ONE),
    "dataclass with slots": Slotted(ONE),
    "beside a hostile object": (Hostile(), ONE),
    "list with its own iterator": HostileList([ONE]),
    "dict with its own values": HostileDict(a=ONE),
    "beside plain values": ("text", 3, b"", {1, 2}, ONE),
}
WITHOUT: dict[str, object] = {
    "None": None,
    "number": 3,
    "text": "text",
    "hostile": Hostile(),
    "dict": {1: 2},
    "list": [],
    "dataclass": Plain("x"),
    "dataclass with an unset slot": Slotted([]),
    "class": Plain,
}


@pytest.mark.parametrize("name", WITH_A_TENSOR)
def test_the_first_tensor_is_found(name: str) -> None:
    """In order, depth first."""
    assert first_tensor(WITH_A_TENSOR[name]) is ONE


@pytest.mark.parametrize("name", WITHOUT)
def test_outputs_without_tensors_give_none(name: str) -> None:
    """Whatever they are."""
    assert first_tensor(WITHOUT[name]) is None


def test_a_model_output_of_transformers_is_a_dictionary() -> None:
    """Fields that are None are skipped."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    assert first_tensor(CausalLMOutputWithPast(logits=ONE)) is ONE


def test_generators_are_not_consumed() -> None:
    """Nor any other iterator."""
    generator = (value for value in (ONE, TWO))
    assert first_tensor((generator, iter([ONE]))) is None
    assert list(generator) == [ONE, TWO]


def test_loops_and_sizes_are_bounded() -> None:
    """A list that holds itself, a deep one, and one of 10,000 tensors."""
    loop: list[Any] = []
    loop.append(loop)
    assert first_tensor(loop) is None
    deep: Any = ONE
    for _ in range(NODE_LIMIT - 1):
        deep = [deep]
    assert first_tensor(deep) is ONE
    assert first_tensor([deep]) is None
    assert len(list(tensor_leaves([torch.empty(0)] * 10_000))) < NODE_LIMIT

"""Modules that return structures of their own: dataclasses, frozen or not, and what refers to itself."""

# What a trace gives is Any.
# pyright: reportUnknownMemberType=false, reportUnknownLambdaType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

import neuronscope as ns
from neuronscope.interventions.errors import WrongValueError
from tracednets import X


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor within another structure."""

    values: torch.Tensor


@dataclass
class State:
    """What a module returns that has more to say than one tensor."""

    hidden: torch.Tensor
    parts: list[Part]
    width: int = 8
    unset: torch.Tensor = field(init=False)
    itself: State | None = None


class Stateful(nn.Module):
    """Returns a `State`, and what follows changes it in place."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.make = Make()

    def forward(self, x: torch.Tensor) -> State:
        """The state, changed in place since `make` returned it."""
        state: State = self.make(self.lin(x))
        with torch.no_grad():
            state.hidden.add_(100)
            state.parts[0].values.add_(100)
        return state


class Make(nn.Module):
    """From a tensor to a state that refers to itself."""

    def forward(self, x: torch.Tensor) -> State:
        """The state."""
        state = State(x * 1, [Part(x * 2)])
        state.itself = state
        return state


def test_a_cache_copies_the_tensors_of_a_dataclass() -> None:
    """Of frozen ones and within lists; what refers to itself refers to its copy."""
    net = Stateful()
    with ns.Model.wrap(net).trace(X) as t:
        copies = t.cache("make", clone=True)
    kept = copies.output("make")
    assert torch.equal(kept.hidden, net.lin(X))
    assert torch.equal(kept.parts[0].values, net.lin(X) * 2)
    assert (type(kept), type(kept.parts[0]), kept.width) == (State, Part, 8)
    assert not kept.hidden.requires_grad
    assert kept.itself is kept
    assert t.result.itself is t.result  # the model's own is as it was
    assert torch.equal(t.result.hidden, net.lin(X) + 100)


def test_a_dataclass_changed_after_it_was_cached_is_told() -> None:
    """Without copies its tensors are the model's."""
    with ns.Model.wrap(Stateful()).trace(X) as t:
        cache = t.cache("make")
    with pytest.raises(WrongValueError, match="clone=True"):
        cache.output("make")


class Plain(nn.Module):
    """Gives its own tensor in a structure."""

    def __init__(self, structure: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.out = Structure(structure)

    def forward(self, x: torch.Tensor) -> Any:
        """The structure."""
        return self.out(self.lin(x))


class Structure(nn.Module):
    """A function that makes a structure, as a module."""

    def __init__(self, structure: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.structure = structure

    def forward(self, x: torch.Tensor) -> Any:
        """The structure."""
        return self.structure(x)


def test_what_is_cached_is_of_the_kind_that_was_returned() -> None:
    """Outputs of transformers have attributes; dictionaries their order."""
    structures: list[Callable[[torch.Tensor], Any]] = [
        lambda x: BaseModelOutput(last_hidden_state=x),
        lambda x: OrderedDict(last_hidden_state=x),
        lambda x: {"last_hidden_state": x},
    ]
    for structure in structures:
        net = Plain(structure)
        with ns.Model.wrap(net).trace(X) as t:
            cache = t.cache("out", clone=True)
        assert type(cache.output("out")) is type(structure(X))
        assert torch.equal(cache.output("out")["last_hidden_state"], net.lin(X))
    with ns.Model.wrap(Plain(lambda x: BaseModelOutput(last_hidden_state=x))).trace(X) as t:
        cache = t.cache("out")
    assert not cache.output("out").last_hidden_state.requires_grad


def test_a_wrong_shape_within_a_dataclass_is_refused_at_the_assignment() -> None:
    """By the name of its field."""
    net = Plain(lambda x: State(x, [Part(x)]))
    with ns.Model.wrap(net).trace(X) as t:
        with pytest.raises(WrongValueError, match=r"out: output\.parts\[0\]\.values has shape \(2, 8\), not"):
            t.out.output = State(X, [Part(X[:1])])
        t.out.output = State(X, [Part(X * 3)])
    assert torch.equal(t.result.parts[0].values, X * 3)


def test_rows_of_a_dataclass_are_read_and_written() -> None:
    """One prompt's; the others' stay."""
    net = Plain(lambda x: State(x, [Part(x)]))
    with torch.no_grad(), ns.Model.wrap(net).trace(X) as t:
        row = t.rows(1)["out"]
        assert row.output.parts[0].values.shape == (1, 8)
        row.output = State(X[1:] * 0, [Part(X[1:] * 5)])
    plain = net.lin(X)
    assert torch.equal(t.result.parts[0].values, torch.stack([plain[0], X[1] * 5]))
    assert torch.equal(t.result.hidden, torch.stack([plain[0], X[1] * 0]))


def test_the_first_tensor_of_a_dataclass_is_replaced_where_a_field_is_not_set() -> None:
    """Declared is not assigned."""
    net = Plain(lambda x: State(x, [Part(x)]))
    with ns.Model.wrap(net).trace(X) as t:
        t.out.first = X
    assert torch.equal(t.result.hidden, X)

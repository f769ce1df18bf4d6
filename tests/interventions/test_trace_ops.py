"""`.ops`: torch functions within a module's forward, by name and number."""

# What a trace gives is Any, and so are lambdas over it; torch leaves parts of itself untyped.
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false
from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import neuronscope as ns
from neuronscope.interventions import SiteNotReachedError, WrongValueError
from tracednets import X, blocks, left_on


class Attention(nn.Module):
    """Attention written out."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Softmax of scaled products."""
        scores = self.q(x) @ self.k(x).transpose(-1, -2) / 8**0.5
        return functional.softmax(scores, dim=-1) @ self.v(x)  # type: ignore[no-any-return]


class Two(nn.Module):
    """Two attentions in a row."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Attention(), Attention()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One, then the other."""
        return self.b(self.a(x))  # type: ignore[no-any-return]


@pytest.fixture
def net() -> Two:
    """The model."""
    torch.manual_seed(0)
    return Two()


def test_functions_are_read_by_name_and_number(net: Two) -> None:
    """Function, method, operator."""
    with ns.Model.wrap(net).trace(X) as t:
        ops = t.a.ops
        assert torch.equal(ops["linear"][1].output, net.a.k(X))
        scores = ops["matmul"][0].output
        pattern = ops["softmax"][0].output
        mixed = ops["matmul"][1].inputs
        assert mixed[0][0] is pattern
        out = t.a.output
    assert scores.shape == (2, 2)
    assert torch.allclose(pattern.sum(-1), torch.ones(2))
    assert torch.equal(out, net.a(X))
    assert torch.equal(t.result, net(X))


def test_functions_are_replaced_skipped_and_given_other_arguments(net: Two) -> None:
    """As sites are."""
    uniform = torch.full((2, 2), 0.5)
    model = ns.Model.wrap(net)
    with model.trace(X) as t:
        t.a.ops["softmax"][0].output = uniform
        out = t.a.output
        t.stop()
    assert torch.allclose(out, uniform @ net.a.v(X))
    with model.trace(X) as t:
        t.a.ops["softmax"][0].skip(uniform)
        assert torch.allclose(t.a.output, uniform @ net.a.v(X))
        t.stop()
    with model.trace(X) as t:
        op = t.a.ops["softmax"][0]
        op.input = op.input * 0
        assert torch.allclose(t.a.output, uniform @ net.a.v(X))
        with pytest.raises(WrongValueError):
            t.b.ops["softmax"][0].output = torch.ones(3, 3)
    assert not left_on(net)


def test_only_the_watched_module_is_watched(net: Two) -> None:
    """Each module counts its own, from its beginning."""
    with ns.Model.wrap(net).trace(X) as t:
        first, second = t.a.ops["softmax"][0], t.b.ops["softmax"][0]
        a = first.output
        b = second.output
    assert not torch.equal(a, b)
    assert torch.equal(t.result, net(X))


def test_the_body_is_never_seen(net: Two) -> None:
    """Functions that the body calls while the module waits are not counted."""
    with ns.Model.wrap(net).trace(X) as t:
        _ = t.a.ops["linear"][0].output
        for _ in range(5):
            functional.softmax(X, dim=-1)
            functional.linear(X, torch.ones(8, 8))
        assert torch.equal(t.a.ops["linear"][1].output, net.a.k(X))


def test_modes_of_the_model_s_own_work_on(net: Two) -> None:
    """Ours does not hide theirs."""
    seen: list[str] = []

    class Names(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    def call(x: torch.Tensor) -> torch.Tensor:
        with Names():
            return net(x)  # type: ignore[no-any-return]

    with ns.Model.wrap(net).trace(X, method=call) as t:
        _ = t.a.ops["softmax"][0].output
        functional.relu(X)
    assert "relu" not in seen
    assert seen.count("softmax") == 2


def test_each_step_counts_anew() -> None:
    """In a repeated run `[0]` is the first of each step."""
    net = blocks()
    with ns.Model.wrap(net).trace(X, 3, method="rollout") as t:
        seen = [t.h[0].ops["relu"][0].output for _ in t.steps]
    assert len(seen) == 3
    assert not torch.equal(seen[0], seen[1])


def test_a_function_that_is_not_called_is_told_with_those_that_are(net: Two) -> None:
    """And how to see all."""
    with pytest.raises(SiteNotReachedError, match=r"linear \(3×\).*ns_model\.show") as caught:
        with ns.Model.wrap(net).trace(X) as t:
            _ = t.a.ops["conv2d"][0].output
    assert "softmax" in str(caught.value)
    with ns.Model.wrap(net).trace(X) as t:
        with pytest.raises(IndexError):
            _ = t.a.ops["linear"][-1]
        with pytest.raises(TypeError, match="show"):
            len(t.a.ops["linear"])


def test_show_lists_what_a_module_calls_with_shapes(net: Two) -> None:
    """A line each, in order; nothing is left, nothing else ran."""
    listing = ns.Model.wrap(net).show("a", X)
    assert [f"{call.name}[{call.number}]" for call in listing] == [
        "linear[0]", "linear[1]", "transpose[0]", "matmul[0]", "div[0]", "softmax[0]", "linear[2]",
        "matmul[1]",
    ]  # fmt: skip
    assert "softmax[0]: float32[2, 2] -> float32[2, 2]" in repr(listing)
    assert not left_on(net)

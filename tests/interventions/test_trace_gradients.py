"""Gradients of values inside, read and replaced; the autograd engine is never stopped."""

# What a trace gives is Any, and so are lambdas over it; torch leaves parts of itself untyped.
# pyright: reportUnknownLambdaType=false
from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import neuronscope as ns
from neuronscope.interventions import GradientError
from tracednets import X, blocks


def weight_of(net: Any) -> Any:
    """The first block's weight."""
    return net.h[0].lin.weight


def test_gradients_are_those_of_autograd() -> None:
    """By tensor hooks, in one pass."""
    net = blocks()
    with ns.Model.wrap(net).trace(X) as t:
        values = [site.output[0] for site in t["h.*"]]
        with t.backward(t.result.square().sum()) as b:
            gradients = [b.grad(value) for value in values]
    hidden = X
    expected: list[torch.Tensor] = []
    for block in net.h:
        hidden = block(hidden)[0]
        hidden.retain_grad()
        expected.append(hidden)
    net(X)
    net.head(hidden).square().sum().backward()
    for gradient, value in zip(gradients, expected, strict=True):
        assert torch.equal(gradient.value, value.grad)  # type: ignore[arg-type]  # it has one


def test_a_replaced_gradient_is_what_goes_on() -> None:
    """A tensor, or a function of what arrived; earlier values get the consequence."""
    net = blocks()
    weight = weight_of(net)
    with ns.Model.wrap(net).trace(X) as t:
        early, late = t.h[0].output[0], t.h[2].output[0]
        with t.backward(t.result.sum(), retain_graph=True) as b:
            before = b.grad(early)
            b.grad(late, lambda g: g * 0)
        assert not before.value.any()
        assert not weight.grad.any()
        with t.backward(t.result.sum()) as b:
            again = b.grad(late, torch.ones_like(late))
    assert again.value.any()
    assert weight.grad.any()


def test_several_losses_in_turn() -> None:
    """One block each; an intermediate value may be the loss, while the model waits."""
    net = blocks()
    with ns.Model.wrap(net).trace(X) as t:
        first = t.h[0].output[0]
        with t.backward(first.sum(), retain_graph=True) as b:
            one = b.grad(first)
        assert torch.equal(one.value, torch.ones(2, 8))
        out = t.result
        with t.backward(out[0].sum(), retain_graph=True) as b:
            two = b.grad(first)
        with t.backward(out[1].sum()) as b:
            three = b.grad(first)
    assert two.value[0].any()
    assert not two.value[1].any()
    assert not three.value[0].any()


def test_an_edit_is_part_of_the_graph() -> None:
    """Gradients flow through what the body put there, and into it."""
    net = blocks()
    direction = torch.zeros(8, requires_grad=True)
    with ns.Model.wrap(net).trace(X) as t:
        t.h[1].replace_first(t.h[1].output[0] + direction)
        with t.backward(t.result.sum()):
            pass
    assert direction.grad is not None
    assert direction.grad.any()


@pytest.mark.parametrize("order", [1, 2])
def test_in_place_modules_do_not_stand_in_the_way(order: int) -> None:
    """A full backward hook would make this model raise; tensor hooks do not."""
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
    with ns.Model.wrap(net).trace(X) as t:
        value = t[order].output
        with t.backward(t.result.sum()) as b:
            gradient = b.grad(value)
    assert gradient.value.shape == value.shape


def test_what_cannot_be_had_is_told() -> None:
    """No graph, no gradient, too early, of another shape, twice."""
    net = blocks()
    model = ns.Model.wrap(net)
    with torch.no_grad(), model.trace(X) as t:
        value = t.h[0].output[0]
        with pytest.raises(GradientError, match="no_grad"):
            t.backward(t.result.sum())
    with model.trace(X) as t:
        kept = t.h[0].output[0]
        loss = t.result.sum()
        with pytest.raises(GradientError, match="does not require"), t.backward(loss, retain_graph=True) as b:
            b.grad(value)
            raise AssertionError("unreachable") from None
    with model.trace(X) as t:
        kept, unrelated = t.h[0].output[0], torch.ones(1, requires_grad=True) * 2
        backward: Any = t.backward(t.result.sum())
        with backward as b:
            gradient, nothing = b.grad(kept), b.grad(unrelated)
            with pytest.raises(GradientError, match="after it"):
                _ = gradient.value
        assert gradient.value.shape == (2, 8)
        with pytest.raises(GradientError, match="does not depend"):
            _ = nothing.value
        with pytest.raises(GradientError, match="has run"):
            gradient.replace(kept)
        with pytest.raises(GradientError, match="has run"), backward:
            pass
        with pytest.raises(RuntimeError, match="second time"), t.backward(t.result.sum()) as b:
            b.grad(kept)
    with pytest.raises(GradientError, match="shape"), model.trace(X) as t:
        kept = t.h[0].output[0]
        with t.backward(t.result.sum()) as b:
            b.grad(kept, torch.ones(3))


def test_a_failing_pass_leaves_no_hook() -> None:
    """The next pass is a plain one."""
    net = blocks()

    def fail(_: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    with ns.Model.wrap(net).trace(X) as t:
        value = t.h[0].output[0]
        loss = t.result.sum()
        with pytest.raises(ZeroDivisionError), t.backward(loss, retain_graph=True) as b:
            b.grad(value, fail)
        loss.backward()
    assert weight_of(net).grad is not None


def test_a_training_step_under_a_trace_gives_the_plain_gradients() -> None:
    """Reading under no_grad in between changes nothing."""
    net, twin = blocks(), blocks()
    twin(X).sum().backward()
    with ns.Model.wrap(net).trace(X) as t:
        with torch.no_grad():
            _ = [site.output for site in t["h.*"]]
        t.result.sum().backward()
    for one, two in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)  # type: ignore[arg-type]  # they have them

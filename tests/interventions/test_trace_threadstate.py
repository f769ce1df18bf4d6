"""Body and model share a thread, and nothing of PyTorch's state in it."""

# What a trace gives is Any, and so are lambdas over it; torch leaves parts of itself untyped.
# pyright: reportPrivateUsage=false
from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import neuronscope as ns
from neuronscope_instrumentation.torch.interventions.threadstate import ThreadState, capture
from tracednets import X


class Counting(TorchFunctionMode):
    """A function mode that counts what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count."""
        self.seen += 1
        return func(*args, **(kwargs or {}))


class Dispatching(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """A dispatch mode that does nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass."""
        return func(*args, **(kwargs or {}))


def packing() -> AbstractContextManager[Any]:
    """Saved-tensor hooks."""
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference": torch.inference_mode,
    "no inference": lambda: torch.inference_mode(False),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast off": lambda: torch.autocast("cpu", enabled=False),
    "autocast fp16": lambda: torch.autocast("cpu", dtype=torch.float16),
    "device": lambda: torch.device("meta"),
    "function mode": Counting,
    "dispatch mode": Dispatching,
    "saved hooks": packing,
    "no torch function": torch._C.DisableTorchFunctionSubclass,
}


class Watcher(nn.Module):
    """Notes the state that each of its parts runs in; may open a mode of its own around some."""

    def __init__(self, mode: Callable[[], AbstractContextManager[Any]] | None = None) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Identity() for _ in range(4)])
        self.mode = mode
        self.states: list[ThreadState] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Four parts; the middle two under the mode."""
        x = self.run(0, x)
        if self.mode is None:
            x = self.run(2, self.run(1, x))
        else:
            with self.mode():
                x = self.run(2, self.run(1, x))
        return self.run(3, x)

    def run(self, number: int, x: torch.Tensor) -> torch.Tensor:
        """One part."""
        self.states.append(capture())
        result = self.parts[number](x)
        self.states.append(capture())
        return result  # type: ignore[no-any-return]


@pytest.mark.parametrize("outside", ["none", "no_grad", "inference", "autocast", "function mode"])
@pytest.mark.parametrize("mode", MODES)
def test_a_mode_of_the_body_is_the_body_s(mode: str, outside: str) -> None:
    """Opened and closed between sites, across sites, and left over the end: the model never sees it."""
    model = Watcher()
    with MODES.get(outside, torch.enable_grad)():
        plain = capture()
        with ns.Model.wrap(model).trace(X) as t:
            with MODES[mode]():
                inside = capture()
                _ = t.parts[0].output
                assert capture() == inside
                _ = t.parts[1].input
            assert capture() == plain
            _ = t.parts[1].output
            with MODES[mode]():
                _ = t.parts[3].output
                _ = t.result
                assert capture() == capture()
        assert capture() == plain
    assert set(map(str, model.states)) == {str(plain)}


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_of_the_model_is_the_model_s(mode: str) -> None:
    """Opened by the forward around the site: the body never sees it, and the model keeps it."""
    plain = capture()
    alone = Watcher(MODES[mode])
    alone(X)
    model = Watcher(MODES[mode])
    with ns.Model.wrap(model).trace(X) as t:
        _ = t.parts[0].output
        assert capture() == plain
        for part in (t.parts[1], t.parts[2]):
            _ = part.input
            assert capture() == plain
            with torch.no_grad():
                _ = part.output
        assert capture() == plain
        _ = t.parts[3].output
    assert capture() == plain
    same = [kind(state) for state in alone.states]
    assert [kind(state) for state in model.states] == same


def kind(state: ThreadState) -> tuple[Any, ...]:
    """The state without the identity of its modes."""
    return (
        state.grad, state.inference, state.autocast, [type(mode).__name__ for mode in state.functions],
        [type(mode).__name__ for mode in state.dispatch], len(state.hooks), state.hooks_off,
        state.functions_state,
    )  # fmt: skip


@pytest.mark.parametrize("outer", MODES)
@pytest.mark.parametrize("inner", ["no_grad", "inference", "autocast", "function mode", "saved hooks"])
def test_both_sides_have_modes_of_their_own(outer: str, inner: str) -> None:
    """The body's mode closes while the model's is open, and the other way round."""
    plain = capture()
    model = Watcher(MODES[inner])
    with ns.Model.wrap(model).trace(X) as t:
        with MODES[outer]():
            _ = t.parts[1].output  # inside of the model's mode
        assert capture() == plain
        _ = t.parts[2].output
        with MODES[outer]():
            _ = t.parts[3].output  # the model's mode has closed meanwhile
        assert capture() == plain
    assert capture() == plain
    assert str(model.states[-1]) == str(plain)


@pytest.mark.parametrize("mode", MODES)
def test_stopping_under_a_mode_puts_the_thread_back(mode: str) -> None:
    """However a trace ends, the thread is as before."""
    plain = capture()
    model = Watcher(MODES[mode])
    with ns.Model.wrap(model).trace(X) as t:
        _ = t.parts[1].output
        t.stop()
        assert capture() == plain
    with pytest.raises(ZeroDivisionError), ns.Model.wrap(model).trace(X) as t:
        _ = t.parts[1].output
        _ = 1 / 0
    assert capture() == plain


def test_gradients_are_right_though_the_body_reads_under_no_grad() -> None:
    """What nnsight and hooks share with the body does not leak here."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    net(X).sum().backward()
    weight: Any = net[0].weight
    expected = weight.grad.clone()
    net.zero_grad()
    with ns.Model.wrap(net).trace(X) as t, torch.no_grad():
        _ = t[0].output
        _ = t[2].output
    t.result.sum().backward()
    assert torch.equal(weight.grad, expected)


def test_a_counting_mode_of_the_body_counts_the_body_only() -> None:
    """And one of the model's counts the model only."""
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with ns.Model.wrap(net).trace(X) as t, Counting() as mode:
        value = t[1].output
        assert mode.seen == 0
        _ = value + 1
        assert mode.seen == 1
        _ = t.result
        assert mode.seen == 1


def test_the_default_device_of_the_body_stays_there() -> None:
    """`set_default_device` within the block does not reach the model, and is undone by the user alone."""

    class Maker(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.part(x)
            return x + torch.ones(8)

    with ns.Model.wrap(Maker()).trace(X) as t:
        torch.set_default_device("meta")
        try:
            _ = t.part.output
            assert torch.ones(1).is_meta
            result = t.result
        finally:
            torch.set_default_device(None)
    assert torch.equal(result, X + 1)
    assert not torch.ones(1).is_meta


def test_context_variables_are_each_side_s_own() -> None:
    """The model starts with the body's, and what either sets later is its own."""
    from contextvars import ContextVar

    variable: ContextVar[str] = ContextVar("variable", default="unset")

    class Setter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Identity()

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, str]:
            before = variable.get()
            variable.set("model")
            return self.part(x), before

    variable.set("body")
    with ns.Model.wrap(Setter()).trace(X) as t:
        _ = t.part.output
        assert variable.get() == "body"
    assert t.result[1] == "body"
    assert variable.get() == "body"

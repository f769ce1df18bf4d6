"""Many traces at once, in threads, tasks and in one another, with plain callers on the same model."""

# What a trace gives is Any, and so are lambdas over it; torch leaves parts of itself untyped.
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false
from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import neuronscope as ns
from neuronscope_instrumentation.torch import ADAPTER
from tracednets import X, blocks, left_on

TRACES = 300


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def in_threads(*jobs: Callable[[], None]) -> None:
    """Run the jobs at the same time; their errors are this test's."""
    errors: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001  re-raised below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.usefixtures("eager_switching")
def test_hundreds_of_traces_and_plain_callers_share_a_model() -> None:
    """None sees another's values, edits or slots."""
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(8, 8) for _ in range(12)]).eval()
    model = ns.Model.wrap(net)
    told = list[str]()  # appended to, since counting in a shared Counter loses counts between threads
    done = threading.Event()

    @torch.no_grad()
    def tracing(value: float) -> None:
        x = torch.full((1, 8), value)
        plain = net(x)
        for number in range(TRACES // 3):
            with model.trace(x) as t:
                same = torch.equal(t[0].input, x)
                if number % 3 == 0:
                    t[11].output = torch.full((1, 8), value)
                elif number % 3 == 1:
                    _ = t[3].output
                    t.stop()
            if number % 3 == 0:
                same &= torch.equal(t.result, x)
            elif number % 3 == 2:
                same &= torch.equal(t.result, plain)
            told.append("ok" if same else "wrong")

    @torch.no_grad()
    def calling() -> None:
        x = torch.full((1, 8), 9.0)
        expected = net(x)
        while not done.is_set():
            told.append("plain ok" if torch.equal(net(x), expected) else "plain wrong")

    callers = [threading.Thread(target=calling) for _ in range(2)]
    for caller in callers:
        caller.start()
    try:
        in_threads(*(lambda value=value: tracing(value) for value in (1.0, 2.0, 3.0)))
    finally:
        done.set()
        for caller in callers:
            caller.join()
    outcomes = Counter(told)
    assert outcomes["ok"] == TRACES
    assert outcomes["plain ok"]
    assert not outcomes["wrong"]
    assert not outcomes["plain wrong"]
    assert not left_on(net)


def note(seen: list[int], _: object) -> None:
    """An observer."""
    seen.append(1)


@pytest.mark.usefixtures("eager_switching")
def test_threads_that_probe_and_trace_share_slots() -> None:
    """Observers come and go while traces run."""
    net = blocks()
    other = ns.Model.wrap(net)

    def probing() -> None:
        for _ in range(80):
            seen: list[int] = []
            undo = [ADAPTER.observe_layer(net, f"h.{i}", partial(note, seen)) for i in range(3)]
            net(X)
            for step in undo:
                step()
            assert len(seen) >= 3

    def tracing() -> None:
        for _ in range(80):
            with other.trace(X) as t:
                for site in t["h.*"]:
                    site.replace_first(torch.ones(2, 8))
            assert torch.equal(t.result, net.head(torch.ones(2, 8)))

    in_threads(probing, tracing, tracing)
    assert not left_on(net)


def test_tasks_of_one_thread_interleave() -> None:
    """A trace may be held over an `await`, while others run."""
    net = blocks()
    model = ns.Model.wrap(net)

    async def one(value: float) -> bool:
        x = torch.full((2, 8), value)
        with model.trace(x) as t:
            seen = []
            for site in t["h.*"]:
                seen.append(site.input)
                await asyncio.sleep(0)
            t.head.output = t.head.output * 0 + value
        return torch.equal(seen[0], x) and torch.equal(t.result, x)

    async def main() -> list[bool]:
        return await asyncio.gather(*(one(float(number)) for number in range(100)))

    assert all(asyncio.run(main()))
    assert not left_on(net)


def test_nested_traces_of_one_model() -> None:
    """The inner one runs while the outer one's model waits."""
    net = blocks()
    model = ns.Model.wrap(net)
    with model.trace(X) as outer:
        hidden = outer.h[1].output
        with model.trace(X * 2) as inner:
            inner.h[1].replace_first(hidden[0])
            assert inner.h[2].input is hidden[0]
        assert torch.equal(inner.result, net(X))
        outer.h[1].replace_first(hidden[0] * 0)
    assert torch.equal(outer.result, net.head(net.h[2](torch.zeros(2, 8))[0]))
    assert not left_on(net)


def test_several_models_in_one_body() -> None:
    """Values go from one model to another, in either order, several times."""
    one, two = blocks(seed=1), blocks(seed=2)
    with ns.Model.wrap(one).trace(X) as a, ns.Model.wrap(two).trace(X) as b:
        b.h[0].replace_first(a.h[0].output[0])
        a.h[1].replace_first(b.h[1].output[0])
        b.h[2].output = a.h[2].output
    hidden = two.h[1](one.h[0](X)[0])[0]
    assert torch.equal(a.result, one.head(one.h[2](hidden)[0]))
    assert torch.equal(b.result, two.head(one.h[2](hidden)[0]))


def test_a_trace_inside_a_traced_forward() -> None:
    """A model whose forward intervenes in another one."""
    inner = blocks()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner
            self.last = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with ns.Model.wrap(self.inner).trace(x) as t:
                t.h[0].replace_first(torch.ones(2, 8))
            return self.last(t.result)  # type: ignore[no-any-return]

    model = Outer()
    with ns.Model.wrap(model).trace(X) as t:
        result = t.last.input
        t.last.output = result * 0
    assert torch.equal(result, model(X))
    assert not t.result.any()


def test_a_shared_module_is_one_site_with_several_visits() -> None:
    """Under whichever of its paths."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 8)
            self.b = self.a

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))  # type: ignore[no-any-return]

    net = Shared()
    with ns.Model.wrap(net).trace(X) as t:
        assert t.b is t.a
        outputs = [t.b.output for _ in t.steps_of("a")]
    assert torch.equal(outputs[0], net.a(X))
    assert torch.equal(outputs[1], t.result)


def test_the_same_handle_from_several_threads() -> None:
    """A handle keeps nothing of a run."""
    net = blocks()
    model: Any = ns.Model.wrap(net)
    expected = net(X)

    def work() -> None:
        for _ in range(50):
            with model.trace(X) as t:
                _ = t["h.1"].output
            assert torch.equal(t.result, expected)

    in_threads(work, work, work, work)
    assert not left_on(net)

"""However a trace ends, nothing of it is left: no slot, no activation, no half-run model."""

# What a trace gives is Any, and so are lambdas over it; torch leaves parts of itself untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportPossiblyUnboundVariable=false
from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import neuronscope as ns
from neuronscope.interventions import InterventionError
from tracednets import Blocks, X, blocks, left_on


class EndedError(Exception):
    """The body's own."""


def normally(model: ns.Model) -> weakref.ref[Any]:
    with model.trace(X) as t:
        value = t.h[1].output[0]
        _ = t.head.output
    return weakref.ref(value)


def by_stop(model: ns.Model) -> weakref.ref[Any]:
    with model.trace(X) as t:
        value = t.h[1].output[0]
        t.stop()
    return weakref.ref(value)


def by_the_body(model: ns.Model) -> weakref.ref[Any]:
    with pytest.raises(EndedError), model.trace(X) as t:
        ref = weakref.ref(t.h[1].output[0])
        raise EndedError
    return ref


def by_the_model(model: ns.Model) -> weakref.ref[Any]:
    handle = model.model.head.register_forward_pre_hook(_fail)
    with pytest.raises(EndedError), model.trace(X) as t:
        ref = weakref.ref(t.h[1].output[0])
        _ = t.head.output
    handle.remove()
    return ref


def _fail(*_: object) -> None:
    raise EndedError


def by_a_wrong_site(model: ns.Model) -> weakref.ref[Any]:
    with pytest.raises(InterventionError), model.trace(X) as t:
        ref = weakref.ref(t.h[1].output[0])
        _ = t.h[0].output
    return ref


def by_dropping_it(model: ns.Model) -> weakref.ref[Any]:
    trace: Any = model.trace(X).__enter__()
    return weakref.ref(trace["h.1"].output[0])


def by_a_generator(model: ns.Model) -> weakref.ref[Any]:
    def reading() -> Generator[Any, None, None]:
        with model.trace(X) as t:
            yield t.h[1].output[0]

    return weakref.ref(next(reading()))


def by_a_cancelled_task(model: ns.Model) -> weakref.ref[Any]:
    refs: list[weakref.ref[Any]] = []

    async def body() -> None:
        with model.trace(X) as t:
            refs.append(weakref.ref(t.h[1].output[0]))
            await asyncio.sleep(10)

    async def main() -> None:
        task = asyncio.create_task(body())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    return refs[0]


def by_a_backward_that_fails(model: ns.Model) -> weakref.ref[Any]:
    with pytest.raises(EndedError), model.trace(X) as t:
        value = t.h[1].output[0]
        ref = weakref.ref(value)
        with t.backward(t.result.sum()) as b:
            b.grad(value, _fail)
    return ref


ENDINGS = [
    normally, by_stop, by_the_body, by_the_model, by_a_wrong_site, by_dropping_it, by_a_generator,
    by_a_cancelled_task, by_a_backward_that_fails,
]  # fmt: skip


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is freed is freed at once, not by the garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("end", ENDINGS, ids=lambda end: end.__name__)
@pytest.mark.usefixtures("no_collector")
def test_slots_are_gone_and_activations_free(end: Callable[[ns.Model], weakref.ref[Any]]) -> None:
    """At once, and the next run is the plain one."""
    net = blocks()
    model = ns.Model.wrap(net)
    ref = end(model)
    assert not left_on(net)
    if end is by_a_backward_that_fails:  # the traceback's frames are the test's to drop
        gc.collect()
    assert ref() is None
    assert torch.equal(net(X), blocks()(X))
    with model.trace(X) as t:
        assert t.h[0].output[1] is X


@pytest.mark.parametrize("end", ENDINGS, ids=lambda end: end.__name__)
def test_the_model_itself_can_go(end: Callable[[ns.Model], weakref.ref[Any]]) -> None:
    """Nothing keeps a model that was traced."""
    net = blocks()
    model = ns.Model.wrap(net)
    end(model)
    ref = weakref.ref(net)
    del net, model
    gc.collect()
    assert ref() is None


def test_finally_blocks_and_context_managers_of_the_model_run() -> None:
    """A stopped model cleans up after itself."""
    left: list[str] = []

    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                with torch.no_grad():
                    return self.part(x)  # type: ignore[no-any-return]
            finally:
                left.append("finally")

    with ns.Model.wrap(Careful()).trace(X) as t:
        _ = t.part.output
        t.stop()
        assert left == ["finally"]
        assert torch.is_grad_enabled()


def test_a_model_that_swallows_the_stop_is_stopped_at_its_next_site() -> None:
    """`except BaseException` in a forward does not make it run on."""
    ran: list[str] = []

    class Stubborn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Identity(), nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(BaseException):  # as some forwards do
                x = self.a(x)
            x = self.b(x)
            ran.append("all")
            return x

    with ns.Model.wrap(Stubborn()).trace(X) as t:
        _ = t.b
        _ = t.a.output
        t.stop()
    assert not ran


def test_the_body_s_error_is_not_hidden_by_the_model_s_clean_up() -> None:
    """Both are told."""

    class Messy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                return self.part(x)  # type: ignore[no-any-return]
            finally:
                raise ValueError("while cleaning up")

    net = Messy()
    with pytest.raises(ValueError, match="cleaning up") as caught, ns.Model.wrap(net).trace(X) as t:
        _ = t.part.output
        raise EndedError
    assert isinstance(caught.value.__context__, BaseException)
    assert not left_on(net)


def test_a_trace_that_outlives_its_thread_leaves_nothing_on_the_model() -> None:
    """A generator left suspended by a thread that has ended."""
    net = blocks()
    kept: list[Any] = []

    refs: list[weakref.ref[Any]] = []

    def reading() -> Generator[None, None, None]:
        with ns.Model.wrap(net).trace(X) as t:
            refs.append(weakref.ref(t.h[1].output[0]))
            yield

    def work() -> None:
        generator = reading()
        next(generator)
        kept.append(generator)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not left_on(net)  # the ending thread has ended its models
    gc.collect()
    assert refs[0]() is None
    kept.pop().close()
    assert torch.equal(net(X), blocks()(X))


def test_dropped_in_another_thread_it_leaves_nothing_on_the_model() -> None:
    """The garbage collector runs where it likes."""
    net = blocks()
    held: list[Any] = [ns.Model.wrap(net).trace(X).__enter__()]
    _ = held[0]["h.1"].output
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    assert not left_on(net)
    assert torch.equal(net(X), blocks()(X))


def test_many_traces_leave_nothing_behind() -> None:
    """Fifty traces, and not one tensor more."""
    net = blocks()
    model = ns.Model.wrap(net)
    with torch.no_grad():
        for end in ENDINGS[:7]:
            end(model)
        gc.collect()
        before = sum(type(thing) is torch.Tensor for thing in gc.get_objects())
        for number in range(50):
            ENDINGS[number % 7](model)
        after = sum(type(thing) is torch.Tensor for thing in gc.get_objects())
    assert after <= before


def test_copies_made_during_a_trace_are_plain_models_of_their_own() -> None:
    """deepcopy, pickle and state dictionaries, while the body holds the model."""
    net = blocks()
    with ns.Model.wrap(net).trace(X) as t:
        _ = t.h[0].output
        _ = t.h[0].lin
        twin = copy.deepcopy(net)
        loaded = pickle.loads(pickle.dumps(net))
        shallow = copy.copy(net.h[0].lin)
        state = net.state_dict()
    assert not left_on(twin)
    assert not left_on(loaded)
    assert "_call_impl" not in vars(shallow)
    with torch.no_grad():
        twin.head.weight.zero_()
        twin.head.bias.zero_()
    assert not twin(X).any()
    assert torch.equal(net(X), t.result)
    assert list(state) == list(net.state_dict())


class Copied(nn.Linear):
    """Says itself how it is copied, by its instance dictionary."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Copied:
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(vars(self), memo))
        return copied


def test_a_module_that_says_how_it_is_copied_is_copied_as_if_nobody_were_there() -> None:
    """The copy has none of the slot, so it computes with weights of its own."""
    net = nn.Sequential(Copied(8, 8))
    with ns.Model.wrap(net).trace(X) as t:
        _ = t[0].input
        twin = copy.deepcopy(net)
        assert not left_on(twin)
    assert torch.equal(twin(X), t.result)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not twin(X).any()
    assert torch.equal(net(X), t.result)
    assert not left_on(net)


def test_the_user_s_own_hooks_stay() -> None:
    """Before, during and after."""
    net, ran = blocks(), list[int]()
    net.head.register_forward_hook(lambda *_: ran.append(1))
    with ns.Model.wrap(net).trace(X) as t:
        _ = t.head.output
    net(X)
    assert len(ran) == 2


def test_an_instance_s_own_forward_is_kept() -> None:
    """accelerate and others put one there."""
    net = blocks()
    forward = net.head.forward
    setattr(net.head, "forward", lambda x: forward(x) + 1)  # noqa: B010  as accelerate does
    expected = net(X)
    with ns.Model.wrap(net).trace(X) as t:
        assert torch.equal(t.head.output, expected)
    assert "forward" in vars(net.head)
    assert torch.equal(net(X), expected)


def test_errors_raised_in_greenlets_do_not_bring_the_process_down() -> None:
    """torch's C++ errors are raised on a greenlet's stack, hundreds of times."""
    net: Blocks = blocks()
    model = ns.Model.wrap(net)
    for _ in range(300):
        with pytest.raises(RuntimeError, match="shapes"), model.trace(torch.ones(2, 3)) as t:
            _ = t.h[0].input
            _ = t.head.output
    assert not left_on(net)


def test_sites_are_used_again_unless_somebody_holds_them() -> None:
    """A site that outlives its trace is dead, and stays so."""
    net = blocks()
    model = ns.Model.wrap(net)
    with model.trace(X) as t:
        kept = t["h.1"]
        number = id(t["h.0"])
        _ = kept.output
    with model.trace(X) as t:
        assert id(t["h.0"]) == number
        assert t["h.1"] is not kept
        with pytest.raises(InterventionError):
            _ = kept.output
        with pytest.raises(InterventionError):
            kept.output = X
        assert torch.equal(t["h.1"].output[0], net.h[1](net.h[0](X)[0])[0])
    with pytest.raises(InterventionError):
        kept.skip(X)
    assert not left_on(net)

"""Watching a module changes nothing about it, and leaves no trace."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from growth import traced_growth
from neuronscope.engine.guard import GUARD
from neuronscope.signals.tensors import TensorSnapshot
from neuronscope_instrumentation.torch import ADAPTER
from neuronscope_instrumentation.torch.internals import CALL
from torchnets import INPUT, PATHS, make_net, watch, watched_entries


def test_outputs_gradients_and_random_state_are_bit_equal() -> None:
    """A training step under observation gives the same bits."""

    def step(observed: bool) -> tuple[torch.Tensor, list[torch.Tensor | None], torch.Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 1))
        if observed:
            watch(model, "", "0", "1", "2", "3")
        output = model(INPUT)
        output.sum().backward()
        return output, [parameter.grad for parameter in model.parameters()], torch.get_rng_state()

    plain, observed = step(observed=False), step(observed=True)
    assert torch.equal(plain[0], observed[0])
    assert observed[0].requires_grad
    for expected, got in zip(plain[1], observed[1], strict=True):
        assert expected is not None
        assert got is not None
        assert torch.equal(expected, got)
    assert torch.equal(plain[2], observed[2])


def test_layers_are_seen_once_per_call_innermost_first() -> None:
    """Every watched module reports each of its calls, after its forward."""
    seen, _ = watch(model := make_net())
    model(INPUT)
    assert seen == ["first", "rest.0", "rest.1", "rest", ""]


def test_summary_is_taken_before_an_in_place_layer_overwrites_it() -> None:
    """`first` still shows negative values although the ReLU after it works in place."""
    lowest: list[float] = []
    model = make_net()
    ADAPTER.observe_layer(model, "first", lambda snapshot: lowest.append(snapshot.summarize().min))
    model(INPUT)
    assert lowest[0] < 0


def test_the_returned_object_is_the_module_s_own() -> None:
    """Structures come back by identity, untouched."""
    result = {"a": [torch.ones(2)], "b": None}

    class Structured(nn.Module):
        def forward(self) -> dict[str, Any]:
            return result

    model = Structured()
    seen, _ = watch(model, "")
    assert model() is result
    assert seen == [""]


def test_removal_restores_the_instance_exactly() -> None:
    """The dictionary of every module is as before; the undo may be called again."""
    model = make_net()
    before = [dict(vars(module)) for module in model.modules()]
    _, undo = watch(model)
    assert CALL in vars(model)
    undo()
    undo()
    assert [dict(vars(module)) for module in model.modules()] == before


def test_observers_are_counted_apart() -> None:
    """Undoing one leaves the other; only the last undo takes the slot away."""
    model = make_net()
    first_seen, undo_first = watch(model, "first")
    second_seen, undo_second = watch(model, "first")
    undo_first()
    model(INPUT)
    assert (first_seen, second_seen) == ([], ["first"])
    assert CALL in vars(model.first)
    undo_second()
    assert CALL not in vars(model.first)


def test_remove_hooks_leaves_observers_of_other_scopes() -> None:
    """`remove_hooks` undoes `install_observer_hook` only, and only on that model."""
    model, other = make_net(), make_net()
    kept, _ = watch(model, "first")
    gone: list[TensorSnapshot] = []
    elsewhere: list[TensorSnapshot] = []
    ADAPTER.install_observer_hook(model, "first", gone.append)
    ADAPTER.install_observer_hook(other, "first", elsewhere.append)
    ADAPTER.remove_hooks(model)
    ADAPTER.remove_hooks(model)
    model(INPUT)
    other(INPUT)
    assert (len(kept), len(gone), len(elsewhere)) == (1, 0, 1)


def test_user_hooks_and_replaced_forwards_stay_inside() -> None:
    """What observers see is what the caller receives: after the user's own hooks."""
    model = make_net()

    def sevens(*_: object) -> torch.Tensor:
        return torch.full((2, 8), 7.0)

    model.first.register_forward_hook(sevens)
    means: list[float] = []
    undo = ADAPTER.observe_layer(model, "first", lambda snapshot: means.append(snapshot.summarize().mean))
    model(INPUT)
    undo()
    assert means == [7.0]
    assert torch.equal(model.first(INPUT), torch.full((2, 8), 7.0))


def test_another_tool_s_call_impl_is_called_and_restored() -> None:
    """An entry that was there before stays in force under the slot, and is put back."""
    model = make_net()
    calls: list[int] = []
    original: Callable[..., Any] = getattr(model.first, CALL)

    def theirs(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return original(*args, **kwargs)

    vars(model.first)[CALL] = theirs
    seen, undo = watch(model, "first")
    model(INPUT)
    undo()
    assert (calls, seen) == ([1], ["first"])
    assert vars(model.first)[CALL] is theirs


def test_a_wrapper_put_over_the_slot_survives_removal() -> None:
    """The slot below another tool's later wrapper turns into a pass-through."""
    model = make_net()
    expected = model(INPUT)
    seen, undo = watch(model, "first")
    slot = vars(model.first)[CALL]

    def theirs(*args: Any) -> Any:
        return slot(*args)

    vars(model.first)[CALL] = theirs
    copy.deepcopy(model)
    assert vars(model.first)[CALL] is theirs
    undo()
    assert torch.equal(model(INPUT), expected)
    assert seen == []


def test_an_observer_s_fault_never_reaches_the_model() -> None:
    """The guard counts it; later observers of the layer still run."""
    GUARD.reraise = False
    model = make_net()
    expected = model(INPUT)

    def faulty(_: TensorSnapshot) -> None:
        raise ZeroDivisionError

    ADAPTER.observe_layer(model, "first", faulty)
    seen, _ = watch(model, "first")
    assert torch.equal(model(INPUT), expected)
    assert seen == ["first"]
    assert [kind for _, kind in GUARD.faults] == ["ZeroDivisionError"]


def test_the_model_s_own_exception_passes_through() -> None:
    """It is the same exception; no observer is called; nothing is left behind."""
    model = make_net()
    seen, undo = watch(model)
    with pytest.raises(RuntimeError, match="shapes"):
        model(torch.ones(2, 3))
    assert seen == []
    undo()
    assert watched_entries(model) == []


def test_an_observer_may_run_the_model() -> None:
    """What observers compute is not observed: no recursion."""
    model = make_net()
    seen: list[torch.Tensor] = []
    ADAPTER.observe_layer(model, "", lambda _: seen.append(model(INPUT)))
    model(INPUT)
    assert len(seen) == 1


def test_keyword_calls_and_outputs_without_tensors() -> None:
    """Keyword-only calls are seen; an output without tensors calls nobody."""

    class Odd(nn.Module):
        def forward(self, *, x: torch.Tensor | None) -> torch.Tensor | None:
            return x

    seen, _ = watch(model := Odd(), "")
    assert model(x=None) is None
    assert seen == []
    model(x=INPUT)
    assert seen == [""]


def test_a_watched_model_is_freed_at_once() -> None:
    """Slots hold their module weakly: `del` suffices, without the cycle collector."""
    model = make_net()
    _, undo = watch(model)
    ADAPTER.install_observer_hook(model, "first", lambda _: None)
    model(INPUT)
    dead = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert dead() is None
    finally:
        gc.enable()
    undo()


def test_five_hundred_forwards_are_flat_in_memory() -> None:
    """Observation keeps nothing of what it saw."""
    model = make_net()
    last: list[Any] = [None, None]

    def keep_last(snapshot: TensorSnapshot) -> None:
        last[:] = [snapshot.summarize(), snapshot.numpy()]

    for path in PATHS:
        ADAPTER.observe_layer(model, path, keep_last)

    def run(times: int) -> None:
        for _ in range(times):
            model(INPUT)

    run(50)
    # 2,500 times the smallest object would be 70,000.
    assert traced_growth(lambda: run(500), 40_000) < 40_000


def test_eight_threads_while_observers_come_and_go() -> None:
    """Answers stay right, every call is seen by the lasting observer, and nothing is left."""
    model = make_net()
    inputs = [torch.full((2, 8), float(number)) for number in range(8)]
    expected = [model(x) for x in inputs]
    counted: list[int] = []
    lasting = ADAPTER.observe_layer(model, "first", lambda _: counted.append(1))
    wrong: list[int] = []
    stop = threading.Event()

    def serve(number: int) -> None:
        with torch.no_grad():
            for _ in range(100):
                wrong.extend([number] * (not torch.equal(model(inputs[number]), expected[number])))

    def come_and_go() -> None:
        while not stop.is_set():
            watch(model)[1]()

    servers = [threading.Thread(target=serve, args=(number,)) for number in range(8)]
    visitor = threading.Thread(target=come_and_go)
    for thread in (*servers, visitor):
        thread.start()
    for thread in servers:
        thread.join()
    stop.set()
    visitor.join()
    lasting()
    assert wrong == []
    assert len(counted) == 800
    assert watched_entries(model) == []


def test_user_modes_see_only_the_model() -> None:
    """Function modes, dispatch modes and autocast neither see nor change what observers compute."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Functions(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(getattr(func, "__name__", str(func)))
            return func(*args, **(kwargs or {}))

    class Dispatches(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(str(func))
            return func(*args, **(kwargs or {}))

    calls: list[str] = []
    model = make_net()

    def run() -> list[str]:
        calls.clear()
        with Functions(), Dispatches():  # type: ignore[no-untyped-call]
            model(INPUT)
        return list(calls)

    plain = run()
    kept: list[Any] = []
    watch(model)
    ADAPTER.observe_layer(model, "first", lambda snapshot: kept.append(snapshot.numpy()))
    assert run() == plain
    assert plain
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(INPUT)
    assert len(kept) == 2


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_every_grad_mode_gives_the_same_summaries(mode: Callable[[], Any]) -> None:
    """Neither inference tensors nor graphs matter."""
    model = make_net()
    found: list[Any] = []
    ADAPTER.observe_layer(model, "", lambda snapshot: found.append(snapshot.summarize()))
    model(INPUT)
    with mode():
        model(INPUT)
    assert found[0] == found[1]


def test_lazy_modules_and_meta_weights_are_left_alone_until_they_are_real() -> None:
    """A lazy module materialises under the slot; a meta forward raises nothing."""
    lazy = nn.Sequential(nn.LazyLinear(4), nn.ReLU())
    seen, _ = watch(lazy, "0", "1")
    lazy(INPUT)
    assert seen == ["0", "1"]
    with torch.device("meta"):
        meta = nn.Linear(8, 4)
    shapes: list[tuple[int, ...]] = []
    ADAPTER.observe_layer(meta, "", lambda snapshot: shapes.append(snapshot.shape))
    meta(INPUT.to("meta"))
    real = meta.to_empty(device="cpu")
    real(INPUT)
    assert shapes == [(2, 4), (2, 4)]

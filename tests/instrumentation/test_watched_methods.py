"""Methods watched through the instance dictionary, as sessions of ONNX Runtime and Keras layers are."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neuronscope.signals.tensors import TensorSnapshot
from neuronscope_instrumentation.common.host_arrays import of_array
from neuronscope_instrumentation.common.methods import Arguments, MethodSlot
from neuronscope_instrumentation.common.observing import InstalledHooks, Lender, Observer

LENDER = Lender()


class Model:
    """Doubles what it is given."""

    __hash__ = None  # type: ignore[assignment]  # as models of several frameworks

    def run(self, number: int) -> int:
        return 2 * number


class Slot(MethodSlot):
    def __init__(self, model: Model) -> None:
        super().__init__(model, ("run", "no_such_method"), "test")

    def see(self, output: Any, call: Arguments) -> None:
        LENDER.lend(self.observers, of_array(np.array([output, *call[0]])))


def watch(slot: Slot, model: Model, seen: list[list[int]]) -> Callable[[], None]:
    observer = Observer(slot, lambda snapshot: seen.append(snapshot.numpy().tolist()), "test")
    slot.observers += (observer,)
    slot.install(model)
    return observer.undo


def test_a_method_is_as_before_once_nobody_watches() -> None:
    """Observers come and go one by one; methods that the class lacks are not made up."""
    model, seen = Model(), list[list[int]]()
    slot = Slot(model)
    undo = [watch(slot, model, seen) for _ in range(2)]
    assert model.run(3) == 6
    assert list(vars(model)) == ["run"]
    undo[0]()
    undo[0]()
    assert model.run(4) == 8
    undo[1]()
    assert vars(model) == {}
    assert model.run(5) == 10
    assert seen == [[6, 3], [6, 3], [8, 4]]


def test_what_somebody_else_put_there_is_called_and_given_back() -> None:
    """A wrapper from before is below ours."""
    model, seen = Model(), list[list[int]]()

    def tripled(number: int) -> int:
        return 3 * number

    vars(model)["run"] = tripled
    undo = watch(Slot(model), model, seen)
    assert model.run(1) == 3
    undo()
    assert vars(model) == {"run": tripled}
    assert seen == [[3, 1]]


def test_an_entry_that_was_wrapped_and_left_sees_nothing_any_more() -> None:
    """Whoever watches anew is told once, though the wrapper still calls the old entry."""
    model, seen = Model(), list[list[int]]()
    slot = Slot(model)
    undo = watch(slot, model, seen)
    ours = model.run

    def wrapper(number: int) -> int:
        return ours(number) + 1

    vars(model)["run"] = wrapper
    undo()
    assert vars(model)["run"] is wrapper
    assert model.run(1) == 3
    assert seen == []
    undo = watch(slot, model, seen)
    assert model.run(1) == 3
    assert seen == [[3, 1]]
    undo()
    assert vars(model)["run"] is wrapper


def test_a_watched_object_can_be_collected_and_its_method_says_so() -> None:
    """Slots hold it weakly."""
    model = Model()
    undo = watch(Slot(model), model, [])
    dead, run = weakref.ref(model), model.run
    del model
    gc.collect()
    assert dead() is None
    undo()
    with pytest.raises(ReferenceError, match="gone"):
        run(1)


class Adapter(InstalledHooks):
    """Keeps what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: list[str] = []

    def observe_layer(
        self, model_obj: Any, layer_id: str, callback: Callable[[TensorSnapshot], None]
    ) -> Callable[[], None]:
        self.watched.append(layer_id)
        return lambda: self.watched.remove(layer_id)


def test_hooks_of_models_that_are_equal_or_have_no_hash_are_kept_apart() -> None:
    """By identity; those of a model that is gone are forgotten, and leave its successor's alone."""
    adapter, model, other = Adapter(), Model(), Model()
    for target, layer in ((model, "a"), (model, "b"), (other, "c")):
        adapter.install_observer_hook(target, layer, lambda _: None)
    adapter.remove_hooks(model)
    adapter.remove_hooks(model)
    assert adapter.watched == ["c"]
    del other, target
    gc.collect()
    assert vars(adapter)["_installed"] == {}

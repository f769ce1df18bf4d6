"""A slot that has left a module comes back to it, if it is as it was left; else a new one is made."""

from __future__ import annotations

import copy
import gc
import importlib
import pickle
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

import neuronscope as ns
from neuronscope import compiled
from neuronscope_instrumentation.torch import ADAPTER, resting, slot, slots
from neuronscope_instrumentation.torch.internals import CALL
from torchnets import INPUT, Net, make_net, watch, watched_entries


@pytest.fixture(params=["compiled", "python"], autouse=True)
def twin(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here by both twins."""
    if request.param == "python":
        for module, name in ((slots, "watch"), (slots, "unwatch"), (slots, "come_back"), (slot, "rest")):
            home = resting if name in {"come_back", "rest"} else slots
            monkeypatch.setattr(module, name, getattr(home, f"_{name}"))
    elif compiled.MODULE is None:
        pytest.skip(f"nothing is compiled here: {compiled.WHY_NOT}")


def watched_once() -> Net:
    """A net of which the first layer has a slot at rest."""
    model = make_net()
    _, undo = watch(model, "first")
    assert id(model.first) not in resting.RESTING
    undo()
    assert resting.RESTING[id(model.first)].module() is model.first
    return model


def slot_of(model: Net) -> Any:
    return vars(model.first)[CALL]


def test_the_same_slot_comes_back() -> None:
    """With the same companions; nothing of it is in the module meanwhile."""
    model = watched_once()
    at_rest = resting.RESTING[id(model.first)]
    plain = dict(vars(model.first))
    for _ in range(3):
        seen, undo = watch(model, "first")
        assert slot_of(model) is at_rest
        assert id(model.first) not in resting.RESTING
        assert copy.deepcopy(model).first(INPUT).equal(model.first(INPUT))
        model(INPUT)
        undo()
        undo()
        assert vars(model.first) == plain
        model(INPUT)
        assert seen == ["first", "first"]


def test_two_observers_leave_in_either_order() -> None:
    """The slot rests when the second one has left."""
    for order in ((0, 1), (1, 0)):
        model = watched_once()
        undos = [watch(model, "first")[1] for _ in range(2)]
        undos[order[0]]()
        assert CALL in vars(model.first)
        undos[order[1]]()
        assert watched_entries(model) == []
        assert id(model.first) in resting.RESTING


def test_a_module_of_another_class_by_now_gets_the_companions_of_that() -> None:
    """As FSDP and parametrisations do it: the class is another one, and copies by a way of its own."""

    class Copied(nn.Linear):
        def __deepcopy__(self, memo: dict[int, Any]) -> str:
            return "its own way"

    model = watched_once()
    at_rest = resting.RESTING[id(model.first)]
    model.first.__class__ = Copied
    seen, undo = watch(model, "first")
    assert slot_of(model) is not at_rest
    copied: Any = copy.deepcopy(model.first)
    assert copied == "its own way"
    model(INPUT)
    undo()
    assert (seen, watched_entries(model)) == (["first"], [])


@pytest.mark.parametrize("name", [CALL, "compile", "_replicate_for_data_parallel"])
def test_what_has_been_put_into_the_module_meanwhile_stays(name: str) -> None:
    """Another tool's entry is kept below the slot or beside it, and is there afterwards."""
    model = watched_once()
    original: Callable[..., Any] = getattr(model.first, name)

    def theirs(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    vars(model.first)[name] = theirs
    seen, undo = watch(model, "first")
    model(INPUT)
    undo()
    assert seen == ["first"]
    assert vars(model.first)[name] is theirs
    del vars(model.first)[name]
    assert watched_entries(model) == []


def test_what_has_been_put_over_the_slot_stays() -> None:
    """A wrapper or a method set while it is watched outlives the slot, which does not rest."""
    for name in (CALL, "compile"):
        model = watched_once()
        seen, undo = watch(model, "first")
        ours: Callable[..., Any] = getattr(model.first, name)
        vars(model.first)[name] = theirs = partial(ours)
        model(INPUT)
        undo()
        model(INPUT)
        assert seen == ["first"]
        assert vars(model.first)[name] is theirs
        assert id(model.first) not in resting.RESTING


def test_a_module_compiled_meanwhile_is_seen_at_its_boundary() -> None:
    """`module.compile()` between two observers: the second sees the compiled call."""
    model = watched_once()
    compiling: Any = model.first
    compiling.compile(backend="eager")
    before = dict(vars(model.first))
    seen, undo = watch(model, "first")
    model(INPUT)
    undo()
    assert seen == ["first"]
    assert vars(model.first) == before


def test_a_module_put_in_another_one_s_place_has_a_slot_of_its_own() -> None:
    """And computes with its own weights, whatever copy it is of."""
    model = watched_once()
    replaced = model.first
    model.first = copy.deepcopy(replaced)
    with torch.no_grad():
        model.first.weight.zero_()
        model.first.bias.fill_(3.0)
    means: list[float] = []
    undo = ADAPTER.observe_layer(model, "first", lambda snapshot: means.append(snapshot.summarize().mean))
    assert slot_of(model).module() is model.first
    assert CALL not in vars(replaced)
    model(INPUT)
    undo()
    assert means == [3.0]


def test_copies_of_a_module_at_rest_are_plain() -> None:
    """They have no slot and none at rest."""
    model = watched_once()
    for other in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert watched_entries(other) == []
        assert other(INPUT).equal(model(INPUT))
    watch(copy.deepcopy(model), "first")[1]()
    assert resting.RESTING[id(model.first)].module() is model.first


def test_a_slot_at_rest_goes_with_its_module() -> None:
    """At once, without the cycle collector."""
    model = watched_once()
    identity = id(model.first)
    reference = resting.RESTING[identity].identity
    dead = weakref.ref(model.first)
    gc.disable()
    try:
        del model
        assert dead() is None
        left = [each for each in gc.get_objects() if type(each) is slot.Slot and each.identity == reference]
        assert left == []
    finally:
        gc.enable()
    assert identity not in resting.RESTING


def test_a_trace_and_observers_take_turns_with_one_slot() -> None:
    """An observer joins a trace's slot, which then rests, while the trace's tree has it as well."""
    model = make_net()
    wrapped = ns.Model.wrap(model)
    expected = model(INPUT)
    for _ in range(2):
        with wrapped.trace(INPUT) as trace:
            first = trace["first"].output.clone()  # the next layer works in place
            joined, undo = watch(model, "first", "rest.1")
        undo()
        assert watched_entries(model) == []
        with wrapped.trace(INPUT) as trace:
            assert trace["first"].output.equal(first)
        assert watched_entries(model) == []
        seen, undo = watch(model, "first", "rest.1")
        assert model(INPUT).equal(expected)
        with wrapped.trace(INPUT) as trace:
            assert trace["first"].output.equal(first)
        undo()
        assert model(INPUT).equal(expected)
        assert (joined[-1:], seen) == (["rest.1"], ["first", "rest.1"] * 2)
        assert watched_entries(model) == []


def test_nothing_comes_back_while_dynamo_traces() -> None:
    """Slots step aside then; whoever comes to one joins it, and is seen afterwards."""
    importlib.import_module("torch._dynamo")
    model = watched_once()
    first, undo_first = watch(model, "first")
    during: list[tuple[list[str], Callable[[], None]]] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        before = watched_entries(model)
        during.append(watch(model, "first"))
        assert before == watched_entries(model) == []
        return graph.forward

    compiling: Any = torch.compile(nn.Linear(8, 8), backend=backend, fullgraph=True)
    compiling(INPUT)
    ((second, undo_second),) = during
    model(INPUT)
    undo_first()
    undo_second()
    assert (first, second) == (["first"], ["first"])
    assert watched_entries(model) == []

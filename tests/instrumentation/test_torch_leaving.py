"""Faults that other tools had when probes come, go, fail and meet other tools: see `test_torch_cases`."""

from __future__ import annotations

import contextvars
import gc
import threading
import weakref
from typing import Any, cast

import pytest
import torch
from torch import nn

import neuronscope as ns
from growth import growth
from neuronscope.engine.guard import GUARD
from torchnets import INPUT, make_net


def scope(name: str = "case") -> ns.Scope:
    return ns.Scope(name, max_overhead_pct=1000, overhead_action="warn")


def entries(model: nn.Module) -> list[list[str]]:
    return [sorted(module.__dict__) for module in cast(Any, model).modules()]


class Failing(ns.probes.Probe):
    """Raises at each run."""

    def measure(self, layer_id: str, snapshot: Any, summary: Any) -> Any:
        raise ZeroDivisionError


def test_after_a_probe_s_fault_and_the_model_s_the_model_is_plain() -> None:
    """Nothing is left installed; the next run is as the first."""
    GUARD.reraise = False
    model = make_net()
    before, expected = entries(model), model(INPUT)
    with scope():
        ns.Model.wrap(model).attach_probe("**", Failing)
        assert torch.equal(model(INPUT), expected)
        with pytest.raises(RuntimeError, match="shapes"):
            model(torch.ones(1, 3))
    assert entries(model) == before
    assert torch.equal(model(INPUT), expected)


def test_the_user_s_hooks_outlive_nested_scopes() -> None:
    """Ours come off one scope at a time, theirs stay."""
    model = make_net()
    calls: list[int] = []

    def theirs(*_: object) -> None:
        calls.append(1)

    cast(Any, model.first).register_forward_hook(theirs)
    with scope("outer") as outer:
        ns.Model.wrap(model).attach_probe("first")
        with scope("inner"):
            ns.Model.wrap(model).attach_probe("first")
            model(INPUT)
        model(INPUT)
    model(INPUT)
    assert len(calls) == 3
    assert len(outer.artifact.telemetry.layer_snapshots) >= 2


def test_a_model_with_gradient_probes_is_freed() -> None:
    """After its scope, by reference counts alone."""
    model = make_net()
    with scope():
        wrapped = ns.Model.wrap(model)
        wrapped.attach_probe("**", ns.probes.LayerGradients)
        model(INPUT).sum().backward()
    dead = weakref.ref(model)
    gc.disable()
    try:
        del model, wrapped
        assert dead() is None
    finally:
        gc.enable()


def test_a_record_is_no_alias_of_a_tensor_that_three_layers_share() -> None:
    """What one of them does to it in place later does not change what was recorded."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source = nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shared = self.source(x.clone())
            shared[0] = 0.0
            return cast(torch.Tensor, shared)

    model = Shared()
    with scope() as recorded:
        ns.Model.wrap(model).attach_probe("source")
        model(INPUT)
    (record,) = recorded.artifact.telemetry.layer_snapshots
    assert record.tensor is not None
    assert torch.equal(torch.from_numpy(record.tensor.numpy()), INPUT)


def test_attaching_a_thousand_times_leaves_nothing() -> None:
    """No closure, no slot, no slower forward: the number of objects is as before."""
    model = make_net()
    wrapped = ns.Model.wrap(model)

    def come_and_go() -> None:
        for kind in (ns.probes.LayerActivations, ns.probes.LayerGradients, ns.probes.AttentionMaps):
            wrapped.attach_probe("**", kind)
            wrapped.detach()

    def a_thousand_times() -> None:
        for _ in range(333):
            come_and_go()

    come_and_go()
    assert growth(lambda: len(gc.get_objects()), a_thousand_times, 200) < 200  # of four layers each
    assert entries(model) == entries(make_net())


def test_accelerate_s_hooks_stay_inside() -> None:
    """accelerate replaces `forward` and keeps the old one; both stay theirs, before and after us."""
    from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module

    class Doubling(ModelHook):  # type: ignore[misc]  # accelerate has no types
        def post_forward(self, module: nn.Module, output: Any) -> Any:
            return output * 2

    hooks: Any = add_hook_to_module
    release: Any = remove_hook_from_module
    model = make_net()
    plain = model(INPUT)
    with scope() as recorded:
        ns.Model.wrap(model).attach_probe("")
        hooks(model, Doubling())
        assert torch.equal(model(INPUT), plain * 2)
        release(model)
        assert torch.equal(model(INPUT), plain)
    maxima = [r.summary.max for r in recorded.artifact.telemetry.layer_snapshots if r.summary]
    assert maxima == [2 * plain.max().item(), plain.max().item()]
    other = make_net()
    hooks(other, Doubling())
    release(other)
    assert entries(model) == entries(other)


def test_each_thread_s_records_are_its_own() -> None:
    """Eight requests at a time on one model: a scope holds the runs of its own thread, all of them."""
    model = make_net()
    found: dict[int, list[float]] = {}

    def serve(number: int) -> None:
        with scope(str(number)) as mine:
            ns.Model.wrap(model).attach_probe("first", ns.probes.LayerActivations(ns.Fidelity.SUMMARY))
            for _ in range(10):
                with torch.no_grad():
                    model(torch.full((2, 8), float(number)))
        found[number] = [r.summary.mean for r in mine.artifact.telemetry.layer_snapshots if r.summary]

    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(serve, number)) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with torch.no_grad():
        for number in range(8):
            expected = model.first(torch.full((2, 8), float(number))).mean().item()
            assert found[number] == [pytest.approx(expected, rel=1e-5, abs=1e-6)] * 10

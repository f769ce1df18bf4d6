"""The budget at real models: forward by forward, thread by thread, and told where somebody looks."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from opentelemetry import context as otel_context
from opentelemetry.trace import SpanKind

import neuronscope as ns
import tinymodels
from neuronscope.callwatch import watch_call
from neuronscope.cli.view import view
from neuronscope.engine import ENGINE
from neuronscope.engine.span import LightSpan
from neuronscope.governor.steward import AGENT_PROBE
from neuronscope.modelcall import LayerAggregate, ModelCall
from neuronscope.recording import CURRENT
from neuronscope.signals import names
from neuronscope.signals.records import Fidelity, LayerRecord
from neuronscope.signals.tensors import TensorSummary


class Call:
    """One observed call of an in-process model, as an adapter makes it."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def __enter__(self) -> LightSpan:
        opened = ENGINE.open_span("generate tiny", SpanKind.INTERNAL, "test", {}, nested=True)
        assert opened is not None
        self.span, context = opened
        self._token = otel_context.attach(context)
        self._undo = watch_call(self._model, self.span)
        return self.span

    def __exit__(self, *_: object) -> None:
        if self._undo is not None:
            self._undo()
        otel_context.detach(self._token)
        ENGINE.finish(self.span)


def run(model: torch.nn.Module, forwards: int = 1) -> dict[str, Any]:
    """The layer attributes of one call."""
    inputs = torch.arange(3, 11)[None]
    with Call(model) as span:
        for _ in range(forwards):
            model(inputs)
    ENGINE.drain()
    assert span.model_call is not None
    return span.model_call.attributes()


def leave_a_little() -> None:
    """Spend all but a few microseconds: enough to look into a call, too little for any layer."""
    budget = ENGINE.budget
    while budget.looks():
        budget.set_aside(5_000)
    budget.set_aside(-8_000)
    budget.pause(True)  # it earns no more


def test_where_spans_alone_cost_the_budget_calls_are_not_looked_into_and_say_so() -> None:
    """Neither the forwards nor the model are looked at: counted, and told, until there is something left."""
    ns.Platform(max_overhead_pct=1000)
    model = tinymodels.llama(layers=2)
    assert run(model, forwards=2)[names.MODEL_FORWARDS] == 2
    assert not ENGINE.budget.short
    ENGINE.budget.set_aside(50_000_000_000)
    told = {names.MODEL_NAME: "LlamaForCausalLM", names.FIDELITY: "off", names.FIDELITY_REASON: "budget"}
    assert run(model) == told
    assert run(model)[names.FIDELITY] == "off"
    assert ENGINE.budget.short  # so the worker waits for more before it wakes
    assert ENGINE.steward.linger_s() > 0.1
    assert ENGINE.budget.facts()["calls_not_looked_into"] == 2
    with ns.Scope("on purpose"):  # pays for itself
        assert run(model)[names.MODEL_FORWARDS] == 1
    ENGINE.budget.set_aside(-100_000_000_000)
    assert run(model)[names.LAYERS_OBSERVED] == 2


def test_concurrent_calls_of_one_model_record_their_own_runs_only() -> None:
    """Four threads in the same model: each call knows of each of its layers' runs once."""
    ns.Platform(max_overhead_pct=1000)
    model = tinymodels.llama(layers=2)
    barrier = threading.Barrier(4)
    found: list[dict[str, Any]] = []

    def work() -> None:
        barrier.wait()
        found.append(run(model, forwards=5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for attributes in found:
        assert attributes[names.MODEL_FORWARDS] == 5
        # A capture whose cost is unknown goes alone: in the first forwards some may be left out.
        assert attributes[names.LAYERS_RECORDS] + attributes[names.LAYERS_SKIPPED] == 10


def test_a_forward_that_is_not_affordable_is_not_watched_and_said_to_be_missing() -> None:
    """Only the model itself is watched then; the span says which layers ran unseen, and why."""
    ns.Platform(max_overhead_pct=15)
    model = tinymodels.llama(layers=2)
    assert run(model)[names.LAYERS_OBSERVED] == 2
    leave_a_little()
    attributes = run(model, forwards=3)
    assert attributes[names.LAYERS_OBSERVED] == 0
    assert attributes[names.LAYERS_SKIPPED] == 6
    assert attributes[names.FIDELITY] == "critical"
    assert attributes[names.FIDELITY_REASON] == "budget"
    assert attributes[names.LAYERS_NOT_RECORDED] == ["model.layers.0", "model.layers.1"]
    assert not any("_call_impl" in module.__dict__ for module in model.modules())


def test_captures_switched_off_for_a_measurement_say_so() -> None:
    """Absence of data is never mistaken for health."""
    ns.Platform()
    model = tinymodels.llama(layers=2)
    ENGINE.steward.captures_off = True
    attributes = run(model)
    assert attributes[names.LAYERS_OBSERVED] == 0
    assert attributes[names.FIDELITY_REASON] == "measuring"


def test_the_experiment_is_told_when_requests_began_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the wall clock that its blocks are told by; spans within a request are no requests."""
    ns.Platform(max_overhead_pct=1000)
    experiment = ENGINE.steward.experiment
    assert experiment is not None
    told: list[tuple[int, int]] = []

    def served(start: int, end: int) -> None:
        told.append((start, end))

    monkeypatch.setattr(experiment, "served", served)
    model = tinymodels.llama(layers=2)
    before = time.time_ns()
    with ns.Scope("request"):
        run(model)
        run(model)
    ENGINE.drain()
    ((start, end),) = told
    assert before <= start < end <= time.time_ns()


def test_coverage_and_error_of_an_estimate_are_stated() -> None:
    """With every other forward missing, the mean has an interval, and contains the full capture's mean."""
    ns.Platform(max_overhead_pct=1000)
    model = tinymodels.llama(layers=2)
    inputs = torch.arange(3, 23)[None]
    truth: list[float] = []

    def note(_module: object, _args: object, output: Any) -> None:
        tensor: Any = getattr(output, "data", output)
        truth.append(float(tensor.detach().mean()))

    remove = model.model.layers[0].register_forward_hook(note)
    with Call(model) as span:
        for step in range(20):
            ENGINE.steward.captures_off = step % 2 == 0  # from the next forward on
            model(inputs[:, : step + 1])
    remove.remove()
    assert span.model_call is not None
    attributes = span.model_call.attributes()
    layer = attributes[names.LAYERS_IDS].index("model.layers.0")
    assert attributes[names.LAYERS_COVERAGE][layer] == pytest.approx(0.5, abs=0.06)
    error = attributes[names.LAYERS_MEAN_ERROR][layer]
    assert abs(attributes[names.LAYERS_MEAN][layer] - sum(truth) / 20) <= error < 1


def test_the_decoding_is_told_by_itself_where_the_prefill_was_not_captured() -> None:
    """And the prefill where the decoding was not; of both together too little is known."""
    ns.Platform(max_overhead_pct=1000)
    model = tinymodels.llama(layers=2)
    found: dict[bool, dict[str, Any]] = {}
    for prefill in (True, False):
        ENGINE.steward.captures_off = not prefill
        with Call(model) as span:
            for length in (8, 1, 1, 1):
                ENGINE.steward.captures_off = prefill  # from the next forward on
                model(torch.arange(3, 3 + length)[None])
        assert span.model_call is not None
        found[prefill] = span.model_call.attributes()
    for attributes in found.values():
        assert attributes[names.LAYERS_MEAN_ERROR] == [math.inf] * 2
    first, later = found[True], found[False]
    assert first[names.LAYERS_PREFILL_MEAN] == first[names.LAYERS_MEAN]
    assert first[names.LAYERS_DECODE_ERROR] == [math.inf] * 2
    assert all(map(math.isnan, first[names.LAYERS_DECODE_MEAN]))
    assert all(map(math.isnan, later[names.LAYERS_PREFILL_MEAN]))
    assert later[names.LAYERS_DECODE_MEAN] == later[names.LAYERS_MEAN]
    assert later[names.LAYERS_DECODE_ERROR] == [0.0] * 2


@pytest.mark.parametrize(("generates", "each", "told"), [(True, 1, True), (True, 2, False), (False, 1, None)])
def test_phases_are_told_of_layers_that_run_once_in_each_forward_of_a_generation(
    generates: bool, each: int, told: bool | None
) -> None:
    """Of one that runs twice it is not known which runs were the prefill's; a batch has none."""
    call = ModelCall("tiny", generates=generates, root_ends=[1, 2, 3, 4])
    for run in range(4 * each):
        step = call.next_step("layer")
        if run == 2:
            call.skip("layer", "budget")
        else:
            call.take("layer", step, TensorSummary.of(np.full(4, run**2, np.float64)), Fidelity.SUMMARY)
    attributes = call.attributes()
    if told is None:
        assert names.LAYERS_PREFILL_MEAN not in attributes
        return
    (prefill,), (decode,), (error,) = (
        attributes[name]
        for name in (names.LAYERS_PREFILL_MEAN, names.LAYERS_DECODE_MEAN, names.LAYERS_DECODE_ERROR)
    )
    assert math.isnan(prefill) != told
    assert math.isnan(decode) != told
    assert math.isinf(error)  # two captures are too few
    assert not told or (prefill == 0 and decode == pytest.approx((1 + 5 + 9) / 3))


def test_estimates_agree_with_full_capture_within_their_stated_error() -> None:
    """In nineteen of twenty generations: a prefill unlike the steps, and any share of the steps captured."""
    rng = random.Random(5)
    hits = told = 0
    for _ in range(400):
        runs = rng.randint(8, 60)
        means = [rng.gauss(4, 1), *(rng.gauss(1, 0.3) for _ in range(runs - 1))]
        aggregate = LayerAggregate()
        captured = {0, *rng.sample(range(1, runs), max(2, int(rng.uniform(0.1, 0.9) * (runs - 1))))}
        for step in sorted(captured):
            value = means[step]
            aggregate.add(step, TensorSummary.of(np.full(4, value, np.float64)))
        truth = sum(means) / runs
        error = aggregate.error(runs)
        told += math.isfinite(error)
        hits += math.isfinite(error) and abs(aggregate.mean(runs) - truth) <= error
    assert told > 350
    assert 0.92 <= hits / told < 0.99  # neither too narrow nor so wide that it says nothing


def test_full_tensors_ask_for_room_before_they_are_copied() -> None:
    """A scope that may hold one tensor takes summaries of the others, and says it was the memory."""
    ns.Platform(scope_max_bytes=8 * 64 * 4, max_overhead_pct=1000)
    model = tinymodels.llama(layers=2)
    ns_model = ns.Model.wrap(model)
    with ns.Scope("memory") as scope:
        ns_model.attach_probe(layers=["model.layers.*"], kind=ns.probes.LayerActivations)
        for _ in range(4):
            model(torch.arange(3, 11)[None])
            ENGINE.drain()
    records = scope.artifact.telemetry.layer_snapshots
    assert records[0].fidelity is Fidelity.FULL
    assert records[-1].fidelity is Fidelity.SUMMARY
    assert sum(record.nbytes for record in records) <= 8 * 64 * 4
    assert scope.recording.tensors_dropped == 0


class Costly(torch.nn.Module):
    """A layer whose output costs far more to copy than to make."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.expand(1_000, 1_000)


def test_a_scope_beyond_its_limit_takes_its_probes_off_and_keeps_its_data(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Inside nothing is raised; after it there is the exception, the file, and `view` tells."""
    model = torch.nn.Sequential(Costly())
    ns_model = ns.Model.wrap(model)
    scope = ns.Scope("costly", max_overhead_pct=20, overhead_action="abort")
    caplog.set_level(logging.ERROR, "neuronscope")
    on = 0
    with pytest.raises(ns.OverheadBudgetExceeded), scope:  # noqa: PT012 - not before the end of the scope
        ns_model.attach_probe(layers=["0"], kind=ns.probes.LayerActivations)
        for _ in range(400):
            model(torch.ones(1, 1))
            on += "_call_impl" in model[0].__dict__
    assert 0 < on < 400
    artifact = scope.save(tmp_path / "costly.nsz")
    assert len(artifact.telemetry.layer_snapshots) == on
    assert artifact.telemetry.spans[0].attributes[names.FIDELITY] == "off"
    told = CliRunner().invoke(view, [str(tmp_path / "costly.nsz")]).output
    assert "not captured:" in told
    assert "fidelity off (costly)" in told
    assert "LayerActivations" in told


def test_the_services_own_exception_is_never_replaced() -> None:
    """A scope over budget in which the service fails raises the service's exception."""
    model = torch.nn.Sequential(Costly())
    ns_model = ns.Model.wrap(model)
    scope = ns.Scope("x", max_overhead_pct=1, overhead_action="abort")
    with pytest.raises(ZeroDivisionError), scope:  # noqa: PT012 - the end of the scope must not replace it
        ns_model.attach_probe(layers=["0"], kind=ns.probes.LayerActivations)
        for _ in range(400):
            model(torch.ones(1, 1))
        raise ZeroDivisionError


def test_the_agents_balance_sheet_is_in_its_recording(tmp_path: Path) -> None:
    """What was spent by whom, and how often each layer was seen: as an event, and as metrics."""
    ns.Platform(nsz=str(tmp_path), max_overhead_pct=1000)
    model = tinymodels.llama(layers=2)
    run(model, forwards=3)
    ns.flush()
    families = {family.metric.name: family for family in ENGINE.metrics.collect().families}
    runs = {dict(point.labels)["outcome"]: point.value for point in families["neuronscope.layer.runs"].points}
    assert runs == {"recorded": 6, "not_recorded": 0}
    places = {
        dict(point.labels)["place"]
        for point in families["neuronscope.overhead.time"].points
        if dict(point.labels)["probe"] == AGENT_PROBE and isinstance(point.value, float) and point.value > 0
    }
    assert places == {"service", "worker"}
    ENGINE.stop(5)
    (sheet,) = [event for event in ns.load(tmp_path).events if event.name == "neuronscope.coverage"]
    assert sheet.attributes["budget"] == "agent"
    captured: Any = sheet.attributes["layers_captured"]
    assert list(captured) == [3, 3]


def test_a_recording_can_keep_a_share_of_the_ordinary(tmp_path: Path) -> None:
    """`nsz_sample_pct=0` keeps the failed trace whole, and notes how many it left out."""
    ns.Platform(nsz=str(tmp_path), nsz_sample_pct=0.0, max_overhead_pct=1000)
    model = tinymodels.llama(layers=2)
    for _ in range(5):
        run(model)
    with pytest.raises(ZeroDivisionError), ns.Scope("failed"):  # noqa: PT012 - a trace with an error
        run(model)
        raise ZeroDivisionError
    ENGINE.stop(5)
    artifact = ns.load(tmp_path)
    assert {span.name for span in artifact.telemetry.spans} == {"failed", "generate tiny"}
    assert len(artifact.telemetry.spans) == 2
    layers: list[LayerRecord] = list(artifact.telemetry.layer_snapshots)
    assert len(layers) == 2
    told = CliRunner().invoke(view, [str(tmp_path)]).output
    assert "5 of 6 traces: ordinary" in told


def test_scopes_are_not_switched_off_for_a_measurement() -> None:
    """What somebody records on purpose is recorded."""
    ns.Platform(max_overhead_pct=1000)
    model = tinymodels.llama(layers=2)
    ENGINE.steward.captures_off = True
    with ns.Scope("on purpose"):
        assert CURRENT.get() is not None
        assert run(model)[names.LAYERS_OBSERVED] == 2

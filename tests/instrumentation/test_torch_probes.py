"""Probes of gradients, attention, numeric health, and of one's own: right values, nothing changed."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import checkpoint as checkpoints

import neuronscope as ns
from neuronscope.engine.guard import GUARD
from neuronscope.signals.records import Attributes
from neuronscope.signals.tensors import LayerSpec, TensorSnapshot, TensorSummary
from neuronscope.summaries import details as sketches
from neuronscope_instrumentation.torch import snapshot as snapshots
from probed import FULL, array_of, records, skipped
from torchnets import INPUT, make_net


# --- gradients --------------------------------------------------------------------------------------------
def test_gradients_are_those_of_autograd_and_change_nothing() -> None:
    """Also before an in-place activation, where a full backward hook makes the model raise."""
    plain, model = make_net(), make_net()
    hidden = plain.first(INPUT)
    hidden.retain_grad()
    plain.rest(hidden.clone()).square().sum().backward()

    def train(_: ns.Model) -> None:
        model(INPUT).square().sum().backward()

    (record,) = records(train, model, layers="first", kind=ns.probes.LayerGradients(ns.Fidelity.FULL))
    assert record.role == "gradient"
    assert hidden.grad is not None
    np.testing.assert_array_equal(array_of(record), hidden.grad.numpy())
    for theirs, ours in zip(plain.parameters(), model.parameters(), strict=True):
        assert theirs.grad is not None
        assert ours.grad is not None
        assert torch.equal(theirs.grad, ours.grad)


def test_without_a_backward_pass_the_reason_is_told() -> None:
    """In inference there is no gradient, and the span says so."""
    model = make_net()
    with ns.Scope("inference", max_overhead_pct=FULL, overhead_action="warn") as scope:
        ns.Model.wrap(model).attach_probe("first", ns.probes.LayerGradients)
        with torch.no_grad():
            model(INPUT)
    assert scope.artifact.telemetry.layer_snapshots == []
    assert skipped(scope) == (1, "no gradient")


def test_a_backward_pass_after_the_scope_is_not_recorded() -> None:
    """The hook stays on the graph, but nobody watches any more; the tensor can be saved without a warning."""
    model = make_net()
    with ns.Scope("short", max_overhead_pct=FULL, overhead_action="warn") as scope:
        ns.Model.wrap(model).attach_probe(["first", ""], ns.probes.LayerGradients)
        output = model(INPUT)
    pickle.dumps(output.detach().requires_grad_())
    output.sum().backward()
    assert scope.artifact.telemetry.layer_snapshots == []


def test_gradient_accumulation_gives_a_record_each() -> None:
    """Two backward passes, two records, in order of the steps."""
    model = make_net()

    def train(_: ns.Model) -> None:
        for scale in (1.0, 3.0):
            (model(INPUT).sum() * scale).backward()

    found = records(train, model, layers="rest.1", kind=ns.probes.LayerGradients)
    assert [(r.step, r.summary.max) for r in found if r.summary] == [(0, 1.0), (1, 3.0)]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_layer_is_recomputed_and_says_so(reentrant: bool) -> None:
    """The second forward, inside the backward pass, is marked; each gradient comes once."""
    model = make_net()
    outer = nn.Linear(8, 8)

    def train(_: ns.Model) -> None:
        run: Any = cast(Any, checkpoints).checkpoint
        run(model, outer(INPUT), use_reentrant=reentrant).sum().backward()

    found = records(train, model, layers="first")
    assert [(r.step, r.attributes) for r in found] == [(0, {}), (1, {"recomputed": True})]
    assert found[0].summary == found[1].summary
    gradients = records(train, model, layers="first", kind=ns.probes.LayerGradients)
    assert len(gradients) == 1


def test_full_backward_hooks_of_the_user_work_beside_ours() -> None:
    """Theirs and ours see the same gradient."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2))
    seen: list[torch.Tensor] = []

    def theirs(_: nn.Module, __: Any, gradients: tuple[torch.Tensor, ...]) -> None:
        seen.append(gradients[0].clone())

    cast(Any, model[0]).register_full_backward_hook(theirs)
    inputs = INPUT.clone().requires_grad_()
    probe = ns.probes.LayerGradients(ns.Fidelity.FULL)
    (record,) = records(lambda _: model(inputs).sum().backward(), model, layers="0", kind=probe)
    np.testing.assert_allclose(array_of(record), seen[0].numpy())


@pytest.mark.parametrize("fidelity", ["summary", "full"])
def test_a_training_step_under_all_probes_is_bit_equal(fidelity: str) -> None:
    """Outputs, gradients of all weights, random numbers: dropout, attention, in-place layers, bfloat16."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
            self.rest = nn.Sequential(nn.Dropout(0.3), nn.Linear(8, 8), nn.ReLU(inplace=True))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mixed: torch.Tensor = self.attend(x, x, x, need_weights=False)[0]
            found: torch.Tensor = self.rest(mixed).to(torch.bfloat16)
            return found

    def step(model: nn.Module) -> list[Any]:
        torch.manual_seed(7)
        output = model(torch.linspace(-1, 1, 48).view(2, 3, 8))
        output.float().square().sum().backward()
        gradients = [parameter.grad for parameter in model.parameters()]
        return [output, *gradients, torch.get_rng_state(), torch.tensor(output.dtype is torch.bfloat16)]

    torch.manual_seed(0)
    model = Net()
    expected = step(copy.deepcopy(model))
    with ns.Scope("all", max_overhead_pct=FULL, overhead_action="warn") as scope:
        wrapped = ns.Model.wrap(model)
        for layers, kind in (
            ("**", ns.probes.LayerActivations), ("rest.*", ns.probes.LayerGradients),
            ("attend", ns.probes.AttentionMaps), ("rest.2", ns.probes.NumericHealth), ("", Sparsity),
        ):  # fmt: skip
            wrapped.attach_probe(layers, kind, fidelity=fidelity)
        found = step(model)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))
    roles = {record.role for record in scope.artifact.telemetry.layer_snapshots}
    assert roles == {"output", "gradient", "attention"}


# --- what taps leave ----------------------------------------------------------------------------------
def test_taps_leave_no_trace_and_pass_exceptions_through() -> None:
    """Removed at the scope's end; copies are plain; the model's own exception is the same object."""
    model = make_net()
    before = [dict(vars(module)) for module in model.modules()]
    error = KeyError("own")

    def fail(*_: object) -> None:
        raise error

    with ns.Scope("tapped", max_overhead_pct=FULL, overhead_action="warn"):
        ns.Model.wrap(model).attach_probe(["first", "rest"], ns.probes.AttentionMaps)
        twin = copy.deepcopy(model)
        assert "_call_impl" not in vars(twin.first)
        handle = model.first.register_forward_hook(fail)
        with pytest.raises(KeyError) as raised:
            model(INPUT)
        assert raised.value is error
        handle.remove()
        model(INPUT)
    after = [dict(vars(module)) for module in model.modules()]
    assert [sorted(entries) for entries in before] == [sorted(entries) for entries in after]
    assert cast(Any, torch.overrides)._get_current_function_mode_stack() == []


# --- numeric health ---------------------------------------------------------------------------------------
def test_health_tells_headroom_and_dead_units() -> None:
    """A unit is dead that was zero in every row of every run so far."""
    linear = nn.Linear(4, 4, bias=False)
    model = nn.Sequential(linear, nn.ReLU())
    with torch.no_grad():
        linear.weight.copy_(torch.diag(torch.tensor([1.0, -1.0, 1.0, 0.0])))

    def run(_: ns.Model) -> None:
        model(torch.tensor([[1.0, 1.0, 0.0, 5.0], [2.0, 3.0, 0.0, 5.0]]))
        model(torch.tensor([[0.0, 0.0, 65504.0, 0.0]]))
        model(torch.tensor([[1.0, -1.0, 1.0, 1.0]]))

    found = records(run, model, layers="1", kind=ns.probes.NumericHealth)
    assert [record.attributes["dead_units"] for record in found] == [3, 2, 1]
    assert [record.attributes["units"] for record in found] == [4, 4, 4]
    assert all(record.tensor is None for record in found)
    half = nn.Identity()

    def narrow(_: ns.Model) -> None:
        half(torch.tensor([3.0, -32752.0], dtype=torch.float16))

    (record,) = records(narrow, half, layers="", kind=ns.probes.NumericHealth)
    assert record.attributes["headroom"] == 0.5
    assert ns.probes.NumericHealth.critical


def test_health_counts_what_is_not_finite() -> None:
    """An overflow in float16 is seen where it happens."""
    layer = nn.Identity()
    values = torch.tensor([1.0, math.inf, math.nan, -math.inf], dtype=torch.float16)
    (record,) = records(lambda _: layer(values), layer, layers="", kind=ns.probes.NumericHealth)
    assert record.summary is not None
    assert (record.summary.nan_count, record.summary.inf_count, record.summary.max) == (1, 2, 1.0)


# --- probes of one's own -----------------------------------------------------------------------------
class Sparsity(ns.probes.Probe):
    """A user's probe."""

    def measure(self, layer_id: str, snapshot: TensorSnapshot, summary: TensorSummary) -> Attributes:
        if layer_id == "first":
            raise ZeroDivisionError
        return {"sparsity": summary.zero_count / summary.count, "rows": len(snapshot.numpy())}


def test_a_probe_of_one_s_own_adds_attributes(tmp_path: Any) -> None:
    """They are in the record and in the file; a fault costs the attributes only."""
    GUARD.reraise = False
    model = make_net()
    with ns.Scope("own", max_overhead_pct=FULL, overhead_action="warn") as scope:
        ns.Model.wrap(model).attach_probe(["first", "rest.0"], Sparsity(ns.Fidelity.SUMMARY))
        model(INPUT)
    scope.save(tmp_path / "own.nsz")
    first, relu = ns.load(tmp_path / "own.nsz").telemetry.layer_snapshots
    assert first.attributes == {}
    assert first.summary is not None
    assert relu.attributes["rows"] == 2
    assert relu.summary is not None
    assert relu.attributes["sparsity"] == relu.summary.zero_count / 16
    assert [kind for _, kind in GUARD.faults] == ["ZeroDivisionError"]


def test_details_are_kept_on_request(tmp_path: Any) -> None:
    """Histogram and sketch, for every type; in the file, too."""
    model = nn.Identity()
    value = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    with ns.Scope("details", max_overhead_pct=FULL, overhead_action="warn") as scope:
        probe = ns.probes.LayerActivations(ns.Fidelity.SUMMARY, details=True)
        ns.Model.wrap(model).attach_probe("", probe)
        model(value.t())
    scope.save(tmp_path / "details.nsz")
    (record,) = ns.load(tmp_path / "details.nsz").telemetry.layer_snapshots
    assert record.summary is not None
    histogram, sketch = sketches.by_numpy(value.t().float().numpy())
    assert record.summary.histogram == histogram
    assert record.summary.sketch == pytest.approx(sketch)


def test_a_runtime_that_cannot_show_gradients_refuses_the_probe() -> None:
    """At once, and says what it can show."""

    class Adapter:
        name = "plain"

        def matches(self, model_obj: Any) -> bool:
            return isinstance(model_obj, dict)

        def list_layers(self, model_obj: Any) -> list[LayerSpec]:
            return [LayerSpec("a")]

        def install_observer_hook(self, model_obj: Any, layer_id: str, callback: Any) -> None: ...

        def remove_hooks(self, model_obj: Any) -> None: ...

        def fingerprint_model(self, model_obj: Any) -> str:
            return ""

    ns.registry.register_adapter(Adapter())
    try:
        with pytest.raises(ns.UnsupportedProbeError, match="shows outputs"):
            ns.Model.wrap({}).attach_probe("a", ns.probes.LayerGradients)
    finally:
        ns.registry.unregister_adapter("plain")


# --- the accelerator's way, on the CPU ------------------------------------------------------------------
@pytest.fixture
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Summaries are started in the model's thread, and read in the worker."""
    monkeypatch.setattr(snapshots, "READ_AT_ONCE", frozenset[str]())


@pytest.mark.usefixtures("as_on_a_device")
def test_on_an_accelerator_the_model_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No scalar is read in the model's thread; records and the span's aggregates are complete."""
    from neuronscope_instrumentation.torch import fallback

    model = make_net()
    reads: list[str] = []
    read = fallback.read_rows

    def noting(rows: torch.Tensor | None) -> Any:
        import threading

        reads.append(threading.current_thread().name)
        return read(rows)

    monkeypatch.setattr(fallback, "read_rows", noting)
    with ns.Scope("device", max_overhead_pct=FULL, overhead_action="warn") as scope:
        wrapped = ns.Model.wrap(model)
        wrapped.attach_probe(["first", "rest.0"], ns.probes.NumericHealth)
        for _ in range(3):
            model(INPUT)
        assert ns.flush(60)  # the worker's turn, before the scope's end would wait for the rest
    found = scope.artifact.telemetry.layer_snapshots
    assert [(r.layer_id, r.step) for r in found] == [(x, s) for s in range(3) for x in ("first", "rest.0")]
    with torch.no_grad():
        expected = model.first(INPUT)
    assert found[0].summary is not None
    assert found[0].summary.max == expected.max().item()
    assert found[0].attributes.keys() == {"headroom", "units"} | ({"dead_units"} & found[0].attributes.keys())
    (root,) = scope.artifact.telemetry.spans
    assert root.attributes["neuronscope.layers.records"] == 6
    assert len(reads) == 6
    assert set(reads) != {"MainThread"}

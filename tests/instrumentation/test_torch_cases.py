"""Fault reports of other tools, tried on ours: each names the test that shows what ours does.

Sources: ``case n`` is a numbered public report on output shapes, copies, threads or compilers; the others are
issues of the projects named.  What another file shows already is only pointed at.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
import torch
import torch._dynamo as dynamo
from torch import nn

import neuronscope as ns
import tinymodels
from neuronscope.exceptions import LayerNotFoundError
from torchnets import INPUT, make_net

HERE: Final = Path(__file__).parent
CASES: Final[dict[str, str]] = {
    "case 26: statistics on unusual tensors": "cases::test_every_type_gives_a_value_or_a_reason",
    "case 27: output structures": "cases::test_output_structures_come_back_as_they_are",
    "case 27: bounded walks": "outputs::test_loops_and_sizes_are_bounded",
    "case 29: torch.compile": "compile::test_graphs_and_compilations_are_those_of_the_plain_model",
    "case 29: second instance of a compiled class": "cases::test_a_second_instance_of_a_compiled_class",
    "case 32: threads": "leaving::test_each_thread_s_records_are_its_own",
    "case 32: replicas": "depth::test_data_parallel_replicas_compute_with_their_own_weights",
    "case 32: attach and detach under load": "slots::test_eight_threads_while_observers_come_and_go",
    "case 33: copies": "copies::test_copies_are_plain_and_compute_with_their_own_weights",
    "case 33: spawned processes": "copies::test_pickles_of_watched_models_need_no_neuronscope",
    "case 33: scripting and export": "compile::test_tracing_and_scripting_see_the_plain_model",
    "case 35: meta and lazy weights": (
        "slots::test_lazy_modules_and_meta_weights_are_left_alone_until_they_are_real"
    ),
    "case 35: forward called directly": "cases::test_a_direct_forward_is_not_seen_and_told",
    "nnsight #86": "cases::test_a_fake_run_of_quantised_weights",
    "nnsight #190": "slots::test_lazy_modules_and_meta_weights_are_left_alone_until_they_are_real",
    "nnsight #555": "cases::test_a_layer_added_after_wrapping_can_be_watched",
    "nnsight #114": "cases::test_every_module_can_be_named_and_read",
    "nnterp #17, #42": "cases::test_tuple_or_tensor_it_is_the_same_record",
    "transformers #26142, #40994": "cases::test_the_last_block_is_before_the_norm",
    "transformers #48825": "cases::test_a_negative_index_is_refused_with_what_is_close",
    "TransformerLens #156": "leaving::test_after_a_probe_s_fault_and_the_model_s_the_model_is_plain",
    "TransformerLens #1636": "leaving::test_the_user_s_hooks_outlive_nested_scopes",
    "TransformerLens #1323, #290": "leaving::test_a_model_with_gradient_probes_is_freed",
    "TransformerLens #336": "leaving::test_a_record_is_no_alias_of_a_tensor_that_three_layers_share",
    "pyvene #158, #176": "attention::test_attention_of_a_llama",
    "pytorch #117758, #96722": "compile::test_graphs_and_compilations_are_those_of_the_plain_model",
    "pytorch #142358": "cases::test_probes_of_every_kind_leave_compilation_as_it_was",
    "torchvista #45": "cases::test_probes_of_every_kind_leave_compilation_as_it_was",
    "pytorch #181924": "distributed::test_outputs_and_gradients_are_bit_equal_on_every_rank",
    "accelerate #3223, adapter-hub #678": "leaving::test_accelerate_s_hooks_stay_inside",
    "MRFI #5, ColossalAI #1183": "leaving::test_attaching_a_thousand_times_leaves_nothing",
}


def scope(name: str = "case") -> ns.Scope:
    return ns.Scope(name, max_overhead_pct=1000, overhead_action="warn")


@pytest.mark.parametrize("case", CASES)
def test_each_case_has_its_test(case: str) -> None:
    """The test that is named exists."""
    file, _, name = CASES[case].partition("::")
    functions = {
        node.name
        for node in ast.parse((HERE / f"test_torch_{file}.py").read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    assert name in functions, file


# --- statistics ---------------------------------------------------------------------------------------
def every_dtype() -> list[torch.dtype]:
    """All but two, of which torch has no way to make a tensor."""
    found = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return sorted(found - {torch.quint4x2, torch.quint2x4}, key=str)


def a_tensor(dtype: torch.dtype) -> torch.Tensor:
    if dtype in {torch.qint8, torch.quint8, torch.qint32}:
        return torch.quantize_per_tensor(torch.ones(4), 0.1, 0, dtype)
    raw = torch.zeros(64, dtype=torch.uint8)
    return raw.view(dtype)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", every_dtype(), ids=str)
def test_every_type_gives_a_value_or_a_reason(dtype: torch.dtype) -> None:
    """The forward never fails; what cannot be summarised is counted with its type."""
    value = a_tensor(dtype)
    layer = nn.Identity()
    with scope() as recorded:
        ns.Model.wrap(layer).attach_probe("", ns.probes.LayerActivations(ns.Fidelity.SUMMARY))
        assert layer(value) is value
    records = recorded.artifact.telemetry.layer_snapshots
    if records:
        assert records[0].summary is not None
        assert records[0].summary.count == value.numel()
        if dtype is not getattr(torch, "float8_e8m0fnu", None):  # has no zero
            assert records[0].summary.zero_count == value.numel()
        return
    (root,) = recorded.artifact.telemetry.spans
    assert str(root.attributes["neuronscope.fidelity.reason"]).startswith("dtype:")
    name = str(dtype).removeprefix("torch.")
    assert name.startswith(("q", "bits", "float4")) or name.rstrip("0123456789") in {"int", "uint"}


@pytest.mark.parametrize(
    "value",
    [torch.empty(0, 3), torch.tensor(2.5), torch.full((3,), math.nan), torch.full((3,), 1e38)],
    ids=["empty", "0-d", "all NaN", "large"],
)
def test_unusual_values_give_a_summary(value: torch.Tensor) -> None:
    """No exception, no warning; full copies too."""
    layer = nn.Identity()
    with scope() as recorded:
        ns.Model.wrap(layer).attach_probe("")
        layer(value)
    (record,) = recorded.artifact.telemetry.layer_snapshots
    assert record.summary is not None
    assert record.summary.count == value.numel()
    assert record.tensor is not None


# --- structures ---------------------------------------------------------------------------------------
class Guarded:
    """Raises on any unknown attribute."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def structures() -> dict[str, Any]:
    one = torch.ones(2)
    return {
        "None": None,
        "tuple": (None, one),
        "list": [one, None],
        "mapping": {"a": one},
        "namespace": SimpleNamespace(a=one),
        "generator": (value for value in [one]),
        "guarded": Guarded(),
        "guarded in a list": [Guarded(), one],
    }


@pytest.mark.parametrize("name", structures())
def test_output_structures_come_back_as_they_are(name: str) -> None:
    """By identity; a generator is not consumed."""
    value = structures()[name]

    class Giving(nn.Module):
        def forward(self, *, given: Any) -> Any:
            return given

    model = Giving()
    with scope():
        ns.Model.wrap(model).attach_probe("")
        assert model(given=value) is value
    if name == "generator":
        assert len(list(value)) == 1


def test_tuple_or_tensor_it_is_the_same_record() -> None:
    """Versions of a library disagree; the first tensor is what is recorded."""

    class Block(nn.Module):
        def __init__(self, wrapped: bool) -> None:
            super().__init__()
            self.wrapped = wrapped

        def forward(self, x: torch.Tensor) -> Any:
            return (x * 2, None) if self.wrapped else x * 2

    summaries: list[Any] = []
    for wrapped in (False, True):
        model = Block(wrapped)
        with scope() as recorded:
            ns.Model.wrap(model).attach_probe("")
            model(INPUT)
        summaries.append(recorded.artifact.telemetry.layer_snapshots[0].summary)
    assert summaries[0] == summaries[1]


# --- compilers ----------------------------------------------------------------------------------------
@pytest.fixture
def fresh_compiler() -> Any:
    """No compiled code of another test."""
    dynamo.reset()
    yield
    dynamo.reset()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("fresh_compiler")
def test_a_second_instance_of_a_compiled_class() -> None:
    """Watched before its own compilation it is seen at its boundary, and its inside is told."""
    make_net().compile(backend="eager")
    first = make_net()
    first.compile(backend="eager")
    first(INPUT)
    second = make_net()
    with scope() as recorded:
        ns.Model.wrap(second).attach_probe(["", "first"])
        second.compile(backend="eager")
        assert torch.equal(second(INPUT), first(INPUT))
    assert [record.layer_id for record in recorded.artifact.telemetry.layer_snapshots] == [""]
    (root,) = recorded.artifact.telemetry.spans
    assert root.attributes["neuronscope.layers.not_visited"] == ["first: compiled"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("fresh_compiler")
def test_probes_of_every_kind_leave_compilation_as_it_was() -> None:
    """The same graph, compiled once, under gradient, attention and health probes."""
    codes: list[list[str]] = []
    for watched in (False, True):
        dynamo.reset()
        graphs: list[str] = []

        def backend(graph: torch.fx.GraphModule, _: object, graphs: list[str] = graphs) -> Callable[..., Any]:
            graphs.append(graph.code)
            return graph.forward

        model = make_net()
        run: Any = torch.compile(model, backend=backend, fullgraph=True)
        with scope():
            if watched:
                for kind in (ns.probes.LayerGradients, ns.probes.AttentionMaps, ns.probes.NumericHealth):
                    ns.Model.wrap(model).attach_probe("**", kind)
            for _ in range(3):
                assert torch.equal(run(INPUT), make_net()(INPUT))
        codes.append(graphs)
    assert codes[0] == codes[1]
    assert len(codes[1]) == 1


def test_a_fake_run_of_quantised_weights() -> None:
    """Shapes only: nothing is recorded, nothing raised."""
    from torch._subclasses import FakeTensorMode

    model: Any = make_net()
    with scope() as recorded:
        ns.Model.wrap(model).attach_probe("**")
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert model(mode.from_tensor(INPUT)).shape == (2, 4)
    assert recorded.artifact.telemetry.layer_snapshots == []


# --- finding and reading layers ----------------------------------------------------------------------
def test_a_direct_forward_is_not_seen_and_told() -> None:
    """Calls of `.forward` bypass hooks of any kind; the layer is told as not run."""
    model = make_net()
    with scope() as recorded:
        ns.Model.wrap(model).attach_probe("first")
        model.first.forward(INPUT)
    (root,) = recorded.artifact.telemetry.spans
    told = root.attributes["neuronscope.layers.not_visited"]
    assert isinstance(told, list | tuple)
    assert "first: not run" in told  # and models of other tests, perhaps


def test_a_layer_added_after_wrapping_can_be_watched() -> None:
    """An adapter that comes later, also to a model that was on the meta device."""
    with torch.device("meta"):
        model: Any = nn.Sequential(nn.Linear(8, 8))
    wrapped = ns.Model.wrap(model)
    assert [layer.id for layer in wrapped.layers] == ["0"]
    model.to_empty(device="cpu")
    model.append(nn.Linear(8, 2))
    with scope() as recorded:
        assert wrapped.attach_probe("1") == ["1"]
        model(INPUT)
    assert recorded.artifact.telemetry.layer_snapshots[0].shape == (2, 2)


def test_every_module_can_be_named_and_read() -> None:
    """One pattern, every module that runs, in order of execution."""
    model = tinymodels.llama(1)
    with scope() as recorded:
        watched = ns.Model.wrap(model).attach_probe("**")
        with torch.no_grad():
            model(torch.tensor([[1, 2, 3]]))
    seen = {record.layer_id for record in recorded.artifact.telemetry.layer_snapshots}
    assert seen == set(watched)
    assert len(watched) > 12


def test_the_last_block_is_before_the_norm() -> None:
    """`hidden_states[-1]` is the norm's output; the block's own is told by its own path."""
    model = tinymodels.llama(2)
    with scope() as recorded, torch.no_grad():
        ns.Model.wrap(model).attach_probe(["model.layers.1", "model.norm"])
        hidden = model(torch.tensor([[1, 2, 3]]), output_hidden_states=True).hidden_states
    arrays = {
        record.layer_id: torch.from_numpy(record.tensor.numpy())
        for record in recorded.artifact.telemetry.layer_snapshots
        if record.tensor is not None
    }
    assert torch.equal(arrays["model.norm"], hidden[-1])
    assert not torch.equal(arrays["model.layers.1"], hidden[-1])
    assert torch.equal(model.model.norm(arrays["model.layers.1"]), hidden[-1])


def test_a_negative_index_is_refused_with_what_is_close() -> None:
    """Rather than resolved to some other layer."""
    with pytest.raises(LayerNotFoundError, match=r"model\.layers\.\d"):
        ns.Model.wrap(tinymodels.llama(2)).attach_probe("model.layers.-1")

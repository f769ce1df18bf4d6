"""Every probe on real models, MiniLM and SmolLM2, against what PyTorch itself says of them.

The models come from installed packages and are loaded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

import neuronscope as ns
from neuronscope.demo.models import prepare_minilm, prepare_smollm2
from neuronscope.signals import names
from neuronscope.signals.records import Attributes
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary

hf: Any = transformers  # its own types are partial
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Real:
    """A real model, and where its parts are.

    Attributes:
        inputs: two texts, the shorter one padded.
        visible: which of the inputs' tokens are no padding.
        loss: a number that a training step would start from.
        keys: positions that a query may attend to, apart from padding.
    """

    name: str
    model: Any
    inputs: dict[str, torch.Tensor]
    blocks: str
    attention: str
    heads: int
    loss: Callable[[Any], torch.Tensor]
    causal: bool

    @property
    def visible(self) -> NDArray[np.bool_]:
        mask: NDArray[np.bool_] = self.inputs["attention_mask"].numpy().astype(bool)
        return mask

    def run(self, **options: Any) -> Any:
        """A forward for inference."""
        with torch.no_grad():
            return self.model(**self.inputs, **options)


TEXTS = ["Heat pumps move heat.", "How do heat pumps work when it is cold outside?"]
LOADED: dict[str, Real] = {}


def smollm2() -> Real:
    folder = prepare_smollm2()
    tokenizer = hf.AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = hf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    inputs = dict(tokenizer(TEXTS, padding=True, return_tensors="pt"))

    def loss(output: Any) -> torch.Tensor:
        found: torch.Tensor = output.logits[:, -1].logsumexp(-1).sum()
        return found

    return Real("SmolLM2", model, inputs, "model.layers.*", "model.layers.*.self_attn", 9, loss, causal=True)


def minilm() -> Real:
    folder = prepare_minilm()
    tokenizer = hf.AutoTokenizer.from_pretrained(folder)
    model = hf.AutoModel.from_pretrained(folder).eval()
    inputs = dict(tokenizer(TEXTS, padding=True, return_tensors="pt"))

    def loss(output: Any) -> torch.Tensor:
        found: torch.Tensor = output.last_hidden_state[:, 0].square().sum()
        return found

    where = "encoder.layer.*"
    return Real("MiniLM", model, inputs, where, f"{where}.attention.self", 12, loss, causal=False)


@pytest.fixture(params=[minilm, smollm2], ids=lambda make: make.__name__)
def real(request: pytest.FixtureRequest) -> Real:
    """Each of the models, loaded at its first use."""
    make: Callable[[], Real] = request.param
    if make.__name__ not in LOADED:
        LOADED[make.__name__] = make()
    found = LOADED[make.__name__]
    found.model.set_attn_implementation("sdpa")
    return found


@pytest.fixture(scope="module", autouse=True)
def unload() -> Any:
    """Half a gigabyte is not kept for the tests that follow."""
    yield
    LOADED.clear()


def probed(real: Real, layers: str | list[str], probe: Any, run: Callable[[], object]) -> ns.Scope:
    """A scope in which the model ran with one probe, as far as it likes."""
    with ns.Scope(real.name, max_overhead_pct=1000, overhead_action="warn") as scope:
        ns.Model.wrap(real.model).attach_probe(layers, probe)
        run()
    return scope


def records(scope: ns.Scope) -> list[ns.LayerRecord]:
    return list(scope.artifact.telemetry.layer_snapshots)


def array_of(record: ns.LayerRecord) -> NDArray[Any]:
    assert record.tensor is not None
    return record.tensor.numpy()


# --- activations ------------------------------------------------------------------------------------------
def test_activations_are_the_hidden_states_bit_for_bit(real: Real) -> None:
    """What the model itself gives for each block; the output is the same with every module watched."""
    plain = real.run(output_hidden_states=True)
    outputs: list[Any] = []
    scope = probed(real, real.blocks, ns.probes.LayerActivations, lambda: outputs.append(real.run()))
    found = records(scope)
    assert torch.equal(outputs[0][0], plain[0])
    assert len(found) == real.model.config.num_hidden_layers
    for record, state in zip(found[:-1], plain.hidden_states[1:-1], strict=True):
        np.testing.assert_array_equal(array_of(record), state.numpy())
    last = array_of(found[-1])
    if real.causal:  # its last hidden state is the one after the norm
        assert not np.array_equal(last, plain.hidden_states[-1].numpy())
        with torch.no_grad():
            last = real.model.model.norm(torch.from_numpy(last)).numpy()
    np.testing.assert_array_equal(last, plain.hidden_states[-1].numpy())


def test_summaries_of_every_layer_are_those_of_numpy(real: Real) -> None:
    """All computing modules at once, in summaries, against float64; histograms count every element."""
    outputs: list[Any] = []
    layers = [layer.id for layer in ns.Model.wrap(real.model).layers]
    reference: dict[str, Any] = {}

    def keeper(layer: str) -> Callable[..., None]:
        def keep(_: Any, __: Any, output: Any) -> None:
            first = output if isinstance(output, torch.Tensor) else output[0]
            reference[layer] = first.double().numpy()

        return keep

    handles = [real.model.get_submodule(layer).register_forward_hook(keeper(layer)) for layer in layers]
    try:
        plain = real.run()
    finally:
        for handle in handles:
            handle.remove()
    scope = probed(
        real,
        layers,
        ns.probes.LayerActivations(ns.Fidelity.SUMMARY, details=True),
        lambda: outputs.append(real.run()),
    )
    assert torch.equal(outputs[0][0], plain[0])
    found = {record.layer_id: record for record in records(scope)}
    assert found.keys() == reference.keys()
    assert len(found) > 50
    for layer, values in reference.items():
        summary = found[layer].summary
        assert summary is not None
        assert (summary.min, summary.max) == (values.min(), values.max())
        assert summary.std == pytest.approx(values.std(), rel=1e-5), layer
        assert summary.l2 == pytest.approx(np.linalg.norm(values), rel=1e-5), layer
        assert summary.mean == pytest.approx(values.mean(), abs=1e-5 * values.std()), layer
        assert summary.histogram is not None
        assert sum(summary.histogram) + summary.zero_count == values.size


def backward(loss: Any) -> None:
    """PyTorch leaves it without types."""
    loss.backward()


# --- gradients --------------------------------------------------------------------------------------------
def test_gradients_are_autograd_s_own(real: Real) -> None:
    """Norm and tensor for each block; the gradients of all parameters are the same bits."""
    real.model.zero_grad()
    output = real.model(**real.inputs, output_hidden_states=True)
    states = list(output.hidden_states[1:-1])
    for state in states:
        state.retain_grad()
    backward(real.loss(output))
    expected: list[Any] = [state.grad for state in states]
    gradients: dict[str, Any] = {
        name: value.grad.clone() for name, value in real.model.named_parameters() if value.grad is not None
    }
    del output, states
    real.model.zero_grad()

    def train() -> None:
        backward(real.loss(real.model(**real.inputs)))

    scope = probed(real, real.blocks, ns.probes.LayerGradients(ns.Fidelity.FULL), train)
    found = records(scope)[::-1]  # a backward pass begins at the end
    assert len(found) == len(expected) + 1
    for record, gradient in zip(found, expected, strict=False):
        np.testing.assert_array_equal(array_of(record), gradient.numpy())
        assert record.role == "gradient"
        assert record.summary is not None
        assert record.summary.l2 == pytest.approx(float(gradient.double().norm()), rel=1e-5)
        assert record.summary.l2 > 0
    for name, value in real.model.named_parameters():
        assert (value.grad is None) == (name not in gradients)
        assert value.grad is None or torch.equal(value.grad, gradients[name])
    real.model.zero_grad()


# --- attention --------------------------------------------------------------------------------------------
def eager(real: Real) -> tuple[Any, list[NDArray[Any]]]:
    """Output and attention weights of the model that computes them itself."""
    real.model.set_attn_implementation("eager")
    output = real.run(output_attentions=True)
    return output, [weights.numpy() for weights in output.attentions]


def test_eager_attention_is_what_the_model_computes(real: Real) -> None:
    """Bit for bit; each row is shares of one, none of it on padding or on what comes later."""
    plain, expected = eager(real)
    outputs: list[Any] = []
    scope = probed(real, real.attention, ns.probes.AttentionMaps, lambda: outputs.append(real.run()))
    found = records(scope)
    assert torch.equal(outputs[0][0], plain[0])
    assert len(found) == len(expected)
    for record, wanted in zip(found, expected, strict=True):
        weights = array_of(record)
        np.testing.assert_array_equal(weights, wanted)
        assert record.attributes == {"source": "model"}
        assert weights.shape[:2] == (2, real.heads)
        np.testing.assert_allclose(weights.sum(-1), 1.0, rtol=1e-5)
        for row, visible in enumerate(real.visible):
            rows = weights[row][:, visible]
            assert (rows[..., ~visible] == 0).all()
            if real.causal:
                later = np.triu(np.ones(weights.shape[-2:], bool), 1)[visible]
                assert (rows[:, later] == 0).all()


@pytest.mark.parametrize("heads", [None, (5, 2)])
def test_attention_of_the_fused_kernel_equals_the_eager_one(
    real: Real, heads: tuple[int, ...] | None
) -> None:
    """Computed again from queries and keys, grouped in SmolLM2; the kernel's output stays the same bits."""
    _, expected = eager(real)
    real.model.set_attn_implementation("sdpa")
    plain = real.run()
    outputs: list[Any] = []
    probe = ns.probes.AttentionMaps(heads=heads)
    scope = probed(real, real.attention, probe, lambda: outputs.append(real.run()))
    found = records(scope)
    assert torch.equal(outputs[0][0], plain[0])
    assert len(found) == len(expected)
    for record, maps in zip(found, expected, strict=True):
        assert record.attributes["source"] == "recomputed from q and k"
        assert record.attributes.get("heads") == heads
        weights, wanted = array_of(record), maps if heads is None else maps[:, list(heads)]
        for row, visible in enumerate(real.visible):  # what a padded query attends to is the kernel's affair
            np.testing.assert_allclose(weights[row][:, visible], wanted[row][:, visible], atol=2e-5)
            np.testing.assert_allclose(weights[row][:, visible].sum(-1), 1.0, rtol=1e-5)


# --- health, and a probe of one's own ---------------------------------------------------------------------
def test_health_of_every_block(real: Real) -> None:
    """Finite, in range, no dead unit; and a weight that is spoilt shows where the trouble begins."""
    scope = probed(real, real.blocks, ns.probes.NumericHealth, real.run)
    for record in records(scope):
        assert record.summary is not None
        assert record.summary.finite
        assert record.attributes["units"] == real.model.config.hidden_size
        assert record.attributes["dead_units"] == 0
        assert record.attributes["headroom"] == record.summary.abs_max / float(np.finfo(np.float32).max)
    third = real.blocks.replace("*", "2")
    weight = next(real.model.get_submodule(third).parameters())
    kept = weight.detach().clone()
    with torch.no_grad():
        weight[0, 0] = math.nan
    try:
        spoilt = records(probed(real, real.blocks, ns.probes.NumericHealth, real.run))
    finally:
        with torch.no_grad():
            weight.copy_(kept)
    finite = [record.summary is not None and record.summary.finite for record in spoilt]
    assert finite == [True, True] + [False] * (len(spoilt) - 2)
    assert torch.equal(real.run()[0], real.run()[0])


class Outliers(ns.probes.Probe):
    """A user's probe: how many channels carry values beyond six deviations."""

    def measure(self, layer_id: str, snapshot: TensorSnapshot, summary: TensorSummary) -> Attributes:
        values = snapshot.numpy()
        beyond = (np.abs(values - summary.mean) > 6 * summary.std).any(axis=tuple(range(values.ndim - 1)))
        return {"outlier_channels": int(beyond.sum()), "layer": layer_id}


def test_a_probe_of_one_s_own(real: Real) -> None:
    """Gets the values of each run; what it returns is in the record, which keeps only the summary."""
    plain = real.run(output_hidden_states=True)
    scope = probed(real, real.blocks, Outliers(ns.Fidelity.SUMMARY), real.run)
    found = records(scope)
    counts: list[int] = []
    for record, state in zip(found[:-1], plain.hidden_states[1:-1], strict=True):
        values = state.double().numpy()
        beyond = (np.abs(values - values.mean()) > 6 * values.std()).any(axis=(0, 1))
        assert record.attributes == {"outlier_channels": int(beyond.sum()), "layer": record.layer_id}
        assert record.tensor is None
        counts.append(int(beyond.sum()))
    assert any(counts), "transformers are known for a few channels of very large values"


def test_each_step_of_a_generation_under_all_probes() -> None:
    """SmolLM2 writes the same tokens, and each probe has a record a step."""
    real = LOADED.setdefault("smollm2", LOADED.get("smollm2") or smollm2())
    real.model.set_attn_implementation("sdpa")
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    expected = real.model.generate(**real.inputs, **options)
    probes = {
        "activations": ("model.layers.29", ns.probes.LayerActivations(ns.Fidelity.SUMMARY)),
        "attention": ("model.layers.29.self_attn", ns.probes.AttentionMaps(heads=[0])),
        "health": ("model.layers.15", ns.probes.NumericHealth()),
        "own": ("lm_head", Outliers(ns.Fidelity.SUMMARY)),
    }
    with ns.Scope("all", max_overhead_pct=1000, overhead_action="warn") as scope:
        for layer, probe in probes.values():
            ns.Model.wrap(real.model).attach_probe(layer, probe)
        assert torch.equal(real.model.generate(**real.inputs, **options), expected)
    length = real.inputs["input_ids"].shape[1]
    by_layer: dict[str, list[ns.LayerRecord]] = {}
    for record in records(scope):
        by_layer.setdefault(record.layer_id, []).append(record)
    assert {layer: len(found) for layer, found in by_layer.items()} == {
        layer: 4 for layer, _ in probes.values()
    }
    for record in by_layer["model.layers.29.self_attn"]:
        np.testing.assert_allclose(array_of(record)[1, :, -1].sum(-1), 1.0, rtol=1e-5)
    maps = [record.shape for record in by_layer["model.layers.29.self_attn"]]
    assert maps == [(2, 1, length, length), *((2, 1, 1, length + step) for step in (1, 2, 3))]
    (root,) = scope.artifact.telemetry.spans
    assert root.attributes[names.LAYERS_RECORDS] == 16

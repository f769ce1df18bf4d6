"""Gradients, attention, health and probes of one's own in Keras; run by `test_tf.py` for each backend."""

from __future__ import annotations

import importlib
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import keras_case
import neuronscope as ns
from keras_case import BACKEND, ROWS, functional, keras, numbers, only, tensorflow
from neuronscope.exceptions import LayerNotFoundError, UnsupportedProbeError
from neuronscope.signals import names
from neuronscope.signals.records import Attributes
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary
from neuronscope_instrumentation.tf import ADAPTER

GRADIENTS = ns.probes.LayerGradients(ns.Fidelity.FULL)
WORDS = np.random.default_rng(1).normal(size=(2, 5, 8)).astype("float32")
LENGTHS = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], "bool")


def probed(
    model: Any, layers: str | list[str], probe: Any, run: Callable[[], Any]
) -> tuple[Any, list[ns.LayerRecord], dict[str, Any]]:
    """What a run gives, its records, and the scope's attributes."""
    wrapped = ns.Model.wrap(model)
    with ns.Scope("probes", max_overhead_pct=1000, overhead_action="warn") as scope:
        wrapped.attach_probe(layers, probe)
        output = run()
    telemetry = scope.artifact.telemetry
    return output, list(telemetry.layer_snapshots), dict(telemetry.spans[-1].attributes)


def array_of(record: ns.LayerRecord) -> NDArray[Any]:
    assert record.tensor is not None
    return record.tensor.numpy()


def tensor(values: NDArray[Any]) -> Any:
    return keras.ops.convert_to_tensor(values)


# --- gradients ----------------------------------------------------------------------------------------------
def backward(model: Any, inputs: NDArray[Any]) -> dict[str, bytes]:
    """The gradients of a model's weights, by the backend's own way."""
    if BACKEND == "tensorflow":
        tf = tensorflow()
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(tensor(inputs)) ** 2)
        found = tape.gradient(loss, model.trainable_variables)
        return {v.path: g.numpy().tobytes() for v, g in zip(model.trainable_variables, found, strict=True)}
    model.zero_grad()
    (model(tensor(inputs)) ** 2).sum().backward()
    return {v.path: v.value.grad.numpy().tobytes() for v in model.trainable_variables}


@pytest.mark.skipif(BACKEND == "jax", reason="about Keras on tensorflow and torch")
def test_gradients_by_layers_are_the_backend_s_own() -> None:
    """Against the rest of the model differentiated by itself; the weights' gradients are the same bits."""
    model = keras_case.make(0)
    expected = backward(model, keras_case.INPUT)
    output, found, told = probed(model, ["first", ""], GRADIENTS, lambda: backward(model, keras_case.INPUT))
    assert output == expected
    last, first = found
    assert (last.layer_id, first.layer_id) == ("", "first")
    assert {record.role for record in found} == {"gradient"}
    assert told[names.LAYERS_SKIPPED] == 0
    out = numbers(model(tensor(keras_case.INPUT)))
    np.testing.assert_allclose(array_of(last), 2 * out, rtol=1e-6)
    hidden = numbers(model.get_layer("first")(tensor(keras_case.INPUT)))
    kernel = numbers(model.get_layer("inner").get_layer("out").kernel.value)
    np.testing.assert_allclose(array_of(first), (2 * out) @ kernel.T * (hidden > 0), rtol=1e-5, atol=1e-6)
    assert first.summary is not None
    assert first.summary.l2 == pytest.approx(float(np.linalg.norm(array_of(first))), rel=1e-5)
    assert backward(model, keras_case.INPUT) == expected


@pytest.mark.skipif(BACKEND == "jax", reason="about Keras on tensorflow and torch")
def test_inference_has_no_gradient_and_says_so() -> None:
    """Counted, with the reason."""
    model = keras_case.make(0)

    def infer() -> None:
        if BACKEND == "tensorflow":
            model(tensor(keras_case.INPUT))
        else:
            model.predict(keras_case.INPUT, verbose=0)

    _, found, told = probed(model, "first", GRADIENTS, infer)
    assert found == []
    assert (told[names.LAYERS_SKIPPED], told[names.FIDELITY_REASON]) == (1, "no gradient")


@pytest.mark.skipif(BACKEND == "jax", reason="about Keras on tensorflow and torch")
def test_training_is_bit_equal_under_gradient_probes() -> None:
    """`fit`: losses, weights, random state; a gradient from each step of each layer that has one."""
    results: list[Any] = []
    for watched in (False, True):
        model = functional()
        model.compile("sgd", {"sum": "mse", "out": "mse"})
        model.fit([ROWS, ROWS], {"sum": ROWS, "out": ROWS}, batch_size=4, shuffle=False, verbose=0)

        def fit(model: Any = model) -> Any:
            return model.fit(
                [ROWS, ROWS + 1], {"sum": ROWS, "out": ROWS}, epochs=2, batch_size=4, shuffle=False, verbose=0
            )

        if watched:
            history, found, _ = probed(model, ["shared", "inner.up"], ns.probes.LayerGradients, fit)
            assert sorted(record.layer_id for record in found) == ["inner.up"] * 4 + ["shared"] * 8
        else:
            history = fit()
        fit()
        state = [numbers(variable._value).tobytes() for variable in model.variables]
        results.append((history.history, state))
    assert results[0] == results[1]


@only("tensorflow")
def test_gradients_inside_a_function_and_through_one() -> None:
    """A tape inside a `tf.function`, and one around it; without a tape the layer is told."""
    tf = tensorflow()
    model = keras_case.make(0)
    inputs = tf.constant(keras_case.INPUT)

    def gradient_of(run: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(run(inputs) ** 2)
        return tape.gradient(loss, inputs)

    expected = gradient_of(model).numpy()
    _, (eager,), _ = probed(model, "first", GRADIENTS, lambda: gradient_of(model))
    inside, around = tf.function(lambda: gradient_of(model)), tf.function(model)
    for run in (inside, lambda: gradient_of(around)):
        output, found, _ = probed(model, "first", GRADIENTS, run)
        np.testing.assert_allclose(output.numpy(), expected, rtol=1e-5, atol=1e-6)
        assert len(found) == 1
        np.testing.assert_allclose(array_of(found[0]), array_of(eager), rtol=1e-5, atol=1e-6)
        _, found, _ = probed(model, "first", ns.probes.LayerActivations, run)
        assert [record.role for record in found] == ["output"]  # in a trace of its own
        assert (run().numpy() == output.numpy()).all()
    _, found, told = probed(model, "first", GRADIENTS, lambda: tf.function(model)(inputs))
    assert found == []
    assert told[names.LAYERS_NOT_VISITED] == ["first: no gradient"]


@only("tensorflow")
def test_higher_and_forward_derivatives_are_the_same() -> None:
    """A tape over a tape, and forward accumulation."""
    tf = tensorflow()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, activation="tanh", name="smooth")])
    inputs = tf.constant(keras_case.INPUT)

    def second() -> bytes:
        with tf.GradientTape() as outer:
            outer.watch(inputs)
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                loss = tf.reduce_sum(model(inputs) ** 2)
            first = tf.reduce_sum(inner.gradient(loss, inputs) ** 2)
        return bytes(outer.gradient(first, inputs).numpy().tobytes())

    def forward() -> bytes:
        with tf.autodiff.ForwardAccumulator(inputs, tf.ones_like(inputs)) as accumulator:
            output = model(inputs)
        return bytes(accumulator.jvp(output).numpy().tobytes())

    for run in (second, forward):
        expected = run()
        assert probed(model, "smooth", GRADIENTS, run)[0] == expected


@only("jax")
def test_on_jax_gradients_are_refused_with_what_shows_them() -> None:
    """Its training step is one compiled program."""
    model = ns.Model.wrap(keras_case.make(0))
    with pytest.raises(UnsupportedProbeError, match="Flax"):
        model.attach_probe("first", ns.probes.LayerGradients)
    with pytest.raises(LayerNotFoundError):
        model.attach_probe("frist", ns.probes.LayerGradients)


# --- attention ----------------------------------------------------------------------------------------------
def attending(**options: Any) -> Any:
    """A model with one attention layer, inside another layer."""
    random.seed(0)
    inputs, mask = keras.Input((5, 8)), keras.Input((5,), dtype="bool")
    attend = keras.layers.MultiHeadAttention(2, 4, name="attend", **options)
    mixed = attend(inputs, inputs, attention_mask=mask[:, None, :])
    return keras.Model([inputs, mask], keras.layers.Dense(8, name="out")(inputs + mixed), name="block")


def shown_by(model: Any, **options: Any) -> NDArray[Any]:
    """What the layer itself returns of its weights."""
    attend = model.get_layer("attend")
    mask = {} if options else {"attention_mask": tensor(LENGTHS[:, None, :])}
    _, weights = attend(tensor(WORDS), tensor(WORDS), return_attention_scores=True, **mask, **options)
    found: NDArray[Any] = numbers(weights)
    return found


@pytest.mark.parametrize("heads", [None, (1,)])
def test_attention_of_a_fused_kernel_is_computed_again(heads: tuple[int, ...] | None) -> None:
    """Masked, and equal to what the layer returns when it is asked; the output is the same bits."""
    model = attending()

    def run() -> bytes:
        return bytes(numbers(model([tensor(WORDS), tensor(LENGTHS)])).tobytes())

    plain, expected = run(), shown_by(model)
    for layer in ("attend", ""):
        output, (record,), _ = probed(model, layer, ns.probes.AttentionMaps(heads=heads), run)
        assert output == plain
        assert record.role == "attention"
        assert record.attributes["source"] == "recomputed from q and k"
        assert record.attributes.get("heads") == heads
        wanted = expected if heads is None else expected[:, list(heads)]
        np.testing.assert_allclose(array_of(record), wanted, atol=1e-6)
        np.testing.assert_allclose(array_of(record).sum(-1), 1.0, rtol=1e-5)
        assert not array_of(record)[1, :, :, 3:].any()


def test_attention_that_a_layer_computes_is_shown_as_it_is() -> None:
    """With dropout, or when asked: bit for bit."""
    model = attending(dropout=0.5)
    expected = shown_by(model)
    run = partial(model, [tensor(WORDS), tensor(LENGTHS)])
    _, (record,), _ = probed(model, "attend", ns.probes.AttentionMaps, run)
    assert record.attributes == {"source": "model"}
    np.testing.assert_array_equal(array_of(record), expected)


def test_causal_and_grouped_attention() -> None:
    """The kernel's own causal mask, and keys that queries share."""
    causal = attending()
    attend = causal.get_layer("attend")
    expected = shown_by(causal, use_causal_mask=True)
    _, (record,), _ = probed(
        attend,
        "",
        ns.probes.AttentionMaps,
        lambda: attend(tensor(WORDS), tensor(WORDS), use_causal_mask=True),
    )
    np.testing.assert_allclose(array_of(record), expected, atol=1e-6)
    assert not np.triu(array_of(record), 1).any()
    grouped = keras.layers.GroupQueryAttention(4, 4, 2)
    grouped(tensor(WORDS), tensor(WORDS))
    _, weights = grouped(tensor(WORDS), tensor(WORDS), return_attention_scores=True)
    _, (record,), _ = probed(
        grouped, "", ns.probes.AttentionMaps, lambda: grouped(tensor(WORDS), tensor(WORDS))
    )
    assert record.shape == (2, 4, 5, 5)
    np.testing.assert_allclose(array_of(record), numbers(weights), atol=1e-6)


def test_attention_without_heads() -> None:
    """Luong's and Bahdanau's layers have one map a row."""
    for kind in (keras.layers.Attention, keras.layers.AdditiveAttention):
        layer = kind()
        _, weights = layer([tensor(WORDS), tensor(WORDS)], return_attention_scores=True)
        _, (record,), _ = probed(
            layer, "", ns.probes.AttentionMaps, partial(layer, [tensor(WORDS), tensor(WORDS)])
        )
        assert record.attributes["source"] == "model"
        np.testing.assert_array_equal(array_of(record), numbers(weights)[:, None])


@only("tensorflow")
def test_attention_inside_a_function() -> None:
    """The weights leave the graph while somebody watches; the service's own trace has nothing of ours."""
    tf = tensorflow()
    model = attending()
    function = tf.function(model)
    expected = shown_by(model)
    inputs = [tensor(WORDS), tensor(LENGTHS)]
    output, (record,), _ = probed(model, "attend", ns.probes.AttentionMaps, lambda: function(inputs))
    assert record.attributes["source"] == "recomputed from q and k"
    np.testing.assert_allclose(array_of(record), expected, atol=1e-6)
    assert (function(inputs).numpy() == output.numpy()).all()
    assert all(
        "PyFunc" not in op.type for op in function.get_concrete_function(inputs).graph.get_operations()
    )


def test_a_layer_without_attention_says_so_and_all_is_as_it_was() -> None:
    """Counted with its reason; every dictionary is restored."""
    model = attending()
    run = partial(model, [tensor(WORDS), tensor(LENGTHS)])
    run()  # Keras notes on a model that it has been called
    before = keras_case.trace(model)
    _, found, told = probed(model, "out", ns.probes.AttentionMaps, run)
    assert found == []
    assert (told[names.LAYERS_SKIPPED], told[names.FIDELITY_REASON]) == (1, "no attention")
    undo = [ADAPTER.observe_attention(model, "attend", lambda _: None) for _ in range(2)]
    undo.append(ADAPTER.observe_layer(model, "attend", lambda _: None))
    for step in undo:
        step()
    assert keras_case.trace(model) == before


@only("tensorflow")
def test_a_saved_model_refuses_what_it_cannot_show(tmp_path: Any) -> None:
    """Its inside is one graph; the message says what to do."""
    keras_case.make(0).export(tmp_path / "saved", verbose=False)
    wrapped = ns.Model.wrap(tensorflow().saved_model.load(str(tmp_path / "saved")))
    for probe in (ns.probes.LayerGradients, ns.probes.AttentionMaps):
        with pytest.raises(UnsupportedProbeError, match="exported from"):
            wrapped.attach_probe("serve", probe)


# --- health, and a probe of one's own -----------------------------------------------------------------------
class Sparsity(ns.probes.Probe):
    """A user's probe."""

    def measure(self, layer_id: str, snapshot: TensorSnapshot, summary: TensorSummary) -> Attributes:
        return {"rows": len(snapshot.numpy()), "sparsity": summary.zero_count / summary.count}


def test_health_and_probes_of_one_s_own() -> None:
    """Headroom, dead units, and what the user returns, also from `predict`."""
    values = np.array([[1.0, -1.0, 0.0, 2.0], [3.0, -2.0, 0.0, 65504.0]], "float16")
    layer = keras.layers.ReLU(name="relu", dtype="float16")
    _, (health,), _ = probed(layer, "", ns.probes.NumericHealth, lambda: layer(tensor(values)))
    assert health.attributes["headroom"] == 1.0
    assert (health.attributes["units"], health.attributes["dead_units"]) == (4, 2)
    _, (own,), _ = probed(layer, "", Sparsity(ns.Fidelity.SUMMARY), lambda: layer(tensor(values)))
    assert (own.attributes["rows"], own.attributes["sparsity"]) == (2, 0.5)
    assert own.tensor is None
    if BACKEND != "jax":  # compiled as a whole
        model = keras_case.make(0)
        _, found, _ = probed(model, "first", Sparsity(), lambda: model.predict(ROWS, batch_size=4, verbose=0))
        assert [record.attributes["rows"] for record in found] == [4, 4]
    importlib.import_module("gc").collect()


# --- calls of a trainer -------------------------------------------------------------------------------------
def test_calls_of_a_trainer_are_spans_that_hold_their_layers() -> None:
    """`fit`, `evaluate`, `predict`: batches, epochs, losses and shapes, no values; results as without us."""
    results: list[Any] = []
    for observed in (False, True):
        if observed:
            ns.Platform()
            ns.instrument("keras")
        model = keras_case.make(0)
        model.compile("sgd", "mse", metrics=["mae"])
        with ns.Scope("trainer", max_overhead_pct=1000, overhead_action="warn") as scope:
            if observed:
                ns.Model.wrap(model).attach_probe("first", fidelity="summary")
            data = (ROWS, ROWS)
            fitted = model.fit(*data, epochs=2, batch_size=3, verbose=0, shuffle=False, validation_data=data)
            evaluated = model.evaluate(*data, verbose=0)
            predicted = model.predict(ROWS, batch_size=4, verbose=0)
            with pytest.raises(Exception, match=r"incompatible|shape|dimension|size"):
                model.predict(np.ones((2, 7), "float32"), verbose=0)
        results.append((fitted.history, evaluated, predicted.tobytes()))
    assert results[0] == results[1]
    spans = [span for span in scope.artifact.telemetry.spans if span.library == "neuronscope.keras"]
    assert [span.name for span in spans] == ["train outer", "evaluate outer", *["inference outer"] * 2]
    train, evaluate, predict, failed = [span.attributes for span in spans]
    assert train[names.MODEL_EPOCHS] == 2
    assert train[names.MODEL_STEPS] == 6  # three batches an epoch
    assert train[names.MODEL_LOSS] == fitted.history["loss"][-1]
    assert evaluate[names.MODEL_LOSS] == evaluated[0]
    assert (predict[names.MODEL_STEPS], predict[names.MODEL_BATCH]) == (2, 4)
    assert predict[names.MODEL_INPUTS] == predict[names.MODEL_OUTPUTS] == ["F32[8,4]"]
    assert str(failed[names.ERROR_TYPE]).endswith("Error")
    seen = Counter(record.span_id for record in scope.artifact.telemetry.layer_snapshots)
    if BACKEND == "jax":
        assert not seen  # compiled as a whole
    else:
        assert [seen[span.span_id] for span in spans] == [6 + 6, 1, 2, 0]  # with those of the validation

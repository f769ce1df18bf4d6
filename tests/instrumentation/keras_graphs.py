"""Keras models inside `tf.function`, and SavedModels; run by `test_tf.py` for each backend."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_case
import neuronscope as ns
from keras_case import ROWS, keras, only, tensorflow, watch_all
from neuronscope.exceptions import LayerNotFoundError
from neuronscope.signals.tensors import TensorSnapshot
from neuronscope_instrumentation.tf import ADAPTER


def callbacks_in(function: Any) -> list[str]:
    """Operations of a concrete function that call back into Python."""
    return [op.type for op in function.graph.get_operations() if "PyFunc" in op.type]


@only("tensorflow")
def test_a_function_first_traced_in_a_scope_shows_its_layers_and_is_plain_afterwards() -> None:
    """Each run is seen, also under a tape; the service's trace has nothing of ours."""
    tf = tensorflow()
    model = keras_case.make(0)
    inputs = tf.constant(keras_case.INPUT)

    def loss_of(x: Any) -> Any:
        return tf.reduce_sum(model(x) ** 2)

    function = tf.function(loss_of)
    seen, leave = watch_all(model)
    function(inputs)
    watched = function(inputs)
    with tf.GradientTape() as tape:
        loss = function(inputs)
    gradients = tape.gradient(loss, model.trainable_variables)
    assert [path for path, *_ in seen] == ["first", "inner.relu", "inner.out", "inner"] * 3
    leave()
    seen.clear()
    with tf.GradientTape() as tape:
        plain = function(inputs)
    expected = tape.gradient(plain, model.trainable_variables)
    assert seen == []
    assert watched.numpy() == plain.numpy()
    assert all((a.numpy() == b.numpy()).all() for a, b in zip(gradients, expected, strict=True))
    assert callbacks_in(function.get_concrete_function(inputs)) == []
    seen, leave = watch_all(model)
    function(inputs)
    assert len(seen) == 4, "the same layers are watched: the trace made for them is there"
    leave()


@only("tensorflow")
def test_what_cannot_be_observed_in_a_graph_is_told() -> None:
    """Traces that were there before, XLA, and concrete functions made to be kept."""
    tf = tensorflow()
    model = keras_case.make(0)
    inputs = tf.constant(keras_case.INPUT)
    old = tf.function(model)
    expected = old(inputs).numpy()
    seen, leave = watch_all(model)
    assert (old(inputs).numpy() == expected).all()
    assert old.experimental_get_tracing_count() == 1
    assert ADAPTER.not_visited(model, ["first", "inner"], []) == dict.fromkeys(
        ["first", "inner"], "traced before"
    )
    compiled = tf.function(model, jit_compile=True)
    np.testing.assert_allclose(compiled(inputs).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert ADAPTER.not_visited(model, ["first"], []) == {"first": "compiled"}
    concrete = tf.function(model).get_concrete_function(inputs)
    assert ADAPTER.not_visited(model, ["first"], []) == {"first": "exported"}
    assert callbacks_in(concrete) == []
    assert seen == []
    leave()


@only("tensorflow")
def test_functions_of_others_are_traced_as_often_as_without_us() -> None:
    """Nor does anything of TensorFlow's stay patched."""
    tf = tensorflow()
    inside = "tensorflow.python.eager.polymorphic_function"
    polymorphic_function: Any = importlib.import_module(f"{inside}.polymorphic_function")
    tracing_compilation: Any = importlib.import_module(f"{inside}.tracing_compilation")
    originals = polymorphic_function.Function._call, tracing_compilation._maybe_define_function
    traced: list[int] = []

    def double(x: Any) -> Any:
        traced.append(1)
        return x * 2

    service = tf.function(double)
    model, other = keras_case.make(0), keras_case.make(1)
    other.predict(ROWS, verbose=0)
    count = other.predict_function.experimental_get_tracing_count()
    _, leave = watch_all(model)
    assert polymorphic_function.Function._call is not originals[0]
    for _ in range(2):
        service(tf.constant(1.0))
        other.predict(ROWS, verbose=0)
    leave()
    service(tf.constant(1.0))
    assert traced == [1]
    assert other.predict_function.experimental_get_tracing_count() == count
    assert (polymorphic_function.Function._call, tracing_compilation._maybe_define_function) == originals


@only("tensorflow")
def test_a_nested_function_is_observed_with_the_one_that_calls_it() -> None:
    """The outer trace is kept apart with the inner one; branches and loops run as they are."""
    tf = tensorflow()
    model = keras_case.make(0)
    inner = tf.function(model)

    def repeated(x: Any, times: Any) -> Any:
        for _ in tf.range(times):
            x = inner(x)
        return x

    outer = tf.function(repeated)
    inputs, times = tf.constant(keras_case.INPUT), tf.constant(3)
    seen, leave = watch_all(model)
    watched = outer(inputs, times)
    assert [path for path, *_ in seen] == ["first", "inner.relu", "inner.out", "inner"] * 3
    leave()
    seen.clear()
    assert (outer(inputs, times).numpy() == watched.numpy()).all()
    assert seen == []


def repeat(times: int, function: Callable[[Any], Any], value: Any) -> None:
    for _ in range(times):
        function(value)


@only("tensorflow")
def test_the_layers_of_concurrent_calls_belong_to_the_scope() -> None:
    """Two threads run one function; every run is recorded."""
    tf = tensorflow()
    model = keras_case.make(0)
    function = tf.function(model)
    inputs = tf.constant(keras_case.INPUT)
    wrapped = ns.Model.wrap(model)
    with ns.Scope("keras", max_overhead_pct=1000) as scope:
        wrapped.attach_probe(layers="first")
        function(inputs)
        threads = [threading.Thread(target=repeat, args=(20, function, inputs)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(scope.artifact.telemetry.layer_snapshots) == 41
    assert {r.span_id for r in scope.artifact.telemetry.layer_snapshots} == {
        scope.artifact.telemetry.spans[-1].span_id
    }


@only("tensorflow")
def test_a_saved_model_is_observed_at_its_boundary(tmp_path: Path) -> None:
    """A file exported while the model is watched has nothing of ours; its signatures are the layers."""
    tf = tensorflow()
    model = keras_case.make(0)
    expected = np.frombuffer(keras_case.run(model), "float32").reshape(2, 4)
    _, leave = watch_all(model)
    model.export(tmp_path / "saved", verbose=False)
    leave()
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    wrapped = ns.Model.wrap(loaded)
    assert wrapped.adapter_name == "tf"
    assert "signatures.serving_default" in [layer.id for layer in wrapped.layers]
    assert {layer.shape for layer in wrapped.layers} == {(-1, 4), None}
    assert callbacks_in(loaded.signatures["serving_default"]) == []
    with ns.Scope("saved") as scope:
        wrapped.attach_probe(layers=["serve", "signatures.serving_default"])
        signature = loaded.signatures["serving_default"](tf.constant(keras_case.INPUT))["output_0"].numpy()
        served = loaded.serve(tf.constant(keras_case.INPUT)).numpy()
    np.testing.assert_allclose(signature, expected, rtol=1e-5, atol=1e-6)
    assert (signature == served).all()
    records = scope.artifact.telemetry.layer_snapshots
    assert [record.layer_id for record in records] == ["signatures.serving_default", "serve"]
    with pytest.raises(LayerNotFoundError, match="one graph"):
        wrapped.attach_probe(layers="inner.out")
    again = tf.saved_model.load(str(tmp_path / "saved"))
    assert ns.Model.wrap(again).fingerprint == wrapped.fingerprint


@only("tensorflow")
def test_tensors_without_plain_memory_are_counted_with_a_reason() -> None:
    """Ragged outputs and strings are no numbers."""
    tf = tensorflow()

    def ragged(x: Any) -> Any:
        return tf.RaggedTensor.from_row_lengths(x, [1, 3])

    layer = keras.layers.Lambda(ragged, name="odd")
    reasons: list[str] = []

    def reading(snapshot: TensorSnapshot) -> None:
        with pytest.raises(ns.UnsupportedTensorError) as caught:
            snapshot.summarize()
        reasons.append(caught.value.reason)

    undo = ADAPTER.observe_layer(layer, "", reading)
    layer(tf.constant([1.0, 2.0, 3.0, 4.0]))
    undo()
    assert reasons == ["RaggedTensor"]

"""Keras models observed; run by `test_tf.py` in a process for each of Keras' backends."""

from __future__ import annotations

import copy
import gc
import importlib
import json
import pickle
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_case
import keras_twin
import neuronscope as ns
import twins
from keras_case import BACKEND, ROWS, functional, keras, numbers, only, tensorflow
from neuronscope.exceptions import LayerNotFoundError
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary
from neuronscope_instrumentation.tf import ADAPTER
from neuronscope_instrumentation.tf.snapshot import ArraySnapshot


def block(number: int) -> Any:
    return keras.Sequential(
        [keras.layers.Dense(4, name="up"), keras.layers.Dense(4, name="down")], name=f"block_{number}"
    )


def watch_all(model: Any) -> tuple[list[tuple[str, tuple[int, ...], float]], Callable[[], None]]:
    """Watch all layers of a model: what was seen, and the undo."""
    seen: list[tuple[str, tuple[int, ...], float]] = []

    def noting(path: str) -> Callable[[TensorSnapshot], None]:
        return lambda snapshot: seen.append((path, snapshot.shape, snapshot.summarize().mean))

    undo = [ADAPTER.observe_layer(model, path, noting(path)) for path in ADAPTER.match_layers(model, "**")]

    def leave() -> None:
        for step in undo:
            step()

    return seen, leave


def test_a_scope_records_layers_by_the_names_that_keras_gives(tmp_path: Path) -> None:
    """Ids are dotted names; statistics are those of the values; the file tells the same."""
    model = keras_case.make(0)
    wrapped = ns.Model.wrap(model)
    assert wrapped.adapter_name == "tf"
    assert [layer.id for layer in wrapped.layers] == ["first", "inner.relu", "inner.out"]
    assert [layer.parameters for layer in wrapped.layers] == [20, 0, 20]
    with ns.Scope("keras") as scope:
        assert wrapped.attach_probe(layers=["first", "inner.*"]) == ["first", "inner.relu", "inner.out"]
        output = numbers(model(keras.ops.convert_to_tensor(keras_case.INPUT)))
    saved = scope.save(tmp_path / "keras.nsz")
    records = {record.layer_id: record for record in saved.telemetry.layer_snapshots}
    assert records.keys() == {"first", "inner.relu", "inner.out"}
    summary = records["inner.out"].summary
    assert summary is not None
    assert summary.mean == pytest.approx(output.mean(dtype="float64"))
    assert (summary.max, summary.count) == (output.max(), output.size)
    assert records["inner.relu"].shape == (2, 4)
    assert {record.span_id for record in records.values()} == {scope.artifact.telemetry.spans[-1].span_id}


def test_a_shared_layer_is_seen_at_each_of_its_places() -> None:
    """In order; outputs of several tensors show the first."""
    model = functional()
    seen, leave = watch_all(model)
    output = model([ROWS, ROWS + 1])
    leave()
    assert [path for path, *_ in seen] == ["shared", "shared", "add", "inner.up", "inner.drop", "inner"]
    assert seen[2][2] == pytest.approx(float(numbers(output["sum"]).mean(dtype="float64")))
    assert [layer.id for layer in ADAPTER.list_layers(model)] == ["shared", "add", "inner.up", "inner.drop"]


def test_blocks_are_the_repeated_parts() -> None:
    """The largest group of alike layers that hold layers."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, name="embed"), *map(block, range(3))])
    assert ADAPTER.block_paths(model) == ["block_0", "block_1", "block_2"]
    assert ADAPTER.match_layers(model, "*.down") == ["block_0.down", "block_1.down", "block_2.down"]
    with pytest.raises(LayerNotFoundError, match=r"block_0\.down"):
        ADAPTER.match_layers(model, "block_0.dwon")


def test_predict_and_fit_are_bit_equal_while_watched() -> None:
    """Predictions, losses, weights and the state of dropout's generator."""
    results: list[Any] = []
    for watched in (False, True):
        model = functional()
        model.compile("sgd", {"sum": "mse", "out": "mse"})
        seen, leave = watch_all(model) if watched else ([], lambda: None)
        history = model.fit(
            [ROWS, ROWS + 1], {"sum": ROWS, "out": ROWS}, epochs=2, batch_size=4, shuffle=False, verbose=0
        )
        predicted = model.predict([ROWS, ROWS + 1], verbose=0)
        leave()
        if watched and BACKEND != "jax":
            assert len(seen) == 6 * (4 + 1), "six runs of layers in each of five steps"
        state = [numbers(variable._value).tobytes() for variable in model.variables]
        results.append((history.history, predicted["out"].tobytes(), state))
    assert results[0] == results[1]


def test_what_was_compiled_before_is_as_it_was() -> None:
    """`predict` is seen in a scope after it has run without, and is itself again afterwards."""
    model = keras_case.make(0)
    before = model.predict(ROWS, verbose=0)
    function = model.predict_function
    wrapped = ns.Model.wrap(model)
    with ns.Scope("keras") as scope:
        wrapped.attach_probe(layers="inner")
        assert (model.predict(ROWS, verbose=0) == before).all()
    assert model.predict_function is function
    assert (model.predict(ROWS, verbose=0) == before).all()
    records = scope.artifact.telemetry.layer_snapshots
    if BACKEND == "jax":
        assert not records
        told = scope.artifact.telemetry.spans[-1].attributes["neuronscope.layers.not_visited"]
        assert "not run" in str(told)  # what XLA has compiled before asks no layer
    else:
        assert [record.layer_id for record in records] == ["inner"]
        assert records[0].span_id == scope.artifact.telemetry.spans[-1].span_id


def test_copies_and_files_are_made_of_the_plain_model(tmp_path: Path) -> None:
    """Copies compute with their own weights and tell nobody."""
    model = keras_case.make(0)
    expected = keras_case.run(model)
    seen, leave = watch_all(model)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), keras.models.clone_model(model)]
    model.save(tmp_path / "model.keras")
    copies.append(keras.models.load_model(tmp_path / "model.keras"))
    seen.clear()
    assert [keras_case.run(other) == expected for other in copies] == [True, True, False, True]
    assert seen == []
    leave()
    assert json.loads(model.to_json()) == json.loads(copies[0].to_json())


def test_half_precision_is_summarised_and_copied_as_its_bits() -> None:
    """BF16 has no type in numpy."""
    layer = keras.layers.Dense(4, name="half", dtype="bfloat16")
    found: list[Any] = []
    ADAPTER.install_observer_hook(
        layer, "", lambda s: found.append((s.dtype, s.numpy(), s.summarize(), s.details(), s.active_units()))
    )
    output = numbers(keras.ops.cast(layer(ROWS), "float32"))
    ADAPTER.remove_hooks(layer)
    dtype, bits, summary, _, active = found[0]
    assert (dtype, bits.dtype.name, summary.count) == ("BF16", "uint16", 32)
    assert summary.max == output.max()
    assert ((bits.astype("uint32") << 16).view("float32") == output).all()
    assert active.all()


def test_an_error_of_a_layer_is_the_layers_own() -> None:
    """Its message is the same, watched or not."""
    model = keras_case.make(0)
    messages: list[str] = []
    for watched in (False, True):
        _, leave = watch_all(model) if watched else ([], lambda: None)
        with pytest.raises(ValueError, match="incompatible") as caught:
            model(np.ones((2, 7), "float32"))
        messages.append(str(caught.value))
        leave()
    assert messages[0] == messages[1]


def test_many_runs_keep_nothing() -> None:
    """No snapshot outlives its callback."""
    model = keras_case.make(0)
    _, leave = watch_all(model)
    for _ in range(500):
        model.predict_on_batch(ROWS)
    leave()
    gc.collect()
    assert not any(type(thing) is ArraySnapshot for thing in gc.get_objects())


def test_the_fingerprint_tells_architecture_and_weights_apart() -> None:
    """Names do not count, connections do."""
    random.seed(0)
    inputs = keras.Input((4,))
    one, two = keras.layers.Dense(4), keras.layers.Dense(4)
    chain = keras.Model(inputs, two(one(inputs)))
    swapped = keras.Model(inputs, keras.layers.add([one(inputs), two(inputs)]))
    assert ADAPTER.fingerprint_model(chain) != ADAPTER.fingerprint_model(swapped)
    name = ADAPTER.fingerprint_model(keras_case.make(0))
    named = keras_case.make(0)
    named.name = "another"
    assert ADAPTER.fingerprint_model(named) == name


# --- twins --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("compiled", [False, True])
def test_the_twin_in_keras_gives_the_summaries_of_the_one_in_torch(compiled: bool) -> None:
    """To float32's accuracy, layer by layer, also inside a `tf.function`."""
    if compiled and BACKEND != "tensorflow":
        pytest.skip("about Keras on tensorflow")
    weights = twins.make_weights()
    tokens = keras.ops.convert_to_tensor(twins.TOKENS, dtype="int32")
    torch: Any = importlib.import_module("torch")
    model = keras_twin.make(weights)
    expected = summaries(twins.TorchTwin(weights), torch.from_numpy(twins.TOKENS))
    found = summaries(model, tokens, tensorflow().function(model) if compiled else model)
    assert found.keys() == expected.keys() == set(twins.LAYERS)
    for layer, wanted in expected.items():
        got = found[layer]
        assert (got.count, got.zero_count, got.nan_count) == (wanted.count, wanted.zero_count, 0)
        for statistic in ("mean", "std", "l2", "min", "max"):
            about = pytest.approx(getattr(wanted, statistic), rel=1e-4, abs=2e-6 * wanted.abs_max)
            assert getattr(got, statistic) == about, (layer, statistic)


def summaries(model: Any, tokens: Any, run: Any = None) -> dict[str, TensorSummary]:
    """The summary of each layer of a twin."""
    with ns.Scope("twin", max_overhead_pct=1000) as scope:
        layers = [layer.id for layer in ns.Model.wrap(model).layers]
        wanted = [layer for layer in layers if layer.replace("blocks_", "blocks.") in twins.LAYERS]
        ns.Model.wrap(model).attach_probe(wanted, fidelity="summary")
        (run or model)(tokens)
    records = scope.artifact.telemetry.layer_snapshots
    return {
        record.layer_id.replace("blocks_", "blocks."): record.summary
        for record in records
        if record.summary is not None
    }


# --- TensorFlow: graphs -----------------------------------------------------------------------------------
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


# --- JAX ----------------------------------------------------------------------------------------------------
@only("jax")
def test_compiled_steps_are_told_and_eager_ones_seen() -> None:
    """XLA shows nothing of its inside."""
    model = keras_case.make(0)
    seen, leave = watch_all(model)
    model.predict(ROWS, verbose=0)
    assert seen == []
    assert ADAPTER.not_visited(model, ["first"], []) == {"first": "compiled"}
    model.compile(run_eagerly=True)
    model.predict(ROWS, verbose=0)
    leave()
    assert [path for path, *_ in seen] == ["first", "inner.relu", "inner.out", "inner"]

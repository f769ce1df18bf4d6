"""Keras models observed; run by `test_tf.py` in a process for each of Keras' backends."""

from __future__ import annotations

import copy
import gc
import importlib
import json
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_case
import keras_twin
import neuronscope as ns
import twins
from keras_case import BACKEND, ROWS, functional, keras, numbers, only, tensorflow, watch_all
from neuronscope.exceptions import LayerNotFoundError
from neuronscope.signals.tensors import TensorSummary
from neuronscope_instrumentation.common.host_arrays import ArraySnapshot
from neuronscope_instrumentation.tf import ADAPTER


def block(number: int) -> Any:
    return keras.Sequential(
        [keras.layers.Dense(4, name="up"), keras.layers.Dense(4, name="down")], name=f"block_{number}"
    )


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


def test_a_scope_watches_the_model_that_it_was_given() -> None:
    """Its blocks, in summaries; the adapter is the one of Keras."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, name="embed"), *map(block, range(3))])
    with ns.Scope("given", model, max_overhead_pct=1000) as scope:
        model(keras.ops.convert_to_tensor(ROWS))
    assert scope.model is not None
    assert scope.model.adapter_name == "tf"
    records = scope.artifact.telemetry.layer_snapshots
    assert [record.layer_id for record in records] == ["block_0", "block_1", "block_2"]
    assert all(record.tensor is None for record in records)


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

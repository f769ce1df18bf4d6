"""JAX models of each kind: which layers they have, and that each of their runs is recorded."""

# JAX's and Flax's values have no types that pyright knows.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportPrivateUsage=false, reportPossiblyUnboundVariable=false

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from typing import Any, cast

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from opentelemetry import trace

import jaxnets
import neuronscope as ns
from jaxnets import ROWS
from neuronscope.exceptions import LayerNotFoundError
from neuronscope.signals import names
from neuronscope.signals.records import Fidelity, LayerRecord
from neuronscope_instrumentation.jax import ADAPTER

jax: Any = importlib.import_module("jax")  # much of it has no types

MODULE_LAYERS = ["blocks.0.norm", "blocks.0.up", "blocks.1.norm", "blocks.1.up", "head"]
LINEN_LAYERS = ["block_0.norm", "block_0.up", "block_1.norm", "block_1.up", "head"]


def records_of(run: Callable[[], object], *models: Any, probes: str | None = None) -> list[LayerRecord]:
    """The records of what runs in a scope."""
    with ns.Scope("test", max_overhead_pct=1000) as scope:
        for model in models:
            wrapped = ns.Model.wrap(model, adapter="jax")
            if probes is not None:
                wrapped.attach_probe(probes)
        run()
    return list(scope.artifact.telemetry.layer_snapshots)


def ids(records: list[LayerRecord]) -> list[str]:
    return sorted(record.layer_id for record in records)


# --- what layers there are --------------------------------------------------------------------------------
@pytest.mark.parametrize("make", [jaxnets.NnxNet, jaxnets.EqxNet])
def test_modules_are_listed_by_their_paths(make: Callable[[], Any]) -> None:
    """Leaves with their own parameters; blocks are the repeated ones."""
    model = make()
    layers = ADAPTER.list_layers(model)
    assert [layer.id for layer in layers] == MODULE_LAYERS
    assert [layer.parameters for layer in layers] == [8, 20, 8, 20, 10]
    assert [layer.name for layer in layers][:1] == ["LayerNorm"]
    assert ADAPTER.block_paths(model) == ["blocks.0", "blocks.1"]
    assert ADAPTER.match_layers(model, "blocks.*.up") == ["blocks.0.up", "blocks.1.up"]
    with pytest.raises(LayerNotFoundError, match=r"blocks\.0\.up"):
        ADAPTER.match_layers(model, "blocks.0.upp")


def test_linen_shows_its_layers_when_it_is_bound_or_runs() -> None:
    """Until then paths are taken on trust, and a pattern is refused with a way out."""
    model, variables = jaxnets.linen()
    wrapped = ns.Model.wrap(model)
    assert [layer.id for layer in wrapped.layers] == [""]
    with pytest.raises(LayerNotFoundError, match="bind"):
        wrapped.attach_probe("block_*")
    assert [layer.id for layer in ns.Model.wrap(model.bind(variables)).layers] == LINEN_LAYERS
    records = records_of(lambda: model.apply(variables, ROWS), model)
    assert ids(records) == ["block_0", "block_1"]
    assert [layer.id for layer in wrapped.layers] == LINEN_LAYERS
    assert [layer.parameters for layer in wrapped.layers] == [8, 20, 8, 20, 10]
    assert wrapped.attach_probe("block_*") == ["block_0", "block_1"]
    wrapped.detach()


def test_names_that_a_function_gives_are_layers() -> None:
    """`checkpoint_name` is JAX's own: no function of ours is in the user's code."""
    records = records_of(lambda: jax.jit(jaxnets.function)(ROWS), jaxnets.function, probes="hidden")
    assert ids(records) == ["hidden"]
    assert records[0].model == "function"
    assert [layer.id for layer in ADAPTER.list_layers(jaxnets.function)] == ["hidden", "out"]
    with pytest.raises(LayerNotFoundError, match="Close to it: hidden"):
        ADAPTER.match_layers(jaxnets.function, "hiden")


def test_only_jitted_functions_are_matched_by_themselves() -> None:
    """A plain function could be anything: it is JAX's when the user says so."""
    assert not ADAPTER.matches(jaxnets.function)
    assert ADAPTER.matches(jax.jit(jaxnets.function))


def test_two_functions_with_equal_names_are_told_apart() -> None:
    """A name belongs to the innermost watched function that is running."""

    def other(x: Any) -> Any:
        return jaxnets.function(x) + 1

    records = records_of(lambda: jax.jit(other)(ROWS), other, jaxnets.function, probes="out")
    assert [record.model for record in records] == ["function"]


def test_a_name_is_recorded_once_under_any_transformation() -> None:
    """Transformations bind names again when they run through a program."""
    inner = jax.checkpoint(jaxnets.function)

    def loss(x: Any) -> Any:
        return inner(x).sum()

    for run in (
        lambda: jax.vmap(jaxnets.function)(ROWS),
        lambda: jax.jit(jax.vmap(jaxnets.function))(ROWS),
    ):
        assert ids(records_of(run, jaxnets.function)) == ["hidden", "out"]
    assert ids(records_of(lambda: jax.jit(jax.grad(loss))(ROWS), loss, jaxnets.function)) == ["hidden", "out"]


# --- runs --------------------------------------------------------------------------------------------------
def runs() -> dict[str, tuple[Any, Callable[[], Any], list[str]]]:
    """For each way to run a model: the model, the run, and the layers that have to show up."""
    linen, variables = jaxnets.linen()

    def total(model: Any, x: Any) -> Any:
        return jax.vmap(model)(x).sum()

    net, pytree = jaxnets.NnxNet(), jaxnets.EqxNet()
    graph, state = nnx.split(net)
    return {
        "linen": (linen, lambda: linen.apply(variables, ROWS), LINEN_LAYERS),
        "linen, jit": (linen, lambda: jax.jit(linen.apply)(variables, ROWS), LINEN_LAYERS),
        "nnx": (net, lambda: net(ROWS), MODULE_LAYERS),
        "nnx.jit": (net, lambda: nnx.jit(lambda m, x: m(x))(net, ROWS), MODULE_LAYERS),
        "nnx, closure": (net, lambda: jax.jit(lambda x: net(x) + 0)(ROWS), MODULE_LAYERS),
        "nnx, merged": (
            net, lambda: jax.jit(lambda s, x: nnx.merge(graph, s)(x))(state, ROWS), MODULE_LAYERS,
        ),
        "nnx.grad": (net, lambda: nnx.jit(nnx.grad(lambda m: m(ROWS).sum()))(net), MODULE_LAYERS),
        "equinox": (pytree, lambda: jax.vmap(pytree)(ROWS), MODULE_LAYERS),
        "equinox, jit": (
            pytree, lambda: eqx.filter_jit(lambda m, x: jax.vmap(m)(x))(pytree, ROWS), MODULE_LAYERS,
        ),
        "equinox, grad": (
            pytree,
            lambda: eqx.filter_jit(eqx.filter_grad(total))(pytree, ROWS),
            MODULE_LAYERS,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("way", list(runs()))
def test_each_layer_is_recorded_once_in_each_run(way: str) -> None:
    """Whatever objects the layers are inside a transformation; the whole batch in one record."""
    model, run, layers = runs()[way]
    ns.Model.wrap(model)
    expected = run()
    with ns.Scope("test", max_overhead_pct=1000) as scope:
        ns.Model.wrap(model).attach_probe(layers)
        first = run()
    records = list(scope.artifact.telemetry.layer_snapshots)
    assert ids(records) == sorted(layers)
    assert {record.shape for record in records} == {(3, 4), (3, 2)}
    jax.tree.map(np.testing.assert_array_equal, first, expected)


def test_values_are_those_of_the_layer() -> None:
    """Full records hold the array; a summary in compiled code agrees with it."""
    model, variables = jaxnets.linen()
    output = np.asarray(jax.jit(model.apply)(variables, ROWS))
    run = jax.jit(model.apply)
    with ns.Scope("test", max_overhead_pct=1000) as scope:
        ns.Model.wrap(model).attach_probe("head", fidelity="full")
        run(variables, ROWS)
    (full,) = scope.artifact.telemetry.layer_snapshots
    assert full.tensor is not None
    np.testing.assert_array_equal(full.tensor.numpy(), output)
    assert full.attributes == {"compiled": True}
    with ns.Scope("test", max_overhead_pct=1000) as scope:
        ns.Model.wrap(model).attach_probe("head", fidelity="summary")
        run(variables, ROWS)
    (short,) = scope.artifact.telemetry.layer_snapshots
    assert short.tensor is None
    assert short.fidelity is Fidelity.SUMMARY
    assert full.summary is not None
    assert short.summary is not None
    assert short.summary.mean == pytest.approx(full.summary.mean, rel=1e-6)
    assert short.summary.std == pytest.approx(full.summary.std, rel=1e-6)
    assert (short.summary.min, short.summary.max) == (full.summary.min, full.summary.max)


def test_a_layer_used_twice_has_two_records() -> None:
    """In the order of its calls."""

    class Twice(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            layer = nn.Dense(4, name="shared")
            return layer(layer(x))

    model = Twice()
    variables = model.init(jax.random.key(0), ROWS)
    records = records_of(lambda: jax.jit(model.apply)(variables, ROWS), model, probes="shared")
    assert [record.step for record in records] == [0, 1]


def test_lifted_transformations_of_linen() -> None:
    """`nn.scan` gives a record for each step, `remat`, `jit` and `vmap` one for each run."""

    class Step(nn.Module):
        @nn.compact
        def __call__(self, x: Any, _: Any) -> Any:
            return nn.Dense(4)(x), None

    class Deep(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            scan: Any = nn.scan(Step, variable_axes={"params": 0}, split_rngs={"params": True}, length=3)
            x, _ = scan(name="steps")(x, None)
            x = nn.remat(nn.Dense)(4, name="again")(x)
            x = nn.jit(nn.Dense)(4, name="jitted")(x)
            each: Any = nn.vmap(nn.Dense, variable_axes={"params": None}, split_rngs={"params": False})
            return each(4, name="each")(x)

    model = Deep()
    variables = model.init(jax.random.key(0), ROWS)
    gradient = jax.jit(jax.grad(lambda v: model.apply(v, ROWS).sum()))  # type: ignore[union-attr]
    records = records_of(lambda: gradient(variables), model)
    assert ids(records) == ["again", "each", "jitted", "steps", "steps", "steps"]


def test_layers_stacked_for_a_scan_are_one_layer_with_many_steps() -> None:
    """nnx: the layer inside has a dimension less than the model's own."""

    class Stack(nnx.Module):
        def __init__(self) -> None:
            make = cast(Any, nnx).vmap(lambda key: nnx.Linear(4, 4, rngs=nnx.Rngs(key)))
            self.layer = make(jax.random.split(jax.random.key(0), 3))

        def __call__(self, x: Any) -> Any:
            return nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(
                x, self.layer
            )

    model = Stack()
    run = nnx.jit(lambda m, x: m(x))
    assert ids(records_of(lambda: run(model, ROWS), model, probes="layer")) == ["layer"] * 3


def test_an_updated_pytree_is_the_same_model_inside_compiled_code_only() -> None:
    """Training makes a new object in each step: by structure it is known in `jit`, by identity it is not."""
    model = jaxnets.EqxNet()
    other = jax.tree.map(lambda leaf: leaf + 1, model)
    run = eqx.filter_jit(lambda m, x: jax.vmap(m)(x))
    assert len(records_of(lambda: run(other, ROWS), model, probes="head")) == 1
    assert records_of(lambda: [other(row) for row in ROWS], model, probes="head") == []


def test_a_model_of_another_shape_is_another_model() -> None:
    """Equal classes are not enough."""
    wide = eqx.nn.MLP(4, 2, 8, 1, key=jax.random.key(0))
    narrow = eqx.nn.MLP(4, 2, 5, 1, key=jax.random.key(0))
    run = eqx.filter_jit(lambda m, x: jax.vmap(m)(x))
    assert records_of(lambda: run(narrow, ROWS), wide, probes="layers.0") == []


def test_blocks_are_watched_unless_probes_are_attached() -> None:
    """`NEURONSCOPE_PROBES` says what a scope watches in wrapped models; probes of one's own replace it."""
    model, variables = jaxnets.linen()
    run = jax.jit(model.apply)
    ns.Model.wrap(model)
    assert ids(records_of(lambda: run(variables, ROWS), model)) == ["block_0", "block_1"]
    assert ids(records_of(lambda: run(variables, ROWS), model, probes="head")) == ["head"]
    with ns.Scope("outer", max_overhead_pct=1000) as outer, ns.Scope("inner", max_overhead_pct=1000) as inner:
        run(variables, ROWS)
    for scope in (outer, inner):
        assert ids(list(scope.artifact.telemetry.layer_snapshots)) == ["block_0", "block_1"]
    ns.Platform(probes=("**.norm",))
    assert ids(records_of(lambda: run(variables, ROWS), model)) == ["block_0.norm", "block_1.norm"]


def test_initialising_is_no_run() -> None:
    """What `init` computes are by-products of making weights."""
    model, _ = jaxnets.linen()
    assert records_of(lambda: model.init(jax.random.key(0), ROWS), model) == []


def test_a_scope_in_which_nothing_was_seen_says_so() -> None:
    """Never silently empty."""
    model, _ = jaxnets.linen()
    wrapped = ns.Model.wrap(model)
    with ns.Scope("idle") as scope:
        pass
    (span,) = scope.artifact.telemetry.spans
    assert "LinenNet: not run" in span.attributes[names.LAYERS_NOT_VISITED]  # type: ignore[operator]
    del wrapped


def test_a_scope_about_something_else_says_nothing_of_models_that_did_not_run() -> None:
    """A span of the service's own, a scope in it, another model: these are what it is about."""
    model, _ = jaxnets.linen()
    wrapped = ns.Model.wrap(model)

    def span_of_its_own() -> None:
        with trace.get_tracer("service").start_as_current_span("work"):
            pass

    def inner_scope() -> None:
        with ns.Scope("inner"):
            pass

    other = jaxnets.NnxNet()
    ns.Platform()
    for about in (span_of_its_own, inner_scope, lambda: ns.Model.wrap(other).model(ROWS)):
        with ns.Scope("outer", max_overhead_pct=1000) as scope:
            about()
        (span,) = (span for span in scope.artifact.telemetry.spans if span.name == "outer")
        assert names.LAYERS_NOT_VISITED not in span.attributes
        assert span.attributes.get(names.MODEL_NAME) != "LinenNet"
    del wrapped


# --- fingerprints -----------------------------------------------------------------------------
def test_fingerprints_tell_weights_and_architectures_apart() -> None:
    """Random state does not count: a model that has drawn a dropout mask is the same model."""
    linen, variables = jaxnets.linen()
    fingerprint = ADAPTER.fingerprint_model
    found = [
        fingerprint(jaxnets.NnxNet(0)), fingerprint(jaxnets.NnxNet(1)), fingerprint(jaxnets.EqxNet(0)),
        fingerprint(linen), fingerprint(jaxnets.LinenNet(blocks=3)), fingerprint(linen.bind(variables)),
        fingerprint(jaxnets.function),
    ]  # fmt: skip
    assert len(set(found)) == len(found)
    assert fingerprint(linen.bind(jax.tree.map(jnp.array, variables))) == found[5]
    dropping = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    before = fingerprint(dropping)
    dropping(ROWS)
    assert fingerprint(dropping) == before


def test_a_large_array_counts_in_every_element() -> None:
    """Though only samples of it are hashed."""
    key = jax.random.key(0)
    big = eqx.nn.Linear(600, 600, key=key)
    changed = eqx.tree_at(lambda m: m.weight, big, big.weight.at[300, 301].add(1e-6))
    assert ADAPTER.fingerprint_model(big) != ADAPTER.fingerprint_model(changed)
    assert ADAPTER.fingerprint_model(big) == ADAPTER.fingerprint_model(eqx.nn.Linear(600, 600, key=key))


def test_how_weights_are_stored_is_told() -> None:
    """On the spans of calls, as for the other runtimes."""
    layer = eqx.nn.Linear(4, 4, key=jax.random.key(0))
    small = eqx.tree_at(lambda m: m.weight, layer, layer.weight.astype(jnp.int8))
    assert ADAPTER.describe_model(layer) == {}
    assert ADAPTER.describe_model(small) == {names.MODEL_QUANTIZATION: "int8"}


def test_many_scopes_leave_nothing_behind() -> None:
    """Handles, lanes and patches go with the models and the scopes."""
    from neuronscope_instrumentation.jax import jit, models, sessions

    gc.collect()
    known, call = len(models._by_token), nnx.Linear.__call__
    for _ in range(20):
        model = jaxnets.NnxNet()
        records_of(lambda model=model: model(ROWS), model)  # type: ignore[misc]
    del model
    gc.collect()
    assert len(models._by_token) <= known
    assert not sessions.watching()
    assert not jit._originals
    assert nnx.Linear.__call__ is call

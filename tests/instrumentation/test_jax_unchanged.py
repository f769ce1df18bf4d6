"""Observing changes nothing: values, gradients, types, random numbers, objects, memory."""

# JAX's and Flax's values have no types that pyright knows.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import copy
import gc
import importlib
import pickle
import random
import weakref
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import jaxnets
import neuronscope as ns
from growth import traced_growth
from jaxnets import ROWS
from neuronscope_instrumentation.jax import ADAPTER

jax: Any = importlib.import_module("jax")  # much of it has no types

TOKENS = jnp.arange(12).reshape(2, 6) % 11


class Transformer(nn.Module):
    """Two blocks with attention and dropout."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(11, 16, dtype=self.dtype, name="embed")(tokens)
        for number in range(2):
            mixed = nn.MultiHeadDotProductAttention(4, dtype=self.dtype, name=f"attention_{number}")(x)
            x = nn.LayerNorm(dtype=self.dtype)(x + nn.Dropout(0.3, deterministic=False)(mixed))
            x = x + nn.Dense(16, dtype=self.dtype)(nn.gelu(nn.Dense(32, dtype=self.dtype)(x)))
        return nn.Dense(11, dtype=self.dtype, name="head")(x)


def picture(tree: Any) -> list[tuple[str, str, bytes]]:
    """Types, devices and bits of all arrays."""

    def bits(leaf: Any) -> bytes:
        keys = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if keys else leaf).tobytes()

    return [(str(leaf.dtype), str(leaf.devices()), bits(leaf)) for leaf in jax.tree.leaves(tree)]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("fidelity", ["summary", "full"])
def test_outputs_gradients_and_random_numbers_are_bit_equal(dtype: Any, fidelity: str) -> None:
    """With every layer of a transformer watched, in training, compiled."""
    model: Any = Transformer(dtype)
    key = jax.random.key(0)
    variables = model.init({"params": key, "dropout": key}, TOKENS)

    def loss(variables: Any, key: Any) -> Any:
        logits = model.apply(variables, TOKENS, rngs={"dropout": key})
        return jnp.mean(logits.astype(jnp.float32) ** 2), logits

    wrapped = ns.Model.wrap(model)
    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    expected = picture(run(variables, key))
    random.seed(1)
    np.random.seed(1)
    state, numbers = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    with ns.Scope("test", max_overhead_pct=1000) as scope:
        wrapped.attach_probe("head", fidelity=fidelity)  # the first to name the layers
        wrapped.attach_probe(
            ["embed", "attention_0", "attention_1", "LayerNorm_0", "Dense_0"], fidelity=fidelity
        )
        assert picture(run(variables, key)) == expected
        assert picture(run(variables, key)) == expected
    assert len(scope.artifact.telemetry.layer_snapshots) == 12
    assert picture(run(variables, key)) == expected
    assert random.getstate() == state
    assert np.random.get_state()[1].tolist() == numbers  # type: ignore[index]


@pytest.mark.parametrize("fidelity", ["summary", "full"])
def test_eager_and_stateful_models_are_bit_equal(fidelity: str) -> None:
    """nnx: batch statistics and the dropout's counter advance as without us."""

    class Net(nnx.Module):
        def __init__(self) -> None:
            rngs = nnx.Rngs(0)
            self.a = nnx.Linear(4, 4, rngs=rngs)
            self.norm = nnx.BatchNorm(4, rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.drop(self.norm(self.a(x)))

    step = nnx.jit(nnx.value_and_grad(lambda model: model(ROWS).sum()))

    def history(model: Net) -> list[Any]:
        return [picture([model(ROWS), step(model)]) for _ in range(2)] + [picture(nnx.state(model))]

    expected = history(Net())
    model = Net()
    with ns.Scope("test", max_overhead_pct=1000) as scope:
        ns.Model.wrap(model).attach_probe("**", fidelity=fidelity)
        assert history(model) == expected
    assert len(scope.artifact.telemetry.layer_snapshots) == 12


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "tree": lambda model: jax.tree.unflatten(*reversed(jax.tree.flatten(model))),
}


@pytest.mark.parametrize("how", list(COPIES))
@pytest.mark.parametrize("make", [jaxnets.NnxNet, jaxnets.EqxNet, lambda: jaxnets.linen()[0]])
def test_watched_models_are_copied_as_they_are(make: Callable[[], Any], how: str) -> None:
    """Each way works while the model is watched and ran, and the copy's layers are not watched."""
    model = make()
    if how == "tree" and isinstance(model, nn.Module):
        return
    plain = jax.tree.structure(model)
    seen: list[object] = []
    undo = ADAPTER.observe_layer(model, "head", seen.append)
    if isinstance(model, nn.Module):
        model.init(jax.random.key(0), ROWS)
    else:
        jax.vmap(model)(ROWS) if isinstance(model, eqx.Module) else model(ROWS)
    copied = COPIES[how](model)
    assert len(jax.tree.leaves(model)) == len(jax.tree.leaves(copied))
    assert jax.tree.structure(model) == plain
    seen.clear()
    if isinstance(copied, nn.Module):
        assert copied == model
        copied.apply(jaxnets.linen()[1], ROWS)
    elif isinstance(copied, eqx.Module):
        copied(ROWS[0])  # type: ignore[operator]
    else:
        copied(ROWS)
    shared = how == "copy" and not isinstance(model, nn.Module)
    assert len(seen) == shared  # a shallow copy has the model's own layers
    undo()


def test_a_model_that_ran_in_a_scope_can_be_collected() -> None:
    """Compiled code, handles and records keep nothing of it."""
    for make in (jaxnets.NnxNet, jaxnets.EqxNet):
        model: Any = make()
        run = (
            eqx.filter_jit(lambda m, x: jax.vmap(m)(x))
            if make is jaxnets.EqxNet
            else nnx.jit(lambda m, x: m(x))
        )
        with ns.Scope("test", max_overhead_pct=1000) as scope:
            ns.Model.wrap(model).attach_probe("**")
            run(model, ROWS)
        dead = weakref.ref(model)
        del model
        gc.collect()
        assert dead() is None
        assert len(scope.artifact.telemetry.layer_snapshots) == 7


@pytest.mark.parametrize("compiled", [True, False])
def test_five_hundred_forwards_leave_memory_as_it_was(compiled: bool) -> None:
    """No array, no tracer, no record of ours stays."""
    model, variables = jaxnets.linen()
    run: Any = jax.jit(model.apply) if compiled else model.apply
    summaries: list[float] = []

    def look(snapshot: Any) -> None:
        summaries[:] = [snapshot.summarize().mean, float(snapshot.numpy().sum())]

    undo = ADAPTER.observe_layer(model, "head", look)

    def runs(number: int) -> None:
        for _ in range(number):
            run(variables, ROWS)
        jax.effects_barrier()

    runs(5)
    gc.collect()
    arrays = len(jax.live_arrays())
    grown = traced_growth(lambda: runs(500 if compiled else 50), 300_000)
    undo()
    assert len(jax.live_arrays()) <= arrays
    assert grown < 300_000
    assert len(summaries) == 2


def test_donated_arguments_are_donated() -> None:
    """Looking at a layer's output does not keep the argument alive."""
    model: Any
    model, variables = jaxnets.linen()
    run = jax.jit(lambda v, x: x + model.apply(v, x).sum(), donate_argnums=1)
    with ns.Scope("test", max_overhead_pct=1000):
        ns.Model.wrap(model).attach_probe("head")
        given = ROWS + 0
        run(variables, given)
    assert given.is_deleted()

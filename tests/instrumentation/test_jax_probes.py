"""Gradients, attention, health and probes of one's own in JAX: right values, nothing changed."""

# JAX's and Flax's values have no types that pyright knows.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax import ad_checkpoint
from numpy.typing import NDArray

import jaxnets
import neuronscope as ns
from jax_probed import array_of, bits, calling, probed
from jaxnets import ROWS
from neuronscope.signals import names
from neuronscope.signals.records import Attributes
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary

jax: Any = importlib.import_module("jax")  # much of it has no types
checkpointing: Any = ad_checkpoint
WORDS = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 16)), jnp.float32)
GRADIENTS = ns.probes.LayerGradients(ns.Fidelity.FULL)


# --- gradients ----------------------------------------------------------------------------------------------
def square(output: Any) -> Any:
    return (output**2).sum()


def by_perturbation(first: Callable[[Any], Any], rest: Callable[[Any], Any]) -> NDArray[Any]:
    """The gradient by what is between the two."""
    return np.asarray(jax.grad(lambda hidden: square(rest(hidden)))(first(ROWS)))


Part = Callable[[Any], Any]


def of_nnx() -> tuple[Any, str, Part, Part, Part]:
    model = jaxnets.NnxNet()
    return model, "blocks.0", model, model.blocks[0], lambda h: model.head(model.blocks[1](h))


def of_equinox() -> tuple[Any, str, Part, Part, Part]:
    model: Any = jaxnets.EqxNet()
    first, rest = model.blocks[0], lambda h: model.head(model.blocks[1](h))
    return model, "blocks.0", jax.vmap(model), jax.vmap(first), jax.vmap(rest)


def of_linen() -> tuple[Any, str, Part, Part, Part]:
    model, variables = jaxnets.linen()
    parameters = variables["params"]

    def part(module: nn.Module, name: str) -> Part:
        return lambda x: module.apply({"params": parameters[name]}, x)

    first, second = (part(jaxnets.LinenBlock(), f"block_{number}") for number in (0, 1))
    head = part(nn.Dense(2), "head")
    return model, "block_0", lambda x: model.apply(variables, x), first, lambda h: head(second(h))


def of_function() -> tuple[Any, str, Part, Part, Part]:
    return jaxnets.function, "hidden", jaxnets.function, jnp.tanh, lambda hidden: hidden * 2


MODELS = {"nnx": of_nnx, "equinox": of_equinox, "linen": of_linen, "function": of_function}
WAYS: dict[str, Callable[[Part], Part]] = {
    "eager": jax.grad,
    "compiled": lambda loss: jax.jit(jax.grad(loss)),
    "through compiled": lambda loss: jax.grad(jax.jit(loss)),
    "checkpointed": lambda loss: jax.jit(jax.grad(jax.checkpoint(loss))),
}


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *((kind, "compiled") for kind in ("nnx", "equinox", "linen")), *(("function", way) for way in WAYS),
        ("linen", "through compiled"), ("nnx", "checkpointed"),
    ],
)  # fmt: skip
def test_gradients_are_those_of_jax_and_change_nothing(kind: str, way: str) -> None:
    """Of a layer in the middle, in each kind of model; the gradient by the input is the same bits."""
    model, layer, run, first, rest = MODELS[kind]()
    train = WAYS[way](lambda x: square(run(x)))
    expected = bits(train(ROWS))
    wrap = {"adapter": "jax"} if kind == "function" else {}
    output, found, told = probed(model, layer, GRADIENTS, lambda: train(ROWS), **wrap)
    assert bits(output) == expected
    (record,) = found
    assert (record.layer_id, record.role, record.step) == (layer, "gradient", 0)
    np.testing.assert_allclose(array_of(record), by_perturbation(first, rest), rtol=1e-5, atol=1e-6)
    assert record.summary is not None
    assert record.summary.l2 == pytest.approx(float(np.linalg.norm(array_of(record))), rel=1e-5)
    assert told[names.LAYERS_SKIPPED] == 0
    assert bits(train(ROWS)) == expected


def test_a_scope_that_has_ended_records_nothing_more() -> None:
    """The function is the plain one again, and what was compiled for the scope is not used."""
    model = jaxnets.NnxNet()
    train = jax.jit(jax.grad(lambda x: square(model(x))))
    _, found, _ = probed(model, "head", GRADIENTS, lambda: train(ROWS))
    train(ROWS)
    jax.effects_barrier()
    assert len(found) == 1
    assert "neuronscope" not in str(jax.make_jaxpr(train)(ROWS))


@pytest.mark.parametrize("compiled", [False, True])
def test_without_differentiation_the_reason_is_told(compiled: bool) -> None:
    """Inference, forward-mode's primal, and values that have no gradient."""
    model = jaxnets.NnxNet()
    run = jax.jit(model) if compiled else model
    _, found, told = probed(model, ["blocks.0", "head"], GRADIENTS, lambda: run(ROWS))
    assert found == []
    assert (told[names.LAYERS_SKIPPED], told[names.FIDELITY_REASON]) == (2, "no gradient")


def test_whole_numbers_have_no_gradient() -> None:
    """Said so, where JAX would give float0."""

    class Count(nnx.Module):
        def __call__(self, x: Any) -> Any:
            return x.astype(jnp.int32)

    counting = Count()
    train = jax.jit(jax.grad(lambda x: (x * counting(x)).sum()))
    _, found, told = probed(counting, "", GRADIENTS, lambda: train(ROWS))
    assert found == []
    assert told[names.FIDELITY_REASON] == "no gradient"


class Layer(nnx.Module):
    """As little as can be differentiated twice."""

    def __init__(self) -> None:
        self.inner = nnx.Linear(4, 4, use_bias=False, rngs=nnx.Rngs(0))

    def __call__(self, x: Any) -> Any:
        return jnp.tanh(self.inner(x))


DERIVATIVES: dict[str, Callable[[Part], Part]] = {
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,)),
    "jacfwd": jax.jacfwd,
    "hessian": jax.hessian,
    "compiled hessian": lambda f: jax.jit(jax.hessian(f)),
    "reverse over reverse": lambda f: jax.grad(lambda x: square(jax.grad(f)(x))),
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](x),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f)),
    "grad of vmap": lambda f: jax.grad(lambda x: jax.vmap(f)(x).sum()),
}


@pytest.mark.parametrize("how", DERIVATIVES)
def test_every_derivative_is_the_same(how: str) -> None:
    """Forward-mode, higher ones, mapped ones: the bits without us, while gradients are watched."""
    model = Layer()
    run = DERIVATIVES[how](lambda x: square(jnp.tanh(model(x))))
    expected = bits(run(ROWS))
    output, *_ = probed(model, ["inner", ""], GRADIENTS, lambda: run(ROWS))
    assert bits(output) == expected


def test_mapped_gradients_come_as_one_batch() -> None:
    """Mapped dimensions first, whichever way round."""
    model: Any = eqx.nn.Linear(4, 4, key=jax.random.key(0))
    expected = by_perturbation(jax.vmap(model), lambda hidden: hidden)
    for run in (
        jax.vmap(jax.grad(lambda x: square(model(x)))),
        jax.grad(lambda x: square(jax.vmap(model)(x))),
    ):
        for mapped in (run, jax.jit(run)):
            _, (record,), _ = probed(model, "", GRADIENTS, calling(mapped, ROWS))
            np.testing.assert_allclose(array_of(record), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_steps_of_a_loop_flow_back_in_reverse(compiled: bool) -> None:
    """`scan`: a record for each step, the last one's first."""
    model = Layer()

    def loop(x: Any, times: int = 3) -> Any:
        return jax.lax.scan(lambda carry, _: (jnp.tanh(model(carry)), None), x, None, length=times)[0].sum()

    train: Any = jax.grad(loop)
    _, found, _ = probed(model, "", GRADIENTS, lambda: (jax.jit(train) if compiled else train)(ROWS))
    assert [record.step for record in found] == [0, 1, 2]
    states = [ROWS]
    for _ in range(3):
        states.append(jnp.tanh(model(states[-1])))
    for record, state in zip(found, states[2::-1], strict=True):
        hidden = model(state)
        steps = found.index(record)

        def after(value: Any, steps: int = steps) -> Any:
            return loop(jnp.tanh(value), steps)

        np.testing.assert_allclose(array_of(record), jax.grad(after)(hidden), rtol=1e-5, atol=1e-6)


def test_a_rule_of_the_user_s_own_is_kept() -> None:
    """`custom_vjp`: its forward is not differentiated, so what runs in it has no gradient."""
    model = jaxnets.NnxNet()

    twice: Any = jax.custom_vjp(lambda x: model(x) + 0)
    twice.defvjp(lambda x: (model(x), x), lambda x, g: (g.sum() + 0 * x,))
    train = jax.jit(jax.grad(lambda x: square(twice(x))))
    expected = bits(train(ROWS))
    output, found, told = probed(model, "head", GRADIENTS, lambda: train(ROWS))
    assert bits(output) == expected
    assert found == []
    assert told[names.FIDELITY_REASON] == "no gradient"


def test_half_precision_and_structures() -> None:
    """Gradients have the output's type; tuples stay tuples, and their first array is watched."""

    class Two(nnx.Module):
        def __init__(self) -> None:
            self.linear = nnx.Linear(4, 4, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)

        def __call__(self, x: Any) -> tuple[Any, dict[str, Any]]:
            return self.linear(x), {"x": x}

    model = Two()

    def loss(x: Any) -> Any:
        first, rest = model(x)
        assert isinstance(rest, dict)
        return (first.astype(jnp.float32) * rest["x"]).sum()

    train = jax.jit(jax.value_and_grad(loss))
    expected = bits(train(ROWS))
    output, (record,), _ = probed(model, "", GRADIENTS, lambda: train(ROWS))
    assert bits(output) == expected
    assert record.dtype == "BF16"
    want = np.asarray(ROWS.astype(jnp.bfloat16)).view(np.uint16)
    np.testing.assert_array_equal(array_of(record), want)


# --- health, a probe of one's own, and all at once ----------------------------------------------------------
class Sparsity(ns.probes.Probe):
    """A user's probe."""

    def measure(self, layer_id: str, snapshot: TensorSnapshot, summary: TensorSummary) -> Attributes:
        return {"rows": len(snapshot.numpy()), "sparsity": summary.zero_count / summary.count}


@pytest.mark.parametrize("compiled", [False, True])
def test_health_and_probes_of_one_s_own(compiled: bool) -> None:
    """Headroom, dead units, and what the user returns: the values are there in compiled code, too."""

    class Relu(nnx.Module):
        def __call__(self, x: Any) -> Any:
            return jax.nn.relu(x)

    model = Relu()
    run: Any = jax.jit(model) if compiled else model
    values = jnp.asarray([[1.0, -1.0, 0.0, 2.0], [3.0, -2.0, 0.0, 65504.0]], jnp.float16)
    _, (health,), _ = probed(model, "", ns.probes.NumericHealth, lambda: run(values))
    assert health.attributes["headroom"] == 1.0
    assert (health.attributes["units"], health.attributes["dead_units"]) == (4, 2)
    _, (own,), _ = probed(model, "", Sparsity(ns.Fidelity.SUMMARY), lambda: run(values))
    assert (own.attributes["rows"], own.attributes["sparsity"]) == (2, 0.5)
    assert own.tensor is None


def test_a_training_step_under_all_probes_is_bit_equal() -> None:
    """Loss, gradients of all weights, random numbers: a transformer in training, compiled."""

    class Transformer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            mixed = nn.MultiHeadDotProductAttention(4, name="attend")(x)
            x = nn.LayerNorm(name="norm")(x + nn.Dropout(0.3, deterministic=False)(mixed))
            return nn.Dense(16, name="dense")(x)

    model = Transformer()
    key = jax.random.key(0)
    variables = model.init({"params": key, "dropout": key}, WORDS)

    def loss(variables: Any) -> Any:
        return square(model.apply(variables, WORDS, rngs={"dropout": key}))

    step = jax.jit(jax.value_and_grad(loss))
    expected = bits(step(variables))
    wrapped = ns.Model.wrap(model)
    with ns.Scope("all", max_overhead_pct=1000, overhead_action="warn") as scope:
        for layer, probe in (
            ("dense", ns.probes.LayerActivations), ("dense", ns.probes.LayerGradients),
            ("norm", ns.probes.NumericHealth), ("norm", GRADIENTS), ("norm", Sparsity),
            ("attend", ns.probes.AttentionMaps(heads=[1])), ("attend", ns.probes.LayerGradients),
        ):  # fmt: skip
            wrapped.attach_probe(layer, probe)
        for _ in range(2):
            assert bits(step(variables)) == expected
    found = [(record.role, record.layer_id) for record in scope.artifact.telemetry.layer_snapshots]
    assert Counter(found) == {
        ("output", "dense"): 2, ("gradient", "dense"): 2, ("output", "norm"): 4, ("gradient", "norm"): 2,
        ("attention", "attend"): 2, ("gradient", "attend"): 2,
    }  # fmt: skip
    assert bits(step(variables)) == expected

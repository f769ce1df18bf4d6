"""Attention weights in JAX: Flax's and Equinox's own, and those of JAX's kernel computed again."""

# JAX's and Flax's values have no types that pyright knows.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import importlib
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from flax.linen import attention as linen_attention
from flax.nnx.nn import attention as nnx_attention
from jax import ad_checkpoint
from numpy.typing import NDArray

import jaxnets
import neuronscope as ns
from jax_probed import array_of, bits, calling, probed
from jaxnets import ROWS
from neuronscope.exceptions import UnsupportedProbeError
from neuronscope.signals import names
from neuronscope_instrumentation.jax import ADAPTER

jax: Any = importlib.import_module("jax")  # much of it has no types
checkpointing: Any = ad_checkpoint

WORDS = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 16)), jnp.float32)
HEADS = [None, (2, 0)]


def chosen(maps: Any, heads: tuple[int, ...] | None) -> NDArray[Any]:
    return np.asarray(maps if heads is None else maps[..., list(heads), :, :])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("heads", HEADS)
def test_attention_of_linen_is_what_it_sows(heads: tuple[int, ...] | None, compiled: bool) -> None:
    """Bit for bit, without having been asked to sow."""
    model = nn.MultiHeadDotProductAttention(4)
    variables = model.init(jax.random.key(1), WORDS)
    mask = nn.make_causal_mask(jnp.ones((2, 5)))
    _, sown = model.apply(variables, WORDS, mask=mask, sow_weights=True, mutable=["intermediates"])
    (expected,) = dict(sown)["intermediates"]["attention_weights"]
    apply: Any = jax.jit(model.apply) if compiled else model.apply
    plain = bits(apply(variables, WORDS, mask=mask))
    probe = ns.probes.AttentionMaps(heads=heads)
    output, (record,), _ = probed(model, "", probe, lambda: apply(variables, WORDS, mask=mask))
    assert bits(output) == plain
    assert record.role == "attention"
    assert record.attributes["source"] == "model"
    assert record.attributes.get("heads") == heads
    np.testing.assert_array_equal(array_of(record), chosen(expected, heads))


@pytest.mark.filterwarnings(
    "ignore:Using 'Module.sow:DeprecationWarning"
)  # told of the way that works without jit
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("heads", HEADS)
def test_attention_of_jax_s_kernel_is_computed_again(heads: tuple[int, ...] | None, compiled: bool) -> None:
    """nnx hands its work to `jax.nn.dot_product_attention`; masked, equal to what it would sow."""

    def sown_by(model: nnx.Module) -> Any:
        model(WORDS, sow_weights=True)
        state: Any = nnx.pop(model, nnx.Intermediate)
        return state["attend"]["attention_weights"].get_value()

    class Block(nnx.Module):
        def __init__(self) -> None:
            self.attend = nnx.MultiHeadAttention(4, 16, decode=False, rngs=nnx.Rngs(0))

        def __call__(self, x: Any, **options: Any) -> Any:
            return x + self.attend(x, mask=nnx.make_causal_mask(jnp.ones((2, 5))), **options)

    model = Block()
    (expected,) = sown_by(model)
    run: Any = nnx.jit(lambda model, x: model(x)) if compiled else lambda model, x: model(x)
    plain = bits(run(model, WORDS))
    probe = ns.probes.AttentionMaps(heads=heads)
    for layer in ("attend", ""):  # or whatever is around it
        output, (record,), _ = probed(model, layer, probe, lambda: run(model, WORDS))
        assert bits(output) == plain
        assert record.attributes["source"] == "recomputed from q and k"
        np.testing.assert_allclose(array_of(record), chosen(expected, heads), atol=1e-6)
        np.testing.assert_allclose(array_of(record).sum(-1), 1.0, rtol=1e-5)
    _, (sown,), _ = probed(model, "attend", probe, lambda: sown_by(model))
    assert sown.attributes["source"] == "model"
    np.testing.assert_array_equal(array_of(sown), chosen(expected, heads))


def test_grouped_queries_biases_and_lengths_of_jax_s_kernel() -> None:
    """The options of the kernel itself, against its own output for values that show the weights."""

    class Kernel(nnx.Module):
        def __call__(self, q: Any, k: Any, **options: Any) -> Any:
            return jax.nn.dot_product_attention(q, k, k, **options)

    random = np.random.default_rng(1)
    query, key = (jnp.asarray(random.normal(size=(2, 6, heads, 6)), jnp.float32) for heads in (4, 2))
    eye = jnp.broadcast_to(jnp.eye(6)[None, :, None, :], key.shape)  # values that give the weights themselves
    bias = jnp.asarray(random.normal(size=(2, 4, 6, 6)), jnp.float32)
    model = Kernel()
    for options in ({}, {"is_causal": True}, {"bias": bias, "scale": 0.3}, {"mask": bias > -1}):
        weights = jax.nn.dot_product_attention(query, key, eye, **options).transpose(0, 2, 1, 3)
        _, (record,), _ = probed(model, "", ns.probes.AttentionMaps, calling(model, query, key, **options))
        np.testing.assert_allclose(array_of(record), weights, atol=1e-6)
    _, found, told = probed(
        model, "", ns.probes.AttentionMaps, lambda: model(query, key, local_window_size=2)
    )
    assert found == []
    assert told[names.FIDELITY_REASON] == "attention within windows or lengths"


def test_attention_of_equinox_has_its_heads_mapped() -> None:
    """It maps over heads, and the service over rows: batch, head, query, key all the same."""
    model = eqx.nn.MultiheadAttention(4, 16, key=jax.random.key(3))
    run: Any = jax.vmap(lambda x: model(x, x, x))
    plain = bits(run(WORDS))
    maps: list[NDArray[Any]] = []
    for mapped in (run, eqx.filter_jit(run)):
        output, (record,), _ = probed(model, "", ns.probes.AttentionMaps(heads=[3]), calling(mapped, WORDS))
        maps.append(array_of(record))
        assert mapped is not run or bits(output) == plain
    assert [each.shape for each in maps] == [(2, 1, 5, 5)] * 2
    np.testing.assert_allclose(maps[0], maps[1], atol=1e-6)
    np.testing.assert_allclose(maps[0].sum(-1), 1.0, rtol=1e-5)


def test_a_layer_without_attention_says_so() -> None:
    """Counted with its reason; and a plain function is refused at once, with what to do."""
    model = jaxnets.NnxNet()
    for run in (model, jax.jit(model)):
        _, found, told = probed(model, "head", ns.probes.AttentionMaps, calling(run, ROWS))
        assert found == []
        assert (told[names.LAYERS_SKIPPED], told[names.FIDELITY_REASON]) == (1, "no attention")
    with pytest.raises(UnsupportedProbeError, match="checkpoint_name"):
        ns.Model.wrap(jaxnets.function, adapter="jax").attach_probe("hidden", ns.probes.AttentionMaps)


def test_the_libraries_functions_are_their_own_again() -> None:
    """Patched only while attention is watched, for several watchers."""
    model = nn.MultiHeadDotProductAttention(4)
    places = [
        (linen_attention, "dot_product_attention_weights"),
        (nnx_attention, "dot_product_attention_weights"),
        (jax.nn, "dot_product_attention"),
    ]
    before = [getattr(module, name) for module, name in places]
    outputs = ADAPTER.observe_layer(model, "", lambda _: None)
    assert [getattr(module, name) for module, name in places] == before
    undo = [ADAPTER.observe_attention(model, "", lambda _: None) for _ in range(2)]
    undo[0]()
    assert all(getattr(module, name) is not kept for (module, name), kept in zip(places, before, strict=True))
    undo[1]()
    assert [getattr(module, name) for module, name in places] == before
    outputs()

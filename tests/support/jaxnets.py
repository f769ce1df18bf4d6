"""Small JAX models of each kind, always with the same weights."""

from __future__ import annotations

from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx
from jax import ad_checkpoint

checkpoint_name = cast(Any, ad_checkpoint).checkpoint_name  # JAX leaves it without types
ROWS = jnp.linspace(-1, 1, 12).reshape(3, 4)


class LinenBlock(nn.Module):
    """A residual block."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return x + nn.Dense(4, name="up")(nn.LayerNorm(name="norm")(x))


class LinenNet(nn.Module):
    """Two blocks and a head."""

    blocks: int = 2

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for number in range(self.blocks):
            x = LinenBlock(name=f"block_{number}")(x)
        return nn.Dense(2, name="head")(x)


class NnxBlock(nnx.Module):
    """A residual block."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.norm = nnx.LayerNorm(4, rngs=rngs)
        self.up = nnx.Linear(4, 4, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return x + self.up(self.norm(x))


class NnxNet(nnx.Module):
    """Two blocks and a head."""

    def __init__(self, seed: int = 0) -> None:
        rngs = nnx.Rngs(seed)
        self.blocks = nnx.List([NnxBlock(rngs) for _ in range(2)])
        self.head = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class EqxBlock(eqx.Module):
    """A residual block, for one row."""

    norm: eqx.nn.LayerNorm
    up: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        self.norm = eqx.nn.LayerNorm(4)
        self.up = eqx.nn.Linear(4, 4, key=key)

    def __call__(self, x: Any) -> Any:
        return x + self.up(self.norm(x))


class EqxNet(eqx.Module):
    """Two blocks and a head, for one row."""

    blocks: list[EqxBlock]
    head: eqx.nn.Linear

    def __init__(self, seed: int = 0) -> None:
        keys = jax.random.split(jax.random.key(seed), 3)
        self.blocks = [EqxBlock(key) for key in keys[:2]]
        self.head = eqx.nn.Linear(4, 2, key=keys[2])

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def linen(seed: int = 0) -> tuple[LinenNet, Any]:
    """A model of linen, and its variables."""
    model = LinenNet()
    return model, model.init(jax.random.key(seed), ROWS)


def function(x: Any) -> Any:
    """A plain function with two named values."""
    hidden = checkpoint_name(jnp.tanh(x), "hidden")
    return checkpoint_name(hidden * 2, "out")

"""JAX models for the suite of all runtimes: each kind of model, in eager and in compiled code."""

# JAX's and Flax's values have no types that pyright knows.
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import nnx

X = jnp.linspace(-1, 1, 8).reshape(2, 4)


class Pair(nnx.Module):
    """Two layers."""

    def __init__(self, seed: int) -> None:
        rngs = nnx.Rngs(seed)
        self.first = nnx.Linear(4, 4, rngs=rngs)
        self.second = nnx.Linear(4, 4, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.second(jnp.tanh(self.first(x)))


class LinenPair(nn.Module):
    """Two layers."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dense(4, name="second")(jnp.tanh(nn.Dense(4, name="first")(x)))


def bound(seed: int) -> LinenPair:
    """A module of linen that holds its variables."""
    model = LinenPair()
    bound = model.bind(model.init(jax.random.key(seed), X))
    dir(bound)  # linen sets a module up when it is looked at, or first runs
    return bound


def eager(model: Any) -> bytes:
    """Run without compilation."""
    return np.asarray(model(X)).tobytes()


def compiled(model: Any) -> bytes:
    """Run inside `jax.jit`."""

    @jax.jit
    def run(x: Any) -> Any:
        return model(x)

    output = np.asarray(run(X)).tobytes()
    cast(Any, jax).effects_barrier()  # what compiled code sends may come later than its result
    return output


def marks(model: Any) -> Any:
    """What a model consists of, and the methods that we may stand in the way of."""
    parts = [model, model.first, model.second] if isinstance(model, Pair) else [model]
    methods = {name: vars(kind)[name] for kind, name in ((nnx.Linear, "__call__"), (Pair, "__call__"))}
    return [sorted(vars(part)) for part in parts], methods, vars(nn.Module)["_call_wrapped_method"]

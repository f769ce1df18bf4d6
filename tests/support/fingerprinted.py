"""Prints fingerprints of a model of each runtime; run by `test_fingerprints.py` in processes of their own.

Called with ``backwards`` it loads libraries and makes models in another order, after others of their kind,
and has JAX's weights on another device.
"""

# Values of the libraries have no types that pyright knows.
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false, reportUnknownLambdaType=false

from __future__ import annotations

import importlib
import json
import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import neuronscope as ns

BACKWARDS = sys.argv[1:] == ["backwards"]


def numbers(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


def of_torch() -> Any:
    torch = importlib.import_module("torch")
    if BACKWARDS:
        torch.nn.Linear(3, 3)
        torch.set_default_dtype(torch.float64)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.BatchNorm1d(4)).float()
    state = {
        name: torch.from_numpy(np.array(numbers(*value.shape))) for name, value in model.state_dict().items()
    }
    state["2.num_batches_tracked"] = torch.tensor(3)
    model.load_state_dict(dict(reversed(state.items())) if BACKWARDS else state)
    return model


def _placed(array: Any) -> Any:
    jax = importlib.import_module("jax")
    return jax.device_put(array, jax.devices()[-1] if BACKWARDS else jax.devices()[0])


def of_linen() -> Any:
    jaxnets = importlib.import_module("jaxnets")
    jax = importlib.import_module("jax")
    model, variables = jaxnets.linen()
    made = jax.tree.map(lambda leaf: _placed(numbers(*leaf.shape)), variables)
    return model.bind(dict(reversed(list(made.items()))) if BACKWARDS else made)


def of_nnx() -> Any:
    jaxnets = importlib.import_module("jaxnets")
    nnx = importlib.import_module("flax.nnx")
    jax = importlib.import_module("jax")
    if BACKWARDS:
        jaxnets.NnxNet(7)
    model = jaxnets.NnxNet(1)
    state = nnx.state(model, nnx.Param)
    nnx.update(model, jax.tree.map(lambda leaf: _placed(numbers(*leaf.shape)), state))
    return model


def of_equinox() -> Any:
    jaxnets = importlib.import_module("jaxnets")
    jax = importlib.import_module("jax")
    equinox = importlib.import_module("equinox")
    model = jaxnets.EqxNet(1)
    arrays, rest = equinox.partition(model, equinox.is_array)
    return equinox.combine(jax.tree.map(lambda leaf: _placed(numbers(*leaf.shape)), arrays), rest)


def of_keras() -> Any:
    keras = importlib.import_module("keras")
    if BACKWARDS:
        keras.layers.Dense(3).build((None, 3))  # names are numbered in the order of creation
    random.seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    model.set_weights([numbers(*weight.shape) for weight in model.get_weights()])
    return model


MAKERS: dict[str, Callable[[], Any]] = {
    "torch": of_torch, "linen": of_linen, "nnx": of_nnx, "equinox": of_equinox, "keras": of_keras,
}  # fmt: skip


def main() -> None:
    """All of them, as JSON."""
    found: dict[str, str] = {}
    for name, make in reversed(MAKERS.items()) if BACKWARDS else MAKERS.items():
        model = make()
        found[name] = ns.Model.wrap(model).fingerprint
    plain = {"a": [1, 2.5], "b": numbers(3, 2)}
    found["plain"] = ns.fingerprint(dict(reversed(plain.items())) if BACKWARDS else plain)
    print(json.dumps(found))


if __name__ == "__main__":
    main()

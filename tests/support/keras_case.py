"""A Keras model for the suites of model runtimes, on whichever backend Keras runs."""

from __future__ import annotations

import importlib
import random
from typing import Any

import numpy as np

keras: Any = importlib.import_module("keras")  # neither typed nor stubbed
INPUT = np.linspace(-1, 1, 8, dtype="float32").reshape(2, 4)


def make(seed: int) -> Any:
    """The same architecture, and names, for every seed."""
    random.seed(seed)  # from it Keras draws its seeds; `keras.utils.set_random_seed` would import TensorFlow
    inner = keras.Sequential(
        [keras.layers.ReLU(name="relu"), keras.layers.Dense(4, name="out")], name="inner"
    )
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, name="first"), inner], name="outer")
    run(model)  # Keras notes on a model that it has been called
    return model


def run(model: Any) -> bytes:
    """Run it eagerly, always on the same input."""
    return bytes(keras.ops.convert_to_numpy(model(keras.ops.convert_to_tensor(INPUT))).tobytes())


def attributes(layer: Any) -> dict[str, object]:
    found: dict[str, object] = layer.__dict__
    return found


def trace(model: Any) -> list[dict[str, int]]:
    """What hooks must not leave a mark on."""
    return [
        {name: id(value) for name, value in attributes(layer).items()} for layer in model._flatten_layers()
    ]

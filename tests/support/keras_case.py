"""A Keras model for the suites of model runtimes, on whichever backend Keras runs."""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neuronscope.signals.tensors import TensorSnapshot
from neuronscope_instrumentation.tf import ADAPTER

keras: Any = importlib.import_module("keras")  # neither typed nor stubbed
BACKEND = keras.backend.backend()
INPUT = np.linspace(-1, 1, 8, dtype="float32").reshape(2, 4)
ROWS = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")


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


def only(backend: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(backend != BACKEND, reason=f"about Keras on {backend}")


def functional() -> Any:
    """Two inputs, a shared layer, a nested model, two outputs."""
    random.seed(3)
    if BACKEND == "torch":
        importlib.import_module("torch").manual_seed(3)  # Keras' dropout draws from it
    left, right = keras.Input((4,), name="left"), keras.Input((4,), name="right")
    shared = keras.layers.Dense(4, activation="tanh", name="shared")
    inner = keras.Sequential(
        [keras.layers.Dense(4, name="up"), keras.layers.Dropout(0.5, name="drop")], name="inner"
    )
    mixed = keras.layers.Add(name="add")([shared(left), shared(right)])
    return keras.Model([left, right], {"sum": mixed, "out": inner(mixed)}, name="two")


def numbers(value: Any) -> Any:
    """A backend's tensor as an array."""
    value = value.detach() if hasattr(value, "detach") else value
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


def tensorflow() -> Any:
    """Neither typed nor stubbed."""
    return importlib.import_module("tensorflow")


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

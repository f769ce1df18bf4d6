"""The fingerprint of a Keras model: its architecture, and every bit of its weights; names do not count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from neuronscope import fingerprints
from neuronscope.signals import names
from neuronscope_instrumentation.tf.layers import children, distinct

# Of a configuration: what names things, and what holds the configurations of layers that come themselves.
_LEFT_OUT: Final = frozenset(
    {"name", "layers", "layer", "input_layers", "output_layers", "build_input_shape", "registered_name"}
)
_MAX_DEPTH: Final = 20


def fingerprint(model: Any) -> str:
    """Name a model by its layers' classes, configurations, connections and weights, in the model's order."""
    layers = [model, *(layer for _, layer in distinct(model))]
    return fingerprints.fingerprint(
        {
            "architecture": [_describe(layer) for layer in layers],
            "connections": [_connections(layer) for layer in layers],
            "weights": ([variable.dtype, _values(variable)] for variable in model.weights),
        }
    )


def fingerprint_saved(loaded: Any) -> str:
    """Name a SavedModel by its signatures' graphs and its variables."""
    signatures: Any = dict(loaded.signatures)
    variables = sorted(getattr(loaded, "variables", ()), key=lambda variable: str(variable.name))
    return fingerprints.fingerprint(
        {
            "signatures": {
                name: [f"{op.type}" for op in function.graph.get_operations()]
                for name, function in signatures.items()
            },
            "weights": ([str(v.dtype.name), v.numpy()] for v in variables),
        }
    )


def describe(model: Any) -> dict[str, Any]:
    """How weights are quantised, by the modes of the layers."""
    modes: dict[str, None] = {}
    for _, layer in distinct(model):
        mode = getattr(layer, "quantization_mode", None)
        if mode is not None:
            modes[str(mode)] = None
    return {names.MODEL_QUANTIZATION: ", ".join(modes)} if modes else {}


def _values(variable: Any) -> Any:
    """A Keras variable in host memory, from whichever backend."""
    value = getattr(variable, "_value", variable)
    if hasattr(value, "detach"):
        from neuronscope_instrumentation.torch.memory import host_copy

        return host_copy(value.detach())
    if hasattr(value, "numpy"):
        return value.numpy()
    import numpy as np

    return np.asarray(value)


def _describe(layer: Any) -> list[object]:
    kind: type = layer.__class__
    config: object = None
    if not children(layer):
        try:
            config = _plain(layer.get_config(), 0)
        except (NotImplementedError, TypeError, ValueError):  # a layer of the user's that has none
            config = None
    return [f"{kind.__module__}.{kind.__qualname__}", config]


def _plain(value: object, depth: int) -> object:
    """What of a configuration has stable bytes."""
    if depth > _MAX_DEPTH:
        return None
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        items = cast(Mapping[object, object], value).items()
        return {str(key): _plain(item, depth + 1) for key, item in items if key not in _LEFT_OUT}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in cast("list[object]", value)]
    return type(value).__qualname__


def _connections(layer: Any) -> object:
    """Which operations feed which, by their places in a functional model."""
    operations: list[Any] | None = getattr(layer, "operations", None)
    if operations is None:
        return None
    places = {id(operation): place for place, operation in enumerate(operations)}
    return [
        [
            [places.get(id(parent.operation)) for parent in node.parent_nodes]
            for node in operation._inbound_nodes
        ]
        for operation in operations
    ]

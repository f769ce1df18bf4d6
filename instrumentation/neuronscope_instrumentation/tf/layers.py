"""Which layers a Keras model has: their paths, the blocks, and what a pattern names."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from neuronscope.signals.tensors import LayerSpec
from neuronscope_instrumentation.common.layer_paths import match, not_found

_MAX_DEPTH: Final = 100  # of layers within layers: one that holds itself is not walked for ever


def children(layer: Any) -> list[Any]:
    """The layers that a layer holds, in Keras' order; without the placeholders of inputs."""
    keras: Any = sys.modules["keras"]  # whoever has a layer has imported it
    held: list[Any]
    if isinstance(layer, keras.Model):
        held = layer.layers
    else:
        held = layer._flatten_layers(include_self=False, recursive=False)
    return [child for child in held if not isinstance(child, keras.layers.InputLayer)]


def walk(model: Any) -> Iterator[tuple[str, Any]]:
    """Paths and layers below the model, parents first; a shared layer comes under each of its paths."""
    yield from _walk(model, "", 0)


def _walk(layer: Any, prefix: str, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > _MAX_DEPTH:
        return
    taken: dict[str, int] = {}
    for child in children(layer):
        name = str(child.name)
        taken[name] = taken.get(name, 0) + 1
        if taken[name] > 1:  # sublayers of a class of the user's may have one name
            name = f"{name}#{taken[name]}"
        path = f"{prefix}{name}"
        yield path, child
        yield from _walk(child, f"{path}.", depth + 1)


def distinct(model: Any) -> Iterator[tuple[str, Any]]:
    """As `walk`; a shared layer comes once, under the first of its paths."""
    seen: set[int] = set()
    for path, layer in walk(model):
        if id(layer) not in seen:
            seen.add(id(layer))
            yield path, layer


def leaf_layers(model: Any) -> list[LayerSpec]:
    """The layers without layers inside."""
    return [
        LayerSpec(
            path, type(layer).__name__, _shape(layer), int(layer.count_params()) if layer.built else None
        )
        for path, layer in distinct(model)
        if not children(layer)
    ]


def find_layer(model: Any, path: str) -> Any:
    """The layer at a path (``""``: the model).

    Raises:
        LayerNotFoundError: there is none.
    """
    if not path:
        return model
    for found, layer in walk(model):
        if found == path:
            return layer
    raise not_found(type(model).__name__, _paths(model), path)


def match_layers(model: Any, pattern: str) -> list[str]:
    """See `KerasAdapter.match_layers`.

    Raises:
        LayerNotFoundError: nothing matches.
    """
    if "*" not in pattern:
        find_layer(model, pattern)
        return [pattern]
    return match(type(model).__name__, _paths(model), pattern)


def block_paths(model: Any) -> list[str]:
    """See `KerasAdapter.block_paths`."""
    groups: dict[tuple[str, type], list[str]] = {}
    sizes: Counter[tuple[str, type]] = Counter()
    for path, layer in distinct(model):
        if children(layer):
            key = (path.rpartition(".")[0], layer.__class__)
            groups.setdefault(key, []).append(path)
            sizes[key] += int(layer.count_params()) if layer.built else 0
    repeated = {key: paths for key, paths in groups.items() if len(paths) > 1}
    if not repeated:
        return [path for path in _paths(model) if "." not in path]
    # Blocks hold parts that repeat as well; with equally many weights the outermost are first.
    return repeated[max(repeated, key=lambda key: sizes[key])]


def _paths(model: Any) -> list[str]:
    return [path for path, _ in distinct(model)]


def _shape(layer: Any) -> tuple[int, ...] | None:
    """The output's shape where the layer has one place in a graph; -1 for a size known when it runs."""
    try:
        shape = layer.output.shape
    except (AttributeError, ValueError):  # never called on a symbol, or on several
        return None
    return tuple([-1 if size is None else int(size) for size in shape])

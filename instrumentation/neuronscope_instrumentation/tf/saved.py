"""Loaded SavedModels: their functions are observed at the boundary; the inside is a graph without layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from neuronscope.instrumentation import LayerCallback
from neuronscope.signals.tensors import LayerSpec
from neuronscope_instrumentation.common import layer_paths
from neuronscope_instrumentation.tf import outputs, slots

_SIGNATURES: Final = "signatures"
_KIND: Final = "a SavedModel, whose inside is one graph,"


def functions(loaded: Any) -> list[LayerSpec]:
    """Signatures and other functions of a SavedModel, with the shape of the first output."""
    return [LayerSpec(path, type(found).__name__, _shape(found)) for path, found in _all(loaded).items()]


def observe(loaded: Any, path: str, callback: LayerCallback) -> Callable[[], None]:
    """Watch a function's calls; ``""`` stands for the first.

    Raises:
        LayerNotFoundError: there is none of that path.
    """
    found = _all(loaded)
    if path and path not in found:
        raise layer_paths.not_found(_KIND, list(found), path)
    function: Any = found[path] if path else next(iter(found.values()))
    # A concrete function passes its calls to `_call_impl`, a polymorphic one to `_call`.
    name = "_call_impl" if hasattr(function.__class__, "_call_impl") else "_call"
    return slots.join(function, (name,), outputs.see_tensorflow, callback)


def match(loaded: Any, pattern: str) -> list[str]:
    """Paths that a pattern names.

    Raises:
        LayerNotFoundError: nothing matches.
    """
    return layer_paths.match(_KIND, list(_all(loaded)), pattern)


def _all(loaded: Any) -> dict[str, Any]:
    signatures: dict[str, Any] = dict(loaded.signatures)
    attributes: dict[str, Any] = loaded.__dict__
    found = {f"{_SIGNATURES}.{name}": function for name, function in signatures.items()}
    return found | {
        name: value
        for name, value in attributes.items()
        if hasattr(value, "get_concrete_function") and callable(value)
    }


def _shape(function: Any) -> tuple[int, ...] | None:
    outputs: Any = getattr(function, "structured_outputs", None)
    if not isinstance(outputs, dict) or not outputs:
        return None
    shape: Any = next(iter(cast("dict[str, Any]", outputs).values())).shape
    return None if shape.rank is None else tuple([-1 if size is None else int(size) for size in shape])

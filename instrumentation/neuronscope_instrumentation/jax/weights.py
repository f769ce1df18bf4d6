"""The fingerprint of a JAX model: its architecture, and every bit of its weights."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import jax
import numpy as np

from neuronscope.fingerprints import fingerprint
from neuronscope_instrumentation.jax import models, structure
from neuronscope_instrumentation.jax.dtypes import dtype_name, is_numeric
from neuronscope_instrumentation.jax.structure import FUNCTION, LINEN
from neuronscope_instrumentation.jax.untyped import is_traced

_HASH_WHOLE: Final = 1 << 20  # bytes; of larger arrays two checksums and hashed samples stand for the content
_SAMPLES: Final = 64
_SAMPLE_BYTES: Final = 1 << 12


def fingerprint_model(model: Any) -> str:
    """Name a model by its classes, hyperparameters and arrays; random state does not count.

    Reads all weights once, array by array, on the host.  A module of linen has weights only when it is bound
    to them; a plain function has none: its code is what it is.
    """
    kind = structure.kind_of(model) or FUNCTION
    if kind == LINEN:
        described = {"": _linen(model)}
        weights = dict(_variables(model.variables)) if model.scope is not None else {}
    elif kind == FUNCTION:
        code = models.handle(model).code
        described = {"": ["function", code.co_code if code is not None else b""]}
        weights = {}
    else:
        nodes = list(structure.walk(model))
        described = {path: [_class(module), *_settings(module)] for path, module in nodes}
        weights = {
            f"{path}.{name}": _describe(leaf)
            for path, module in nodes
            for name, leaf in structure.own_arrays(module)
        }
    return fingerprint({"kind": kind, "architecture": described, "weights": weights})


def _variables(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for name, value in cast("Mapping[str, Any]", tree).items():
            yield from _variables(value, f"{path}.{name}")
    else:
        for number, leaf in enumerate(jax.tree_util.tree_leaves(tree)):
            yield f"{path}:{number}", _describe(leaf)


def _describe(leaf: Any) -> list[object]:
    """Shape, type and content of an array; without content where there is none (abstract, elsewhere)."""
    head: list[object] = [dtype_name(leaf.dtype), list(leaf.shape)]
    if is_traced(leaf) or not is_numeric(leaf.dtype) or not hasattr(leaf, "__array__"):
        return head
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return [*head, "on other hosts"]
    content = np.ascontiguousarray(np.asarray(leaf)).reshape(-1).view(np.uint8)
    if content.nbytes <= _HASH_WHOLE:
        return [*head, content.tobytes()]
    last = content.nbytes - _SAMPLE_BYTES
    starts = [last * sample // (_SAMPLES - 1) for sample in range(_SAMPLES)]
    samples = b"".join(content[start : start + _SAMPLE_BYTES].tobytes() for start in starts)
    view = memoryview(cast(Any, content))
    return [*head, zlib.crc32(view), zlib.adler32(view), samples]


def _linen(module: Any) -> list[object]:
    fields = [
        [field.name, _value(getattr(module, field.name, None))]
        for field in dataclasses.fields(module)
        if field.name not in ("parent", "name")
    ]
    return [_class(module), *fields]


def _settings(module: Any) -> Iterator[list[object]]:
    """Hyperparameters of a module: plain values only."""
    for name, value in structure.attributes(module):
        if isinstance(value, bool | int | float | str):
            yield [name, value]


def _value(value: Any) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if structure.kind_of(value) == LINEN:
        return _linen(value)
    if isinstance(value, tuple | list):
        return [_value(item) for item in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return {str(key): _value(item) for key, item in cast("Mapping[Any, Any]", value).items()}  # type: ignore[redundant-cast]  # pyright wants it
    name = getattr(value, "__qualname__", None)  # a function, a class, a type of elements
    return str(name) if name else type(cast(object, value)).__qualname__


def _class(module: object) -> str:
    kind = type(module)
    return f"{kind.__module__}.{kind.__qualname__}"

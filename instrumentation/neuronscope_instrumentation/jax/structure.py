"""What an nnx or Equinox model consists of: its modules by path, and the arrays each holds itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

import jax

from neuronscope.signals.tensors import LayerSpec

LINEN: Final = "linen"
NNX: Final = "nnx"
EQUINOX: Final = "equinox"
FUNCTION: Final = "function"
_ROOTS: Final = {
    ("flax.linen.module", "Module"): LINEN,
    ("flax.nnx.module", "Module"): NNX,
    ("equinox._module._module", "Module"): EQUINOX,
    ("equinox._module", "Module"): EQUINOX,
    ("jaxlib._jax", "PjitFunction"): FUNCTION,
}
# State that running a model changes: no part of what it is.
_PASSING: Final = frozenset({"RngState", "RngStream", "Intermediate", "Perturbation"})


class Node(NamedTuple):
    """A module and where it is."""

    path: str
    module: Any


def kind_of(obj: object) -> str | None:
    """Which kind of JAX model an object is, told by the names of its classes alone."""
    for base in type(obj).__mro__:
        if (found := _ROOTS.get((base.__module__, base.__qualname__))) is not None:
            return found
    return None


def is_module(value: object) -> bool:
    """Is this a module of nnx or Equinox?"""
    return kind_of(value) in (NNX, EQUINOX)


def walk(model: Any) -> Iterator[Node]:
    """All modules, parents first; one that is used under several paths comes under the first."""
    seen: set[int] = set()
    pending = [Node("", model)]
    while pending:
        node = pending.pop()
        if id(node.module) in seen:
            continue
        seen.add(id(node.module))
        yield node
        pending.extend(
            reversed([Node(join(node.path, name), child) for name, child in children(node.module)])
        )


def children(module: Any) -> Iterator[tuple[str, Any]]:
    """The modules directly below a module, by their path from it: also those in lists and dictionaries."""
    for name, value in attributes(module):
        yield from _modules_in(name, value)


def attributes(module: Any) -> Iterator[tuple[str, Any]]:
    """What a module stores, in the order of its definition."""
    stored = cast("dict[str, Any]", vars(module))
    if kind_of(module) == EQUINOX:
        # In the order of the class: `vars` of an unflattened module is in another.
        for field in dataclasses.fields(module):
            if field.name in stored:
                yield field.name, stored[field.name]
        return
    for name, value in list(stored.items()):
        if not name.startswith("_pytree__"):
            yield name, value


def computes(module: object) -> bool:
    """Can the module be called?"""
    return any("__call__" in vars(base) for base in type(module).__mro__)


def leaf_layers(model: Any) -> list[LayerSpec]:
    """The computing modules without computing modules below them."""
    return [
        LayerSpec(path, type(module).__name__, None, sum(int(leaf.size) for _, leaf in own_arrays(module)))
        for path, module in walk(model)
        if computes(module) and not any(computes(below.module) for below in walk(module) if below.path)
    ]


def own_arrays(module: Any) -> Iterator[tuple[str, Any]]:
    """Arrays that a module holds itself, by name; without random state and what is sown."""
    for name, value in attributes(module):
        if isinstance(value, str | bytes | int | float | bool) or value is None:
            continue
        leaves = cast(
            "list[tuple[Any, Any]]",
            jax.tree_util.tree_flatten_with_path(value, is_leaf=_is_apart)[0],
        )
        for keys, leaf in leaves:
            if hasattr(leaf, "dtype") and hasattr(leaf, "shape") and not _is_passing(leaf):
                yield name + jax.tree_util.keystr(keys), leaf


def alike(outer: Any, inner: Any, *, sharded: bool) -> bool:
    """Could `inner` be what a transformation made of `outer`: equal but for mapped dimensions?"""
    if type(outer) is not type(inner):
        return False
    mine, theirs = list(children(outer)), list(children(inner))
    if sorted(name for name, _ in mine) != sorted(name for name, _ in theirs):
        return False
    other = dict(theirs)
    arrays = {name: leaf.shape for name, leaf in own_arrays(inner)}
    for name, leaf in own_arrays(outer):
        if name not in arrays or not _fits(tuple(leaf.shape), tuple(arrays[name]), sharded=sharded):
            return False
    return all(alike(child, other[name], sharded=sharded) for name, child in mine)


def _fits(outer: tuple[int, ...], inner: tuple[int, ...], *, sharded: bool) -> bool:
    if len(inner) > len(outer):
        return False
    ends = zip(outer[len(outer) - len(inner) :], inner, strict=True)
    return all(a == b or (sharded and b and a % b == 0) for a, b in ends)


def _modules_in(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if is_module(value):
        yield name, value
    elif isinstance(value, list | tuple):
        for number, item in enumerate(cast("list[Any]", value)):
            yield from _modules_in(f"{name}.{number}", item)
    elif isinstance(value, Mapping):
        for key, item in cast("Any", value).items():
            yield from _modules_in(f"{name}.{key}", item)


def _is_apart(value: object) -> bool:
    return is_module(value) or _is_passing(value)


def _is_passing(value: object) -> bool:
    return any(base.__name__ in _PASSING for base in type(value).__mro__)


def join(path: str, name: str) -> str:
    """A path and one below it as one."""
    return f"{path}.{name}" if path else name

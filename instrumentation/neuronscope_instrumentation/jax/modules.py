"""nnx and Equinox: the `__call__` of each class that a watched model consists of.

A module inside `jax.jit` is another object than the model's own: then it is found by structure, first the
model (or a layer that is like no other), and below it by path.  Outside, identity decides.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import jax

from neuronscope.engine.guard import GUARD
from neuronscope_instrumentation.jax import frames, models, returned, structure
from neuronscope_instrumentation.jax.frames import Frame
from neuronscope_instrumentation.jax.models import Handle
from neuronscope_instrumentation.jax.structure import EQUINOX, NNX
from neuronscope_instrumentation.jax.untyped import is_traced

CALL: Final = "__call__"
ALIKE: Final = "compiled code that another model of its structure shares"
_originals: Final[dict[type, Any]] = {}


def refresh() -> None:
    """Patch the classes of the models watched now, restore those of others."""
    needed: set[type] = set()
    for handle in models.watched((NNX, EQUINOX)):
        for node in structure.walk(handle.ref()):
            needed |= {base for base in type(node.module).__mro__ if CALL in vars(base)}
    for kind in [kind for kind in _originals if kind not in needed]:
        type.__setattr__(kind, CALL, _originals.pop(kind))
    for kind in needed - _originals.keys():
        original = _originals[kind] = vars(kind)[CALL]
        type.__setattr__(kind, CALL, _watching(kind, original))


def _watching(kind: type, original: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        stack = frames.stack()
        if kind not in _originals or (stack and stack[-1].module is self):  # `super().__call__`
            return original.__get__(self, type(self))(*args, **kwargs)
        frame = GUARD.call("jax.frame", _find, self, default=None)
        if frame is None:
            frame = Frame(self)
        stack.append(frame)
        try:
            output = original.__get__(self, type(self))(*args, **kwargs)
        finally:
            stack.pop()
        if frame.handle is not None:
            return GUARD.call("jax.show", returned.show, frame, output, default=output)
        return output

    return call


def _find(module: Any) -> Frame:
    """Whose module this is, and where."""
    for frame in reversed(frames.stack()):
        path = frame.inside.get(id(module))
        if path is not None:
            return Frame(module, frame.handle, path, frame.inside)
    handles = models.watched((NNX, EQUINOX))
    for handle in handles:
        path = handle.place_of(module)
        if path is not None:
            return Frame(module, handle, path)
    if any(is_traced(leaf) for leaf in jax.tree_util.tree_leaves(module)):
        places = [(handle, path) for handle in handles if (path := _place(handle, module)) is not None]
        for handle, path in places[:1]:
            for other, _ in places[1:]:
                other.told[ALIKE] = None
            below = [node for node in structure.walk(module) if node.path]
            inside = {id(node.module): structure.join(path, node.path) for node in below}
            return Frame(module, handle, path, inside)
    return Frame(module)


def _place(handle: Handle, module: Any) -> str | None:
    """The one path where a model has such a module: its own if the model itself is such."""
    sharded = bool(jax.sharding.get_abstract_mesh().manual_axes)
    fitting: list[str] = []
    for path, other in structure.walk(handle.ref()):
        if structure.alike(other, module, sharded=sharded):
            if not path:
                return path
            fitting.append(path)
    return fitting[0] if len(fitting) == 1 else None

"""Flax linen: the one method through which every method of a module runs."""

from __future__ import annotations

import weakref
from typing import Any, Final

from neuronscope.engine.guard import GUARD
from neuronscope_instrumentation.jax import frames, models, returned
from neuronscope_instrumentation.jax.frames import Frame
from neuronscope_instrumentation.jax.structure import LINEN

RUN: Final = "_call_wrapped_method"
CLONE: Final = "clone"
_originals: Final[dict[str, Any]] = {}
# `apply` runs a clone of the model.  By identity: not every module has a hash.
_origins: Final[dict[int, tuple[weakref.ref[Any], weakref.ref[Any]]]] = {}


def refresh() -> None:
    """Patch linen's base class while one of its models is watched."""
    if bool(models.watched((LINEN,))) == bool(_originals):
        return
    from flax import linen

    if _originals:
        for name, original in _originals.items():
            setattr(linen.Module, name, original)
        _originals.clear()
        return
    for name, watching in ((RUN, _run), (CLONE, _clone)):
        _originals[name] = vars(linen.Module)[name]
        setattr(linen.Module, name, watching(_originals[name]))


def _clone(original: Any) -> Any:
    def clone(self: Any, *args: Any, **kwargs: Any) -> Any:
        copied = original(self, *args, **kwargs)
        key, origin = id(copied), _origin(self)
        ref = weakref.ref(copied, lambda _: _origins.pop(key, None))
        _origins[key] = ref, weakref.ref(origin)
        return copied

    return clone


def _run(original: Any) -> Any:
    def run(self: Any, fun: Any, args: Any, kwargs: Any) -> Any:
        if not _originals or getattr(fun, "__name__", "") == "setup":
            return original(self, fun, args, kwargs)
        stack = frames.stack()
        outer = stack[-1] if stack else None
        frame = GUARD.call("jax.frame", _find, self, default=None)
        if frame is None:
            frame = Frame(self)
        stack.append(frame)
        try:
            output = original(self, fun, args, kwargs)
        finally:
            stack.pop()
        if frame.handle is not None and not self.is_initializing():
            return GUARD.call("jax.show", _show, frame, outer, output, default=output)
        return output

    return run


def _show(frame: Frame, outer: Frame | None, output: Any) -> Any:
    """The layer's output, shown, for whoever runs on with it."""
    if outer is not None and outer.handle is frame.handle and outer.path == frame.path:
        if outer.module is frame.module:
            return output  # a method of the layer that another of its methods calls
        outer.covered = True  # `nn.scan`, `nn.remat` and others run a module made of this one
    if not frame.covered:
        return returned.show(frame, output)
    return output


def _find(module: Any) -> Frame:
    """Whose module this is, and where."""
    if module.scope is None:
        return Frame(module)
    root = module
    while getattr(root.parent, "parent", None) is not None or hasattr(root.parent, "is_initializing"):
        root = root.parent
    handle = models.known(_origin(root))
    stack = frames.stack()
    if handle is None and module.path and stack:
        handle = stack[-1].handle
    if handle is None or not handle.observers:
        return Frame(module)
    path = ".".join(module.path)
    if not path and not module.is_initializing():
        handle.learn_weights(module.variables)
    handle.learn(path, type(module).__name__)
    return Frame(module, handle, path)


def _origin(module: Any) -> Any:
    """What a module was cloned from, or itself."""
    found = _origins.get(id(module))
    if found is None or found[0]() is not module:
        return module
    return found[1]() or module

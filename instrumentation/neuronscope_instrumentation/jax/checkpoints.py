"""Plain functions: what they name with `jax.ad_checkpoint.checkpoint_name` is a layer."""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any, Final, cast

import jax

from neuronscope.engine.guard import GUARD
from neuronscope_instrumentation.jax import emission, gradients, models
from neuronscope_instrumentation.jax.structure import FUNCTION
from neuronscope_instrumentation.jax.untyped import checkpoint_name

BIND: Final = "bind"
KIND: Final = "checkpoint"


def _named(x: Any) -> Any:
    return checkpoint_name(x, "name")


(_equation,) = jax.make_jaxpr(_named)(0.0).eqns
NAME: Final[Any] = _equation.primitive
_NAMING: Final = inspect.unwrap(checkpoint_name).__code__
_FRAMES_BETWEEN: Final = 4  # between `checkpoint_name` and the primitive


def refresh() -> None:
    """Look at names while a plain function is watched."""
    if bool(models.watched((FUNCTION,))) == (BIND in vars(NAME)):
        return
    if BIND in vars(NAME):
        del NAME.bind
    else:
        NAME.bind = _bind


def _bind(*args: Any, **params: Any) -> Any:
    output = cast(Any, type(NAME)).bind(NAME, *args, **params)
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    if _is_named_there(frame):
        name = str(params.get("name", ""))
        return GUARD.call("jax.checkpoint", _show, name, output, frame, default=output)
    return output


def _is_named_there(frame: FrameType | None) -> bool:
    """Does the function name a value?  Transformations do so again when they run through its program."""
    for _ in range(_FRAMES_BETWEEN):
        if frame is None:
            return False
        if frame.f_code is _NAMING:
            return True
        frame = frame.f_back
    return False


def _show(name: str, output: Any, frame: FrameType | None) -> Any:
    handles = {handle.code: handle for handle in models.watched((FUNCTION,))}
    while frame is not None:
        # The innermost watched function that is running: no other way tells whose name it is.
        handle = handles.get(frame.f_code)
        if handle is not None:
            handle.learn(name, KIND)
            emission.show(handle, name, output)
            return gradients.through(handle, name, output)
        frame = frame.f_back
    return output

"""The way of a call into `jax.jit`, while somebody watches.

Compiled code that shows layers has effects, so JAX takes each of its calls through Python; there

- code without layers is not compiled a second time: the plain code is used;
- code compiled ahead of time (`lower`, `trace`, `make_jaxpr`, `export`) stays plain: it outlives the scope;
- a program that cannot be compiled with our callbacks is compiled without, and that is told;
- what is sent is attributed to the span that was current when the program was started.

These are functions of JAX's own.  Where a version lacks one, `missing` says so, and that rule is left out.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

import jax
from jax.stages import Compiled

from neuronscope.engine.guard import GUARD
from neuronscope_instrumentation.jax import emission, sessions
from neuronscope_instrumentation.jax.sessions import CONTEXT, FAILED, Key, Session
from neuronscope_instrumentation.jax.untyped import RuntimeFailure, is_traced

PJIT: Final = "jax._src.pjit"
DISPATCH: Final = "jax._src.dispatch"
INFER: Final = "_infer_params"
RUN: Final = "_run_python_pjit"
START: Final = "_pjit_call_impl_python"
FAST: Final = "_get_fastpath_data"
PRIMITIVE: Final = "xla_primitive_callable"
AHEAD_OF_TIME: Final = "jit_trace"
CALL: Final = "__call__"
AHEAD: Final = "compiled ahead of time"
# What JAX raises where a program cannot have callbacks, or cannot be compiled with them.
_REFUSALS: Final = (NotImplementedError, ValueError, TypeError, RuntimeFailure)
_log: Final = logging.getLogger(__name__)
_originals: Final[dict[str, Any]] = {}


class _Here(threading.local):
    diverted = False  # this call runs other code than its key says
    info: Any = None  # how `jit` was called, for the function being run
    key: Key | None = None  # under which that function was traced


_here: Final = _Here()
_NONE: Final = frozenset[int]()
_failed: Final[weakref.WeakSet[Any]] = weakref.WeakSet()
# Which models a function was seen to run, and for which keys of a thread it was traced.
_models: Final[weakref.WeakKeyDictionary[Any, tuple[frozenset[int], frozenset[Key]]]] = (
    weakref.WeakKeyDictionary()
)


def private_names() -> dict[str, bool]:
    """Functions of JAX's own that stand above, and whether this version has them."""
    names = [(module, name) for name, (module, _) in _OURS.items()] + [(PJIT, AHEAD_OF_TIME)]
    return {
        f"{module}.{name}": hasattr(sys.modules.get(module), name) for module, name in names if name != CALL
    }


def missing() -> list[str]:
    """Functions that this version of JAX lacks: layers are observed all the same, without the rules above."""
    return [name for name, found in private_names().items() if not found]


def refresh() -> None:
    """Stand in the way of calls while some thread watches."""
    if bool(sessions.watching()) == bool(_originals) or missing():
        return
    for name, (module, ours) in _OURS.items():
        place = sys.modules[module] if name != CALL else Compiled
        if name in _originals:
            setattr(place, name, _originals.pop(name))
        else:
            _originals[name] = getattr(place, name)
            setattr(place, name, ours)


def _original(name: str) -> Any:
    # A call that began while somebody watched may end when nobody does.
    found = _originals.get(name)
    return found if found is not None else getattr(sys.modules[_OURS[name][0]], name)


def _infer(fun: Any, info: Any, args: Any, kwargs: Any) -> Any:
    """Trace the function, or find it traced."""
    infer = _original(INFER)
    session = sessions.current()
    if session is None or not isinstance(CONTEXT.value, Key):
        return infer(fun, info, args, kwargs)
    if session.refresh():  # another thread has ended what this one watched
        found = infer(fun, info, args, kwargs)
        _here.diverted = True
        return found
    if sys._getframe(1).f_code.co_name == AHEAD_OF_TIME:  # pyright: ignore[reportPrivateUsage]
        return _under(None, infer, fun, info, args, kwargs)
    found, key, diverted = _trace(session, infer, fun, info, args, kwargs)
    # Last: tracing may have called other jitted functions, which came by here, too.
    _here.diverted, _here.key, _here.info = diverted, key, info
    return found


def _trace(
    session: Session, infer: Any, fun: Any, info: Any, args: Any, kwargs: Any
) -> tuple[Any, Key | None, bool]:
    """The function, traced; under which key; and whether it is without what the thread's key promises."""
    if getattr(fun, "_apply_primitive", False):
        return _under(None, infer, fun, info, args, kwargs), None, False
    if fun in _failed:
        session.tell(FAILED)
        return _under(None, infer, fun, info, args, kwargs), None, True
    if not all(map(emission.passes, jax.tree_util.tree_leaves((args, kwargs)))):
        session.tell(emission.STRANGE)
        return _under(None, infer, fun, info, args, kwargs), None, True
    whole: Key = CONTEXT.value
    key, missed = _key_of(whole, fun), session.missed
    try:
        found = _under(key, infer, fun, info, args, kwargs)
        if session.missed != missed and key != whole:  # called in another way it runs other models
            key = whole
            found = _under(key, infer, fun, info, args, kwargs)
    except _REFUSALS as error:
        plain = _under(None, infer, fun, info, args, kwargs)  # a fault of the function's own is raised again
        _give_up(session, fun, error)
        return plain, None, True
    program = found[0].params["jaxpr"]
    models, keys = _models.get(fun, (_NONE, frozenset[Key]()))
    if key == whole and whole not in keys:
        # Only ever more models: what was traced for fewer is kept by JAX, and must not be found again.
        _models[fun] = models | emission.shown(program), keys | {whole}
    if emission.observes(program) or key is None:
        return found, key, False
    return _under(None, infer, fun, info, args, kwargs), None, False


def _key_of(whole: Key, fun: Any) -> Key | None:
    """The key for a function: without models that it does not run, so that they do not matter to it."""
    models, keys = _models.get(fun, (_NONE, None))
    return whole if keys is None or whole in keys else whole.of(models)


def _run(traced: Any, flat: Any, fun: Any, args: Any, kwargs: Any) -> Any:
    """Compile the function, or find it compiled, and start it."""
    run = _original(RUN)
    session = sessions.current()
    if session is None or not isinstance(CONTEXT.value, Key):
        return run(traced, flat, fun, args, kwargs)
    diverted, info, key = _here.diverted, _here.info, _here.key
    try:
        with CONTEXT(key):  # what was compiled is kept under the context, too
            return run(traced, flat, fun, args, kwargs)
    except _REFUSALS as error:
        if key is None or any(isinstance(leaf, jax.Array) and _is_gone(leaf) for leaf in flat):
            raise  # not for our sake; or it ran, and what was donated to it is lost
        diverted = True
        again, leaves = _under(None, _original(INFER), fun, info, args, kwargs)
        with CONTEXT(None):
            result = run(again, leaves, fun, args, kwargs)
        _give_up(session, fun, error)
        return result
    finally:
        _here.diverted = diverted


def _start(*args: Any, jaxpr: Any, **kwargs: Any) -> Any:
    """Start a program: what it sends belongs to who has called it."""
    session = sessions.current()
    if session is not None and emission.observes(jaxpr):
        GUARD.call("jax.dispatch", session.dispatch)
    return _original(START)(*args, jaxpr=jaxpr, **kwargs)


def _primitive(*args: Any, **kwargs: Any) -> Any:
    """The program of a single operation of eager code: the same whoever watches."""
    with CONTEXT(None):
        return _original(PRIMITIVE)(*args, **kwargs)


def _fast(*args: Any, **kwargs: Any) -> Any:
    """What JAX keeps to run the function without Python: nothing for a call that was diverted."""
    if _here.diverted:
        _here.diverted = False
        return None
    return _original(FAST)(*args, **kwargs)


def _under(key: Key | None, infer: Any, fun: Any, info: Any, args: Any, kwargs: Any) -> Any:
    with CONTEXT(key):
        return infer(fun, info, args, kwargs)


def _give_up(session: Session, fun: Any, error: BaseException) -> None:
    """The function runs without us from now on."""
    _failed.add(fun)
    session.tell(FAILED)
    _log.warning(
        "%s cannot be compiled with layers observed (%s); it runs unobserved",
        getattr(fun, "__qualname__", type(fun).__qualname__), type(error).__name__,
    )  # fmt: skip


def _call_compiled(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Code that was compiled ahead of time runs: nothing of it can be seen."""
    session = sessions.current()
    if session is not None:
        session.tell(AHEAD)
    return (_originals.get(CALL) or Compiled.__call__)(self, *args, **kwargs)


def _is_gone(array: jax.Array) -> bool:
    return not is_traced(array) and array.is_deleted()


# Where each function of ours stands.
_OURS: Final[dict[str, tuple[str, Callable[..., Any]]]] = {
    INFER: (PJIT, _infer),
    RUN: (PJIT, _run),
    START: (PJIT, _start),
    FAST: (PJIT, _fast),
    PRIMITIVE: (DISPATCH, _primitive),
    CALL: ("jax._src.stages", _call_compiled),
}

"""torch's own functions behind those of `threadstate`, for the compiled look before each turn.

Through torch's bindings the twelve questions cost 0.6 µs a turn, asked of its libraries themselves a tenth.
The dynamic loader finds these functions by the names that the C++ ABI of Linux gives them.  Such a name says
neither what is returned nor how that is laid out.  So it is done for releases of torch in which these were
looked up, and all are tried: each state is entered for a moment and must be seen exactly as `threadstate`
sees it.  In other releases, where a name is missing or a trial fails, torch's bindings are asked.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from neuronscope_instrumentation.torch.interventions import threadstate

_C: Final[Any] = getattr(torch, "_C")  # noqa: B009  no stubs for what is used here

LOOKED_UP: Final = frozenset({"2.13"})
# In the order in which `bind_direct` takes them.
_NAMES: Final = (
    "_ZN3c1013AutogradState13get_tls_stateEv",
    "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv",
    "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv",
    "_ZN2at4impl22PythonTorchFunctionTLS18get_disabled_stateEv",
    "_ZN2at8autocast17increment_nestingEv",
    "_ZN2at8autocast17decrement_nestingEv",
    "_ZN2at23SavedTensorDefaultHooks13get_tls_stateEv",
    "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE",
    "_ZN5torch8autograd25get_current_graph_task_idEv",
)
_KEYS: Final = ("FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode")
Bound = tuple[tuple[int, ...], tuple[int, ...]]


def find() -> Bound | None:
    """Addresses and keys for `bind_direct`; None where they cannot be had."""
    if sys.platform != "linux" or platform.machine() not in {"x86_64", "aarch64"}:
        return None
    if ".".join(torch.__version__.split(".")[:2]) not in LOOKED_UP:
        return None
    path = Path(torch.__file__).with_name("lib") / "libtorch_cpu.so"
    try:  # what is loaded already, and what that has loaded
        library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        addresses = [ctypes.cast(library[name], ctypes.c_void_p).value or 0 for name in _NAMES]
        return tuple(addresses), tuple(int(getattr(_C.DispatchKey, name)) for name in _KEYS)
    except (OSError, AttributeError):
        return None


def bind(
    bind_direct: Callable[..., None], apart: Callable[[Any], bool], twin: Callable[[Any], bool], run: Any
) -> None:
    """Let the compiled look ask torch's libraries, if they can be asked and stand the trial."""
    found = find()
    if found is not None:
        bind_direct(*found)
        if not stands_the_trial(apart, twin, run):
            bind_direct(None)


def stands_the_trial(apart: Callable[[Any], bool], twin: Callable[[Any], bool], run: Any) -> bool:
    """Does `apart` see each state, with each pair of modes, as its twin does?

    Tried in a thread of its own, which has nothing set.

    Args:
        apart: the compiled look; `twin`: Python's.
        run: what they are asked of; its `grad` and `inference` are overwritten.
    """
    passed: list[bool] = []
    thread = threading.Thread(target=lambda: passed.append(_all_seen(apart, twin, run)), daemon=True)
    thread.start()
    thread.join()
    return passed == [True]


def _all_seen(apart: Callable[[Any], bool], twin: Callable[[Any], bool], run: Any) -> bool:
    try:
        return all(_seen(apart, twin, run, state()) for state in STATES.values()) and _is_plain(twin, run)
    except (RuntimeError, AttributeError, TypeError):  # this torch has another way into one of the states
        return False


def _seen(
    apart: Callable[[Any], bool], twin: Callable[[Any], bool], run: Any, state: AbstractContextManager[Any]
) -> bool:
    with state:
        for run.grad in (True, False, None):
            for run.inference in (True, False):
                if apart(run) != twin(run):
                    return False
    return True


def _is_plain(twin: Callable[[Any], bool], run: Any) -> bool:
    """Has the trial left the thread as it was?"""
    run.grad, run.inference = True, False
    return not twin(run)


@contextmanager
def _within(begin: Callable[..., Any], end: Callable[..., Any], *args: Any) -> Generator[None]:
    begin(*args)
    try:
        yield
    finally:
        end()


def _function_mode() -> AbstractContextManager[None]:
    return _within(_C._push_on_torch_function_stack, _C._pop_torch_function_stack, object())


def _dispatch_mode() -> AbstractContextManager[None]:
    def end() -> None:
        _C._pop_torch_dispatch_stack(None)

    mode: Any = TorchDispatchMode
    return _within(_C._push_on_torch_dispatch_stack, end, mode())


def _saved_hooks() -> AbstractContextManager[None]:
    autograd = _C._autograd
    begin, end = autograd._push_saved_tensors_default_hooks, autograd._pop_saved_tensors_default_hooks
    return _within(begin, end, _same, _same)


def _same(value: Any) -> Any:
    return value


def _transform() -> AbstractContextManager[None]:
    layers = _C._functorch
    return _within(layers._vmap_increment_nesting, layers._vmap_decrement_nesting, 1, "error")


# Each makes a context in which a thread's state is not as in a new thread.
STATES: Final[Mapping[str, Callable[[], AbstractContextManager[Any]]]] = {
    "plain": nullcontext,
    "no grad": lambda: torch.set_grad_enabled(False),
    "inference": lambda: torch.inference_mode(True),
    "function mode": _function_mode,
    "dispatch mode": _dispatch_mode,
    "autocast": lambda: _within(threadstate.nest_autocast, threadstate.autocasting),
    "functions off": _C.DisableTorchFunction,
    "functions of subclasses off": _C.DisableTorchFunctionSubclass,
    "saved hooks": _saved_hooks,
    "transform": _transform,
}

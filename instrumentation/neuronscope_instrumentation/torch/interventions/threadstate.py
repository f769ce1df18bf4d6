"""PyTorch's state of a thread, kept apart for two sides that take turns in it.

Body and model of a trace run in one thread, but each as if it had the thread to itself: a ``no_grad`` that
the body opens around a read is the body's, one that the model's forward opens is the model's.  Kept apart are
grad mode, inference mode, autocast, the stacks of function modes (the default device among them)
and dispatch modes, the switch that turns ``__torch_function__`` off, and saved-tensor hooks.

Two switches are kept apart only where something else differs, since asking for them each time would cost more
than they matter: forward-grad mode, and `disable_saved_tensors_hooks`.

State of the whole process is not: default dtype, anomaly mode, determinism, the fast path of
`nn.MultiheadAttention`, the stance of `torch.compile`, the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import torch

_C: Final[Any] = getattr(torch, "_C")  # noqa: B009  no stubs for what is used here
_autograd: Final[Any] = _C._autograd


def _yes() -> bool:
    return True


grad_enabled: Final[Callable[[], bool]] = torch.is_grad_enabled
inference_enabled: Final[Callable[[], bool]] = torch.is_inference_mode_enabled
function_modes: Final[Callable[[], int]] = _C._len_torch_function_stack
dispatch_modes: Final[Callable[[], int]] = _C._len_torch_dispatch_stack
_of_any_device: Final[Callable[[], bool] | None] = getattr(_C, "_is_any_autocast_enabled", None)
any_autocast: Final[Callable[[], bool]] = _of_any_device or torch.is_autocast_enabled
# Whether autocast is on costs 110 to 240 ns to ask; how deep its contexts are nested, in either state, 60 ns.
nest_autocast: Final[Callable[[], int]] = torch.autocast_increment_nesting
autocasting: Final[Callable[[], int]] = torch.autocast_decrement_nesting
"""After `nest_autocast`: how many autocast contexts are open in this thread."""
functions_enabled: Final[Callable[[], bool]] = getattr(_C, "_is_torch_function_enabled", _yes)
saved_hooks: Final[Callable[[bool], object]] = _autograd._top_saved_tensors_default_hooks
in_transform: Final[Callable[[], object]] = getattr(
    _C, "_are_functorch_transforms_active", _C._functorch.peek_interpreter_stack
)
in_engine: Final[Callable[[], int]] = _C._current_graph_task_id
"""Number of the backward pass that runs in this thread; -1: none."""


def differs(grad: bool | None, inference: Any) -> bool:
    """Is this thread's state other than plain with these two modes, so that it must be looked at closely?"""
    return bool(
        grad_enabled() is not grad
        or inference_enabled() is not inference
        or function_modes()
        or dispatch_modes()
        or (nest_autocast() and autocasting())
        or not functions_enabled()
        or saved_hooks(True) is not None
    )


@cache
def _devices() -> tuple[str, ...]:
    accelerator = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    return ("cpu",) if accelerator is None else ("cpu", accelerator.type)


@dataclass(frozen=True, slots=True)
class ThreadState:
    """Everything that the two sides must not share; equal states need no change of sides.

    Attributes:
        grad: grad mode, and forward-grad mode.
        autocast: enabled and dtype of each device, and whether casts are kept.
        functions: `TorchFunctionMode`s, outermost first; the default device is one.
        dispatch: `TorchDispatchMode`s, outermost first.
        hooks: saved-tensor hooks, outermost first; `hooks_off`: why they are disabled, if they are.
    """

    grad: tuple[bool, bool]
    inference: bool
    autocast: tuple[Any, ...]
    functions: tuple[Any, ...]
    functions_state: Any
    dispatch: tuple[Any, ...]
    hooks: tuple[Any, ...]
    hooks_off: str | None
    device: Any


def capture() -> ThreadState:
    """The state of this thread, unchanged by being looked at."""
    return ThreadState(
        grad=(torch.is_grad_enabled(), _C._is_fwd_grad_enabled()),
        inference=torch.is_inference_mode_enabled(),
        autocast=autocast_state(),
        functions=tuple(_C._get_function_stack_at(i) for i in range(function_modes())),
        functions_state=_C._get_torch_function_state(),
        dispatch=tuple(_C._get_dispatch_stack_at(i) for i in range(dispatch_modes())),
        hooks=_hooks(),
        hooks_off=_autograd._saved_tensors_hooks_get_disabled_error_message(),
        device=getattr(_device_holder, "device_context", None),
    )


def autocast_state() -> tuple[Any, ...]:
    """Whether autocast is on for each device, the dtype it casts to, and whether casts are kept."""
    kept = torch.is_autocast_cache_enabled()
    if _of_any_device is not None and not _of_any_device():
        return (*[(False, torch.get_autocast_dtype(name)) for name in _devices()], kept)
    return (
        *[(torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in _devices()], kept,
    )  # fmt: skip


def change(now: ThreadState, then: ThreadState, inference: InferenceSide) -> None:
    """Go over from the state captured last to another one."""
    _pop_modes(now)
    inference.begin(then.inference)
    if torch.is_grad_enabled() != then.grad[0]:
        _C._set_grad_enabled(then.grad[0])
    if _C._is_fwd_grad_enabled() != then.grad[1]:
        _C._set_fwd_grad_enabled(then.grad[1])
    if now.autocast != then.autocast:
        _set_autocast(then.autocast)
    if now.hooks != then.hooks or now.hooks_off != then.hooks_off:
        _set_hooks(now, then)
    if now.device is not then.device:
        _device_holder.device_context = then.device
    _push_modes(then)


def is_plain(state: ThreadState) -> bool:
    """No mode and no hook: what `grad` and `inference` do not tell is as in a new thread."""
    return not (
        state.functions
        or state.dispatch
        or state.hooks
        or state.hooks_off
        or state.device
        or any(enabled for enabled, _ in state.autocast[:-1])
        or not functions_enabled()
    )


def plain(*, grad: bool, inference: bool, autocast: tuple[Any, ...]) -> ThreadState:
    """The plain state of a grad and an inference mode."""
    return ThreadState(
        grad=(grad, not inference),
        inference=inference,
        autocast=autocast,
        functions=(),
        functions_state=_ENABLED,
        dispatch=(),
        hooks=(),
        hooks_off=None,
        device=None,
    )


class InferenceSide:
    """Puts each side's turn into that side's inference mode.

    torch lets this mode be set by a guard only, that puts back what it found.  Where the sides differ, one is
    entered as a turn begins and left as it ends: what it finds and puts back is always the other side's.
    """

    __slots__ = ("_guard",)

    def __init__(self) -> None:
        self._guard: Any = None

    def begin(self, enabled: bool) -> None:
        """One turn ends, and one begins that wants this."""
        if self._guard is not None:
            guard, self._guard = self._guard, None
            guard.__exit__(None, None, None)
        if torch.is_inference_mode_enabled() is not enabled:
            self._guard = _C._InferenceMode(enabled)
            self._guard.__enter__()


# `torch.set_default_device` keeps its mode here as well, for `torch.get_default_device`.
_device_holder: Final[Any] = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)


_ENABLED: Final = _C._get_torch_function_state()


def _hooks() -> tuple[Any, ...]:
    found: list[Any] = []
    while (top := saved_hooks(True)) is not None:
        found.append(top)
        _autograd._pop_saved_tensors_default_hooks()
    found.reverse()
    for pack, unpack in found:
        _autograd._push_saved_tensors_default_hooks(pack, unpack)
    return tuple(found)


def _set_hooks(now: ThreadState, then: ThreadState) -> None:
    if now.hooks_off is not None:
        _autograd._saved_tensors_hooks_enable()
    for _ in now.hooks:
        _autograd._pop_saved_tensors_default_hooks()
    for pack, unpack in then.hooks:
        _autograd._push_saved_tensors_default_hooks(pack, unpack)
    if then.hooks_off is not None:
        _autograd._saved_tensors_hooks_disable(then.hooks_off)


def _set_autocast(state: tuple[Any, ...]) -> None:
    for name, (enabled, dtype) in zip(_devices(), state, strict=False):
        torch.set_autocast_enabled(name, enabled)
        torch.set_autocast_dtype(name, dtype)
    torch.set_autocast_cache_enabled(state[-1])
    torch.clear_autocast_cache()  # one side's kept casts may be of weights that the other has changed


def _pop_modes(now: ThreadState) -> None:
    for _ in now.dispatch:
        _C._pop_torch_dispatch_stack(None)
    for _ in now.functions:
        _C._pop_torch_function_stack()


def _push_modes(then: ThreadState) -> None:
    for mode in then.functions:
        _C._push_on_torch_function_stack(mode)
    for mode in then.dispatch:
        _C._push_on_torch_dispatch_stack(mode)
    if _C._get_torch_function_state() != then.functions_state:
        _C._set_torch_function_state(then.functions_state)

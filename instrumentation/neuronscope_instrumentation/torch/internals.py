"""Everything that depends on torch's private names, in one place.

Where a version of torch lacks a name, the feature that needs it is off and the rest works.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, TracebackType
from typing import Any, Final

import torch

_C: Final[Any] = getattr(torch, "_C")  # noqa: B009  no stubs for what is read here
_dynamo_c: Final[Any] = getattr(getattr(_C, "_dynamo", None), "eval_frame", None)

# Entries of an `nn.Module`'s instance dictionary that its `__call__` goes through.
CALL: Final = "_call_impl"
COMPILED_CALL: Final = "_compiled_call_impl"


# `type`, whose result may be asked for what torch's stubs leave out.
class_of: Final[Callable[[object], Any]] = type


class isolated:  # noqa: N801  reads as a statement: `with isolated():`
    """Within: no function mode, dispatch mode, autocast or autograd sees the torch calls made.

    A mode of the user's would otherwise see, count or change what observation computes.
    """

    __slots__ = ("_functions", "_keys")

    def __enter__(self) -> None:
        self._functions = _C.DisableTorchFunction()
        self._keys = _C._ExcludeDispatchKeyGuard(_KEYS_OF_MODES)
        self._functions.__enter__()
        self._keys.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._keys.__exit__(kind, error, trace)
        self._functions.__exit__(kind, error, trace)


def _keys_of_modes() -> Any:
    keys = _C.DispatchKeySet(_C.DispatchKey.Python)
    for name in ("PythonTLSSnapshot", "ADInplaceOrView", "AutogradOther"):
        keys = keys.add(getattr(_C.DispatchKey, name))
    for device in ("CPU", "CUDA", "MPS", "XPU"):
        for family in ("Autograd", "Autocast"):
            if (key := getattr(_C.DispatchKey, family + device, None)) is not None:
                keys = keys.add(key)
    return keys


_KEYS_OF_MODES: Final = _keys_of_modes()
# How many function modes are active in this thread.
function_modes: Final[Callable[[], int]] = _C._len_torch_function_stack
# Begin and end a function mode, which may be any object with `__torch_function__`.
push_mode: Final[Callable[[object], None]] = _C._push_on_torch_function_stack
pop_mode: Final[Callable[[], object]] = _C._pop_torch_function_stack
without_function_modes: Final[Callable[[], Any]] = _C.DisableTorchFunction


# Identity of the backward pass that this thread runs; -1 for none.
graph_task: Final[Callable[[], int]] = _C._current_graph_task_id


def process_groups() -> dict[Any, Any] | None:
    """The process groups there are: always the same dictionary.  None where this torch does not show them."""
    distributed: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if distributed is None:
        return {} if not torch.distributed.is_available() else None
    groups: dict[Any, Any] | None = getattr(distributed, "_pg_map", None)
    return groups if type(groups) is dict else None


def dispatch_keys(tensor: torch.Tensor) -> int:
    """The kinds of memory and of behaviour that a tensor has, as a mask.

    Unlike `tensor.is_neg()` and its like this keeps the GIL: letting it go costs a wait for whoever takes it.
    """
    return int(_C._dispatch_keys(tensor).raw_repr())


def plain_keys() -> int:
    """The keys that tensors in plain host memory can have."""
    with torch.inference_mode():
        inference = torch.empty(1)
    return dispatch_keys(torch.empty(1, requires_grad=True)) | dispatch_keys(inference)


def has_own_dispatch(tensor: torch.Tensor) -> bool:
    """True for subclasses that are no plain memory: FakeTensor, DTensor, jagged, torchao's."""
    return bool(_C._dispatch_keys(tensor).has(_C.DispatchKey.Python))


def is_real_run() -> bool:
    """False while something runs the model to learn its structure: there are no values to see."""
    if _C._get_tracing_state() is not None or _C._functorch.peek_interpreter_stack() is not None:
        return False
    if _C._len_torch_dispatch_stack() and any(map(_C._get_dispatch_mode, _STRUCTURE_MODES)):
        return False
    return not (_HAS_CUDA and _on_cuda() and torch.cuda.is_current_stream_capturing())


_STRUCTURE_MODES: Final = tuple(
    getattr(_C._TorchDispatchModeKey, name) for name in ("FAKE", "PROXY", "FUNCTIONAL")
)
_HAS_CUDA: Final = torch.version.cuda is not None or torch.version.hip is not None
_on_cuda: Final[Callable[[], bool]] = torch.cuda.is_initialized


# What compiled code asks instead of `is_real_run` and `dispatch_keys`, in the order in which it takes them.
FOR_COMPILED: Final[tuple[Callable[..., Any] | None, ...]] = (
    function_modes, _C._dispatch_keys, _C._get_tracing_state, _C._functorch.peek_interpreter_stack,
    _C._len_torch_dispatch_stack, _on_cuda if _HAS_CUDA else None,
    getattr(_C.DispatchKeySet.raw_repr, "__func__", _C.DispatchKeySet.raw_repr),
)  # fmt: skip


def _plain_call() -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]] | None:
    """`nn.Module._call_impl`, where it is known to do nothing but call `forward` if there are no hooks.

    With it the hooks of every module, and the namespace whose `_trace_module_map` is set while torch.jit
    wants to be told of each module.
    """
    kind: Any = torch.nn.Module
    known = (
        "torch", "_C", "_get_tracing_state", "_slow_forward", "forward", "_backward_hooks",
        "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks",
    )  # fmt: skip
    hooks = (
        "_global_backward_pre_hooks", "_global_backward_hooks", "_global_forward_hooks",
        "_global_forward_pre_hooks",
    )  # fmt: skip
    slow = {"_get_tracing_state", "forward", "ScriptMethod", "_trace_module_map", "push_scope", "pop_scope"}
    call = kind._call_impl
    namespace = getattr(getattr(torch.jit, "_trace", None), "__dict__", {})
    if (
        call.__code__.co_names[:13] != (*known, *hooks)
        or not slow <= set(kind._slow_forward.__code__.co_names)
        or "_trace_module_map" not in namespace
    ):
        return None
    return call, tuple(call.__globals__[name] for name in hooks), namespace


PLAIN_CALL: Final = _plain_call()


def _compiling() -> Callable[[], bool] | None:
    """`torch.compiler.is_compiling`, where it is known to do nothing but read a flag."""
    question: Any = torch.compiler.is_compiling
    known = ("torch", "jit", "is_scripting", "_is_compiling_flag")
    return question if question.__code__.co_names == known else None


# Where the answer is, and who gives it if it is no more than `_is_compiling_flag` there.
COMPILING: Final[tuple[dict[str, Any], Callable[[], bool] | None]] = torch.compiler.__dict__, _compiling()


def calls_forward(kind: Any) -> bool:
    """Is a call of a module of this class one of its `forward` as long as there are no hooks?"""
    plain: Any = torch.nn.Module
    return (
        PLAIN_CALL is not None
        and kind._call_impl is PLAIN_CALL[0]
        and kind._slow_forward is plain._slow_forward
    )


def _no_dynamo(_: Any) -> Any:
    return None


# Sets what compiles the frames of this thread (None: nothing); returns what did before.  C's own function: a
# Python one would itself be compiled before it could do anything.
set_dynamo: Final[Callable[[Any], Any]] = getattr(_dynamo_c, "set_eval_frame", _no_dynamo)


def has_compiled_code(function: object) -> bool:
    """True when Dynamo keeps a compiled variant of a Python function."""
    code = getattr(function, "__code__", None)
    entries = getattr(_dynamo_c, "_debug_get_cache_entry_list", None)
    return code is not None and entries is not None and bool(entries(code))


def keep_from_dynamo(
    frame: Callable[..., Any], start: Callable[[object], None], end: Callable[[object], None]
) -> None:
    """Let Dynamo never compile `frame`, and call `start` before and `end` after it traces anything.

    Does nothing until torch._dynamo has been imported; to be repeated, as Dynamo's reset forgets.
    """
    dynamo: Any = sys.modules.get("torch._dynamo")
    handler: Any = getattr(dynamo, "callback_handler", None)
    if handler is None or start in handler.start_callbacks:
        return
    handler.register_start_callback(start)
    handler.register_end_callback(end)
    dynamo.eval_frame.skip_code(frame.__code__)


def skip_in_dynamo(code: CodeType) -> None:
    """Let Dynamo never compile frames of this code, if it has been imported."""
    dynamo: Any = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.eval_frame.skip_code(code)

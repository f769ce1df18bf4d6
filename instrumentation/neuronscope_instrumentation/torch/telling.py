"""What is told of a module's call: taps before and after it, observers of its output.

What they run is not observed itself, and none of it can raise in the model.  Where there is compiled code,
it tells observers; Python's way is its twin.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import CodeType
from typing import Any, Final, Protocol

import torch
from torch import nn

from neuronscope.compiled import choose, find
from neuronscope.engine.guard import GUARD
from neuronscope.signals.tensors import TensorSummary
from neuronscope.summaries import kernel
from neuronscope_instrumentation.common.host_arrays import NOTHING
from neuronscope_instrumentation.common.observing import Lender, Observer
from neuronscope_instrumentation.torch import layout
from neuronscope_instrumentation.torch.internals import (
    COMPILING,
    FOR_COMPILED,
    class_of,
    is_real_run,
    set_dynamo,
)
from neuronscope_instrumentation.torch.outputs import first_tensor
from neuronscope_instrumentation.torch.snapshot import TorchSnapshot
from neuronscope_instrumentation.torch.summary import ELEMENTS, OTHER_KEYS

LENDER: Final = Lender()


class Tap(Protocol):
    """Looks at a module's call from before it until after it, and changes nothing."""

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before the call; what it returns is given to `leave`, and must not raise in the model."""
        ...

    def leave(self, opened: Any, output: object, *, failed: bool) -> None:
        """After the call, whatever became of it; `output` is None if it failed."""
        ...


def call_tapped(
    taps: tuple[Tap, ...],
    module: nn.Module,
    below: Callable[..., Any] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call the module as if nobody looked, with the taps before and after it."""
    output: Any = None
    failed = True
    opened: list[tuple[Tap, Any]] = []
    if not torch.compiler.is_compiling() and not _is_notifying() and is_real_run():
        opened = [(each, GUARD.call("torch.tap", each.enter, module, args, kwargs)) for each in taps]
    try:
        kind = class_of(module)
        output = kind._call_impl(module, *args, **kwargs) if below is None else below(*args, **kwargs)
        failed = False
        return output
    finally:
        for each, handle in reversed(opened):
            if handle is not None:
                GUARD.call("torch.tap", partial(each.leave, handle, output, failed=failed))


def _notify_safely(observers: tuple[Observer, ...], output: object) -> None:
    if torch.compiler.is_compiling():
        return
    compiler = set_dynamo(None)  # else it would compile what runs here
    try:
        if is_real_run():
            GUARD.call("torch.slot", _notify, observers, output)
    finally:
        set_dynamo(compiler)


def _notify(observers: tuple[Observer, ...], output: object) -> None:
    """Lend the output's first tensor to the observers."""
    if not LENDER.busy and (tensor := first_tensor(output)) is not None:
        LENDER.lend(observers, TorchSnapshot(tensor))


def _plain_is_notifying() -> bool:
    return LENDER.busy


# Do observers run in this thread?
_is_notifying: Final[Callable[[], bool]] = choose("notifying", _plain_is_notifying)
# Tell observers of an output, unless the run is no real one.
tell: Final[Callable[[tuple[Observer, ...], object], None]] = choose("tell", _notify_safely)
# Its code, if it is Python's: Dynamo must leave that alone.
TELLS: Final[CodeType | None] = getattr(tell, "__code__", None)


def _bind() -> None:
    bind = find("bind_tensors")
    if bind is None:
        return
    compiled, _ = kernel.load()
    bind(
        *FOR_COMPILED, set_dynamo, is_real_run, first_tensor, TorchSnapshot, GUARD.fault,
        torch.Tensor, torch.nn.Parameter, ELEMENTS, OTHER_KEYS, TensorSummary, GUARD.disabled, *COMPILING,
        NOTHING, 0 if compiled is None else compiled.address, kernel.HOLD_GIL,
    )  # fmt: skip
    layout.bind(find("bind_layout"), find("laid_out"))


_bind()

"""Gradients of values that a trace has read: seen and replaced through tensor hooks.

The autograd engine is never stopped: what is wanted is declared first, then the pass runs, then it is there.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch

from neuronscope.interventions.errors import GradientError
from neuronscope_instrumentation.torch.interventions.values import mismatch

Replacement = torch.Tensor | Callable[[torch.Tensor], torch.Tensor]


class Gradient:
    """The gradient of one value in one backward pass; `value` once the pass has run."""

    __slots__ = ("_arrived", "_done", "_new")

    def __init__(self) -> None:
        self._arrived: torch.Tensor | None = None
        self._done = False
        self._new: Replacement | None = None

    @property
    def value(self) -> torch.Tensor:
        """The gradient as it arrived, before any replacement.

        Raises:
            GradientError: the pass has not run yet, or none reached the value.
        """
        if self._arrived is not None:
            return self._arrived
        if self._done:
            raise GradientError("no gradient reached this value: the loss does not depend on it")
        raise GradientError("the backward pass runs at the end of the block: gradients are there after it")

    def replace(self, new: Replacement) -> None:
        """What goes on in the gradient's place: a tensor, or a function of the gradient."""
        if self._done:
            raise GradientError("the backward pass has run: replace a gradient within the block")
        self._new = new

    def hook(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """Called by autograd."""
        self._arrived = gradient.detach()
        if self._new is None:
            return None
        new = self._new(gradient) if callable(self._new) else self._new
        why = mismatch(gradient, new, "the gradient")
        if why is not None:
            raise GradientError(why)
        return new

    def end(self) -> None:
        """The pass is over."""
        self._done = True
        self._new = None


class Backward:
    """A backward pass from a loss, run when the block ends.

    ::

        with t.backward(loss) as b:
            g = b.grad(h)
        g.value

    Leaves collect their ``.grad`` as by ``loss.backward()``.  Several losses: one block each, with
    ``retain_graph=True`` on all but the last.  An exception in the block, or in the pass, leaves no hook
    behind.
    """

    __slots__ = ("_gradient", "_gradients", "_handles", "_loss", "_retain")

    def __init__(
        self, loss: torch.Tensor, gradient: torch.Tensor | None = None, *, retain_graph: bool = False
    ) -> None:
        if not loss.requires_grad:
            raise GradientError(
                "this loss does not depend on anything that requires a gradient. Was the trace entered under "
                "torch.no_grad(), or is a value detached?"
            )
        self._loss: torch.Tensor | None = loss
        self._gradient = gradient
        self._retain = retain_graph
        self._gradients: list[Gradient] = []
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        if self._loss is None:
            raise GradientError("this backward pass has run; make another one")
        return self

    def grad(self, value: torch.Tensor, new: Replacement | None = None) -> Gradient:
        """Ask for the gradient of a value, and replace it by `new` if given.

        Raises:
            GradientError: it has none: it does not require a gradient, or was made in inference mode.
        """
        if not torch.is_tensor(value):
            raise GradientError(f"a gradient is of a tensor, not of a {type(value).__name__}")
        if not value.requires_grad:
            raise GradientError("this value does not require a gradient, so none will reach it")
        gradient = Gradient()
        if new is not None:
            gradient.replace(new)
        self._gradients.append(gradient)
        of: Any = value
        self._handles.append(of.register_hook(gradient.hook))
        return gradient

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loss, self._loss = self._loss, None
        try:
            if kind is None and loss is not None:
                loss.backward(self._gradient, retain_graph=self._retain)  # type: ignore[no-untyped-call]
        finally:
            for handle in self._handles:
                handle.remove()
            for gradient in self._gradients:
                gradient.end()
            self._handles, self._gradients, self._gradient = [], [], None

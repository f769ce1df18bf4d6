"""Calls that return a context manager: the call is made when the block is entered.

``@contextmanager`` methods build a generator that makes the call, yields its result to the block and cleans
up after it.  We stand in front of that generator, inside the manager: the service keeps the manager's type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context

from neuronscope.engine.guard import GUARD

if TYPE_CHECKING:
    from neuronscope.engine.invocation import Invocation


def observe_manager(manager: Any, invocation: Invocation) -> bool:
    """Let what the block gets be the result of the call; True, or a fault of ours is raised."""
    invocation.leave()  # between the call and the block anything may happen
    generator = manager.gen
    kind = _AsyncEntering if hasattr(generator, "__anext__") else _Entering
    manager.gen = kind(generator, invocation)
    return True


class _Generator:
    """Everything but the first step is the generator's own."""

    def __init__(self, inner: Any, invocation: Invocation) -> None:
        self._inner = inner
        self._invocation: Invocation | None = invocation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __del__(self) -> None:
        self._told("give_up")  # never entered

    def _told(self, what: str, *values: object) -> None:
        """Tell the invocation how the call went, once."""
        invocation, self._invocation = self._invocation, None
        if invocation is not None:
            tell: Callable[..., Any] = getattr(invocation, what)
            if not GUARD.always(invocation.seam.site, tell, *values):
                GUARD.always(invocation.seam.site, invocation.leave)


class _Entering(_Generator):
    def __next__(self) -> Any:
        invocation = self._invocation
        if invocation is None:
            return next(self._inner)
        token = otel_context.attach(invocation.context or otel_context.get_current())
        try:
            result = next(self._inner)
        except BaseException as error:
            self._told("fail", error)
            raise
        finally:
            otel_context.detach(token)
        self._told("succeed", result)
        return result


class _AsyncEntering(_Generator):
    async def __anext__(self) -> Any:
        invocation = self._invocation
        if invocation is None:
            return await anext(self._inner)
        token = otel_context.attach(invocation.context or otel_context.get_current())
        try:
            result = await anext(self._inner)
        except BaseException as error:
            self._told("fail", error)
            raise
        finally:
            otel_context.detach(token)
        self._told("succeed", result)
        return result

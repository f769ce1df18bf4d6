"""Notices that a service closes a stream whose closing has no better seam."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any, cast

from neuronscope.engine.guard import GUARD
from neuronscope.engine.streams import StreamState


def close_with(stream: Any, state: StreamState) -> None:
    """End the observation when the service closes the stream (`with` closes it too)."""
    for name in ("close", "aclose"):
        close: Any = getattr(cast("Any", type(stream)), name, None)
        if close is None:
            continue
        try:
            setattr(stream, name, _closing(close, weakref.ref(stream), state))
        except (AttributeError, TypeError):
            return  # slots, or not weakly referable: garbage collection ends it


def _closing(close: Callable[..., Any], stream: weakref.ref[Any], state: StreamState) -> Any:
    """The stream's own `close`, noting that it was called; holds the stream weakly: no cycle."""
    if not inspect.iscoroutinefunction(close):
        return _Closing(close, stream, state)

    @functools.wraps(close)
    async def aclose(*args: Any, **kwargs: Any) -> Any:
        GUARD.always("streams.end", state.close, "client_closed")
        target = stream()
        return None if target is None else await close(target, *args, **kwargs)

    return aclose


class _Closing:
    """A `close` that copies and pickles of the stream leave out."""

    def __init__(self, close: Callable[..., Any], stream: weakref.ref[Any], state: StreamState) -> None:
        functools.update_wrapper(self, close)
        self._close = close
        self._stream = stream
        self._state = state

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        GUARD.always("streams.end", self._state.close, "client_closed")
        stream = self._stream()
        return None if stream is None else self._close(stream, *args, **kwargs)

    def __reduce_ex__(self, protocol: object) -> Any:
        return getattr, (self._stream(), self._close.__name__)

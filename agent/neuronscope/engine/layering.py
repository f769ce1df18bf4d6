"""Libraries over other libraries: one call, billed once.

A framework's model call is often some client's call, which has the span, the tokens and the cost; sometimes
it is nobody's whom we observe.  The framework's own span therefore stands only if no client's call of its
kind was observed while it ran.  Until then it is nobody's parent: the client's span belongs to whatever is
around both.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final

from opentelemetry import context as otel_context

from neuronscope.instrumentation import Endpoint, Operation, WrappedMethod

LAYER: Final = otel_context.create_key("neuronscope-layer")
_KINDS: Final[Mapping[Operation, int]] = {
    Operation.CHAT: 1,
    Operation.TEXT_COMPLETION: 1,
    Operation.GENERATE_CONTENT: 1,
    Operation.EMBEDDINGS: 2,
    Operation.RERANK: 3,
}


class Layer:
    """A framework's call that waits to hear of a client's.  Carried by contexts, also into other threads.

    Attributes:
        library: whose call it is.
        over: it has ended.
    """

    __slots__ = ("_beside", "_endpoint", "_kind", "_outer", "_seen", "library", "over")

    def __init__(self, library: str, endpoint: Endpoint, outer: Layer | None, beside: Layer | None) -> None:
        self.library = library
        self.over = False
        self._beside = beside
        self._endpoint = endpoint
        self._kind = _KINDS.get(endpoint.operation, 0)
        self._outer = outer
        self._seen = False

    def admits(self, method: WrappedMethod, library: str, endpoint: Endpoint) -> bool:
        """May a call made within be observed?  Not if it is the same, made by itself; a client's is noted."""
        if method.layer:
            return self.library != library or self._endpoint is not endpoint
        _note(self, _KINDS.get(endpoint.operation, 0))
        return True

    def stands(self) -> bool:
        """The call has ended: is its span the one that is billed?  Then layers around it hear so."""
        self.over = True
        if not self._seen:
            _note(self._outer, self._kind)
        return not self._seen

    def outer(self) -> Layer | None:
        """The layer around this one."""
        return self._outer

    def hear(self, kind: int) -> None:
        """A call of that kind is billed elsewhere."""
        self._seen |= kind == self._kind
        if self._beside is not None and not self._beside.over:
            self._beside.hear(kind)


def _note(layer: Layer | None, kind: int) -> None:
    """Tell a layer, and all around it, of a call that is billed."""
    while layer is not None:
        layer.hear(kind)
        layer = layer.outer()


def layer_in(context: otel_context.Context) -> Layer | None:
    """The innermost layer of a context that has not ended."""
    layer = context.get(LAYER)
    while isinstance(layer, Layer) and layer.over:
        layer = layer.outer()
    return layer if isinstance(layer, Layer) else None


# Streams that wait for a client's call: mostly none.
WAITING: Final[set[Waiting]] = set()
_last: Final[ContextVar[tuple[int, int]]] = ContextVar("neuronscope-last-call", default=(0, 0))


class Waiting:
    """A framework's stream whose client may make its call when it is read first, in the reader's context.

    A layer cannot be current there, where the service runs between two chunks.  Instead clients' calls leave
    a note in their context, as long as anybody waits for one.
    """

    def __init__(self, layer: Layer) -> None:
        self._layer = layer
        self._since = time.perf_counter_ns()
        WAITING.add(self)

    def hear(self) -> None:
        """The first chunk, or the end: was a client's call made in this context since the stream was made?"""
        self.stop()
        when, kind = _last.get()
        if when >= self._since:
            self._layer.hear(kind)

    def stop(self) -> None:
        """The stream was dropped."""
        WAITING.discard(self)


def note_call(endpoint: Endpoint) -> None:
    """A call is made, a client's or one that itself waits for one; and a stream around it waits for it."""
    _last.set((time.perf_counter_ns(), _KINDS.get(endpoint.operation, 0)))

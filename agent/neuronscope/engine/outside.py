"""Counts calls that belong to no scope and no span, for the scopes that are open while they are made.

A thread starts with an empty context, so what a thread pool does for a `with ns.Scope(...)` block is not in
the scope unless its context is carried there.  Nobody can know whose such a call is: it may be a part of the
block, or of something else that the service does.  So a scope tells how many there were, and a log line is
written once, for a scope that has recorded nothing at all.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from neuronscope.signals import names

if TYPE_CHECKING:
    from neuronscope.engine.span import LightSpan
    from neuronscope.recording import Recording

MAX_REMEMBERED: Final = 1000  # calls; of more than these a scope tells this many

_log = logging.getLogger("neuronscope")


class Outside:
    """The beginnings of the last such calls.  For the worker, which sees calls in the order of their ends."""

    def __init__(self) -> None:
        self._begun: deque[int] = deque(maxlen=MAX_REMEMBERED)
        self._told = False

    def ended(self, span: LightSpan, recording: Recording | None) -> None:
        """A span has ended: a call with nothing around it is noted, a scope is told of those there were."""
        if recording is None:
            if span.parent is None and span.call is not None:
                self._begun.append(span.start_time)
        elif span is recording.root:
            self._tell(span, recording)

    def _tell(self, root: LightSpan, recording: Recording) -> None:
        count = sum(begun > root.start_time for begun in self._begun)
        if not count:
            return
        recording.calls_outside = count
        root.add_fact(names.SCOPE_CALLS_OUTSIDE, count)
        if self._told or not recording.is_empty():
            return
        self._told = True
        _log.warning(
            "the scope %r recorded nothing, while %d calls were made outside of any scope.  Threads and "
            "thread pools do not carry a scope by themselves: if these calls are the scope's, start what "
            "makes them as ns.propagate(function), or set NEURONSCOPE_PROPAGATE_THREADS=true for all pools.",
            recording.name,
            count,
        )

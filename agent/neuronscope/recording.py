"""What a scope records: the spans, layer records and log records that belong to it, within a byte limit."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from neuronscope import native
from neuronscope.engine.guard import GUARD
from neuronscope.signals.records import Fidelity, LayerRecord, LogRecord, SpanEvent, SpanRecord

if TYPE_CHECKING:
    from neuronscope.engine.span import LightSpan
    from neuronscope.governor import Budget
    from neuronscope.modelcall import ModelCall


class Recording:
    """Collects records for one scope, and passes them on to the scope around it.

    Filled by the worker, read by the scope's owner.  Beyond `max_bytes` of tensors further ones keep
    only their summary, and `tensors_dropped` counts them.

    Attributes:
        budget: the overhead budget of the scope.
        root: the scope's own span.
        calls_outside: calls of no scope and no span while it was open; known once its span is recorded.
    """

    def __init__(self, name: str, budget: Budget, max_bytes: int, parent: Recording | None = None) -> None:
        self.name = name
        self.budget = budget
        self.parent = parent
        self.tensors_dropped = 0
        self.root: LightSpan | None = None
        self.calls_outside = 0
        self._max_bytes = max_bytes
        self._bytes = 0
        self._lock = native.new_lock()
        self._spans: list[SpanRecord] = []
        self._layers: list[LayerRecord] = []
        self._logs: list[LogRecord] = []
        self._events: list[SpanEvent] = []
        self._cleanup: list[Callable[[], None]] = []
        self._probed: list[weakref.ref[Any]] = []
        self._unattributed: dict[str, ModelCall] = {}

    def add_span(self, span: SpanRecord) -> None:
        """Take a finished span."""
        with self._lock:
            self._spans.append(span)
        if self.parent is not None:
            self.parent.add_span(span)

    def add_layers(self, records: Sequence[LayerRecord]) -> None:
        """Take layer records; their tensors only while the byte limit allows."""
        with self._lock:
            self._layers += [
                self._weighed(record) if record.tensor is not None else record for record in records
            ]
        if self.parent is not None:
            self.parent.add_layers(records)

    def _weighed(self, record: LayerRecord) -> LayerRecord:
        if self._bytes + record.nbytes > self._max_bytes:
            self.tensors_dropped += 1
            return replace(record, tensor=None, fidelity=Fidelity.SUMMARY)
        self._bytes += record.nbytes
        return record

    def add_log(self, record: LogRecord) -> None:
        """Take a log record: an event of a call, or what the service logged."""
        with self._lock:
            self._logs.append(record)
        if self.parent is not None:
            self.parent.add_log(record)

    def add_event(self, event: SpanEvent) -> None:
        """Take something that the agent tells about itself."""
        with self._lock:
            self._events.append(event)
        if self.parent is not None:
            self.parent.add_event(event)

    def events(self) -> list[SpanEvent]:
        """What the agent told about itself, in order."""
        with self._lock:
            return list(self._events)

    def logs(self) -> list[LogRecord]:
        """The log records so far, by time."""
        with self._lock:
            return sorted(self._logs, key=lambda record: record.time_unix_ns)

    def has_room(self, nbytes: int) -> bool:
        """Would a tensor of this size be kept?"""
        return self._bytes + nbytes <= self._max_bytes

    def spans(self) -> list[SpanRecord]:
        """The spans so far, in order of their start."""
        with self._lock:
            return sorted(self._spans, key=lambda span: span.start_unix_ns)

    def is_empty(self) -> bool:
        """Is there neither a span nor a layer's run?"""
        with self._lock:
            return not self._spans and not self._layers

    def layers(self) -> list[LayerRecord]:
        """The layer records so far, in the order they were taken."""
        with self._lock:
            return list(self._layers)

    def probe(self, model: Any) -> None:
        """Remember that this scope has probes of its own on `model`."""
        self._probed.append(weakref.ref(model))

    def probes(self, model: Any) -> bool:
        """Has this scope, or one around it, probes of its own on `model`?"""
        mine = any(ref() is model for ref in self._probed)
        return mine or (self.parent is not None and self.parent.probes(model))

    def unattributed(self, model: str) -> ModelCall:
        """Where runs of a model are counted that belong to no span."""
        from neuronscope.modelcall import ModelCall

        with self._lock:
            return self._unattributed.setdefault(model, ModelCall(model))

    def on_exit(self, step: Callable[[], None]) -> None:
        """Run `step` when the scope ends: so do the probes attached in it come off."""
        self._cleanup.append(step)

    def end(self) -> None:
        """The scope ends."""
        while self._cleanup:
            GUARD.call("scope.cleanup", self._cleanup.pop())

    def within(self, other: Recording) -> bool:
        """True if this recording is `other`, or inside it."""
        inner: Recording | None = self
        while inner is not None:
            if inner is other:
                return True
            inner = inner.parent
        return False


CURRENT: ContextVar[Recording | None] = ContextVar("neuronscope_recording", default=None)

"""The light span: what the hot path makes of a call.

To everyone else it is a real OpenTelemetry span: a valid parent, it buffers what user code sets on it,
and it offers `ReadableSpan`'s public read surface, because other processors read their parent.  To us
it is a note for the worker: ids, clock, and references to what the adapter will read later.
"""

from __future__ import annotations

import copyreg
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceState
from opentelemetry.util.types import Attributes as OtelAttributes
from opentelemetry.util.types import AttributeValue as OtelValue

from neuronscope import compiled
from neuronscope.engine import clock
from neuronscope.signals.records import SpanEvent, SpanLink

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource

    from neuronscope.engine.invocation import Invocation
    from neuronscope.engine.layering import Layer
    from neuronscope.modelcall import ModelCall
    from neuronscope.recording import Recording

# As many attributes and events as OpenTelemetry's own default limits; what goes beyond is counted.
MAX_BUFFERED = 128
NO_STATE: Final = TraceState()  # of the spans of ours that have none


class SpanInPython:
    """What is kept of a span: the twin of a compiled class, which is made in a tenth of the time.

    Attributes:
        own: attributes of ours; a call's come from the call when it is finished.
        shared: `foreign` is another instrumentor's, who ends it.
        inner: another instrumentor's for this call, begun within it in their pipeline.
        layer: of a framework's call: whether a client's call tells it all.
        hot_ns: what observing the call took of the caller's thread.
    """

    # Defaults on the class: a span sets only what it has, and most have little.
    end_time: int | None = None
    own: dict[str, Any] | None = None
    user_attributes: dict[str, Any] | None = None
    event_buffer: list[SpanEvent] | None = None
    link_buffer: list[SpanLink] | None = None
    call: Invocation | None = None
    model_call: ModelCall | None = None
    recording: Recording | None = None
    foreign: trace.Span | None = None
    shared = False
    inner: trace.Span | None = None
    masked: dict[str, Any] | None = None
    layer: Layer | None = None
    hot_ns = 0
    dropped_attributes = 0
    dropped_events = 0
    _status: Status | None = None

    def __init__(
        self,
        name: str | None,
        context: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind,
        library: str,
        start_time: int,
    ) -> None:
        self._name: str | None = name
        self._context = context
        self.parent = parent
        self.kind = kind
        self.library = library
        self.start_time = start_time


if TYPE_CHECKING:
    _Span = SpanInPython
else:
    _Span = compiled.choose("Span", SpanInPython)
# What a compiled span has that its dictionary does not show.
_FIELDS: Final = tuple(name for name, value in vars(_Span).items() if inspect.ismemberdescriptor(value))


class LightSpan(_Span, trace.Span):
    """A span in the making.  Not thread-safe beyond what the GIL gives, like the SDK's."""

    def __reduce_ex__(self, protocol: object) -> Any:
        """As Python copies an object of plain attributes, however ours are kept."""
        state = {**vars(self), **{name: getattr(self, name) for name in _FIELDS}}
        make: Any = vars(copyreg)["__newobj__"]  # what pickles of all objects name; no type is told for it
        return make, (LightSpan, *[None] * 6), (None, state)

    def release(self) -> None:
        """Let go of the call: a context that outlives it (a task's, a pool thread's) holds the span alone."""
        self._name = self.name
        self.call = None

    def adopt(self, context: SpanContext) -> None:
        """Take the identity of the span that the service's own pipeline made for this call."""
        self._context = context

    def add_fact(self, key: str, value: Any) -> None:
        """Add an attribute of ours."""
        if self.own is None:
            self.own = {}
        self.own[key] = value

    def attributes_at_start(self) -> dict[str, Any]:
        """Ours, as far as they are known before the call is read."""
        if self.call is None or (self.foreign is not None and not self.shared):
            return dict(self.own or {})  # a foreign span was begun with all of them
        known = self.call.start_facts()
        if self.own:
            known.update(self.own)
        return known

    # --- opentelemetry.trace.Span --------------------------------------------------------------
    def get_span_context(self) -> SpanContext:
        """The immutable identity of this span."""
        return self._context

    def is_recording(self) -> bool:
        """True until the span ends, if it is sampled."""
        return self.end_time is None and self._context.trace_flags.sampled

    def set_attribute(self, key: str, value: OtelValue) -> None:
        """Buffer an attribute that the service sets; it wins over ours of the same name."""
        if self.end_time is not None:
            return
        buffer = self.user_attributes
        if buffer is None:
            buffer = self.user_attributes = {}
        if key not in buffer and len(buffer) >= MAX_BUFFERED:
            self.dropped_attributes += 1
            return
        buffer[key] = value

    def set_attributes(self, attributes: Mapping[str, OtelValue]) -> None:
        """Buffer several attributes."""
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def add_event(self, name: str, attributes: OtelAttributes = None, timestamp: int | None = None) -> None:
        """Buffer an event."""
        if self.end_time is not None:
            return
        buffer = self.event_buffer
        if buffer is None:
            buffer = self.event_buffer = []
        if len(buffer) >= MAX_BUFFERED:
            self.dropped_events += 1
            return
        buffer.append(SpanEvent(name, timestamp or clock.wall_ns(), _plain(attributes)))

    def add_link(self, context: SpanContext, attributes: OtelAttributes = None) -> None:
        """Buffer a link."""
        if self.end_time is not None:
            return
        if self.link_buffer is None:
            self.link_buffer = []
        self.link_buffer.append(
            SpanLink(
                context.trace_id,
                context.span_id,
                _plain(attributes),
                context.trace_state.to_header(),
                int(context.trace_flags),
            )
        )

    def update_name(self, name: str) -> None:
        """Rename the span."""
        self._name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Set the status; once OK it stays, as in the SDK."""
        if self.end_time is not None or (self._status and self._status.status_code is StatusCode.OK):
            return
        self._status = status if isinstance(status, Status) else Status(status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: OtelAttributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Buffer an exception event: its type; its message is content (see the content policy)."""
        kind = type(exception)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        facts: dict[str, Any] = {
            "exception.type": f"{module}{kind.__qualname__}",
            "exception.message": str(exception),
        }
        facts.update(attributes or {})
        self.add_event("exception", facts, timestamp)

    def end(self, end_time: int | None = None) -> None:
        """Nothing: the engine ends its spans itself, exactly once."""

    # --- opentelemetry.sdk.trace.ReadableSpan's public read surface --------------------------------
    @property
    def name(self) -> str:
        """The name; a call's is made when somebody asks."""
        name = self._name
        if name is None:
            name = self._name = self.call.span_name() if self.call is not None else ""
        return name

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    @property
    def context(self) -> SpanContext:
        """Same as `get_span_context`."""
        return self._context

    @property
    def attributes(self) -> Mapping[str, Any]:
        """What has been set so far."""
        return {**self.attributes_at_start(), **(self.user_attributes or {})}

    @property
    def events(self) -> Sequence[SpanEvent]:
        """Events so far."""
        return tuple(self.event_buffer or ())

    @property
    def links(self) -> Sequence[SpanLink]:
        """Links so far."""
        return tuple(self.link_buffer or ())

    def outcome(self) -> tuple[StatusCode, str | None]:
        """The status so far, and its description."""
        status = self._status
        return (StatusCode.UNSET, None) if status is None else (status.status_code, status.description)

    @property
    def status(self) -> Status:
        """The status so far."""
        return self._status or Status()

    @property
    def resource(self) -> Resource:
        """The process's resource."""
        from opentelemetry.sdk.resources import Resource

        from neuronscope.engine import ENGINE

        return Resource(ENGINE.resource())

    @property
    def instrumentation_scope(self) -> Any:
        """Who made the span."""
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        return InstrumentationScope(self.library)


def _plain(attributes: OtelAttributes) -> dict[str, Any]:
    return dict(attributes or {})

"""Opens spans: whose they are, which identity they get, and what is current during a call."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState

from neuronscope import compiled
from neuronscope import recording as recordings
from neuronscope.engine import clock
from neuronscope.engine.layering import LAYER, Layer, layer_in
from neuronscope.engine.others import is_same_call
from neuronscope.engine.propagation import unobserved
from neuronscope.engine.span import NO_STATE, LightSpan
from neuronscope.signals import names

if TYPE_CHECKING:
    from neuronscope.engine.invocation import Invocation
    from neuronscope.engine.provider import Pipeline

SUPPRESS_ALL: Final = "suppress_instrumentation"  # OpenTelemetry's context keys
SUPPRESS_SDK: Final = str(getattr(otel_context, "_SUPPRESS_INSTRUMENTATION_KEY", SUPPRESS_ALL))
SUPPRESS_LLM: Final = "suppress_language_model_instrumentation"
TENANT: Final = "neuronscope-tenant"
OURS: Final = "neuronscope-span"  # context key: our span behind a foreign one
SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
NOT_SAMPLED: Final = TraceFlags(TraceFlags.DEFAULT)
# The key of the current span in a context, which OpenTelemetry keeps to itself.
CURRENT: Final = next(iter(trace.set_span_in_context(trace.INVALID_SPAN, otel_context.Context())))

Attributes = dict[str, Any]


def our_span(context: otel_context.Context, span: trace.Span) -> LightSpan | None:
    """Our span behind the context's current one, which may be the service's own."""
    ours = span if isinstance(span, LightSpan) else context.get(OURS)
    return ours if isinstance(ours, LightSpan) else None


def covered(current: otel_context.Context, parent: trace.Span, library: str) -> bool:
    """Is a call part of one that is already observed, or not to be observed at all?"""
    if not current:
        return False
    if SUPPRESS_ALL in current or SUPPRESS_LLM in current or SUPPRESS_SDK in current:  # hardly ever
        told = (current.get(key) for key in (SUPPRESS_ALL, SUPPRESS_LLM, SUPPRESS_SDK))
        if any(told):
            return True
    ours = parent if type(parent) is LightSpan else current.get(OURS)
    return type(ours) is LightSpan and ours.library == library and ours.end_time is None


def current_with(span: LightSpan, current: otel_context.Context) -> otel_context.Context:
    """The context in which a call runs: its span is current, ours or the service's own."""
    if span.foreign is None:
        return _with_item(otel_context.Context, current, CURRENT, span)
    return otel_context.Context({**current, CURRENT: span.foreign, OURS: span})


def with_item_in_python(
    kind: Callable[[dict[str, Any]], otel_context.Context], context: Mapping[str, Any], key: str, value: Any
) -> otel_context.Context:
    """A context of that kind like this one, with another item."""
    return kind({**context, key: value})


_with_item: Final = compiled.choose("with_item", with_item_in_python)


def waiting(
    span: LightSpan, call: Invocation, current: otel_context.Context, outer: Layer | None
) -> otel_context.Context:
    """The context of a framework's model call, whose span stands if no client's call is made in it."""
    beside = layer_in(otel_context.get_current())
    span.layer = Layer(span.library, call.snapshot.endpoint, outer, None if beside is outer else beside)
    return otel_context.set_value(LAYER, span.layer, current)


def identity(trace_id: int, span_id: int, flags: TraceFlags, state: TraceState) -> SpanContext:
    """`SpanContext(trace_id, span_id, False, flags, state)` of valid ids, in a third of the time."""
    return _new(SpanContext, (trace_id, span_id, False, flags, state, True))  # type: ignore[no-any-return] # it is


def _new_by_constructor(_: type[SpanContext], fields: tuple[Any, ...]) -> SpanContext:
    return SpanContext(*fields[:-1])


# A `SpanContext` is a tuple; should a release make it something else, it is made the slow way.
MADE_AS_TUPLES: Final = issubclass(cast("Any", SpanContext), tuple) and tuple(
    cast("Any", SpanContext(5, 7, False, SAMPLED, NO_STATE))
) == (5, 7, False, SAMPLED, NO_STATE, True)
_new: Final[Callable[[type[SpanContext], tuple[Any, ...]], Any]] = (
    cast("Any", tuple).__new__ if MADE_AS_TUPLES else _new_by_constructor
)


@contextmanager
def tenant(name: str) -> Generator[None]:
    """For whom the calls in this block are made: recorded on their spans, and counted by tenant.

    ::

        with ns.tenant(request.headers["x-tenant"]):
            answer = client.chat.completions.create(...)

    It goes where the current span goes: into tasks, and by `ns.propagate` into threads; never to another
    process.  Also a decorator.
    """
    token = otel_context.attach(otel_context.set_value(TENANT, name))
    try:
        yield
    finally:
        otel_context.detach(token)


class Opener:
    """Opens the spans of one pipeline.

    Args:
        tenant_baggage: entry of the baggage that names the tenant where `tenant` does not; "": none.
    """

    def __init__(self, pipeline: Pipeline, tenant_baggage: str = "") -> None:
        self._pipeline = pipeline
        self._tenant_baggage = tenant_baggage

    def open_call(self, call: Invocation, current: otel_context.Context, parent: trace.Span) -> LightSpan:
        """The span of a call: ours, or another instrumentor's for the same call that is open around it."""
        seam = call.seam
        if (
            parent is not trace.INVALID_SPAN
            and type(parent) is not LightSpan
            and parent.is_recording()
            and is_same_call(parent, call.snapshot)
        ):
            span = self._share(parent, seam.library)
        else:
            span = self.open(None, seam.kind, seam.library, call.start_facts, current, parent, call)
        span.call = call
        return span

    def open(
        self,
        name: str | None,
        kind: SpanKind,
        library: str,
        facts_at_start: Callable[[], Attributes],
        current: otel_context.Context,
        parent: trace.Span,
        call: Invocation | None = None,
    ) -> LightSpan:
        """A span in the pipeline it belongs to.

        Args:
            name: its name; None: the one of the call, made when somebody asks for it.
            facts_at_start: what samplers and the service's own processors may see.
        """
        pipeline = self._pipeline
        provider = pipeline.foreign()
        around = parent.get_span_context() if parent is not trace.INVALID_SPAN else None
        if around is not None and not around.is_valid:
            around = None
        flags = pipeline.sampling.flags(around) if provider is None else None
        if flags is not None:
            ids = pipeline.ids
            if around is None:
                trace_id, span_id = ids.generate_both()
                context = identity(trace_id, span_id, flags, NO_STATE)
            else:
                context = identity(around.trace_id, ids.generate_span_id(), flags, around.trace_state)
            span = LightSpan(name, context, around, kind, library, clock.wall_ns())
            if TENANT in current or self._tenant_baggage:
                span.own = self._tenant(current)
        else:
            name = name if name is not None or call is None else call.span_name()
            own = facts_at_start()
            if TENANT in current or self._tenant_baggage:
                own = {**own, **self._tenant(current)}
            if provider is None:
                span = self._open_sampled(name or "", kind, library, own, current, around)
            else:
                span = LightSpan(
                    name, around or trace.INVALID_SPAN_CONTEXT, around, kind, library, clock.wall_ns()
                )
                span.own = own
                span.foreign = foreign = pipeline.start_foreign(provider, span, current)
                span.adopt(foreign.get_span_context())
        recording = recordings.CURRENT.get()
        if recording is not None:
            span.recording = recording
        return span

    def _tenant(self, current: otel_context.Context) -> Attributes:
        told = current.get(TENANT) or baggage.get_baggage(self._tenant_baggage, current)
        return {names.TENANT: str(told)} if told else {}

    def _open_sampled(
        self,
        name: str,
        kind: SpanKind,
        library: str,
        own: Attributes,
        current: otel_context.Context,
        around: SpanContext | None,
    ) -> LightSpan:
        """A span of ours: identity and sampling decision, as the SDK would make them."""
        provider, ids = self._pipeline.own, self._pipeline.ids
        trace_id = ids.generate_trace_id() if around is None else around.trace_id
        decision = unobserved(provider.sampler.should_sample, current, trace_id, name, kind, own, None)
        flags = SAMPLED if decision.decision is Decision.RECORD_AND_SAMPLE else NOT_SAMPLED
        context = SpanContext(trace_id, ids.generate_span_id(), False, flags, decision.trace_state)
        span = LightSpan(name, context, around, kind, library, clock.wall_ns())
        span.own = {**own, **cast("Mapping[str, Any]", decision.attributes or {})}
        return span

    @staticmethod
    def _share(theirs: Any, library: str) -> LightSpan:
        """Another instrumentor's span for this call: what we know is added to it, and it stays theirs."""
        span = LightSpan(
            theirs.name, theirs.get_span_context(), theirs.parent, theirs.kind, library, clock.wall_ns()
        )
        span.own = {}
        span.foreign = theirs
        span.shared = True
        span.recording = recordings.CURRENT.get()
        return span

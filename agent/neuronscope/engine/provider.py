"""Whose pipeline a span belongs to: ours, or one that the service set up itself.

We never set OpenTelemetry's global provider before the service's own code could: only when the first
span is due and there still is none, ours becomes the global one.  Ours *is* an SDK provider with our
processor, so spans that the service makes by hand work as ever and reach our exporters; and if the
service adds a processor of its own to it, its spans become *foreign* like those of any provider it
brings: created, filled and ended inline, in its pipeline.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk import trace as sdk
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_ON,
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    StaticSampler,
)
from opentelemetry.trace import SpanContext, TraceFlags

from neuronscope._version import __version__
from neuronscope.engine.environment import environment
from neuronscope.engine.filling import set_attributes
from neuronscope.engine.guard import GUARD
from neuronscope.engine.ids import PrivateIdGenerator
from neuronscope.engine.opening import NOT_SAMPLED, OURS, SAMPLED
from neuronscope.engine.others import LeftOut, is_same_call
from neuronscope.engine.propagation import unobserved
from neuronscope.engine.span import LightSpan
from neuronscope.settings import Settings


class _Intake(SpanProcessor):
    """Hands spans that the service makes by hand to our worker."""

    def __init__(self, take: Callable[[ReadableSpan], None], left_out: LeftOut) -> None:
        self._take = take
        self._left_out = left_out

    def on_start(self, span: ReadableSpan, parent_context: otel_context.Context | None = None) -> None:
        ours = trace.get_current_span(parent_context)
        if type(ours) is LightSpan:
            if ours.call is not None:
                GUARD.call("provider.on_start", self._compare, span, ours)
            return
        current = otel_context.get_current() if parent_context is None else parent_context
        behind = current.get(OURS)  # a processor of the service has made our spans foreign
        if type(behind) is LightSpan:
            GUARD.call("provider.on_start", self._stand_aside, span, behind)

    def _stand_aside(self, span: Any, ours: LightSpan) -> None:
        stand_aside(span, ours)
        inner = ours.inner
        if inner is span and inner is not None:  # ours comes in its place, by its id
            self._left_out.add(inner.get_span_context(), inner.get_span_context())

    def _compare(self, span: Any, ours: LightSpan) -> None:
        call = ours.call
        if call is not None and is_same_call(span, call.snapshot):
            self._left_out.add(span.get_span_context(), ours.get_span_context())

    def on_end(self, span: ReadableSpan) -> None:
        scope, context = span.instrumentation_scope, span.get_span_context()
        if context is not None and context.span_id in self._left_out:
            return
        # Our own calls come by the queue already, when a processor of the service made them foreign.
        if scope is None or not scope.name.startswith("neuronscope."):
            self._take(span)

    def shutdown(self) -> None:
        """Nothing to do: the platform stops the worker."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


class _Watcher(SpanProcessor):
    """Notices spans that other instrumentors make, in the service's own pipeline, within a call of ours."""

    def on_start(self, span: ReadableSpan, parent_context: otel_context.Context | None = None) -> None:
        current = otel_context.get_current() if parent_context is None else parent_context
        ours = current.get(OURS)
        if type(ours) is LightSpan and ours.foreign is not None and ours.call is not None:
            GUARD.call("provider.on_start", stand_aside, span, ours)

    def on_end(self, span: ReadableSpan) -> None:
        """Nothing to do."""

    def shutdown(self) -> None:
        """Nothing to do."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


def stand_aside(theirs: Any, ours: LightSpan) -> None:
    """If `theirs` is a span for the call that `ours` is for, it takes its place in the trace.

    Ours is then never ended, so nobody exports it.  The SDK has no public way to give a span another parent.
    """
    call, foreign = ours.call, ours.foreign
    if call is None or foreign is None or not hasattr(theirs, "_parent"):
        return
    if theirs.parent is None or theirs.parent.span_id != foreign.get_span_context().span_id:
        return
    if ours.inner is not None:
        theirs._parent = ours.inner.get_span_context()
    elif not ours.shared and is_same_call(theirs, call.snapshot):
        ours.inner = theirs
        theirs._parent = ours.parent


_OUR_PROCESSORS: Final = (_Intake, _Watcher)
_NONE: Final = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)
# The SDK's own: those that only queue what has ended, and those that do not look at what has started.
_QUEUES: Final = (_Watcher, BatchSpanProcessor)
_INCURIOUS: Final = (*_QUEUES, SimpleSpanProcessor)
_ID_GENERATORS: Final = (RandomIdGenerator, PrivateIdGenerator)


def takes_in(span: Any) -> bool:
    """Will this SDK span come to our worker when it ends?"""
    processors = getattr(getattr(span, "_span_processor", None), "_span_processors", ())
    return any(type(processor) is _Intake for processor in processors)


class Sampling(NamedTuple):
    """What a sampler decides, as far as that is known without asking it.

    Attributes:
        root: whether a trace that begins here is sampled; None: the sampler has to be asked.
        follows: a child is sampled if its parent is.
    """

    root: TraceFlags | None
    follows: bool

    def flags(self, parent: SpanContext | None) -> TraceFlags | None:
        """Whether a child of `parent` (None: a new trace) is sampled; None: the sampler has to be asked."""
        if parent is not None and self.follows:
            return SAMPLED if parent.trace_flags & SAMPLED else NOT_SAMPLED
        return self.root


ASKED: Final = Sampling(None, follows=False)


def sampling_of(sampler: Sampler) -> Sampling:
    """What is known of a sampler: of the SDK's own, which decide alike each time."""
    if type(sampler) not in (ParentBased, ParentBasedTraceIdRatio):
        return Sampling(_always(sampler), follows=False)
    usual, given = vars(DEFAULT_ON), vars(sampler)
    if any(given.get(name) is not value for name, value in usual.items() if name != "_root"):
        return ASKED
    return Sampling(_always(given.get("_root")), follows=True)


def _always(sampler: object) -> TraceFlags | None:
    return SAMPLED if sampler is ALWAYS_ON else NOT_SAMPLED if sampler is ALWAYS_OFF else None


class Pipeline:
    """Decides per call whose a span is, and owns our provider.

    Args:
        take: receives the service's own spans made on our provider.

    Attributes:
        sampling: what our sampler decides, as far as that is known: it is then not asked for every span.
        ids: makes the identities of our spans.
        ours: our provider that is the global one, its processors, `ids` and `sampling`; None before it is
            made, or if its sampler has to be asked for every span.
        left_out: spans of other instrumentors that stand for a call of ours.
    """

    def __init__(self, settings: Settings, take: Callable[[ReadableSpan], None]) -> None:
        self._settings = settings
        self._take = take
        self._own: TracerProvider | None = None
        self._own_processors: Any = None
        self.ids = PrivateIdGenerator()
        self.sampling = ASKED
        self.ours: tuple[object, ...] | None = None
        self._tracers: dict[tuple[int, str], tuple[trace.Tracer, bool]] = {}
        self.left_out = LeftOut()
        # The processors that were looked at last, and whose: are they the service's, and what do they do?
        self._seen: object = None
        self._seen_of: Any = None
        self._theirs = False
        self._incurious = False
        self._queues = False

    @property
    def own(self) -> TracerProvider:
        """Our provider, made at first use: its resource, sampler and id generator are the process's."""
        if self._own is None:
            attributes = {"service.name": self._settings.service_name} if self._settings.service_name else {}
            provider = TracerProvider(
                resource=Resource.create(
                    {
                        **environment(),
                        **attributes,
                        "telemetry.distro.name": "neuronscope",
                        "telemetry.distro.version": __version__,
                    }
                ),
                id_generator=self.ids,
                shutdown_on_exit=False,
            )
            provider.add_span_processor(_Intake(self._take, self.left_out))
            self._own = provider
            self._own_processors = vars(provider)["_active_span_processor"]
            self.sampling = sampling_of(provider.sampler)
            if self.sampling != ASKED:
                self.ours = provider, self._own_processors, self.ids, *self.sampling
        return self._own

    def foreign(self) -> trace.TracerProvider | None:
        """The provider of the service's own pipeline, or None if spans are ours."""
        provider: Any = trace.get_tracer_provider()
        if provider is self._seen_of and provider._active_span_processor._span_processors is self._seen:
            seen: trace.TracerProvider = provider
            return seen if self._theirs else None
        if provider is self._own:
            return None if len(self._own_processors._span_processors) == 1 else self._own
        if isinstance(provider, _NONE):
            if self._settings.set_global_provider and isinstance(provider, trace.ProxyTracerProvider):
                trace.set_tracer_provider(self.own)
            return None
        processors = getattr(getattr(provider, "_active_span_processor", None), "_span_processors", None)
        if processors is None:
            other: trace.TracerProvider = provider  # not the SDK's: what it does is the service's choice
            return other
        if processors is not self._seen:  # a new tuple whenever one is added
            # Whose processor decides, not whose provider: an earlier platform's may still be the global one.
            self._theirs = any(type(processor) not in _OUR_PROCESSORS for processor in processors)
            self._incurious = all(type(processor) in _INCURIOUS for processor in processors)
            self._queues = all(type(processor) in _QUEUES for processor in processors)
            self._seen, self._seen_of = processors, provider
            if self.sampling != ASKED and not self._theirs and len(processors) == 1:
                earlier = provider._active_span_processor  # an earlier platform's
                self.ours = provider, earlier, self.ids, *self.sampling
        theirs: trace.TracerProvider = provider
        return theirs if self._theirs else None

    def _watch(self, provider: Any) -> None:
        """See what other instrumentors make in this pipeline; once."""
        processors = getattr(getattr(provider, "_active_span_processor", None), "_span_processors", None)
        if processors is not None and not any(type(each) in _OUR_PROCESSORS for each in processors):
            provider.add_span_processor(_Watcher())

    def start_foreign(
        self, provider: trace.TracerProvider, span: LightSpan, parent: otel_context.Context
    ) -> trace.Span:
        """The service's own span for this call, in its pipeline.

        Where nobody looks at what a span starts with, it gets that afterwards, in a tenth of the time.
        """
        key = (id(provider), span.library)
        known = self._tracers.get(key)
        if known is None:
            made = provider.get_tracer(span.library, __version__)
            known = self._tracers[key] = made, _asks_nobody(made)
            self._watch(provider)
        tracer, incurious = known
        if not (incurious and self._incurious and provider is self._seen_of):
            return unobserved(
                tracer.start_span,
                span.name,
                context=parent,
                kind=span.kind,
                attributes=span.own,
                start_time=span.start_time,
            )
        foreign = tracer.start_span(span.name, parent, span.kind, None, (), span.start_time)
        if span.own:
            set_attributes(foreign, span.own)
        return foreign

    def end_foreign(self, foreign: trace.Span, end_time: int | None) -> None:
        """End the service's own span; what its pipeline does then is not observed."""
        processors = getattr(getattr(foreign, "_span_processor", None), "_span_processors", None)
        if self._queues and processors is self._seen:
            foreign.end(end_time)
        else:
            unobserved(foreign.end, end_time)


def _asks_nobody(tracer: Any) -> bool:
    """Is this the SDK's own tracer, whose sampler samples all whose parents were sampled?"""
    if type(tracer) is not sdk.Tracer or type(tracer.sampler) not in (ParentBased, StaticSampler):
        return False
    if type(tracer.id_generator) not in _ID_GENERATORS:
        return False
    return _describe(tracer.sampler) in (_describe(DEFAULT_ON), _describe(ALWAYS_ON))


def _describe(sampler: Sampler) -> str:
    describe: Callable[[], str] = sampler.get_description
    return describe()

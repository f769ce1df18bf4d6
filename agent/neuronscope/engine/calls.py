"""The engine in the service's threads: calls are opened here, and end in `Engine.finish`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.propagate import extract
from opentelemetry.trace import SpanKind

from neuronscope.engine import clock
from neuronscope.engine.current import attach
from neuronscope.engine.guard import GUARD
from neuronscope.engine.invocation import Invocation
from neuronscope.engine.layering import LAYER, WAITING, layer_in, note_call
from neuronscope.engine.opening import CURRENT, OURS, Opener, covered, current_with, waiting
from neuronscope.engine.propagation import receives_context, trace_headers
from neuronscope.engine.seam import Seam, seam_of
from neuronscope.engine.span import LightSpan
from neuronscope.instrumentation import Snapshot

if TYPE_CHECKING:
    from neuronscope.engine import Engine
    from neuronscope.engine.content import ContentPolicy
    from neuronscope.engine.provider import Pipeline
    from neuronscope.governor import Budget
    from neuronscope.settings import Settings

MAX_RECEIVERS: Final = 1024
ModelWatcher = Callable[[Any, LightSpan], Callable[[], None] | None]


class Calls:
    """The part of the engine that opens spans; its attributes are the engine's.

    Attributes:
        quick: what `engine.entry` needs of it; None: nothing is opened in the short way.
        _receivers: hosts, and whether they receive our trace context.
    """

    active: bool
    settings: Settings
    budget: Budget
    watch_model: ModelWatcher | None
    on_embedder: Callable[[Snapshot, Any, Mapping[str, Any]], None] | None
    _engine: Engine  # itself
    _policy: ContentPolicy
    _opener: Opener
    _receivers: dict[str, bool]
    quick: tuple[object, ...] | None

    def begin(self, seam: Seam, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Invocation | None:
        """Open a call; None when it is not to be observed.  `engine.entry` takes a shorter way if it can."""
        started = time.perf_counter_ns()
        if not seam.covers(args):
            return None
        instance = args[0] if seam.bound else None
        arguments = seam.arguments(args, kwargs) if len(args) > seam.bound else kwargs
        snapshot = seam.method.snapshot(instance, arguments, self._policy.keeps_texts)
        if snapshot is None:
            return None
        return self.open_kept(seam, args, kwargs, arguments, snapshot, otel_context.get_current(), started)

    def open_kept(
        self,
        seam: Seam,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        arguments: dict[str, Any],
        snapshot: Snapshot,
        current: otel_context.Context,
        started: int,
    ) -> Invocation | None:
        """Open a call of which the adapter has kept what it needs.

        Args:
            arguments: by name.
            started: when we began to, by the real clock.
        """
        method, instance = seam.method, args[0] if seam.bound else None
        parent = trace.get_current_span(current) if current else trace.INVALID_SPAN
        if current and covered(current, parent, seam.library):
            return None
        layer = layer_in(current) if current and LAYER in current else None
        if layer is not None and not layer.admits(method, seam.library, snapshot.endpoint):
            return None
        if WAITING:
            note_call(snapshot.endpoint)
        name = snapshot.endpoint.called or snapshot.method or seam.name
        call = Invocation(self._engine, seam, snapshot, clock.started_at(started), name)
        call.span = span = self._opener.open_call(call, current, parent)
        call.context = context = (
            waiting(span, call, current, layer) if method.layer else current_with(span, current)
        )
        if method.inject_headers is not None and self._receives(snapshot.peer.address):
            arguments = dict(arguments)
            if GUARD.call(seam.site, self._inject, method.inject_headers, instance, arguments, span, context):
                call.arguments = seam.changed(args, kwargs, arguments)
        watch = None
        if method.model is not None and self.watch_model is not None:
            before = time.perf_counter_ns()
            watch = GUARD.call(seam.site, self._watch, method.model, instance, arguments, span)
            started += time.perf_counter_ns() - before  # it charges for itself
        if self.on_embedder is not None and snapshot.endpoint.embedder is not None:
            GUARD.call(seam.site, self.on_embedder, snapshot, instance, arguments)
        now = time.perf_counter_ns()
        self.budget.began(now)
        span.hot_ns = now - started
        if watch is not None:
            call.watch = watch
        try:
            call.token = attach(context)  # last: what fails before leaves nothing current behind
        except BaseException:  # a signal handler of the service raised as soon as it was attached
            if otel_context.get_current() is context:
                attach(current)
            call.give_up()
            raise
        return call

    def _shorten(self, pipeline: Pipeline) -> None:
        """Have what a short way needs in one place; a new one whenever the engine has started again."""
        self._receivers = {}
        usual = not self.settings.tenant_baggage
        self.quick = (
            (pipeline, self._policy, self.budget.began, self.budget.ended, self._receivers) if usual else None
        )

    def _receives(self, host: str | None) -> bool:
        """May calls to that host carry trace headers?"""
        if host is None:
            return False
        known = self._receivers.get(host)
        if known is None:
            if len(self._receivers) >= MAX_RECEIVERS:
                self._receivers.clear()
            known = self._receivers[host] = receives_context(host, self.settings.propagate_to)
        return known

    def _watch(
        self,
        model_of: Callable[[Any, Mapping[str, Any]], Any],
        instance: Any,
        arguments: Mapping[str, Any],
        span: LightSpan,
    ) -> Callable[[], None] | None:
        return self.watch_model(model_of(instance, arguments), span) if self.watch_model is not None else None

    @staticmethod
    def _inject(
        into: Callable[[Any, dict[str, Any], Mapping[str, str]], None],
        instance: Any,
        arguments: dict[str, Any],
        span: LightSpan,
        context: otel_context.Context,
    ) -> bool:
        headers = trace_headers(span.get_span_context(), context)
        if headers:
            into(instance, arguments, headers)
        return bool(headers)

    def open_span(
        self,
        name: str,
        kind: SpanKind,
        library: str,
        attributes: dict[str, Any],
        carrier: Mapping[str, str] | None = None,
        *,
        nested: bool = False,
        within: otel_context.Context | None = None,
    ) -> tuple[LightSpan, otel_context.Context] | None:
        """Open a span for an adapter with a seam of its own; the context has it as current span.

        Args:
            carrier: headers of an incoming request: their trace context becomes the parent.
            nested: a span of the same library may be open around it.
            within: the context to open it in, if that is not the current one.
        """
        if not self.active:
            return None
        current = otel_context.get_current() if within is None else within
        if carrier is not None:
            current = extract(carrier, current)
        parent = trace.get_current_span(current)
        if covered(current, parent, "" if nested else library):
            return None
        span = self._opener.open(name, kind, library, lambda: attributes, current, parent)
        span.own = {**span.own, **attributes} if span.own else attributes
        self.budget.enter()
        return span, current_with(span, current)

    def open_layer(
        self, snapshot: Snapshot, name: str, library: str, within: otel_context.Context | None = None
    ) -> tuple[LightSpan, otel_context.Context] | None:
        """Open a framework's model call for an adapter with a seam of its own; see `engine.layering`.

        In the context, the span is not current.  The call's outcome goes into `span.call`, then `finish`.

        Args:
            within: the context to open it in.  Layers of the current one that are not around it are beside:
                calls of a batch, of which only one can be current.
        """
        current = otel_context.get_current() if within is None else within
        parent = trace.get_current_span(current)
        if not self.active or covered(current, parent, ""):  # by its own kind it may be
            return None
        if WAITING:
            note_call(snapshot.endpoint)
        call = Invocation(self._engine, seam_of(library), snapshot, clock.elapsed_ns(), name)
        span = self._opener.open(
            call.span_name(), SpanKind.CLIENT, library, call.start_facts, current, parent
        )
        span.call = call
        self.budget.enter()
        return span, waiting(span, call, current, layer_in(current))

    @staticmethod
    def open_call(library: str) -> Invocation | None:
        """The call of that library that is being made in the current context."""
        current = otel_context.get_current()
        span: object = current.get(CURRENT)
        if type(span) is not LightSpan:
            span = current.get(OURS)
        if type(span) is LightSpan and span.library == library and span.end_time is None:
            return span.call
        return None

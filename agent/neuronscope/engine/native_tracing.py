"""Client libraries that trace themselves: what they tell becomes part of our span, never a second one.

Such a library makes spans as soon as the process has a tracer provider.  Ours is one, so that without this
every call would have two spans, its tokens would count twice, and a third party would get trace headers
that it would not have got without us.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import SpanContext, Status, StatusCode
from opentelemetry.util.types import Attributes as OtelAttributes
from opentelemetry.util.types import AttributeValue as OtelValue

from neuronscope.engine.guard import GUARD
from neuronscope.signals.names import ATTRIBUTES, CONVERSATION_ID

if TYPE_CHECKING:
    from neuronscope.engine import Engine
    from neuronscope.engine.span import LightSpan

_OTHER_TELLS: Final = frozenset({CONVERSATION_ID})
_NO_SPAN: Final = object()


class _Contribution(trace.Span):
    """What a library believes to be its span: writes on ours what we don't tell ourselves; ends nothing."""

    def __init__(self, span: LightSpan) -> None:
        self._span = span

    def get_span_context(self) -> SpanContext:
        return self._span.get_span_context()

    def is_recording(self) -> bool:
        return self._span.is_recording()

    def set_attribute(self, key: str, value: OtelValue) -> None:
        if key in _OTHER_TELLS or key not in ATTRIBUTES:
            self._span.set_attribute(key, value)

    def set_attributes(self, attributes: Mapping[str, OtelValue]) -> None:
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def add_event(self, name: str, attributes: OtelAttributes = None, timestamp: int | None = None) -> None:
        self._span.add_event(name, attributes, timestamp)

    def add_link(self, context: SpanContext, attributes: OtelAttributes = None) -> None:
        self._span.add_link(context, attributes)

    def update_name(self, name: str) -> None:
        """The name is ours."""

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        """Success stays unset and failure is told by `error.type`: ours both."""

    def record_exception(
        self,
        exception: BaseException,
        attributes: OtelAttributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        self._span.record_exception(exception, attributes, timestamp, escaped)

    def end(self, end_time: int | None = None) -> None:
        """The engine ends its spans itself."""


class _ContributingTracer(trace.NoOpTracer):
    """Hands out the contribution instead of a new span."""

    def __init__(self, span: LightSpan) -> None:
        self._contribution = _Contribution(span)

    def start_span(self, name: str, *_: Any, attributes: OtelAttributes = None, **__: Any) -> trace.Span:
        self._contribution.set_attributes(attributes or {})
        return self._contribution


def merge_spans_of(engine: Engine, library: str, module_name: str, function: str) -> Callable[[], None]:
    """Let a library's ``function(tracer, …) -> span or None`` contribute to our spans; returns the undo.

    Nothing happens where the module has no such function.  A client that was given a provider other than
    the process's own keeps tracing to it, undisturbed.
    """

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def start_span(tracer: Any, *args: Any, **kwargs: Any) -> Any:
            chosen = GUARD.call("native_tracing", _tracer, engine, library, tracer, default=tracer)
            return None if chosen is _NO_SPAN else original(chosen, *args, **kwargs)

        return start_span

    return _replace(module_name, function, around)


def merge_tracer_of(engine: Engine, library: str, module_name: str, function: str) -> Callable[[], None]:
    """The same for a ``function(…) -> (enabled, tracer)`` that the library asks for every call."""

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_tracer(*args: Any, **kwargs: Any) -> Any:
            enabled, tracer = original(*args, **kwargs)
            chosen = GUARD.call("native_tracing", _tracer, engine, library, tracer, default=tracer)
            return (False, tracer) if chosen is _NO_SPAN else (enabled, chosen)

        return get_tracer

    return _replace(module_name, function, around)


def merge_spans_of_holder(engine: Engine, library: str, module_name: str, method: str) -> Callable[[], None]:
    """The same for a ``Class.method`` whose object holds `tracer` and `enabled`: its twin makes none."""
    owner_name, _, name = method.partition(".")
    owner: Any = vars(import_module(module_name)).get(owner_name)
    methods = cast("Mapping[str, Any]", {} if owner is None else vars(owner))
    original = methods.get(name)
    if original is None:
        return _nothing

    @functools.wraps(original)
    def spans(holder: Any, *args: Any, **kwargs: Any) -> Any:
        chosen = GUARD.call("native_tracing", _tracer, engine, library, holder.tracer, default=holder.tracer)
        if chosen is holder.tracer:
            return original(holder, *args, **kwargs)
        twin = copy.copy(holder)
        twin.enabled = False
        return original(twin, *args, **kwargs)

    setattr(owner, name, spans)

    def undo() -> None:
        if vars(owner).get(name) is spans:
            setattr(owner, name, original)

    return undo


def _replace(
    module_name: str, function: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[[], None]:
    module = import_module(module_name)
    original: Any = vars(module).get(function)
    if original is None or hasattr(original, "__neuronscope__"):
        return _nothing
    wrapper = functools.wraps(original)(around(original))
    wrapper.__neuronscope__ = True  # type: ignore[attr-defined]
    setattr(module, function, wrapper)

    def undo() -> None:
        if vars(module).get(function) is wrapper:
            setattr(module, function, original)

    return undo


def _nothing() -> None:
    """Nothing to undo."""


def _tracer(engine: Engine, library: str, tracer: Any) -> Any:
    """The tracer that the library may use for a call."""
    if not engine.active or not _traces_to_process(tracer):
        return tracer
    if engine.owns_pipeline():
        return _NO_SPAN  # without us there would be no provider, hence no span
    span = _current_call(library)
    return tracer if span is None else _ContributingTracer(span)


def _traces_to_process(tracer: Any) -> bool:
    """Do the tracer's spans go to the process's provider?  The SDK shares one resource object among both."""
    real = getattr(tracer, "_tracer", tracer)  # a proxy made before the provider was
    provider: Any = trace.get_tracer_provider()
    return getattr(real, "resource", None) is getattr(provider, "resource", None)


def _current_call(library: str) -> LightSpan | None:
    """The span of the library's call that is being made."""
    from neuronscope.engine.opening import OURS
    from neuronscope.engine.span import LightSpan

    current = otel_context.get_current()
    for span in (trace.get_current_span(current), current.get(OURS)):
        if type(span) is LightSpan:
            return span if span.library == library and span.end_time is None else None
    return None

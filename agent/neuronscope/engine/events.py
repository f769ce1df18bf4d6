"""GenAI events: what OpenTelemetry tells of a call in log records.

Made by the worker from the finished call, in place of span attributes (`event_only`) or beside them:
an inference's details, and the exception that a call raised.  Like everything that repeats a span they
follow its sampling decision.  Without content on events there is nothing to say that the span does not:
details are then left out, and exceptions too unless the service's logs are exported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from traceback import TracebackException
from typing import Any, Final, cast

from neuronscope.engine import clock
from neuronscope.engine.content import ContentPolicy
from neuronscope.engine.finish import read_attributes
from neuronscope.engine.invocation import type_name
from neuronscope.engine.span import LightSpan
from neuronscope.instrumentation import Operation
from neuronscope.settings import Settings
from neuronscope.signals import names
from neuronscope.signals.records import AttributeValue, LogRecord, LogValue, SpanRecord

INFERENCE: Final = frozenset({Operation.CHAT, Operation.TEXT_COMPLETION, Operation.GENERATE_CONTENT})
MAX_FRAMES: Final = 64
_SAMPLED: Final = 1
_OF_EXCEPTIONS: Final = (names.OPERATION_NAME, names.PROVIDER_NAME, names.REQUEST_MODEL, names.ERROR_TYPE)


@dataclass(frozen=True, slots=True)
class Failure:
    """What is kept of an exception: its type; with content the frames it came through, without locals."""

    type: str
    trace: TracebackException | None = None


class Events:
    """Turns finished calls into events.

    Args:
        emit: takes an event; called in the worker's thread.

    Attributes:
        wanted: may a call make any?
    """

    def __init__(self, settings: Settings, policy: ContentPolicy, emit: Callable[[LogRecord], None]) -> None:
        self._policy = policy
        self._emit = emit
        self._details = settings.content_on_events
        self._exceptions = self.wanted = settings.content_on_events or settings.logs == "export"

    def note(self, error: BaseException) -> Failure | None:
        """What must be taken of an exception while it is there, in the thread of the failed call.

        Texts are made later; source lines are read later.
        """
        if not self._exceptions:
            return None
        if not self._policy.content_on_events:
            return Failure(type_name(error))
        frames = error.__traceback__
        while frames is not None and str(frames.tb_frame.f_globals.get("__name__")).startswith(
            "neuronscope."
        ):
            frames = frames.tb_next  # our wrapper, which the service has not written
        trace = TracebackException(
            type(error), error, frames, limit=-MAX_FRAMES, lookup_lines=False, compact=True
        )
        return Failure(type_name(error), trace)

    def of_call(self, span: LightSpan, record: SpanRecord) -> None:
        """Emit the events of a finished span, if it is a GenAI call's."""
        call = span.call
        if call is None or not (self._exceptions and record.trace_flags & _SAMPLED):
            return
        operation = call.snapshot.endpoint.operation
        if call.failure is not None and operation is not Operation.STORE:
            self._tell(span, _event(names.OPERATION_EXCEPTION, record, self._exception(call.failure, record)))
        if self._details and operation in INFERENCE:
            self._tell(span, _event(names.INFERENCE_DETAILS, record, self._content(span, record)))

    def _tell(self, span: LightSpan, event: LogRecord) -> None:
        self._emit(event)
        if span.recording is not None:
            span.recording.add_log(event)

    def _exception(self, failure: Failure, record: SpanRecord) -> Mapping[str, LogValue]:
        attributes: dict[str, Any] = {
            key: record.attributes[key] for key in _OF_EXCEPTIONS if key in record.attributes
        }
        attributes[names.EXCEPTION_TYPE] = failure.type
        if failure.trace is not None:
            attributes[names.EXCEPTION_MESSAGE] = str(failure.trace)
            attributes[names.EXCEPTION_STACKTRACE] = "".join(failure.trace.format())
        return self._policy.apply_to_event(attributes)

    def _content(self, span: LightSpan, record: SpanRecord) -> Mapping[str, LogValue]:
        """The span's attributes, with content, which events hold as structure."""
        masked = record.attributes
        if not self._policy.content_on_spans:
            masked = self._policy.apply_to_event(
                read_attributes(span, content=True, limit=self._policy.max_length)
            )
        return {key: structured(key, value) for key, value in masked.items()}


def structured(key: str, value: AttributeValue) -> LogValue:
    """Messages and tools as lists and mappings; text that is no JSON (cut, or redacted) stays text."""
    known = names.ATTRIBUTES.get(key)
    if known is None or known.type != "any" or not isinstance(value, str):
        return value
    try:
        return cast(LogValue, json.loads(value))
    except (ValueError, RecursionError):
        return value


def _event(event: names.Event, record: SpanRecord, attributes: Mapping[str, LogValue]) -> LogRecord:
    return LogRecord(
        time_unix_ns=record.end_unix_ns,
        observed_unix_ns=clock.wall_ns(),
        severity=event.severity,
        severity_text=event.severity_text,
        attributes=attributes,
        trace_id=record.trace_id,
        span_id=record.span_id,
        trace_flags=record.trace_flags,
        event_name=event.name,
        library=record.library,
        library_version=record.library_version,
    )

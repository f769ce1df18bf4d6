"""The service's own log records: trace ids on them, and on request their export.

Seams: the record factory, where every record of the standard library is born, and
`Logger.callHandlers`, where it goes to handlers after the logger's own filters.  Not a handler on the
root logger: with one there, `logging.basicConfig()` does nothing, records of a service without handlers
no longer reach stderr, and `dictConfig` takes it away again.

Exported is what a handler on the root logger would get: of sufficient level, from loggers that propagate.
Not our own records, and not those of what carries telemetry: they would feed on themselves.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable
from traceback import TracebackException
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace

from neuronscope.engine import clock
from neuronscope.engine.events import MAX_FRAMES
from neuronscope.engine.guard import GUARD
from neuronscope.engine.invocation import type_name
from neuronscope.engine.logged import LogItem
from neuronscope.engine.propagation import SUPPRESSING
from neuronscope.recording import CURRENT
from neuronscope.settings import Settings
from neuronscope.signals import names

OWN: Final = "neuronscope"
# Names of OpenTelemetry's instrumentation of `logging`, so that its format strings work.
TRACE_ID: Final = "otelTraceID"
SPAN_ID: Final = "otelSpanID"
SAMPLED: Final = "otelTraceSampled"
SERVICE: Final = "otelServiceName"
_IDS: Final = frozenset({TRACE_ID, SPAN_ID, SAMPLED, SERVICE})
# What every record has; the rest came by `extra=`.
_PLAIN: Final = frozenset(vars(logging.makeLogRecord({}))) | _IDS
_STANDARD: Final = _PLAIN | {"message", "asctime", "taskName"}  # what formatters and later Pythons add
_SUPPRESSING: Final = frozenset(SUPPRESSING)

_log = logging.getLogger(OWN)


class LogCapture:
    """Correlates the service's log records, and exports them if the settings say so.

    Args:
        take: queues what was logged.
    """

    def __init__(
        self,
        settings: Settings,
        service_name: str,
        take: Callable[[LogItem], None],
    ) -> None:
        self._exports = settings.logs == "export"
        self._level: int = getattr(logging, settings.logs_level.upper())
        self._texts = settings.content_on_events
        self._service_name = service_name
        self._take = take
        self._active = False
        self._stands_aside = False
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Begin; again does nothing."""
        if self._active:
            return
        self._active = True
        self._undo.append(self._wrap_factory())
        if self._exports:
            self._undo.append(self._wrap_delivery())

    def uninstall(self) -> None:
        """Put back what was there.  Where somebody has wrapped us since, we stay, and do nothing."""
        self._active = False
        while self._undo:
            self._undo.pop()()

    # --- correlation -------------------------------------------------------------------------------
    def _wrap_factory(self) -> Callable[[], None]:
        original = logging.getLogRecordFactory()

        @functools.wraps(original)
        def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
            record = original(*args, **kwargs)
            if self._active:
                GUARD.call("logs.correlate", self._correlate, record)
            return record

        def undo() -> None:
            if logging.getLogRecordFactory() is factory:
                logging.setLogRecordFactory(original)

        logging.setLogRecordFactory(factory)
        return undo

    def _correlate(self, record: logging.LogRecord) -> None:
        attributes = vars(record)
        if TRACE_ID in attributes:  # OpenTelemetry's own instrumentation was here
            return
        context = trace.get_current_span().get_span_context()
        valid = context.is_valid
        attributes[TRACE_ID] = f"{context.trace_id:032x}" if valid else "0"
        attributes[SPAN_ID] = f"{context.span_id:016x}" if valid else "0"
        attributes[SAMPLED] = valid and context.trace_flags.sampled
        attributes[SERVICE] = self._service_name

    # --- export ------------------------------------------------------------------------------------
    def _wrap_delivery(self) -> Callable[[], None]:
        original = logging.Logger.callHandlers

        @functools.wraps(original)
        def deliver(logger: logging.Logger, record: logging.LogRecord) -> None:
            original(logger, record)
            if self._active:
                GUARD.call("logs.export", self._export, logger, record)

        def undo() -> None:
            if logging.Logger.callHandlers is deliver:
                setattr(logging.Logger, "callHandlers", original)  # noqa: B010 - mypy forbids the other way

        setattr(logging.Logger, "callHandlers", deliver)  # noqa: B010
        return undo

    def _export(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        started = time.perf_counter_ns()
        if record.levelno < self._level or not _reaches_root(logger) or _is_ours(record.name):
            return
        context = otel_context.get_current()
        if not _SUPPRESSING.isdisjoint(context) and any(context.get(key) for key in _SUPPRESSING):
            return
        if self._exported_by_others():
            return
        self._take(self._item(record, started))

    def _exported_by_others(self) -> bool:
        """Does OpenTelemetry's own handler take the service's records already?"""
        for handler in logging.getLogger().handlers:
            kind = type(handler)
            if kind.__name__ == "LoggingHandler" and kind.__module__.startswith("opentelemetry."):
                if not self._stands_aside:
                    self._stands_aside = True
                    _log.warning(
                        "NEURONSCOPE_LOGS=export stands aside: OpenTelemetry's LoggingHandler is on the root "
                        "logger and takes the records already."
                    )
                return True
        return False

    def _item(self, record: logging.LogRecord, started_ns: int) -> LogItem:
        found = vars(record)
        attributes: dict[str, Any] | None = None
        if len(found) - ("message" in found) - ("asctime" in found) > len(_PLAIN):
            attributes = {key: value for key, value in found.items() if key not in _STANDARD}
        if record.exc_info and record.exc_info[1] is not None:
            attributes = {**(attributes or {}), **self._exception(record.exc_info[1])}
        made: object = found.get("message")
        return LogItem(
            made if isinstance(made, str) else _message(record),
            record.levelno,
            record.levelname,
            record.name,
            record.created,
            clock.wall_ns(),
            str(found.get(TRACE_ID, "")),
            str(found.get(SPAN_ID, "")),
            bool(found.get(SAMPLED)),
            time.perf_counter_ns() - started_ns,
            attributes,
            CURRENT.get(),
        )

    def _exception(self, error: BaseException) -> dict[str, str]:
        """Its type; the texts are content."""
        attributes = {names.EXCEPTION_TYPE: type_name(error)}
        if self._texts:
            told = TracebackException(
                type(error), error, error.__traceback__, limit=-MAX_FRAMES, compact=True
            )
            attributes[names.EXCEPTION_MESSAGE] = str(told)
            attributes[names.EXCEPTION_STACKTRACE] = "".join(told.format())
        return attributes


def _message(record: logging.LogRecord) -> str:
    """The message; where it cannot be made (a wrong format, a `__str__` that raises) the format has to do."""
    text = GUARD.call("logs.message", _formatted, record)
    if text is None:
        message: object = record.msg
        text = message if isinstance(message, str) else f"<{type(message).__name__}>"
    return text


def _formatted(record: logging.LogRecord) -> str | None:
    try:
        return record.getMessage()
    except (TypeError, ValueError, LookupError, AttributeError):
        return None  # its arguments do not fit it, which `logging` tells on stderr


def _is_ours(name: str) -> bool:
    return name.startswith(OWN) and name.partition(".")[0] == OWN


def _reaches_root(logger: logging.Logger) -> bool:
    while logger.parent is not None:
        if not logger.propagate:
            return False
        logger = logger.parent
    return True

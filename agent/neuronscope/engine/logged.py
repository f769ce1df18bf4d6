"""What a service has logged, between its own thread and the worker's, which makes a record of it."""

from __future__ import annotations

from typing import Any, Final

from msgspec import Struct

from neuronscope.signals.records import LogRecord

_FIXED: Final = 512
_ATTRIBUTE: Final = 128
_MAX_SEVERITY: Final = 24


class LogItem(Struct, frozen=True):
    """Plain values of a `logging.LogRecord`: its arguments may change later, its traceback holds much.

    Attributes:
        attributes: the `extra` fields, and what is told of an exception.
        trace_id: in hex; ``"0"`` without a span.
        hot_ns: what it cost the service's thread.
        recording: the scope's in which it was logged, if it was in one.
    """

    message: str
    level: int
    level_name: str
    logger: str
    created_s: float
    observed_unix_ns: int
    trace_id: str
    span_id: str
    sampled: bool
    hot_ns: int
    attributes: dict[str, Any] | None = None
    recording: Any = None

    @property
    def nbytes(self) -> int:
        """What it keeps alive, about."""
        size = _FIXED + len(self.message)
        if self.attributes:
            for value in self.attributes.values():
                size += _ATTRIBUTE + (len(value) if isinstance(value, str | bytes) else 0)
        return size

    def record(self) -> LogRecord:
        """The record, its content not masked yet."""
        trace_id = _identity(self.trace_id)
        return LogRecord(
            time_unix_ns=int(self.created_s * 1e9),
            observed_unix_ns=self.observed_unix_ns,
            severity=severity(self.level),
            severity_text=self.level_name,
            body=self.message,
            attributes=self.attributes or {},
            trace_id=trace_id,
            span_id=_identity(self.span_id),
            trace_flags=int(trace_id != 0 and self.sampled),
            library=self.logger,
        )


def severity(level: int) -> int:
    """OpenTelemetry's severity number of a level: ten levels of `logging` to four of its numbers.

    DEBUG is 5, INFO 9, WARNING 13, ERROR 17, CRITICAL 21; levels between take the next ones, below DEBUG
    is TRACE.  Source: OpenTelemetry specification, "Logs Data Model".
    """
    if level <= 0:
        return 0
    return min(4 * (level // 10) + min(level % 10, 3) + 1, _MAX_SEVERITY)


def _identity(text: str) -> int:
    """The id in hex; 0 when there is none."""
    try:
        return int(text, 16)
    except ValueError:
        return 0

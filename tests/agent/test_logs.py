"""The service's log records: trace ids on them, their export, and logging left as it was."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
from opentelemetry import context as otel_context
from opentelemetry import trace

import neuronscope as ns
from collectors import until
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope.engine.logged import severity
from neuronscope.engine.propagation import suppressed
from neuronscope.signals import names
from neuronscope.testing import InMemoryExporter

CANARY = "zebra-canary-7731"


@pytest.fixture(autouse=True)
def a_logger_that_is_on() -> Iterator[None]:
    logger = logging.getLogger("app")
    logger.setLevel(logging.DEBUG)
    yield
    logger.setLevel(logging.NOTSET)
    logger.propagate = True
    logger.filters.clear()


@pytest.fixture
def log() -> logging.Logger:
    return logging.getLogger("app.db")


def start(mode: str = "export", **settings: Any) -> InMemoryExporter:
    exporter = InMemoryExporter()
    settings.setdefault("deferred", False)
    ns.Platform(exporters=[exporter], service_name="svc", logs=mode, **settings)
    return exporter


class Keep(logging.Handler):
    """Keeps records as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Iterator[Keep]:
    handler = Keep()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


# --- correlation -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["correlate", "export"])
def test_records_name_the_current_span(kept: Keep, log: logging.Logger, mode: str) -> None:
    """By the attributes that OpenTelemetry's formats use; zeros outside of any span."""
    exporter = start(mode)
    with ns.Scope("request"):
        log.warning("inside")
    log.warning("outside")
    (span,) = exporter.spans
    inside, outside = kept.records
    assert inside.otelTraceID == f"{span.trace_id:032x}"
    assert inside.otelSpanID == f"{span.span_id:016x}"
    assert inside.otelTraceSampled is True
    assert inside.otelServiceName == "svc"
    assert (outside.otelTraceID, outside.otelSpanID, outside.otelTraceSampled) == ("0", "0", False)
    assert len(exporter.logs) == (2 if mode == "export" else 0)


def test_off_by_default(kept: Keep, log: logging.Logger) -> None:
    """Nothing is touched unless it was asked for."""
    factory, deliver = logging.getLogRecordFactory(), logging.Logger.callHandlers
    exporter = InMemoryExporter()
    with ns.Platform(exporters=[exporter], deferred=False), ns.Scope("request"):
        assert logging.getLogRecordFactory() is factory
        assert logging.Logger.callHandlers is deliver
        log.error(CANARY)
    assert not hasattr(kept.records[0], "otelTraceID")
    assert not exporter.logs


def test_uninstrumenting_restores_logging_exactly(log: logging.Logger) -> None:
    """Also after the service has set a factory of its own, before us and after us."""
    original, deliver = logging.getLogRecordFactory(), logging.Logger.callHandlers

    def mine(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = original(*args, **kwargs)
        vars(record)["mine"] = True
        return record

    logging.setLogRecordFactory(mine)
    try:
        exporter = start()
        log.warning("one")
        assert exporter.logs[0].attributes == {"mine": True}
        ns.uninstrument()
        assert logging.getLogRecordFactory() is mine
        assert logging.Logger.callHandlers is deliver
        log.warning("nobody listens")
        ns.instrument()
        log.warning("two")
        assert [record.body for record in exporter.logs] == ["one", "two"]
    finally:
        ns.uninstrument()
        logging.setLogRecordFactory(original)


def test_a_factory_set_after_ours_stays(kept: Keep, log: logging.Logger) -> None:
    """It calls ours, which does nothing any more once it's switched off."""
    original = logging.getLogRecordFactory()
    start("correlate")
    ours = logging.getLogRecordFactory()

    def later(*args: Any, **kwargs: Any) -> logging.LogRecord:
        return ours(*args, **kwargs)

    logging.setLogRecordFactory(later)
    try:
        ns.uninstrument()
        assert logging.getLogRecordFactory() is later
        log.warning("x")
        assert not hasattr(kept.records[0], "otelTraceID")
    finally:
        logging.setLogRecordFactory(original)


def test_opentelemetrys_own_correlation_is_left_alone(kept: Keep, log: logging.Logger) -> None:
    """Whoever has set the ids knows why."""
    original = logging.getLogRecordFactory()

    def theirs(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = original(*args, **kwargs)
        vars(record).update(otelTraceID="f" * 32, otelSpanID="e" * 16, otelTraceSampled=True)
        return record

    logging.setLogRecordFactory(theirs)
    try:
        exporter = start()
        log.warning("x")
        assert kept.records[0].otelTraceID == "f" * 32
        (record,) = exporter.logs
        assert (record.trace_id, record.span_id, record.trace_flags) == (
            (1 << 128) - 1,
            0xEEEEEEEEEEEEEEEE,
            1,
        )
    finally:
        ns.uninstrument()
        logging.setLogRecordFactory(original)


# --- export ------------------------------------------------------------------------------------------


def test_a_record_is_exported_with_what_it_says(log: logging.Logger) -> None:
    """Time, severity, message, logger, extra fields, and the span it belongs to."""
    exporter = start()
    with ns.Scope("request"):
        log.error("order %s failed", 17, extra={"tenant": "t1", "tries": 3, "odd": object()})
    (span,), (record,) = exporter.spans, exporter.logs
    assert (record.body, record.library) == ("order 17 failed", "app.db")
    assert (record.severity, record.severity_text) == (17, "ERROR")
    assert record.attributes == {"tenant": "t1", "tries": 3}
    assert (record.trace_id, record.span_id, record.trace_flags) == (span.trace_id, span.span_id, 1)
    assert 0 <= record.observed_unix_ns - record.time_unix_ns < 10**9
    assert record.event_name == ""


@pytest.mark.parametrize("capture", ["no_content", "span_only", "event_only"])
def test_an_exceptions_texts_are_content(log: logging.Logger, capture: str) -> None:
    """Its type goes with the record; message and stack trace where events may hold content."""
    exporter = start(capture_content=capture)
    try:
        raise ValueError(CANARY)
    except ValueError:
        log.exception("it failed")
    (record,) = exporter.logs
    assert record.body == "it failed"
    assert record.attributes[names.EXCEPTION_TYPE] == "ValueError"
    if capture == "event_only":
        assert record.attributes[names.EXCEPTION_MESSAGE] == CANARY
        assert "raise ValueError(CANARY)" in str(record.attributes[names.EXCEPTION_STACKTRACE])
    else:
        assert CANARY not in repr(exporter.logs)


def test_content_in_extra_fields_needs_the_switch(log: logging.Logger) -> None:
    """A known key of content is content wherever it stands."""
    exporter = start()
    log.warning("asked", extra={names.INPUT_MESSAGES: CANARY, "db.statement": CANARY, "plain": "yes"})
    assert exporter.logs[0].attributes == {"plain": "yes"}


def test_the_redactor_sees_messages(log: logging.Logger) -> None:
    """As `log.body`; a long message is cut, and says so."""
    keys: list[str] = []

    def redact(key: str, text: str) -> str:
        keys.append(key)
        return text.replace(CANARY, "[name]")

    exporter = start(redactor=redact, attribute_max_length=40)
    log.warning("hello %s", CANARY)
    log.warning("x" * 50)
    first, second = exporter.logs
    assert first.body == "hello [name]"
    assert str(second.body) == "x" * 39 + "…"
    assert second.attributes[names.TRUNCATED] == ["log.body"]
    assert keys == ["log.body"] * 2


def test_what_a_root_handler_would_get_is_exported(log: logging.Logger) -> None:
    """The level of the export, the logger's level and filters, and propagation all count."""
    exporter = start(logs_level="warning")
    log.info("below the export's level")
    log.warning("1")
    parent = logging.getLogger("app")
    parent.setLevel(logging.ERROR)
    log.warning("below the logger's level")
    log.error("2")
    log.addFilter(lambda record: "secret" not in record.getMessage())
    log.error("secret")
    parent.propagate = False
    log.error("kept to itself, as uvicorn's access log is")
    log.filters.clear()
    assert [record.body for record in exporter.logs] == ["1", "2"]


def test_our_own_records_and_the_plumbings_are_not_exported(log: logging.Logger) -> None:
    """They would feed on themselves: a failed export logs, which is exported, which fails."""
    exporter = start()
    logging.getLogger("neuronscope").error("ours")
    logging.getLogger("neuronscope.exporters.otlp").error("ours")
    token = otel_context.attach(suppressed(otel_context.get_current()))
    log.error("a connection pool's, while telemetry is sent")
    otel_context.detach(token)
    logging.getLogger("neuronscopes").error("theirs")
    assert [record.body for record in exporter.logs] == ["theirs"]


def test_an_exporter_that_logs_does_not_feed_itself(log: logging.Logger) -> None:
    """Inline, it runs in the thread of the service that has just logged."""

    class Chatty(InMemoryExporter):
        def export(self, batch: Any) -> None:
            log.error("exporting %d", len(batch.logs))
            super().export(batch)

    exporter = Chatty()
    ns.Platform(exporters=[exporter], deferred=False, logs="export")
    log.error("hello")
    assert [record.body for record in exporter.logs] == ["hello"]


class LoggingHandler(Keep):
    """Looks like OpenTelemetry's."""


LoggingHandler.__module__ = "opentelemetry.instrumentation.logging.handler"


def test_it_stands_aside_for_opentelemetrys_handler(
    log: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    """Two exports of one record are one too many; told once."""
    exporter = start()
    theirs = LoggingHandler()
    logging.getLogger().addHandler(theirs)
    try:
        log.warning("x")
        log.warning("y")
    finally:
        logging.getLogger().removeHandler(theirs)
    assert len(theirs.records) == 3
    assert not exporter.logs
    assert len([line for line in caplog.messages if "stands aside" in line]) == 1


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_messages_that_cannot_be_made_never_raise(
    log: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without us; the format is exported where the message cannot be made."""
    monkeypatch.setattr(logging, "raiseExceptions", False)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(GUARD, "reraise", False)
    exporter = start()
    log.error("%d", "no number")
    log.error("%(a)s %s", {"a": 1})
    log.error("x %s", Unprintable())
    log.error(Unprintable())
    log.error("after")
    assert [record.body for record in exporter.logs] == [
        "%d", "%(a)s %s", "x %s", "<Unprintable>", "after"
    ]  # fmt: skip
    assert set(GUARD.faults) == {("logs.message", "RuntimeError")}


def test_a_full_queue_turns_logs_away_before_spans(log: logging.Logger) -> None:
    """Bounded by bytes; what is lost is counted as logs."""
    busy, go_on = threading.Event(), threading.Event()

    class Slow(InMemoryExporter):
        def export(self, batch: Any) -> None:
            busy.set()
            go_on.wait(60)
            super().export(batch)

    exporter = Slow()
    ns.Platform(exporters=[exporter], logs="export", export_interval_s=0.01, queue_max_bytes=60_000)
    log.error("one")
    assert busy.wait(60)
    for _ in range(200):
        log.error("x" * 1000)
    with ns.Scope("request"):
        pass
    go_on.set()
    assert ns.flush(60)
    dropped = {
        point.labels: cast(float, point.value)
        for family in ENGINE.metrics.collect().families
        if family.metric is names.DROPPED
        for point in family.points
    }
    assert set(dropped) == {(("item", "log"), ("reason", "queue_full"))}
    assert len(exporter.logs) + sum(dropped.values()) == 201
    assert 5 < len(exporter.logs) < 20
    assert len(exporter.spans) == 1


def test_logs_leave_without_any_span(log: logging.Logger) -> None:
    """The worker wakes for them, and sends them at its interval."""
    exporter = start(deferred=True, export_interval_s=0.05)
    log.error("alone")
    until(lambda: bool(exporter.logs))
    assert [record.body for record in exporter.logs] == ["alone"]


@pytest.mark.parametrize(
    ("level", "number"),
    [
        (0, 0),
        (5, 4),
        (10, 5),
        (12, 7),
        (19, 8),
        (20, 9),
        (25, 12),
        (30, 13),
        (40, 17),
        (50, 21),
        (53, 24),
        (99, 24),
    ],
)
def test_severities(level: int, number: int) -> None:
    """OpenTelemetry's numbers, also between and beyond Python's levels."""
    assert severity(level) == number


def test_the_services_own_logging_works_as_without_us() -> None:
    """`basicConfig`, the handler of last resort, `dictConfig`: same output; and nothing is lost to us."""
    program = """
import logging, logging.config, sys
import neuronscope as ns
from neuronscope.testing import InMemoryExporter
exporter = InMemoryExporter()
if sys.argv[1] == "on":
    ns.Platform(exporters=[exporter], deferred=False, logs="export")
logging.getLogger("a").warning("last resort")
logging.basicConfig(format="%(levelname)s:%(message)s", level=logging.INFO)
logging.getLogger("a").info("basic")
logging.config.dictConfig({"version": 1, "disable_existing_loggers": False,
    "handlers": {"h": {"class": "logging.StreamHandler"}}, "root": {"handlers": ["h"], "level": "INFO"}})
logging.getLogger("a").info("dict")
print([record.body for record in exporter.logs])
"""
    results = {}
    for mode in ("off", "on"):
        done = subprocess.run(
            [sys.executable, "-c", program, mode], capture_output=True, text=True, check=True, timeout=250
        )
        results[mode] = done
    assert results["on"].stderr == results["off"].stderr == "last resort\nINFO:basic\ndict\n"
    assert results["on"].stdout == "['last resort', 'basic', 'dict']\n"


def test_records_handed_between_threads_keep_their_span(kept: Keep, log: logging.Logger) -> None:
    """A queue handler's listener replays them elsewhere, where no span is current."""
    exporter = start()
    listener = logging.getLogger("listener")
    listener.setLevel(logging.DEBUG)
    with ns.Scope("request"):
        record = log.makeRecord("app.db", logging.ERROR, __file__, 1, "hello", (), None)
    thread = threading.Thread(target=listener.handle, args=(record,))
    thread.start()
    thread.join()
    assert exporter.logs[0].span_id == exporter.spans[0].span_id
    assert trace.get_current_span().get_span_context().span_id == 0

"""GenAI events: where content goes, what they say, and that without being asked there are none."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import neuronscope as ns
from neuronscope.engine.guard import GUARD
from neuronscope.signals import names
from neuronscope.testing import InMemoryExporter
from neuronscope.testing.fake_openai import FakeOpenAI, error
from openai_cases import CANARY, sync_client

DETAILS, EXCEPTION = names.INFERENCE_DETAILS.name, names.OPERATION_EXCEPTION.name


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    with FakeOpenAI() as server:
        yield server


@contextmanager
def observed(**settings: Any) -> Generator[InMemoryExporter]:
    """The openai client observed, everything finished in the caller's thread."""
    exporter = InMemoryExporter()
    with ns.Platform(exporters=[exporter], deferred=False, **settings):
        ns.instrument("openai")
        yield exporter


def ask(client: openai.OpenAI, **options: Any) -> Any:
    create: Any = client.chat.completions.create
    return create(model="gpt-4o-mini", messages=[{"role": "user", "content": CANARY}], **options)


def everything(exporter: InMemoryExporter) -> str:
    return repr(exporter.spans) + repr(exporter.logs)


@pytest.mark.parametrize(
    ("capture", "on_span", "on_event"),
    [
        ("no_content", False, None),
        ("span_only", True, None),
        ("event_only", False, True),
        ("span_and_event", True, True),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_content_goes_where_it_is_allowed_and_nowhere_else(
    server: FakeOpenAI, capture: str, on_span: bool, on_event: bool | None, stream: bool
) -> None:
    """A canary in the prompt; the fake server answers with it, too."""
    server.clear()
    with observed(capture_content=capture) as exporter, sync_client(server) as client:
        answer = ask(client, stream=stream)
        if stream:
            list(answer)
    (span,) = exporter.spans
    assert (CANARY in repr(span)) is on_span
    assert (names.INPUT_MESSAGES in span.attributes) is on_span
    if on_event is None:
        assert not exporter.logs
        return
    (event,) = exporter.logs
    assert event.event_name == DETAILS
    assert CANARY in repr(event)


def test_details_are_the_spans_attributes_with_structure(server: FakeOpenAI) -> None:
    """Same facts, same span; messages as lists and mappings, where a span has JSON text."""
    server.clear()
    with observed(capture_content="span_and_event") as exporter, sync_client(server) as client:
        ask(client, temperature=0.5)
    (span,), (event,) = exporter.spans, exporter.logs
    assert (event.severity, event.severity_text, event.body) == (5, "DEBUG", None)
    assert (event.trace_id, event.span_id, event.trace_flags) == (span.trace_id, span.span_id, 1)
    assert event.time_unix_ns == span.end_unix_ns <= event.observed_unix_ns
    assert event.library == "neuronscope.openai"
    assert event.attributes[names.INPUT_MESSAGES] == [
        {"role": "user", "parts": [{"type": "text", "content": CANARY}]}
    ]
    told = {names.INPUT_MESSAGES, names.OUTPUT_MESSAGES}
    for key in told:
        assert event.attributes[key] == json.loads(str(span.attributes[key]))
    assert {k: v for k, v in event.attributes.items() if k not in told} == {
        k: v for k, v in span.attributes.items() if k not in told
    }


def test_only_inference_has_details(server: FakeOpenAI) -> None:
    """Embeddings have no messages; OpenTelemetry defines the event for inference."""
    server.clear()
    with observed(capture_content="event_only") as exporter, sync_client(server) as client:
        client.embeddings.create(model="e", input="text")
    assert len(exporter.spans) == 1
    assert not exporter.logs


@pytest.mark.parametrize("capture", ["no_content", "event_only"])
def test_an_exception_is_an_event_when_logs_are_asked_for(server: FakeOpenAI, capture: str) -> None:
    """Its type always; message and stack trace are content."""
    server.clear()
    server.reply(error(400, f"bad {CANARY}"))
    with (
        observed(capture_content=capture, logs="export") as exporter,
        sync_client(server) as client,
        pytest.raises(openai.BadRequestError),
    ):
        ask(client)
    (event,) = [log for log in exporter.logs if log.event_name == EXCEPTION]
    (span,) = exporter.spans
    assert (event.severity, event.severity_text, event.span_id) == (13, "WARN", span.span_id)
    assert event.attributes[names.EXCEPTION_TYPE] == "openai.BadRequestError"
    assert event.attributes[names.OPERATION_NAME] == "chat"
    assert event.attributes[names.REQUEST_MODEL] == "gpt-4o-mini"
    if capture == "no_content":
        assert names.EXCEPTION_MESSAGE not in event.attributes
        assert CANARY not in everything(exporter)
    else:
        assert CANARY in str(event.attributes[names.EXCEPTION_MESSAGE])
        stack = str(event.attributes[names.EXCEPTION_STACKTRACE])
        assert stack.startswith("Traceback (most recent call last)")
        assert "raise self._make_status_error_from_response" in stack
        assert "neuronscope" not in stack.partition("openai")[0]
        assert CANARY not in repr(span)
        assert {log.event_name for log in exporter.logs} == {EXCEPTION, DETAILS}


def test_a_failure_keeps_nothing_of_the_service_alive(server: FakeOpenAI) -> None:
    """Frames are noted by file and line: locals, arguments and the exception itself can go."""

    class Big:
        pass

    server.clear()
    server.reply(error(400))
    with (
        ns.Platform(capture_content="event_only", export_interval_s=3600) as platform,
        sync_client(server) as client,
    ):
        platform.instrument("openai")
        big = Big()
        gone = weakref.ref(big)

        def failing(held: Big) -> None:
            with pytest.raises(openai.BadRequestError):
                ask(client)

        failing(big)
        del big
        gc.collect()
        assert gone() is None


def test_without_being_asked_a_failed_call_makes_no_event(server: FakeOpenAI) -> None:
    """The default configuration sends no log record anywhere."""
    server.clear()
    server.reply(error(400, CANARY))
    with observed() as exporter, sync_client(server) as client, pytest.raises(openai.BadRequestError):
        ask(client)
    assert len(exporter.spans) == 1
    assert not exporter.logs
    assert CANARY not in everything(exporter)


def test_events_follow_the_sampling_decision(server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who samples spans does not want every prompt."""
    server.clear()
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with observed(capture_content="event_only") as exporter, sync_client(server) as client:
        ask(client)
    assert not exporter.logs


def test_the_redactor_sees_content_of_events(server: FakeOpenAI) -> None:
    """Once, before anything is encoded; a redacted text that is no JSON any more stays text."""
    seen: list[str] = []

    def redact(key: str, text: str) -> str:
        seen.append(key)
        return "<gone>" if key == names.INPUT_MESSAGES else text.replace(CANARY, "[name]")

    server.clear()
    with observed(capture_content="event_only", redactor=redact) as exporter, sync_client(server) as client:
        ask(client)
    (event,) = exporter.logs
    assert event.attributes[names.INPUT_MESSAGES] == "<gone>"
    assert CANARY not in everything(exporter)
    assert seen.count(names.INPUT_MESSAGES) == 1


def test_a_foreign_pipeline_gets_no_content_by_event_only(server: FakeOpenAI) -> None:
    """The service's own spans stay without; our event has it, in the service's trace."""
    server.clear()
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    trace.set_tracer_provider(provider)
    with observed(capture_content="event_only") as exporter, sync_client(server) as client:
        ask(client)
    (theirs,) = memory.get_finished_spans()
    (event,) = exporter.logs
    assert CANARY not in theirs.to_json()
    assert CANARY not in repr(exporter.spans)
    assert CANARY in repr(event)
    assert theirs.context is not None
    assert event.span_id == theirs.context.span_id


def test_a_fault_in_an_event_costs_no_span(server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted by the guard; the span arrives."""
    server.clear()
    GUARD.reraise = False

    def broken(*_: Any) -> Any:
        raise RuntimeError("bug")

    monkeypatch.setattr("neuronscope.engine.events._event", broken)
    with observed(capture_content="event_only") as exporter, sync_client(server) as client:
        ask(client)
    assert len(exporter.spans) == 1
    assert ("events", "RuntimeError") in GUARD.faults

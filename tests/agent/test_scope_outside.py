"""A scope tells of calls that were made meanwhile in no scope: it may be that its threads do not carry it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry import trace

import fakelib
import neuronscope as ns
from neuronscope.signals import names
from neuronscope.testing import InMemoryExporter


@pytest.fixture
def exporter(request: pytest.FixtureRequest) -> Iterator[InMemoryExporter]:
    """The fake library observed, by a worker unless a test asks for none."""
    memory = InMemoryExporter()
    ns.registry.register_adapter(fakelib.integration(fakelib.__name__))
    ns.Platform(exporters=[memory], deferred=getattr(request, "param", True))
    ns.instrument("fake")
    yield memory
    ns.registry.unregister_adapter("fake")


def chat(name: str = "x") -> None:
    """A call."""
    fakelib.Client().chat(name)


def elsewhere(work: Callable[..., Any]) -> None:
    """Do something in a thread of its own, to its end."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def root_facts(scope: ns.Scope) -> dict[str, Any]:
    """The attributes of the scope's own span."""
    (root,) = (span for span in scope.artifact.telemetry.spans if names.SCOPE_NAME in span.attributes)
    return dict(root.attributes)


@pytest.mark.parametrize("exporter", [True, False], indirect=True, ids=["deferred", "inline"])
def test_calls_of_a_pool_are_told(exporter: InMemoryExporter) -> None:
    """On the span and by the scope; what was called before and after it, and in it, does not count."""
    elsewhere(chat)
    with ns.Scope("request") as scope:
        chat()
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(chat, "abc"))
    elsewhere(chat)
    assert len(scope.artifact.llm_spans) == 1
    assert scope.calls_outside == 3
    assert root_facts(scope)[names.SCOPE_CALLS_OUTSIDE] == 3


def test_what_belongs_somewhere_is_not_counted(exporter: InMemoryExporter) -> None:
    """Calls of other scopes, under spans of the service, and those that the scope was carried to."""

    def request() -> None:
        with ns.Scope("other"):
            chat()

    def handler() -> None:
        with trace.get_tracer("app").start_as_current_span("GET /"):
            chat()

    with ns.Scope("request") as scope:
        elsewhere(request)
        elsewhere(handler)
        elsewhere(ns.propagate(chat))
    assert scope.calls_outside == 0
    assert names.SCOPE_CALLS_OUTSIDE not in root_facts(scope)


def test_scopes_around_are_told_too(exporter: InMemoryExporter) -> None:
    """Each counts what came while it was open."""
    with ns.Scope("outer") as outer:
        elsewhere(chat)
        with ns.Scope("inner") as inner:
            elsewhere(chat)
    assert (outer.calls_outside, inner.calls_outside) == (2, 1)


def test_a_call_that_is_not_over_is_not_counted(exporter: InMemoryExporter) -> None:
    """Nor one that began before: such a call is not of the block, or the block did not wait for it."""
    opened: list[Iterator[str]] = []

    def begin() -> None:
        opened.append(fakelib.Client().chat("x", stream=True))

    begin()
    with ns.Scope("after it began") as after:
        assert list(opened.pop())
    with ns.Scope("before it ended") as before:
        elsewhere(begin)
    assert list(opened.pop())
    assert (after.calls_outside, before.calls_outside) == (0, 0)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged of scopes that recorded nothing."""
    return [text for record in caplog.records if "recorded nothing" in (text := record.getMessage())]


def test_one_line_is_logged_where_nothing_was_recorded(
    exporter: InMemoryExporter, caplog: pytest.LogCaptureFixture
) -> None:
    """The line says what to do; it comes once, and not while the scope has something."""
    with caplog.at_level(logging.WARNING, "neuronscope"):
        with ns.Scope("has a call") as scope:
            chat()
            elsewhere(chat)
        assert scope.calls_outside == 1
        assert not lines(caplog)
        for name in ("first", "second"):
            with ns.Scope(name) as scope:
                elsewhere(chat)
            assert scope.calls_outside == 1
    (line,) = lines(caplog)
    assert "'first' recorded nothing, while 1 call" in line
    assert "ns.propagate" in line

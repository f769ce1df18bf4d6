"""Every test runs with the guard re-raising, and leaves no platform, patch, provider or garbage behind."""

from __future__ import annotations

import gc
import signal
import warnings
from collections.abc import Iterator

import pytest
from hypothesis import settings
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.util._once import Once

import conventions
import processwide
from neuronscope import platform
from neuronscope.dumping import leave_signal
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope.engine.invocation import Invocation
from neuronscope.engine.span_metrics import SpanMetrics
from neuronscope.signals.records import SpanRecord

# The same examples in every run, without limits of time; `--hypothesis-profile=default` looks for new ones.
settings.load_profile("ci")


def pytest_configure() -> None:
    """Programs that tests start answer Ctrl-C, also where a shell started us ignoring it, as behind `&`."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    processwide.watch_bindings()


def pytest_collection_finish() -> None:
    """Collections look at what tests make, not at two million objects of the libraries they import."""
    collect_garbage()


def collect_garbage() -> None:
    """Collect what there is; later collections do not look at what is left, so they take a millisecond.

    What a test has dropped in a cycle, a connection say, is told at this test, each time.  Left to the
    collector, it would be told at whatever test is running when its time has come: never the same one.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_process() -> Iterator[None]:
    """What a test changes for the whole process fails that test, not another one after it."""
    before = processwide.look()
    yield
    changed = processwide.changes(before)
    assert not changed, "the test leaves the process changed:\n" + "\n".join(changed)


@pytest.fixture(autouse=True, scope="module")
def same_process_as_before_the_module() -> Iterator[None]:
    """The same of what a module's fixtures change."""
    before = processwide.look()
    yield
    changed = processwide.changes(before)
    assert not changed, "the module leaves the process changed:\n" + "\n".join(changed)


@pytest.fixture(autouse=True)
def clean_process(same_process: None) -> Iterator[None]:
    """Faults of ours surface; the process is as new afterwards."""
    GUARD.reraise = True
    GUARD.reset()
    before = otel_context.get_current()
    yield
    otel_context.attach(before)  # nothing that a test has made current is the next one's parent
    GUARD.reraise = False
    installed = platform.installations()
    platform.uninstrument()
    ENGINE.stop(1.0)
    platform.forget()
    leave_signal()
    reset_tracer_provider()
    collect_garbage()
    left = processwide.still_wrapped(installed)
    assert not left, f"still observed though nothing is instrumented: {left}"


@pytest.fixture(autouse=True, scope="module")
def clean_module(same_process_as_before_the_module: None) -> Iterator[None]:
    """What a module's fixtures have left is told within the module."""
    yield
    collect_garbage()


@pytest.fixture(autouse=True)
def by_the_conventions(
    clean_process: None,  # what a test has patched is itself again before the process is cleaned
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[None]:
    """Whatever the test is about: every span that adapters of ours finish in this process is as published.

    Tests in which a service sets names of OpenTelemetry's as it likes are marked `any_names`.
    """
    found: list[str] = []
    finish = SpanMetrics.record

    def record(self: SpanMetrics, span: SpanRecord, call: Invocation | None) -> None:
        if span.library.startswith("neuronscope"):
            found.extend(conventions.problems(span))
        finish(self, span, call)

    monkeypatch.setattr(SpanMetrics, "record", record)
    yield
    if request.node.get_closest_marker("any_names") is None:
        assert not found, "\n".join(dict.fromkeys(found))


def reset_tracer_provider() -> None:
    """OpenTelemetry's global provider can be set once per process; tests need it more often."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        setattr(trace, "_TRACER_PROVIDER", None)  # noqa: B010 - private, and no public way back
        setattr(trace, "_TRACER_PROVIDER_SET_ONCE", Once())  # noqa: B010

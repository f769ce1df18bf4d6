"""`ns.testing.fixed`: the same times and ids in every run."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import fakelib
import neuronscope as ns
from neuronscope.engine import ENGINE
from neuronscope.signals import names
from neuronscope.testing import InMemoryExporter
from neuronscope.testing.fixed import START_UNIX_NS

MS = 1_000_000


@pytest.fixture
def adapter() -> Iterator[None]:
    """The fake library, known."""
    ns.registry.register_adapter(fakelib.integration(fakelib.__name__))
    yield
    ns.registry.unregister_adapter("fake")


@pytest.fixture
def exporter(adapter: None) -> InMemoryExporter:
    """The fake library, observed inline."""
    memory = InMemoryExporter()
    ns.Platform(exporters=[memory], deferred=False)
    ns.instrument("fake")
    return memory


def run() -> None:
    with ns.Scope("request"):
        fakelib.Client().chat("a b")
        for _ in fakelib.Client().chat("a b", stream=True):
            pass


def test_two_runs_are_equal(exporter: InMemoryExporter) -> None:
    """Everything about the spans: ids, times, durations, times of chunks."""
    runs: list[list[tuple[object, ...]]] = []
    for _ in range(2):
        exporter.clear()
        with ns.testing.fixed():
            run()
        runs.append(
            [
                (
                    span.name,
                    span.trace_id,
                    span.span_id,
                    span.parent_span_id,
                    span.start_unix_ns,
                    span.end_unix_ns,
                    span.attributes,
                )
                for span in exporter.spans
            ]
        )
    assert runs[0] == runs[1]
    assert len(runs[0]) == 3


def test_ids_count_up_and_time_goes_by_ticks(exporter: InMemoryExporter) -> None:
    """A trace id and a span id from 1; a reading a millisecond."""
    with ns.testing.fixed():
        fakelib.Client().chat("a")
        fakelib.Client().chat("b")
    first, second = exporter.spans
    assert (first.trace_id, first.span_id, second.trace_id, second.span_id) == (1, 1, 2, 2)
    assert START_UNIX_NS <= first.start_unix_ns < first.end_unix_ns < second.start_unix_ns
    assert first.start_unix_ns - START_UNIX_NS <= 5 * MS


def test_time_passes_as_told(exporter: InMemoryExporter) -> None:
    """Without ticks a call takes what the test says: also the first chunk of a stream."""
    with ns.testing.fixed(tick_s=0) as clock:
        stream = fakelib.Client().chat("a b", stream=True)
        clock.advance(0.25)
        next(stream)
        clock.advance(0.5)
        list(stream)
    (span,) = exporter.spans
    assert span.duration_ms == 750
    assert span.attributes[names.TIME_TO_FIRST_CHUNK] == 0.25


def test_afterwards_all_is_real_again(exporter: InMemoryExporter) -> None:
    """Times and ids; and what observing cost was never fake."""
    with ns.testing.fixed():
        fakelib.Client().chat("a")
    fakelib.Client().chat("b")
    span = exporter.spans[-1]
    assert abs(span.start_unix_ns - time.time_ns()) < 60e9
    assert span.span_id > 1 << 32
    budget = ENGINE.budget
    assert budget.observed_ns() >= 0
    assert ENGINE.steward.budget.accounts


def test_it_may_begin_before_the_platform(adapter: None) -> None:
    """A platform made inside the block counts and accounts like any other."""
    memory = InMemoryExporter()
    with ns.testing.fixed():
        ns.Platform(exporters=[memory], deferred=False)
        ns.instrument("fake")
        fakelib.Client().chat("a")
        assert ENGINE.metrics.total(names.OPERATION_DURATION) == 1
    assert [span.span_id for span in memory.spans] == [1]

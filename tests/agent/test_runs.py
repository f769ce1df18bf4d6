"""Runs that frameworks tell of by callbacks: what is current is given back, in whatever order they end."""

from __future__ import annotations

import itertools

import pytest
from opentelemetry import context as otel_context

from neuronscope.engine.runs import Run


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_last_run_that_has_not_ended_is_current(order: tuple[int, ...]) -> None:
    """A batch's runs begin one within the other, and end as they please."""
    before = otel_context.get_current()
    runs = list[Run]()
    for number in range(3):
        runs.append(Run(otel_context.set_value("run", number)))
        runs[-1].enter()
    for number in order:
        runs[number].leave()
        runs[number].leave()  # again does nothing
        going_on = [run.context for run in runs if not run.left]
        assert otel_context.get_current() is (going_on[-1] if going_on else before)


def test_what_the_service_makes_current_meanwhile_stays() -> None:
    """A run below it ends later, and gives back nothing that is not its own."""
    outer, inner = Run(otel_context.set_value("run", 1)), Run(otel_context.set_value("run", 2))
    before = otel_context.get_current()
    outer.enter()
    token = otel_context.attach(otel_context.set_value("service", 1))
    own = otel_context.get_current()
    inner.enter()
    outer.leave()
    inner.leave()
    assert otel_context.get_current() is own
    otel_context.detach(token)
    otel_context.attach(before)

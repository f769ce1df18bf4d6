"""Where observations go, and whether they arrive: each exporter examines itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from neuronscope.doctor.arrival import look_for_metrics, look_for_trace
from neuronscope.engine import ENGINE
from neuronscope.exceptions import NszError
from neuronscope.exporters import Examination, ExporterContext, registry
from neuronscope.settings import Settings
from neuronscope.signals.records import MetricsSnapshot, SpanRecord


def examine_exports(
    settings: Settings, traces_at: str = "", metrics_at: str = "", wait_s: float = 30.0
) -> Iterator[Examination]:
    """Try everything that the settings configure; nothing at all is a finding, too.

    Args:
        traces_at: the API of Jaeger or Tempo, where the probe span has to arrive; "": it is not looked for.
        metrics_at: the API of Prometheus, where metrics have to arrive.
        wait_s: how long they may take.
    """
    sent_at, told = time.time(), list[Examination]()
    for examination in _examine(settings):
        told.append(examination)
        yield examination
    if traces_at:
        yield look_for_trace(traces_at, "".join(each.trace_id for each in told), wait_s)
    if metrics_at:
        pushed = any(each.what == "metrics" and each.ok for each in told)
        yield look_for_metrics(metrics_at, sent_at, wait_s, pushed=pushed, page=settings.prometheus)


def _examine(settings: Settings) -> Iterator[Examination]:
    context = ExporterContext(settings, dict(ENGINE.resource()), _collect, _count_lost, _count_exported)
    found = False
    for name in registry.configured(context):
        found = True
        yield from registry.examiner(name)(context)
    if not found:
        yield Examination(
            "exports",
            "nowhere",
            ok=False,
            detail="no exporter is configured: what is observed is seen by `ns.Scope` alone",
            advice="Set OTEL_EXPORTER_OTLP_ENDPOINT, NEURONSCOPE_PROMETHEUS or NEURONSCOPE_NSZ.",
        )


def _collect() -> MetricsSnapshot:
    ENGINE.steward.observe()  # so that there is something to send: the agent's own gauges
    return ENGINE.metrics.collect()


def _count_lost(_item: str, _reason: str, _n: int) -> None:
    """A probe that is lost is told by the examination."""


def _count_exported(_item: str, _n: int) -> None:
    """And so is one that arrives."""


def first_calls(directory: str) -> dict[str, float]:
    """When each library's first call was recorded in a directory, in seconds since 1970."""
    first: dict[str, float] = {}
    path = Path(directory).expanduser()
    if not directory or not path.is_dir():
        return first
    for item in registry.nsz("recordings")(path):
        # A file that cannot be read tells nothing; others may.
        with suppress(NszError, OSError), closing(registry.nsz("NszFile")(item)) as file:
            for record, _ in file.records():
                if isinstance(record, SpanRecord):
                    name, at = record.library.removeprefix("neuronscope."), record.start_unix_ns / 1e9
                    first[name] = min(first.get(name, at), at)
    return first

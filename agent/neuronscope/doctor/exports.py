"""Where observations go, and whether they arrive: each exporter examines itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from neuronscope.engine import ENGINE
from neuronscope.exceptions import NszError
from neuronscope.exporters import Examination, ExporterContext, registry
from neuronscope.settings import Settings
from neuronscope.signals.records import MetricsSnapshot


def examine_exports(settings: Settings) -> Iterator[Examination]:
    """Try everything that the settings configure; nothing at all is a finding, too."""
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
        try:
            file = registry.nsz("NszFile")(item)
        except (NszError, OSError):
            continue
        for span in file.spans:
            name = span.library.removeprefix("neuronscope.")
            first[name] = min(first.get(name, span.start_unix_ns / 1e9), span.start_unix_ns / 1e9)
        file.close()
    return first

"""The agent itself: silent, dropping, over its budget, faulty."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from neuronscope.dashboards.alerts.alert import DAY, HOUR, SERVICE, Alert, label, percent
from neuronscope.dashboards.promql import JOB, Source, equal
from neuronscope.dashboards.thresholds import Thresholds
from neuronscope.signals import names
from neuronscope.signals.records import Fidelity

_SOURCE: Final = Source(keep=(JOB,))
_REMEMBERED: Final = "6h"  # how long a service that is gone is missed


def alerts(thresholds: Thresholds) -> Iterator[Alert]:
    """All of them."""
    limits = thresholds.agent
    yield from _silent(limits.silent_minutes)
    yield _dropping(limits.drop_share)
    yield from _overhead()
    yield Alert(
        name="NeuronscopeAgentFaults",
        severity="ticket",
        expr=_SOURCE.over("1h").appeared(names.INTERNAL_ERRORS, "site", "kind")
        + f" > {limits.faults_per_hour:g}",
        hold="0s",
        summary=(
            f"{SERVICE}: the agent caught {{{{ $value | humanize }}}} faults of its own at "
            f"{label('site')} ({label('kind')})."
        ),
        checks=(
            "The service is unharmed: the guard caught them. Its log has the first stack trace of each kind.",
            "`neuronscope doctor`: was a library upgraded to a version that this agent does not know?",
            "Switch off what is faulty with NEURONSCOPE_DISABLE, and report the stack trace.",
        ),
        board="agent",
    )
    yield Alert(
        name="NeuronscopeSeriesFolded",
        severity="info",
        expr=_SOURCE.over("1h").appeared(names.SERIES_FOLDED, "metric") + " > 0",
        hold="0s",
        summary=(
            f"{SERVICE}: {label('metric')} has too many series; {{{{ $value | humanize }}}} "
            "observations went into `other`."
        ),
        checks=(
            "Which label grows: `count by (LABEL) (METRIC)` in Prometheus; model names and "
            "collections are usual.",
            "Junk from outside: model names or paths that a client chooses?",
            "Totals remain right. Only the split into series is coarser than it was.",
        ),
        board="agent",
        span_s=6 * HOUR,
    )


def _silent(minutes: int) -> Iterator[Alert]:
    there = _SOURCE.present(names.OVERHEAD_BUDGET)
    yield Alert(
        name="NeuronscopeAgentSilent",
        severity="page",
        expr=f"{_SOURCE.present(names.OVERHEAD_BUDGET, within=_REMEMBERED)}\nunless {there}",
        hold=f"{minutes}m",
        summary=(
            f"{SERVICE}: the agent has not been heard of for {minutes} minutes. Nothing here is measured now."
        ),
        checks=(
            "Is the service up? The metric `up` in Prometheus tells a dead process from a dead agent.",
            "Its /metrics page: `curl http://HOST:PORT/metrics`; a taken port or a new address is in "
            "its log.",
            "Was it deployed without `neuronscope run` or with NEURONSCOPE_ENABLED=false? "
            "`neuronscope doctor`.",
        ),
        board="agent",
    )
    yield Alert(
        name="NeuronscopeAgentAbsent",
        severity="ticket",
        expr=_SOURCE.absent(names.OVERHEAD_BUDGET),
        hold="15m",
        summary="Prometheus has no agent of any service: these rules can tell nothing.",
        checks=(
            "Prometheus' own page of targets: is the scrape configured, and what is its last error?",
            "Has NEURONSCOPE_PROMETHEUS an address that Prometheus reaches? Without a host it is "
            "loopback only.",
            "Over OTLP instead: does the collector hand metrics on to this Prometheus?",
        ),
        board="agent",
    )


def _dropping(share: float) -> Alert:
    ten = _SOURCE.over("10m")
    lost = ten.appeared(names.DROPPED, "item")
    sent = ten.increase(names.EXPORTED, "item")
    return Alert(
        name="NeuronscopeAgentDropping",
        severity="ticket",
        expr=f"{lost} > {share:g} * ({sent} + {lost} or {lost})",
        hold="5m",
        summary=(
            f"{SERVICE}: {{{{ $value | humanize }}}} {label('item')} records were lost within ten minutes."
        ),
        checks=(
            "Why: the reasons on the agent dashboard. collector_unreachable, queue_full, disk_full, "
            "too_large.",
            "Does the collector answer? `neuronscope doctor` sends a probe and looks for it.",
            "What `.nsz` recorders kept is not lost: `neuronscope export RECORDINGS --to otlp` sends "
            "it again.",
        ),
        board="agent",
    )


def _overhead() -> Iterator[Alert]:
    accounted = _SOURCE.value(names.OVERHEAD_ACCOUNTED)
    measured = _SOURCE.value(names.OVERHEAD_MEASURED, where={"bound": equal("low")})
    budget = _SOURCE.value(names.OVERHEAD_BUDGET)
    yield Alert(
        name="NeuronscopeAgentOverBudget",
        severity="ticket",
        expr=f"{accounted} > {budget}\nor {measured} > {budget}",
        hold="10m",
        summary=f"{SERVICE}: observation costs {percent()} of the work, more than its budget.",
        checks=(
            "Accounted or measured, and by which probe: the overhead panels of the agent dashboard.",
            "Is NEURONSCOPE_OVERHEAD_ACTION `warn`? Only `reduce` (the default) keeps the budget by itself.",
            "Full tensors asked for, or a probe on very many small layers? Watch fewer.",
        ),
        board="agent",
    )
    yield Alert(
        name="NeuronscopeAgentOff",
        severity="info",
        expr=_SOURCE.value(names.FIDELITY_STATE, where={names.FIDELITY: equal(Fidelity.OFF.value)}) + " == 1",
        hold="1h",
        summary=(
            f"{SERVICE}: the budget has had no room for layers for an hour: only core traces are recorded."
        ),
        checks=(
            "Is the budget meant to be so small? NEURONSCOPE_MAX_OVERHEAD_PCT.",
            "Which probe costs most: overhead by probe on the agent dashboard.",
            "Small models at high rates leave little room; watch fewer layers (NEURONSCOPE_PROBES).",
        ),
        board="agent",
        span_s=DAY,
    )

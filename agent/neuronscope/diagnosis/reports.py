"""How findings and measurements of the diagnosis leave the process: metrics, events, logs.

Called in the worker's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from neuronscope.diagnosis.canaries import CanaryReport
from neuronscope.diagnosis.drift import WindowReport
from neuronscope.diagnosis.embedders import EmbedderReport, Fingerprint, IndexReport
from neuronscope.diagnosis.findings import Finding
from neuronscope.signals import names
from neuronscope.signals.records import LogRecord, SpanEvent

if TYPE_CHECKING:
    from neuronscope.engine import Engine

_log = logging.getLogger("neuronscope")
Labels = tuple[tuple[str, str], ...]


class Reporter:
    """Tells the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # --- measurements --------------------------------------------------------------------------------
    def window(self, window: WindowReport) -> None:
        """The statistics of a window; of several series the one furthest beyond its threshold."""
        metrics = self._engine.metrics
        place = _place(window.store, window.collection)
        metrics.add(names.DRIFT_WINDOWS, 1, place)
        metrics.set(names.DRIFT_WINDOW, window.n, place)
        for test in sorted(window.tests, key=lambda test: test.value / test.threshold):
            labels = (*place, ("feature", test.feature), ("statistic", test.statistic))
            metrics.set(names.DRIFT_STATISTIC, test.value, labels)
            metrics.set(names.DRIFT_THRESHOLD, test.threshold, labels)

    def replayed(self, name: str, outcome: str | None) -> None:
        """Canaries were searched with; without an outcome most of them failed."""
        labels = (("canary", name), ("outcome", outcome or "failed"))
        self._engine.metrics.add(names.CANARY_REPLAYS, 1, labels)

    def canaries(self, name: str, report: CanaryReport | None) -> None:
        """What canaries found, beside what they had found."""
        if report is None:
            self.replayed(name, None)
            return
        self.replayed(name, "moved" if report.moved else "same")
        metrics, labels = self._engine.metrics, (("canary", name),)
        metrics.set(names.CANARY_OVERLAP, report.overlap, labels)
        metrics.set(names.CANARY_LIMIT, report.limit, labels)
        metrics.set(names.CANARY_RBO, report.rbo, labels)

    def embedder(self, report: EmbedderReport, earlier: Fingerprint | None) -> None:
        """An embedder's fingerprint, beside the stored one."""
        metrics, now = self._engine.metrics, report.now
        metrics.set(names.EMBEDDER_COSINE, report.cosine, (("embedder", now.name),))
        if earlier is not None and earlier.hash != now.hash:
            metrics.set(names.EMBEDDER_INFO, 0, (("embedder", now.name), ("fingerprint", earlier.hash)))
        metrics.set(names.EMBEDDER_INFO, 1, (("embedder", now.name), ("fingerprint", now.hash)))

    def embedders_seen(self, store: str, collection: str, n: int) -> None:
        """How many embedders have lately queried a collection."""
        self._engine.metrics.set(names.EMBEDDERS_SEEN, n, _place(store, collection))

    def index(self, report: IndexReport) -> None:
        """Stored vectors beside fresh ones."""
        self._engine.metrics.set(names.INDEX_COSINE, report.cosine, (("index", report.name),))

    def moved(self, before: Iterable[Finding], now: Iterable[Finding]) -> None:
        """Findings are known to be about another place: told already, so only their gauges move."""
        for findings, value in ((before, 0), (now, 1)):
            for finding in findings:
                self._engine.metrics.set(names.DRIFT_ACTIVE, value, _labels(finding))

    # --- findings ------------------------------------------------------------------------------------
    def raised(self, finding: Finding, *, any_active: bool) -> None:
        """A finding begins."""
        _log.warning(
            "retrieval from %s: %s (%s)", finding.collection or "the store", finding.summary, finding.kind
        )
        self._tell(finding, "raised", any_active)

    def cleared(self, finding: Finding, *, any_active: bool) -> None:
        """A finding ends."""
        _log.info("retrieval from %s: %s is over", finding.collection or "the store", finding.kind)
        self._tell(finding, "cleared", any_active)

    def _tell(self, finding: Finding, state: str, any_active: bool) -> None:
        begun = state == "raised"
        self._engine.metrics.set(names.DRIFT_ACTIVE, int(begun), _labels(finding))
        now = time.time_ns()
        facts = _facts(finding)
        # Recorders go by `active`: while it is true they keep every trace.
        event: dict[str, Any] = {"active": any_active, "state": state, **facts}
        self._engine.tell(SpanEvent(names.DRIFT.name, now, event))
        self._engine.log(
            LogRecord(
                time_unix_ns=now,
                observed_unix_ns=now,
                severity=names.DRIFT.severity if begun else 9,
                severity_text=names.DRIFT.severity_text if begun else "INFO",
                body=finding.summary,
                attributes={"state": state, **facts},
                event_name=names.DRIFT.name,
                library="neuronscope.diagnosis",
            )
        )


def _facts(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind.value,
        "stage": finding.stage.value,
        names.DB_SYSTEM: finding.store,
        names.DB_COLLECTION: finding.collection,
        "summary": finding.summary,
        "effect": finding.effect,
        "confidence": finding.confidence,
        "evidence": [str(item) for item in finding.evidence],
        "traces": [f"{trace_id:032x}" for trace_id in finding.traces],
    }


def _labels(finding: Finding) -> Labels:
    return (*_place(finding.store, finding.collection), ("kind", finding.kind.value))


def _place(store: str, collection: str) -> Labels:
    return (names.DB_SYSTEM, store), (names.DB_COLLECTION, collection)

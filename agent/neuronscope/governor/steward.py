"""The agent's own budget in a running process: the worker's CPU, the experiment, gauges and events."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from neuronscope.governor.bucket import AGENT_FORGETS_S
from neuronscope.governor.budget import Budget
from neuronscope.governor.hidden import Hidden
from neuronscope.governor.ledger import Ledger
from neuronscope.governor.measured import Experiment, Measured
from neuronscope.settings import Settings
from neuronscope.signals import names
from neuronscope.signals.records import Fidelity, SpanEvent, SpanRecord

if TYPE_CHECKING:
    from neuronscope.engine.metrics import Aggregator
    from neuronscope.recording import Recording

_log = logging.getLogger("neuronscope")
COVERAGE_S: Final = 60.0  # seconds between two event records of what was captured
# How long the worker waits for more after the first item.  After a model's forward, which has emptied the
# caches, a wake-up costs twice what the span's record does.
LINGER_S: Final = 0.2
PATIENT_S: Final = 1.0
AGENT_PROBE: Final = "agent.blocks"  # what the agent's own captures are told under


class Steward:
    """Keeps the agent's accounts.

    Args:
        export: exports what is waiting; called in the worker's thread.
        tell: takes an event of the agent.

    Attributes:
        budget: the agent's budget.
        ledger: whom the worker works for.
        captures_off: the agent's captures are switched off for a while, to measure what they cost.
        measured: the latest measurement.
        hidden: what things cost over what was clocked.
        experiment: measures what captures cost; None: not wanted.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Aggregator,
        export: Callable[[], None],
        tell: Callable[[SpanEvent], None],
    ) -> None:
        self.hidden = Hidden()
        self.budget = Budget(
            settings.max_overhead_pct,
            settings.overhead_action,
            forget_s=AGENT_FORGETS_S,
            name="agent",
            on_event=self._budget_event,
            hidden=self.hidden,
        )
        self.ledger = Ledger(self.budget)
        self.captures_off = False
        self.measured: Measured | None = None
        self._settings = settings
        self._metrics = metrics
        self._tell = tell
        self._told_at = time.monotonic()
        self.experiment: Experiment | None = None
        if settings.overhead_measure and settings.deferred:
            self.experiment = Experiment(
                self.switch,
                export,
                self._captures_ns,
                self._report,
                block_s=settings.overhead_block_s,
                first_s=min(60.0, settings.overhead_rest_s),
                rest_s=settings.overhead_rest_s,
                wanted=self.hidden.wants_more,
            )

    def span_done(self, record: SpanRecord, recording: Recording | None, hot_ns: int) -> None:
        """The worker has finished a span; `hot_ns` went into it in a thread of the service."""
        self.ledger.span(recording, record.library, hot_ns)
        root = record.parent_span_id is None or record.parent_is_remote
        if root and self.experiment is not None:
            self.experiment.served(record.start_unix_ns, record.end_unix_ns)

    def worker_cpu(self, spent_ns: int) -> None:
        """The worker has emptied its queue, and spent so much on it."""
        # Inline, the caller's thread has been timed already, with what it did here.
        self.ledger.settle(spent_ns if self._settings.deferred else 0)
        self._metrics.add(names.WORKER_CPU, spent_ns / 1e9)
        self.budget.tick()
        now = time.monotonic()
        if now - self._told_at >= COVERAGE_S:
            self._told_at = now
            self._tell_coverage()
        if self.experiment is not None:
            self.experiment.tick()

    def linger_s(self) -> float:
        """How long the worker may wait for more after the first item: longer where the budget is short."""
        measuring = self.experiment is not None and self.experiment.running  # its blocks end in time
        return PATIENT_S if self.budget.short and not measuring else LINGER_S

    def stop(self) -> None:
        """The agent stops: an experiment under way is given up, and the balance sheet told."""
        if self.experiment is not None:
            self.experiment.stop()
        self._tell_coverage()

    def _tell_coverage(self) -> None:
        if self.budget.work_ns > 0:
            self._tell(SpanEvent("neuronscope.coverage", time.time_ns(), self.budget.facts()))

    # --- the experiment ----------------------------------------------------------------------------
    def switch(self, off: bool) -> None:
        """Switch the agent's captures off, to measure what they cost; or on again."""
        self.budget.pause(off)
        self.captures_off = off

    def _captures_ns(self) -> float:
        account = self.budget.accounts.get(AGENT_PROBE)
        return account.spent_ns if account is not None else 0.0

    def _report(self, measured: Measured) -> None:
        self.measured = measured
        self.hidden.learn(measured)  # the budget is one of what captures really cost
        facts: dict[str, Any] = {
            "result": f"{measured}; {self.hidden}",
            "agrees": measured.agrees,
            "pairs": measured.pairs,
            "factor": round(self.hidden.factor, 3),
        }
        self._tell(SpanEvent("neuronscope.overhead.measured", time.time_ns(), facts))
        if not measured.agrees:
            _log.warning(
                "captures cost %s: the accounts and the measurement disagree. Trust the measurement, and "
                "lower max_overhead_pct if it is more than you want.",
                measured,
            )

    # --- what is told ------------------------------------------------------------------------------
    def _budget_event(self, name: str, facts: dict[str, Any]) -> None:
        self._tell(SpanEvent(name, time.time_ns(), facts))

    def observe(self) -> None:
        """Set the gauges; called before metrics are collected."""
        budget, metrics = self.budget, self._metrics
        metrics.set(names.OVERHEAD_ACCOUNTED, budget.overhead_pct / 100)
        metrics.set(names.OVERHEAD_BUDGET, budget.max_overhead_pct / 100)
        metrics.set(names.OVERHEAD_FACTOR, self.hidden.factor)
        for fidelity in Fidelity:
            metrics.set(
                names.FIDELITY_STATE, float(fidelity is budget.state), ((names.FIDELITY, fidelity.value),)
            )
        for probe, account in budget.accounts.items():
            metrics.set(names.OVERHEAD_TIME, account.hot_ns / 1e9, (("probe", probe), ("place", "service")))
            metrics.set(names.OVERHEAD_TIME, account.worker_ns / 1e9, (("probe", probe), ("place", "worker")))
            if account.nbytes:
                metrics.set(names.TENSOR_BYTES, account.nbytes, (("probe", probe),))
        runs: dict[tuple[str, str], int] = {}
        for layer in budget.coverage:
            for outcome, n in (("recorded", layer.captured), ("not_recorded", layer.ran - layer.captured)):
                runs[layer.probe, outcome] = runs.get((layer.probe, outcome), 0) + n
        for (probe, outcome), n in runs.items():
            metrics.set(names.LAYER_RUNS, n, (("probe", probe), ("outcome", outcome)))
        if self.measured is not None:
            self._observe_measured(self.measured)

    def _observe_measured(self, measured: Measured) -> None:
        metrics = self._metrics
        metrics.set(names.OVERHEAD_MEASURED_BLOCKS, measured.pairs)
        if measured.estimate is None:
            return  # the figures of an earlier experiment stay
        metrics.set(names.OVERHEAD_CAPTURES, measured.accounted)
        for bound, value in (
            ("estimate", measured.estimate),
            ("low", measured.low),
            ("high", measured.high),
        ):
            metrics.set(names.OVERHEAD_MEASURED, value, (("bound", bound),))

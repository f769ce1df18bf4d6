"""The token bucket beside the decisions: where on the ladder we are, the judgement, and what is told."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final

from neuronscope.exceptions import OverheadBudgetExceeded
from neuronscope.governor.allowance import UNSETTLED
from neuronscope.governor.costs import Costs
from neuronscope.governor.coverage import Coverage, Group, coverage
from neuronscope.governor.hidden import Hidden
from neuronscope.governor.ladder import Ladder, OnEvent
from neuronscope.governor.purse import Purse
from neuronscope.governor.turns import Site, Turns
from neuronscope.settings import OverheadAction
from neuronscope.signals.records import Fidelity

# Less work than this has no meaningful percentage; nor has work that earns less than twice the grant.
MIN_JUDGED_NS: Final = 200_000_000
RESERVE_NS: Final = 1_000_000_000  # work whose earnings are kept for layers that have waited longer
# Until the worker has told what its part of a capture costs, it may be as much as this, for a quarter of
# the grant; and some captures are let through anyhow.
FIRST_AFTER_NS: Final = 100_000
FIRST_QUEUED: Final = 16
REFRESH_NS: Final = 1_000_000
AGENT_FORGETS_S: Final = 60.0  # of work: the agent is judged by its last minute or so, a scope as a whole
MAX_TOLD: Final = 512  # layers in an event
_NEVER: Final = 1 << 62


class Bucket(Purse):
    """What a budget knows of its layers, its queue and its state.  `Budget` decides.  Thread-safe.

    Args:
        max_overhead_pct: per cent of the work that observation may cost.
        action: ``warn`` withholds nothing and ends captures beyond twice the budget; ``abort`` withholds
            nothing and ends them beyond the budget; ``reduce`` takes what is affordable.
        clock: monotonic nanoseconds.
        cpu: the process's CPU time in nanoseconds; None: cost is not bounded by CPU (a fake clock).
        parent: the budget around this one (an outer scope's, the agent's); it is told what is spent
            here, but does not pay for it.
        forget_s: seconds of work after which the past no longer counts: None in a scope, which is judged
            as a whole.
        on_event: told of changes of the visible state, with facts for an event record.
        hidden: what things cost over what was clocked; None: the parent's, or nothing.
    """

    def __init__(
        self,
        max_overhead_pct: float,
        action: OverheadAction = "reduce",
        clock: Callable[[], int] = time.perf_counter_ns,
        *,
        cpu: Callable[[], int] | None = None,
        parent: Bucket | None = None,
        forget_s: float | None = None,
        name: str = "",
        on_event: OnEvent | None = None,
        hidden: Hidden | None = None,
    ) -> None:
        super().__init__(max_overhead_pct, clock, cpu, parent, forget_s)
        self.max_overhead_pct = max_overhead_pct
        self.action: OverheadAction = action
        self.name = name
        self.exhausted = False
        self.short = False  # less is left than is asked for
        self.unseen_calls = 0  # of models, into which nobody looked
        self._hidden: Hidden | None = parent._hidden if hidden is None and parent is not None else hidden
        self._read_at = 0
        self._paused = False
        self._left = 0.0  # the balance when it was paused
        self._in_flight: int = 0
        self._trying = False
        # the worker's part of a capture that is still in the queue
        self._after = Costs()
        self._after_in_scopes = Costs()  # the same in scopes within this one: the next begins with it
        self._outer: Bucket | None = parent
        if parent is not None:
            self._after_in_scopes.borrow(parent._after_in_scopes)
            self._after.borrow(parent._after)
            self._after.borrow(parent._after_in_scopes)
        self._after_known: bool = self._after.known(0)
        self._first_queued = max(FIRST_QUEUED, int(self._grant / 4 / FIRST_AFTER_NS))
        self._queued: int = 0
        self._queued_bytes: int = 0
        # what is watched
        self._turns = Turns()
        self._sites: dict[tuple[str, str], Site] = {}
        self._known: dict[str, Site] = {}  # by probe, one whose cost has been seen
        self._groups: dict[tuple[str, ...], Group] = {}
        # the ladder
        self._free = action != "reduce"  # nothing is withheld
        self._closed = False
        self._full_off = False
        self._taken = 0
        # While captures are closed, sites whose latest turn is this or later are refused without more ado.
        self._closed_until = 0
        self._open_to = _NEVER
        self._reduced = 0
        self._ladder = Ladder(self._facts, on_event)

    @property
    def hidden(self) -> float:
        """What captures cost in all over what their own clocks see: their charges are multiplied by it."""
        return 1.0 if self._hidden is None else self._hidden.factor

    @property
    def around(self) -> float:
        """The same of spans and the worker's part in them; only set aside, see `Purse.set_aside`."""
        return 1.0 if self._hidden is None else self._hidden.around

    def charge_worker(self, probe: str, spent_ns: float, records: int = 0, nbytes: int = 0) -> None:
        """Account for the worker's CPU; `records` captures with `nbytes` of tensors have left the queue."""
        with self._lock:
            self._account(probe).worker_ns += spent_ns
            self._spent += spent_ns
            if records:
                self._queued = max(0, self._queued - records)
                self._queued_bytes = max(0, self._queued_bytes - nbytes)
                self._after.learn(nbytes // records, spent_ns / records, records)
                self._after_known = True
                self._turns.after = self._after.table[0]
        if self._parent is not None:
            self._parent.told(probe, spent_ns)
        if self._outer is not None and records:
            self._outer.learn_from_scope(records, nbytes, spent_ns)

    def learn_from_scope(self, records: int, nbytes: int, spent_ns: float) -> None:
        """What the worker spent on captures of a scope within this one: the next need not find out anew."""
        with self._lock:
            self._after_in_scopes.learn(nbytes // records, spent_ns / records, records)
        if self._outer is not None:
            self._outer.learn_from_scope(records, nbytes, spent_ns)

    def pause(self, paused: bool) -> None:
        """While captures are switched off to measure them, nothing is earned, and nothing paid out of it."""
        UNSETTLED.settle()
        with self._lock:
            self._refresh(self._clock(), force=True)
            self._take_back()
            if paused:
                self._left = self._balance()
            elif self._paused:
                self._earned += self._left - self._balance()
            self._paused = paused

    def lost(self, records: int, nbytes: int) -> None:
        """Captures were dropped before the worker saw them."""
        with self._lock:
            self._queued = max(0, self._queued - records)
            self._queued_bytes = max(0, self._queued_bytes - nbytes)

    def site(self, probe: str, layer: str, *, critical: bool = False) -> Site:
        """The site of a probe at a layer, made when first asked for."""
        found = self._sites.get((probe, layer))
        if found is None:
            with self._lock:
                found = self._sites.get((probe, layer))
                if found is None:
                    found = self._sites[(probe, layer)] = Site(probe, layer, critical=critical)
                    self._turns.add(found)
        return found

    def group(self, sites: Sequence[Site]) -> Group:
        """Sites that run together, for `plan`."""
        key = tuple(site.layer for site in sites)
        with self._lock:
            return self._groups.setdefault(key, Group(sites))

    # --- where we are ------------------------------------------------------------------------------
    def _debt(self) -> float:
        """What the worker still has to do for captures that were taken."""
        if not self._queued:
            return 0.0
        each = self._after.predict(self._queued_bytes // self._queued)
        return self._queued * (each if self._after_known else max(each, FIRST_AFTER_NS))

    def _reserve_limit(self) -> float:
        return max(self._grant / 2, self._rate * RESERVE_NS)

    def _reserve(self) -> float:
        """Kept for layers of other models, which are not running."""
        return min(self._turns.parked, self._reserve_limit())

    def _refresh(self, now: int, *, force: bool = False) -> None:
        """Read the clocks, earn, and look where on the ladder we are.  At most once a millisecond."""
        if now - self._read_at < REFRESH_NS and self._read_at and not force:
            return
        self._read_at = now
        if self._paused:
            self._skip(now)
        else:
            net = self._earn(now)
            if self._forget_ns is not None:
                self._forget(net, 4 * self._turns.largest)
        self._reopen()
        self._judge(now)
        withheld = self.exhausted or self._full_off or self._closed
        if withheld or not (self._free or self._after_known):
            self._take_back()
            self._surplus = 0.0
        elif self._free:
            self._surplus = inf
        else:
            self._surplus = self._balance() / 2 - min(self._turns.total, self._reserve_limit())
        self.short = not self._free and (withheld or self._balance() < 0)
        self._closed_until = now + REFRESH_NS
        self._open_to = self._turns.sweep - 1 if self._closed else _NEVER

    def _reopen(self) -> None:
        """Hysteresis: captures resume when a sweep is affordable, full ones when there is much more."""
        if not (self._closed or self._full_off):
            return
        balance = self._balance()
        sweep = min(self._turns.owed + self._reserve(), 2 * self._reserve_limit())
        if self._closed and balance >= max(sweep, self._turns.largest):
            self._closed = False
        if self._full_off and not self._closed and balance >= 2 * self._reserve_limit() + sweep:
            self._full_off = False

    # --- judgement -------------------------------------------------------------------------------
    def tick(self) -> None:
        """Read the clocks and judge; called now and then, so that the state is never stale."""
        with self._lock:
            self._refresh(self._clock())
        if self._ladder.outbox:
            self._deliver()

    def _facts(self) -> dict[str, Any]:
        return {
            "overhead_pct": round(self._overhead_pct(), 3),
            "budget_pct": float(self.max_overhead_pct),
            "work_s": round(self._work_ns / 1e9, 3),
            "probe": self._costliest(),
            "captured": self._taken,
            "not_captured": self.skipped,
            "reduced": self._reduced,
            "calls_not_looked_into": self.unseen_calls,
        }

    def _judge(self, now: int) -> None:
        """Warn beyond the budget, end captures beyond what the action allows, and recover."""
        # What `reduce` promises is "to within one mispredicted capture": that one is no reason to stop.
        excused = 0.0 if self._free else self._largest
        spent = self._spent + self._lent - self.allowance.left
        overhead = 100.0 * (spent - excused) / self._work_ns if self._work_ns > 0 else 0.0
        observed = self._work_ns + self._spent
        if observed * self._rate >= 2 * self._grant and observed >= MIN_JUDGED_NS:
            if overhead > self.max_overhead_pct:
                self._ladder.exceeded()
            limit = self.max_overhead_pct * (1 if self.action == "abort" else 2)
            if not self.exhausted and overhead > limit:
                self.exhausted = True
                self._ladder.exhausted()
        if self.exhausted and self._forget_ns is not None and overhead < 0.9 * self.max_overhead_pct:
            self.exhausted = False
        if not self.exhausted:
            self._ladder.recover(now)

    def _deliver(self) -> None:
        """Tell what happened, without holding the lock."""
        with self._lock:
            ladder = self._ladder
            outbox, ladder.outbox = ladder.outbox, []
        ladder.deliver(self.name, outbox)

    # --- what is told ----------------------------------------------------------------------------
    @property
    def overhead_pct(self) -> float:
        """Accounted cost in per cent of the observed work (0 before anything was observed)."""
        UNSETTLED.settle()
        with self._lock:
            self._refresh(self._clock(), force=True)
            return self._overhead_pct()

    @property
    def skipped(self) -> int:
        """Captures that were not affordable."""
        unwatched = sum(group.refused * len(group.sites) for group in self._groups.values())
        return unwatched + sum(site.refused for site in self._turns.sites)

    @property
    def reduced(self) -> int:
        """Full captures that became summaries."""
        return self._reduced

    @property
    def state(self) -> Fidelity:
        """The visible state: the lowest fidelity of the last second or so."""
        return Fidelity.OFF if self.exhausted else self._ladder.state

    def facts(self) -> dict[str, Any]:
        """The balance sheet, for an event record: spent by whom, and how often each layer was seen."""
        UNSETTLED.settle()
        with self._lock:
            self._refresh(self._clock(), force=True)
            layers = coverage(self._turns.sites, self._groups.values())[:MAX_TOLD]
            return {
                "state": self.state.value,
                "budget": self.name,
                **self._facts(),
                "probes": list(self._accounts),
                "service_ms": [round(account.hot_ns / 1e6, 3) for account in self._accounts.values()],
                "worker_ms": [round(account.worker_ns / 1e6, 3) for account in self._accounts.values()],
                "layers": [f"{layer.probe} {layer.layer}" for layer in layers],
                "layers_ran": [layer.ran for layer in layers],
                "layers_captured": [layer.captured for layer in layers],
            }

    @property
    def coverage(self) -> list[Coverage]:
        """How often each watched layer ran, and was captured."""
        UNSETTLED.settle()
        with self._lock:
            return coverage(self._turns.sites, self._groups.values())

    @property
    def costliest_probe(self) -> str:
        """The probe or site that cost most so far."""
        with self._lock:
            return self._costliest()

    def verdict(self) -> OverheadBudgetExceeded | None:
        """The exception a scope owes its user at its exit, if its budget was exceeded."""
        UNSETTLED.settle()
        self.tick()
        if not self.exhausted:
            return None
        return OverheadBudgetExceeded(self.overhead_pct, self.max_overhead_pct, self.costliest_probe)

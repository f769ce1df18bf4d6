"""The token bucket: observed work earns, captures spend, and nothing is taken that is not affordable."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, inf
from typing import Any, Final

from neuronscope.exceptions import OverheadBudgetExceeded
from neuronscope.governor.accounts import CLIP, MOST_FOLLOWS, Account
from neuronscope.governor.costs import Costs
from neuronscope.governor.turns import Site, Turns
from neuronscope.native import new_lock
from neuronscope.settings import OverheadAction
from neuronscope.signals.records import Fidelity

_log = logging.getLogger("neuronscope")

GRANT_NS: Final = 20_000_000  # the first call of a scope must be able to record something
# Less work than this has no meaningful percentage; nor has work that earns less than twice the grant.
MIN_JUDGED_NS: Final = 200_000_000
# What may be saved up, in ns of work: a long quiet time must not pay for a minute of full capture.
CAPACITY_NS: Final = 10_000_000_000
RESERVE_NS: Final = 1_000_000_000  # work whose earnings are kept for layers that have waited longer
# Until the worker has told what its part of a capture costs, it may be as much as this, for a quarter of
# the grant; and some captures are let through anyhow.
FIRST_AFTER_NS: Final = 100_000
FIRST_QUEUED: Final = 16
REFRESH_NS: Final = 1_000_000
AGENT_FORGETS_S: Final = 60.0  # of work: the agent is judged by its last minute or so, a scope as a whole
STATE_NS: Final = 1_000_000_000  # the visible state improves only after so long without a refusal
_FULL, _SUMMARY, _OFF = Fidelity.FULL, Fidelity.SUMMARY, Fidelity.OFF
MAX_TOLD: Final = 512  # layers in an event
_NEVER: Final = 1 << 62
_RANK: Final = {Fidelity.FULL: 0, Fidelity.SUMMARY: 1, Fidelity.CRITICAL: 2, Fidelity.OFF: 3}
_LADDER: Final = {
    Fidelity.FULL: "everything that was asked for is captured again",
    Fidelity.SUMMARY: "full tensors become summaries",
    Fidelity.CRITICAL: "some captures are left out; spans, tokens and errors are not",
    Fidelity.OFF: "captures are off until the cost is within the budget; spans, tokens and errors are not",
}
OnEvent = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Coverage:
    """How often one layer ran while watched, and how often it was captured."""

    probe: str
    layer: str
    ran: int
    captured: int


class Budget:
    """The token bucket of one scope, or of the always-on agent.  Thread-safe.

    Work is the smaller of the time in which anything was observed (a union: a thousand concurrent awaits
    earn one second a second) and the process's CPU time in it, less what observation itself took.

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
    """

    def __init__(
        self,
        max_overhead_pct: float,
        action: OverheadAction = "reduce",
        clock: Callable[[], int] = time.perf_counter_ns,
        *,
        cpu: Callable[[], int] | None = None,
        parent: Budget | None = None,
        forget_s: float | None = None,
        name: str = "",
        on_event: OnEvent | None = None,
    ) -> None:
        self.max_overhead_pct = max_overhead_pct
        self.action: OverheadAction = action
        self.name = name
        self.exhausted = False
        self._parent = parent
        self._forget_ns = None if forget_s is None else forget_s * 1e9
        self._on_event = on_event
        self._clock = clock
        self._cpu = time.process_time_ns if cpu is None and clock is time.perf_counter_ns else cpu
        self._lock = new_lock()  # re-entered when garbage collection ends a stream
        # On the hot path: a `with` costs twice as much.
        self._acquire, self._release = self._lock.acquire, self._lock.release
        # observed work
        self._active = 0
        self._since = 0
        self._observed_ns = 0
        self._read_observed = 0
        self._read_cpu = self._cpu() if self._cpu is not None else 0
        self._read_spent = 0.0
        self._read_at = 0
        self._carry = 0.0
        self._work_ns = 0.0
        self._paused = False
        # money
        self._rate = max_overhead_pct / 100.0
        self._grant = GRANT_NS * min(1.0, max_overhead_pct / 5.0)
        self._earned = self._grant
        self._spent = 0.0  # out of this bucket
        self._told_ns = 0.0  # by budgets inside this one, which pay themselves
        self._reserved = 0.0
        self._in_flight = 0
        self._trying = False
        self._largest = 0.0
        self._surplus = 0.0
        # the worker's part of a capture that is still in the queue
        self._after = Costs()
        self._after_known: bool = parent is not None and parent._after_known
        if parent is not None:
            self._after.borrow(parent._after)
        self._first_queued = max(FIRST_QUEUED, int(self._grant / 4 / FIRST_AFTER_NS))
        self._queued = 0
        self._queued_bytes = 0
        # what is watched
        self._turns = Turns()
        self._sites: dict[tuple[str, str], Site] = {}
        self._known: dict[str, Site] = {}  # by probe, one whose cost has been seen
        self._accounts: dict[str, Account] = {}
        # the ladder
        self._free = action != "reduce"  # nothing is withheld
        self._closed = False
        self._full_off = False
        self._taken = 0
        # While captures are closed, sites whose latest turn is this or later are refused without more ado.
        self._closed_until = 0
        self._open_to = _NEVER
        self._reduced = 0
        self._state = Fidelity.FULL
        self._low_at = dict.fromkeys(Fidelity, -STATE_NS)
        self._warned: set[str] = set()
        self._outbox: list[tuple[str, Fidelity, dict[str, Any]]] = []

    # --- observed time ---------------------------------------------------------------------------
    def enter(self, probe: str = "", spent_ns: float = 0) -> None:
        """An observed interval begins (a call, a scope); `spent_ns` of the caller's thread went into that."""
        self._acquire()
        try:
            if self._active == 0:
                self._since = self._clock()
            self._active += 1
            if spent_ns:
                self._charge(probe, spent_ns)
        finally:
            self._release()

    def leave(self, probe: str = "", spent_ns: float = 0) -> None:
        """An observed interval ends; `spent_ns` of the caller's thread went into observing it."""
        self._acquire()
        try:
            self._active -= 1
            if self._active == 0:
                self._observed_ns += self._clock() - self._since
            if spent_ns:
                self._charge(probe, spent_ns)
        finally:
            self._release()

    def charge(self, probe: str, spent_ns: float, *, clip: bool = True) -> None:
        """Account for work that is never withheld, done in a thread of the service.

        Args:
            clip: it was read off the wall clock, which also counts waiting for the GIL.
        """
        with self._lock:
            if clip:
                counted = self._charge(probe, spent_ns)
            else:
                counted = spent_ns
                self._account(probe).hot_ns += spent_ns
                self._spent += spent_ns
                self._surplus -= spent_ns
        if self._parent is not None:
            self._parent.told(probe, counted)

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

    def told(self, probe: str, spent_ns: float) -> None:
        """A budget inside this one has spent something; it counts, but is not paid for here."""
        with self._lock:
            self._account(probe).hot_ns += spent_ns
            self._told_ns += spent_ns
        if self._parent is not None:
            self._parent.told(probe, spent_ns)

    def pause(self, paused: bool) -> None:
        """While captures are switched off to measure them, work earns nothing and does not count."""
        with self._lock:
            self._refresh(self._clock(), force=True)
            self._paused = paused

    # --- captures --------------------------------------------------------------------------------
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

    def admit(self, site: Site, want: Fidelity, nbytes: int) -> Fidelity:
        """The fidelity at which a capture of `nbytes` may be taken now; `OFF` if none is affordable.

        A capture that is granted must be followed by `spend`.
        """
        if site.turn >= self._open_to and self._clock() < self._closed_until:
            site.refused += 1
            return _OFF
        cost = (site.full_table if want is _FULL else site.summary_table)[nbytes.bit_length()]
        self._acquire()
        try:
            if cost <= self._surplus:
                self._surplus -= cost
                self._reserved += cost
                self._in_flight += 1
                return want
            fidelity = self._decide(site, want, nbytes)
        finally:
            self._release()
        if self._outbox:
            self._deliver()
        return fidelity

    def spend(
        self, site: Site, fidelity: Fidelity, nbytes: int, spent_ns: float, queued: int | None = 0
    ) -> None:
        """Account for a capture that `admit` granted.

        Args:
            spent_ns: CPU time of the model's thread.
            queued: bytes of the tensor that went to the worker with the record, whose work is still to
                come; None: there is no record.
        """
        costs = site.full if fidelity is _FULL else site.summary
        size = nbytes.bit_length()
        with self._lock:
            reserved = costs.table[size]
            costs.learn(nbytes, spent_ns)
            self._in_flight -= 1
            self._reserved = max(0.0, self._reserved - reserved) if self._in_flight > 0 else 0.0
            self._trying = False
            self._largest = max(self._largest, spent_ns)
            account = self._account(site.probe)
            account.hot_ns += spent_ns
            account.nbytes += queued or 0
            self._spent += spent_ns
            self._surplus -= spent_ns - reserved + self._after.table[0]
            site.took()
            self._known[site.probe] = site
            if queued is not None:
                self._queued += 1
                self._queued_bytes += queued
            self._taken += 1
            self._turns.took(site)
        if self._parent is not None:
            self._parent.told(site.probe, spent_ns)
        if self._free or self._outbox:
            self.tick()

    def lost(self, records: int, nbytes: int) -> None:
        """Captures were dropped before the worker saw them."""
        with self._lock:
            self._queued = max(0, self._queued - records)
            self._queued_bytes = max(0, self._queued_bytes - nbytes)

    def plan(self, sites: Sequence[Site]) -> list[Site]:
        """Those of the sites that may be captured in the forward to come; the others need no watching.

        Whoever asks before each forward spares a run of the model the cost of observers that would be
        refused anyway.
        """
        with self._lock:
            self._refresh(self._clock())
            if self._free:
                chosen = [] if self.exhausted else list(sites)
            elif self._closed or self.exhausted:
                chosen = [] if self.exhausted else [site for site in sites if self._turns.left_behind(site)]
            elif (
                self._balance() >= sum(site.summary.predict(site.nbytes) for site in sites) + self._reserve()
            ):
                return list(sites)
            else:
                chosen = sorted(sites, key=lambda site: (site.turn, -site.abnormal))
            left = self._balance()
            affordable: list[Site] = []
            for site in chosen:
                left -= site.summary.predict(site.nbytes)
                if left < 0 and not self._free:
                    break
                affordable.append(site)
            if len(affordable) < len(sites):
                self._refuse(sites, {id(site) for site in affordable})
        if self._outbox:
            self._deliver()
        return affordable

    def _refuse(self, sites: Sequence[Site], affordable: set[int]) -> None:
        for site in sites:
            if id(site) not in affordable:
                site.refused += 1
                self._turns.ask(site)
                if site.turn < self._turns.sweep:
                    site.summary.refuse(site.nbytes)
        self._lower(Fidelity.CRITICAL, self._read_at)

    def _decide(self, site: Site, want: Fidelity, nbytes: int) -> Fidelity:
        """The slow path of `admit`: the balance is short, or the site is new."""
        if self.exhausted:
            site.refused += 1
            return _OFF
        now = self._clock()
        self._refresh(now)
        turns = self._turns
        if self._free:
            return self._grant_capture(site, want, nbytes)
        if not self._after_known and self._queued + self._in_flight >= self._first_queued:
            site.refused += 1
            return _OFF
        if not site.taken:
            known = self._known.get(site.probe)
            if known is not None:
                site.full.borrow(known.full)
                site.summary.borrow(known.summary)
        if site.nbytes != nbytes:
            turns.weigh(site, nbytes)
        turns.ask(site)
        left_behind = turns.left_behind(site)
        if self._closed and not left_behind and not site.critical:
            site.refused += 1
            return _OFF
        kept = 0.0 if site.critical else min(turns.older(site), self._reserve_limit())
        if site.turn >= turns.sweep and not site.abnormal:
            kept += min(turns.abnormal(), self._reserve_limit())
        if want is _FULL and not self._full_off:
            if self._affords(site.full, nbytes, kept):
                return self._grant_capture(site, _FULL, nbytes)
            self._full_off = True
        if self._affords(site.summary, nbytes, kept):
            if want is _FULL:
                self._reduced += 1
                self._lower(_SUMMARY, now)
            return self._grant_capture(site, _SUMMARY, nbytes)
        if not self._affords(site.summary, nbytes, 0.0):
            site.summary.refuse(nbytes)
            if site.turn < turns.sweep:
                self._closed = True
        site.refused += 1
        self._lower(Fidelity.CRITICAL, now)
        return _OFF

    def _affords(self, costs: Costs, nbytes: int, kept: float) -> bool:
        cost = costs.predict(nbytes) + self._after.predict(0) + kept
        balance = self._balance()
        if not self._in_flight:
            return cost <= balance
        # What is under way may cost more than was predicted; a capture of unknown cost goes alone.
        if self._trying or not costs.known(nbytes):
            return False
        return 2 * (cost + self._reserved) <= balance + self._reserved

    def _grant_capture(self, site: Site, fidelity: Fidelity, nbytes: int) -> Fidelity:
        costs = site.full if fidelity is _FULL else site.summary
        cost = costs.predict(nbytes)
        self._trying = self._trying or not costs.known(nbytes)
        self._reserved += cost
        self._surplus -= cost
        self._in_flight += 1
        self._turns.took(site)
        return fidelity

    # --- the bucket ------------------------------------------------------------------------------
    def _charge(self, probe: str, spent_ns: float) -> float:
        account = self._accounts.get(probe)
        if account is None:
            account = self._accounts[probe] = Account()
        spent_ns = min(spent_ns, account.most)
        account.most += MOST_FOLLOWS * (CLIP * spent_ns - account.most)
        account.hot_ns += spent_ns
        self._spent += spent_ns
        self._surplus -= spent_ns
        return spent_ns

    def _account(self, probe: str) -> Account:
        account = self._accounts.get(probe)
        if account is None:
            account = self._accounts[probe] = Account()
        return account

    def _balance(self) -> float:
        return self._earned - self._spent - self._reserved - self._debt()

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

    def _observed(self, now: int) -> int:
        return self._observed_ns + (now - self._since if self._active > 0 else 0)

    def _refresh(self, now: int, *, force: bool = False) -> None:
        """Read the clocks, earn, and look where on the ladder we are.  At most once a millisecond."""
        if now - self._read_at < REFRESH_NS and self._read_at and not force:
            return
        self._read_at = now
        observed = self._observed(now)
        work = float(observed - self._read_observed)
        self._read_observed = observed
        if self._cpu is not None:
            cpu = self._cpu()
            work = min(work, float(cpu - self._read_cpu))
            self._read_cpu = cpu
        spent = self._spent + self._told_ns
        self._carry += work - (spent - self._read_spent)
        self._read_spent = spent
        net, self._carry = max(0.0, self._carry), min(0.0, self._carry)
        if not self._paused:
            self._work_ns += net
            self._earned += net * self._rate
            if self._forget_ns is not None:
                self._forget(net)
        self._reopen()
        self._judge(now)
        withheld = self.exhausted or self._full_off or self._closed or not self._after_known
        if withheld:
            self._surplus = 0.0
        elif self._free:
            self._surplus = inf
        else:
            self._surplus = self._balance() / 2 - min(self._turns.total, self._reserve_limit())
        self._closed_until = now + REFRESH_NS
        self._open_to = self._turns.sweep - 1 if self._closed else _NEVER

    def _forget(self, net: float) -> None:
        """Let the past fade, and cap what is saved up."""
        assert self._forget_ns is not None
        fade = 1.0 - exp(-net / self._forget_ns)
        self._work_ns -= fade * self._work_ns
        gone = fade * self._spent
        self._spent -= gone
        self._earned -= gone  # the balance is as before
        self._told_ns -= fade * self._told_ns
        self._largest -= fade * self._largest
        self._read_spent = self._spent + self._told_ns
        most = max((site.weight for site in self._turns.sites), default=0.0)
        over = self._balance() - max(self._grant, self._rate * CAPACITY_NS, 4 * most)
        if over > 0:
            self._earned -= over

    def _reopen(self) -> None:
        """Hysteresis: captures resume when a whole sweep is affordable, full ones when two are."""
        if not (self._closed or self._full_off):
            return
        balance = self._balance()
        sweep = min(self._turns.owed + self._reserve(), 2 * self._reserve_limit())
        largest = max((site.weight for site in self._turns.sites), default=0.0)
        if self._closed and balance >= max(sweep, largest):
            self._closed = False
        if self._full_off and not self._closed:
            full = sum(site.full.predict(site.nbytes) for site in self._turns.sites)
            if balance >= min(2 * full, 2 * self._reserve_limit()) + sweep:
                self._full_off = False

    # --- judgement -------------------------------------------------------------------------------
    def tick(self) -> None:
        """Read the clocks and judge; called now and then, so that the state is never stale."""
        with self._lock:
            self._refresh(self._clock())
        if self._outbox:
            self._deliver()

    def _lower(self, state: Fidelity, now: int) -> None:
        """Something was withheld: the visible state is this at most, for a while."""
        self._low_at[state] = now
        if _RANK[state] > _RANK[self._state]:
            self._change(state)

    def _change(self, state: Fidelity) -> None:
        self._state = state
        self._outbox.append(("neuronscope.fidelity", state, self._facts()))

    def _facts(self) -> dict[str, Any]:
        return {
            "overhead_pct": round(self._overhead_pct(), 3),
            "budget_pct": float(self.max_overhead_pct),
            "work_s": round(self._work_ns / 1e9, 3),
            "probe": self._costliest(),
            "captured": self._taken,
            "not_captured": self.skipped,
            "reduced": self._reduced,
        }

    def _judge(self, now: int) -> None:
        """Warn beyond the budget, end captures beyond what the action allows, and recover."""
        # What `reduce` promises is "to within one mispredicted capture": that one is no reason to stop.
        excused = 0.0 if self._free else self._largest
        overhead = 100.0 * (self._spent - excused) / self._work_ns if self._work_ns > 0 else 0.0
        observed = self._work_ns + self._spent
        if observed * self._rate >= 2 * self._grant and observed >= MIN_JUDGED_NS:
            if overhead > self.max_overhead_pct and "exceeded" not in self._warned:
                self._warned.add("exceeded")
                self._outbox.append(("neuronscope.overhead.exceeded", self._state, self._facts()))
            limit = self.max_overhead_pct * (1 if self.action == "abort" else 2)
            if not self.exhausted and overhead > limit:
                self.exhausted = True
                self._change(_OFF)
        if self.exhausted and self._forget_ns is not None and overhead < 0.9 * self.max_overhead_pct:
            self.exhausted = False
        if not self.exhausted and self._state is not Fidelity.FULL:
            for state in (Fidelity.CRITICAL, _SUMMARY, Fidelity.FULL):
                if state is Fidelity.FULL or now - self._low_at[state] < STATE_NS:
                    if state is not self._state and _RANK[state] < _RANK[self._state]:
                        self._change(state)
                    return

    def _deliver(self) -> None:
        """Tell what happened, without holding the lock."""
        with self._lock:
            outbox, self._outbox = self._outbox, []
        for name, state, facts in outbox:
            if state not in self._warned or name.endswith("exceeded"):
                self._warned.add(state)
                self._warn(name, state, facts)
            if self._on_event is not None:
                self._on_event(name, {"state": state.value, "budget": self.name, **facts})

    @staticmethod
    def _warn(name: str, state: Fidelity, facts: dict[str, Any]) -> None:
        if name.endswith("exceeded"):
            _log.warning(
                "observation costs %.1f %% of the observed work, the budget is %g %%; most of it: %s",
                facts["overhead_pct"], facts["budget_pct"], facts["probe"],
            )  # fmt: skip
        elif state is not Fidelity.FULL:
            _log.warning(
                "the overhead budget of %g %% is used up (%.1f %% of %.3g s of work): %s. Most of it: %s",
                facts["budget_pct"], facts["overhead_pct"], facts["work_s"], _LADDER[state], facts["probe"],
            )  # fmt: skip

    # --- what is told ----------------------------------------------------------------------------
    def observed_ns(self) -> int:
        """Length of the union of the observed intervals so far."""
        with self._lock:
            return self._observed(self._clock())

    def _overhead_pct(self) -> float:
        if self._work_ns <= 0:
            return 0.0
        return 100.0 * (self._spent + self._told_ns) / self._work_ns

    @property
    def overhead_pct(self) -> float:
        """Accounted cost in per cent of the observed work (0 before anything was observed)."""
        with self._lock:
            self._refresh(self._clock(), force=True)
            return self._overhead_pct()

    @property
    def work_ns(self) -> float:
        """Observed work, as far as it still counts."""
        return self._work_ns

    @property
    def skipped(self) -> int:
        """Captures that were not affordable."""
        return sum(site.refused for site in self._turns.sites)

    @property
    def reduced(self) -> int:
        """Full captures that became summaries."""
        return self._reduced

    @property
    def state(self) -> Fidelity:
        """The visible state: the lowest fidelity of the last second or so."""
        return _OFF if self.exhausted else self._state

    @property
    def accounts(self) -> dict[str, Account]:
        """What each probe and adapter has cost since the beginning."""
        with self._lock:
            return dict(self._accounts)

    def facts(self) -> dict[str, Any]:
        """The balance sheet, for an event record: spent by whom, and how often each layer was seen."""
        with self._lock:
            self._refresh(self._clock(), force=True)
            sites = self._turns.sites[:MAX_TOLD]
            return {
                "state": self.state.value,
                "budget": self.name,
                **self._facts(),
                "probes": list(self._accounts),
                "service_ms": [round(account.hot_ns / 1e6, 3) for account in self._accounts.values()],
                "worker_ms": [round(account.worker_ns / 1e6, 3) for account in self._accounts.values()],
                "layers": [f"{site.probe} {site.layer}" for site in sites],
                "layers_ran": [site.taken + site.refused for site in sites],
                "layers_captured": [site.taken for site in sites],
            }

    @property
    def coverage(self) -> list[Coverage]:
        """How often each watched layer ran, and was captured."""
        with self._lock:
            return [Coverage(s.probe, s.layer, s.taken + s.refused, s.taken) for s in self._turns.sites]

    @property
    def costliest_probe(self) -> str:
        """The probe or site that cost most so far."""
        with self._lock:
            return self._costliest()

    def _costliest(self) -> str:
        return max(self._accounts, key=lambda probe: self._accounts[probe].spent_ns, default="nothing")

    def verdict(self) -> OverheadBudgetExceeded | None:
        """The exception a scope owes its user at its exit, if its budget was exceeded."""
        self.tick()
        if not self.exhausted:
            return None
        return OverheadBudgetExceeded(self.overhead_pct, self.max_overhead_pct, self.costliest_probe)

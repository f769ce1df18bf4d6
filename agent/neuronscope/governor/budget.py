"""The token bucket: observed work earns, captures spend, and nothing is taken that is not affordable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from neuronscope.governor.allowance import UNSETTLED
from neuronscope.governor.bucket import Bucket
from neuronscope.governor.costs import Costs
from neuronscope.governor.coverage import Group
from neuronscope.governor.turns import Site
from neuronscope.signals.records import Fidelity

# Site, bytes, what it was expected to cost, and what it did cost by the clock (less than 0: not read).
Noted = tuple[Site, int, float, float]
# What watching a layer for one forward costs beside the capture: installing, removing, being called.
WATCH_NS: Final = 10_000
WAIT_NS: Final = 250_000_000  # the balance is looked at so often, however low it is
_FULL, _SUMMARY, _OFF = Fidelity.FULL, Fidelity.SUMMARY, Fidelity.OFF


class Budget(Bucket):
    """The token bucket of one scope, or of the always-on agent: decides what is captured.  Thread-safe.

    It earns a share of the observed work (see `Work`), and pays for captures and everything else.
    Its arguments are those of `Bucket`.
    """

    # --- captures --------------------------------------------------------------------------------
    def admit(self, site: Site, want: Fidelity, nbytes: int) -> Fidelity:
        """The fidelity at which a capture of `nbytes` may be taken now; `OFF` if none is affordable.

        A capture that is granted must be followed by `spend`.
        """
        if site.turn >= self._open_to and not site.critical and self._clock() < self._closed_until:
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
        finally:
            self._release()
        UNSETTLED.settle()
        with self._lock:
            fidelity = self._decide(site, want, nbytes)
        if self._ladder.outbox:
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
        if self._hidden is not None:
            spent_ns *= self._hidden.factor
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
        if self._free or self._ladder.outbox:
            self.tick()

    def advance(self) -> None:
        """Fill the allowance, out of which captures may be taken without asking: see `settle`.

        An eighth of the grant, as expectations may be wrong; or all of it, where nothing is withheld.
        """
        most = self._grant if self._free else self._grant / 8
        if self.allowance.left > most / 2:
            return
        with self._lock:
            more = min(most - self.allowance.left, self._surplus / 2)
            if more > 0 and not self._paused:
                self._surplus -= more
                self._lent += more
                self.allowance.left += more
        if self._free:
            self.tick()

    def settle(self, probe: str, captures: Sequence[Noted]) -> None:
        """Account for summaries that were taken out of the allowance, and whose records are queued now."""
        hidden = 1.0 if self._hidden is None else self._hidden.factor
        with self._lock:
            took, after = self._turns.took, self._after.table[0]
            expected = spent = 0.0
            for site, nbytes, cost, clocked in captures:
                expected += cost
                if clocked < 0:  # not every one is clocked: it cost what was expected
                    spent += cost
                else:
                    spent += clocked * hidden
                    site.summary.learn(nbytes, clocked * hidden)
                    self._largest = max(self._largest, clocked * hidden)
                site.took()
                took(site)
            n = len(captures)
            self._known[probe] = captures[-1][0]
            self._account(probe).hot_ns += spent
            self._spent += spent
            self._lent -= expected
            self._surplus -= spent - expected + n * after
            self._queued += n
            self._taken += n
        if self._parent is not None:
            self._parent.told(probe, spent)
        if self._free or self._ladder.outbox:
            self.tick()

    def plan(self, group: Group) -> Sequence[Site]:
        """Those of the sites that may be captured in the forward to come; the others need no watching.

        Whoever asks before each forward spares a run of the model the cost of observers that would be
        refused anyway.  Constant time but where only some are affordable.
        """
        if not self._affords_all(group):
            UNSETTLED.settle()
        with self._lock:
            now = self._clock()
            if self._hidden is not None:
                self._hidden.turn(now)
            self._refresh(now)
            if not self._affords_all(group):
                self._take_back()
            chosen = self._affordable(group)
            if not chosen:
                group.refused += 1
                group.not_before = self._read_at + self._wait()
                if not self.exhausted:
                    self._ladder.withheld(Fidelity.CRITICAL, self._read_at)
        if self._ladder.outbox:
            self._deliver()
        return chosen

    def looks(self) -> bool:
        """May a model's call be looked into: its phases, its facts, its layers?  If not, it is counted.

        Where spans alone cost what may be spent, that is all that is left to give up.
        """
        if self._free and not self.exhausted:
            return True
        with self._lock:
            now = self._clock()
            self._refresh(now)
            if self._balance() < 0:
                self._take_back()
            if (self._left if self._paused else self._balance()) >= 0 and not self.exhausted:
                return True
            self.unseen_calls += 1
            self._ladder.withheld(Fidelity.CRITICAL, now)
        if self._ladder.outbox:
            self._deliver()
        return False

    def went_by(self, group: Group, forwards: int) -> None:
        """So many forwards of the group ended before `not_before`, with none of its sites watched."""
        with self._lock:
            group.refused += forwards

    def _wait(self) -> int:
        """Nanoseconds in which the cheapest capture cannot become affordable: work is at most time."""
        if self._rate <= 0 or self.exhausted:
            return WAIT_NS
        return int(min(max(0.0, WATCH_NS - self._balance()) / self._rate, WAIT_NS))

    def _affords_all(self, group: Group) -> bool:
        if self._closed or self.exhausted:
            return False
        dear = self._turns.total + len(group.sites) * WATCH_NS + self._reserve()
        return self._free or self._balance() >= dear

    def _affordable(self, group: Group) -> Sequence[Site]:
        turns = self._turns
        if self.exhausted:
            return ()
        if self._free:
            return group.sites
        if self._closed:
            if not turns.behind or self._balance() < WATCH_NS:
                return ()
            chosen = [site for site in group.sites if turns.left_behind(site)]
        elif self._affords_all(group):
            return group.sites
        else:
            chosen = sorted(group.sites, key=lambda site: (site.turn, -site.abnormal))
        left = self._balance()
        for n, site in enumerate(chosen):
            left -= site.summary.predict(site.nbytes) + self._after.predict(0) + WATCH_NS
            if left < 0:
                chosen = chosen[:n]
                if not n:
                    site.summary.refuse(site.nbytes)
        if chosen:
            watched = set(chosen)
            for site in group.sites:
                site.refused += site not in watched
        return chosen

    def _decide(self, site: Site, want: Fidelity, nbytes: int) -> Fidelity:
        """The slow path of `admit`: the balance is short, or the site is new."""
        if self.exhausted:
            site.refused += 1
            return _OFF
        now = self._clock()
        if self._hidden is not None:
            self._hidden.turn(now)
        self._refresh(now)
        if self._free:
            return self._grant_capture(site, want, nbytes)
        self._take_back()
        if not self._after_known and self._queued + self._in_flight >= self._first_queued:
            site.refused += 1
            return _OFF
        turns = self._turns
        self._meet(site, nbytes)
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
                self._ladder.withheld(_SUMMARY, now)
            return self._grant_capture(site, _SUMMARY, nbytes)
        if not self._affords(site.summary, nbytes, 0.0):
            site.summary.refuse(nbytes)
            if site.turn < turns.sweep:
                self._closed = True
        site.refused += 1
        self._ladder.withheld(Fidelity.CRITICAL, now)
        return _OFF

    def _meet(self, site: Site, nbytes: int) -> None:
        """A site asks: know its size, its cost as far as others of its probe tell, and that it runs."""
        known = self._known.get(site.probe)
        if known is not None and not site.taken:
            site.full.borrow(known.full)
            site.summary.borrow(known.summary)
        if site.nbytes != nbytes:
            self._turns.weigh(site, nbytes)
        self._turns.ask(site)

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

"""The money of a budget: what observed work has earned, who has spent what, and what is left."""

from __future__ import annotations

from collections.abc import Callable
from math import exp
from typing import Final

from neuronscope.governor.accounts import CLIP, MOST_FOLLOWS, Account
from neuronscope.governor.allowance import UNSETTLED, Allowance
from neuronscope.governor.observed import IN_ONE_STEP, Work
from neuronscope.native import new_lock

GRANT_NS: Final = 20_000_000  # the first call of a scope must be able to record something
# What may be saved up, in ns of work: a long quiet time must not pay for a minute of full capture.
CAPACITY_NS: Final = 10_000_000_000


class Purse:
    """Earns a share of the observed work (see `Work`), and pays.  Thread-safe.

    Args:
        pct: per cent of the work that may be spent.
        clock: monotonic nanoseconds.
        cpu: the process's CPU time in nanoseconds; None: cost is not bounded by CPU (a fake clock).
        parent: the purse around this one; it is told what is spent here, but does not pay for it.
        forget_s: seconds of work after which the past no longer counts; None: never.
    """

    def __init__(
        self,
        pct: float,
        clock: Callable[[], int],
        cpu: Callable[[], int] | None,
        parent: Purse | None,
        forget_s: float | None,
    ) -> None:
        self._parent: Purse | None = parent
        self._forget_ns = None if forget_s is None else forget_s * 1e9
        self._clock = clock
        self._lock = new_lock()  # re-entered when garbage collection ends a stream
        # On the hot path: a `with` costs twice as much.
        self._acquire, self._release = self._lock.acquire, self._lock.release
        self._work = Work(clock, cpu)
        # An observed interval begins and ends, by the clock's reading: the quick way, for every call.
        # Compiled it is one step for other threads, and needs no lock.
        self.began: Callable[[int], None] = self._work.began if IN_ONE_STEP else self._began
        self.ended: Callable[[int], None] = self._work.ended if IN_ONE_STEP else self._ended
        self._work_ns = 0.0
        self._rate = pct / 100.0
        self._grant = GRANT_NS * min(1.0, pct / 5.0)
        self._earned = self._grant
        self._spent = 0.0  # out of this purse
        self._told_ns = 0.0  # by those inside this one, which pay themselves
        self._reserved = 0.0
        self.allowance = Allowance()
        self._lent = 0.0  # that allowance, and what has been taken out of it and not been settled
        self._largest = 0.0
        self._surplus = 0.0  # may be spent without more ado, until it is worked out again
        self._accounts: dict[str, Account] = {}

    # --- observed time ---------------------------------------------------------------------------
    def enter(self, probe: str = "", spent_ns: float = 0, now: int = 0) -> None:
        """An observed interval begins (a call, a scope); `spent_ns` of the caller's thread went into that.

        Args:
            now: the clock's reading, of who has just taken it.
        """
        work = self._work
        self._acquire()
        try:
            if work.active == 0:
                work.since = now or self._clock()
            work.active += 1
            if spent_ns:
                self._charge(probe, spent_ns)
        finally:
            self._release()

    def leave(self, probe: str = "", spent_ns: float = 0, now: int = 0) -> None:
        """An observed interval ends; `spent_ns` of the caller's thread went into observing it."""
        work = self._work
        self._acquire()
        try:
            work.active -= 1
            if work.active == 0:
                work.closed_ns += (now or self._clock()) - work.since
            if spent_ns:
                self._charge(probe, spent_ns)
        finally:
            self._release()

    def _began(self, now: int) -> None:
        self.enter("", 0, now)

    def _ended(self, now: int) -> None:
        self.leave("", 0, now)

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

    def set_aside(self, spent_ns: float) -> None:
        """Leave so much less for captures: a cost that no clock of ours has seen."""
        with self._lock:
            self._earned -= spent_ns
            self._surplus -= spent_ns

    def told(self, probe: str, spent_ns: float) -> None:
        """A budget inside this one has spent something; it counts, but is not paid for here."""
        with self._lock:
            self._account(probe).hot_ns += spent_ns
            self._told_ns += spent_ns
        if self._parent is not None:
            self._parent.told(probe, spent_ns)

    # --- the balance -----------------------------------------------------------------------------
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
        return self._earned - self._spent - self._reserved - self._lent - self._debt()

    def _take_back(self) -> None:
        """What is left of the allowance has not been lent."""
        self._lent -= self.allowance.left
        self.allowance.left = 0.0

    def _debt(self) -> float:
        """What is still to be paid for what was taken."""
        return 0.0

    def _earn(self, now: int) -> float:
        """Read the clocks; returns the work done since the last time."""
        net = self._work.done(now, self._spent + self._told_ns)
        self._work_ns += net
        self._earned += net * self._rate
        return net

    def _skip(self, now: int) -> None:
        """Let the work since the last reading go unpaid; what was spent meanwhile was spent on it."""
        self._work_ns += self._work.done(now, self._spent + self._told_ns)

    def _forget(self, net: float, least: float) -> None:
        """Let the past fade; cap what is saved up, and what is owed, but not below `least`."""
        assert self._forget_ns is not None
        fade = 1.0 - exp(-net / self._forget_ns)
        self._work_ns -= fade * self._work_ns
        gone = fade * self._spent
        self._spent -= gone
        self._earned -= gone  # the balance is as before
        self._told_ns -= fade * self._told_ns
        self._largest -= fade * self._largest
        self._work.rebase(self._spent + self._told_ns)
        balance = self._balance()
        over = balance - max(self._grant, self._rate * CAPACITY_NS, least)
        if over > 0:
            self._earned -= over
        # Spans that cost more than the budget for an hour must not forbid captures for the next ten.
        self._earned += max(0.0, -balance - max(self._rate * self._forget_ns, least))

    # --- what is told ----------------------------------------------------------------------------
    def observed_ns(self) -> int:
        """Length of the union of the observed intervals so far."""
        with self._lock:
            return self._work.wall(self._clock())

    def _overhead_pct(self) -> float:
        if self._work_ns <= 0:
            return 0.0
        return 100.0 * (self._spent + self._told_ns) / self._work_ns

    @property
    def work_ns(self) -> float:
        """Observed work, as far as it still counts."""
        return self._work_ns

    @property
    def accounts(self) -> dict[str, Account]:
        """What each probe and adapter has cost since the beginning."""
        UNSETTLED.settle()
        with self._lock:
            return dict(self._accounts)

    def _costliest(self) -> str:
        return max(self._accounts, key=lambda probe: self._accounts[probe].spent_ns, default="nothing")

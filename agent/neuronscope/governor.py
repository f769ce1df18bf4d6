"""The overhead governor: captures are paid for out of a budget that observed work earns.

A token bucket (design §7).  While something is observed the balance grows by ``max_overhead_pct`` per
cent of the elapsed time (the union of the observed intervals, so that concurrent calls do not earn
twice); every capture spends what it is *predicted* to cost, learned per site and per byte, and the
real cost corrects the balance afterwards.  A capture is taken at the highest fidelity the balance
affords.  So the ceiling holds by construction, to within the starting grant and one misprediction.

The specification's ladder is the visible face of it: a warning that names the percentage and the
probe, full tensors → summaries, then non-critical probes off with core traces kept, and beyond twice
the budget the scope ends with `OverheadBudgetExceeded` at its exit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from neuronscope.exceptions import OverheadBudgetExceeded
from neuronscope.settings import OverheadAction
from neuronscope.signals.records import Fidelity

_log = logging.getLogger("neuronscope")

GRANT_NS: Final = 20_000_000  # the first call of a scope must be able to record something
GROWTH: Final = 4.0
DECAY: Final = 0.98
# A scope shorter than this has no meaningful percentage: its grant alone may exceed it.
MIN_JUDGED_NS: Final = 200_000_000
_ORDER: Final = (Fidelity.FULL, Fidelity.SUMMARY)


@dataclass(slots=True)
class _Cost:
    """Learned cost of one kind of capture at one site: a fixed part and a part per byte, in ns.

    The fixed part is learned from the smallest captures seen, the rest by exponential smoothing.  One
    cold capture (imports, page faults) must not forbid all further ones: a sample raises the estimate
    to `GROWTH` times itself at most, and every refusal lowers it a little, until one is tried again.
    """

    fixed: float = 3_000.0
    per_byte: float = 0.5
    seen: int = 0

    def predict(self, nbytes: int) -> float:
        return self.fixed + self.per_byte * nbytes

    def learn(self, nbytes: int, spent_ns: float) -> None:
        self.seen += 1
        weight = max(0.1, 1 / self.seen)
        spent_ns = min(spent_ns, GROWTH * self.predict(nbytes))
        if nbytes <= 4096:
            self.fixed += weight * (spent_ns - self.fixed)
        else:
            rate = max(0.0, spent_ns - self.fixed) / nbytes
            self.per_byte += weight * (rate - self.per_byte)

    def refuse(self) -> None:
        """A capture was not affordable at this estimate."""
        self.fixed *= DECAY
        self.per_byte *= DECAY


class Budget:
    """The token bucket of one scope, or of the always-on agent.  Thread-safe.

    Args:
        max_overhead_pct: per cent of the observed time that observation may cost.
        action: ``warn`` only tells, ``reduce`` lowers fidelity, ``abort`` ends the scope as soon as
            the budget itself is exceeded.
        clock: monotonic nanoseconds.
        strict: judge at the end (scopes do, the always-on agent does not).
    """

    def __init__(
        self,
        max_overhead_pct: float,
        action: OverheadAction = "reduce",
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.max_overhead_pct = max_overhead_pct
        self.action: OverheadAction = action
        self.exhausted = False
        self._clock = clock
        self._lock = threading.RLock()  # re-entered when garbage collection ends a stream
        self._active = 0
        self._since = 0
        self._observed_ns = 0
        self._spent_ns = 0.0
        self._reserved_ns = 0.0
        self._by_probe: dict[str, float] = {}
        self._costs: dict[tuple[str, Fidelity], _Cost] = {}
        self._skipped = 0
        self._warned = False
        self._state = Fidelity.FULL

    # --- observed time ---------------------------------------------------------------------------
    def enter(self) -> None:
        """An observed interval begins (a call, a scope)."""
        with self._lock:
            if self._active == 0:
                self._since = self._clock()
            self._active += 1

    def leave(self, probe: str = "", spent_ns: int = 0) -> None:
        """An observed interval ends; `spent_ns` is what observing it cost the caller's thread."""
        with self._lock:
            if spent_ns:
                self._charge(probe, spent_ns)
            self._active -= 1
            if self._active == 0:
                self._observed_ns += self._clock() - self._since

    def observed_ns(self) -> int:
        """Length of the union of the observed intervals so far."""
        with self._lock:
            return self._observed()

    def _observed(self) -> int:
        return self._observed_ns + (self._clock() - self._since if self._active > 0 else 0)

    # --- captures --------------------------------------------------------------------------------
    def admit(self, probe: str, want: Fidelity, nbytes: int) -> Fidelity:
        """The fidelity at which a capture of `nbytes` may be taken now; `OFF` if none is affordable.

        A granted capture must be followed by `spend` (with its real cost) or `release`.
        """
        if self.exhausted:
            return Fidelity.OFF
        with self._lock:
            if self.action == "warn":
                self._reserved_ns += self._cost(probe, want).predict(nbytes)
                return want
            balance = self._balance()
            for fidelity in _ORDER[_ORDER.index(want) :]:
                cost = self._cost(probe, fidelity).predict(nbytes)
                if cost <= balance:
                    self._reserved_ns += cost
                    self._state = fidelity
                    return fidelity
            self._cost(probe, Fidelity.SUMMARY).refuse()
            self._skipped += 1
            self._state = Fidelity.CRITICAL
            return Fidelity.OFF

    def spend(self, probe: str, fidelity: Fidelity, nbytes: int, spent_ns: int) -> None:
        """Account for a capture that `admit` granted."""
        with self._lock:
            cost = self._cost(probe, fidelity)
            self._reserved_ns = max(0.0, self._reserved_ns - cost.predict(nbytes))
            cost.learn(nbytes, spent_ns)
            self._charge(probe, spent_ns)
        self._judge()

    def charge(self, probe: str, spent_ns: int) -> None:
        """Account for work that is never withheld (spans, the worker's own time)."""
        with self._lock:
            self._charge(probe, spent_ns)

    def _charge(self, probe: str, spent_ns: float) -> None:
        self._spent_ns += spent_ns
        self._by_probe[probe] = self._by_probe.get(probe, 0.0) + spent_ns

    def _balance(self) -> float:
        earned = GRANT_NS * min(1.0, self.max_overhead_pct / 5.0)
        earned += self._observed() * self.max_overhead_pct / 100.0
        return earned - self._spent_ns - self._reserved_ns

    def _cost(self, probe: str, fidelity: Fidelity) -> _Cost:
        key = (probe, fidelity)
        cost = self._costs.get(key)
        if cost is None:
            cost = self._costs[key] = _Cost()
        return cost

    # --- what is told ----------------------------------------------------------------------------
    @property
    def overhead_pct(self) -> float:
        """Accounted cost in per cent of the observed time (0 before anything was observed)."""
        with self._lock:
            observed = self._observed()
            return 100.0 * self._spent_ns / observed if observed > 0 else 0.0

    @property
    def skipped(self) -> int:
        """Captures that were not affordable."""
        return self._skipped

    @property
    def state(self) -> Fidelity:
        """The fidelity of the latest decision."""
        return Fidelity.OFF if self.exhausted else self._state

    @property
    def costliest_probe(self) -> str:
        """The probe or site that cost most so far."""
        with self._lock:
            return max(self._by_probe, key=lambda probe: self._by_probe[probe], default="nothing")

    def _judge(self) -> None:
        """Warn once beyond the budget; end captures where the action or twice the budget says so."""
        observed = self.observed_ns()
        if observed < MIN_JUDGED_NS or self.exhausted:
            return
        overhead = self.overhead_pct
        if overhead <= self.max_overhead_pct:
            return
        if not self._warned:
            self._warned = True
            _log.warning(
                "observation costs %.1f %% of the observed time, the budget is %g %%; most of it: %s",
                overhead,
                self.max_overhead_pct,
                self.costliest_probe,
            )
        if self.action == "abort" or overhead > 2 * self.max_overhead_pct:
            self.exhausted = True

    def verdict(self) -> OverheadBudgetExceeded | None:
        """The exception a scope owes its user at its exit, if its budget was exceeded."""
        if not self.exhausted:
            return None
        return OverheadBudgetExceeded(self.overhead_pct, self.max_overhead_pct, self.costliest_probe)

"""What captures cost beside what their own clocks see: believed at first, and then learned from experiments.

A capture empties caches that the service fills again, and where several threads compute it makes them hand
the GIL to one another more often: in a 12-layer model under four threads twice as many context switches a
request.  That time is spent in other threads, or after our clock has stopped.  So a capture is charged a
multiple of what was clocked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from threading import get_ident
from typing import Final

from neuronscope.governor.measured import Measured

LEAST: Final = 1.0  # nothing costs less than what was clocked
MOST: Final = 4.0
# (mean, standard deviation) until it has been measured here; see docs/explanation/overhead.md.
ALONE: Final = (1.15, 0.2)
SEVERAL: Final = (1.7, 0.35)
# What is never withheld cannot be measured by switching it off here.  Outside comparisons of whole processes
# without captures found about twice what the accounts had.
AROUND: Final = 2.0
DRIFT: Final = 0.1  # how far the truth may move between two experiments
MOST_STEP: Final = 0.5  # how far one experiment may move the belief
DEAD_BAND: Final = 0.04  # a smaller change, relatively, is none
KNOWN: Final = 0.15  # a standard deviation at which more experiments can wait; else some follow soon
EAGER: Final = 4
SURPRISE: Final = 3.0  # so many standard deviations off, the load is another one

LOOK_NS: Final = 1_000_000
RETURN_NS: Final = 100_000_000  # a thread that comes back so soon, others in between, computes beside them
CROWD_NS: Final = 2_000_000_000  # how long they are taken to do so
_MOST_THREADS: Final = 64


@dataclass(slots=True)
class Belief:
    """A factor and how sure we are of it: a Kalman filter of one number.

    Attributes:
        mean: the best guess.
        sd: its standard deviation.
        tries: experiments so far, also those that had too little to go by.
        charged: what captures are charged: the mean and one standard deviation, so that the ceiling holds
            while little is known; it follows only changes worth the name.
    """

    mean: float
    sd: float
    charged: float = 0.0
    tries: int = 0

    def __post_init__(self) -> None:
        self._settle()

    def learn(self, seen: float, sd: float) -> None:
        """An experiment found this factor, give or take `sd`."""
        away = seen - self.mean
        if abs(away) > SURPRISE * sqrt(self.sd**2 + sd**2):
            self.sd = max(self.sd, ALONE[1])  # the load is another one: what was learned counts for less
        known = self.sd**2 + DRIFT**2
        gain = known / (known + sd**2)
        step = max(-MOST_STEP, min(MOST_STEP, gain * away))
        self.mean = max(LEAST, min(MOST, self.mean + step))
        self.sd = sqrt((1 - gain) * known + (gain * away - step) ** 2)  # how far it still is from there
        self._settle()

    def _settle(self) -> None:
        wanted = max(LEAST, min(MOST, self.mean + self.sd))
        if abs(wanted - self.charged) > DEAD_BAND * self.charged:
            self.charged = wanted


class Hidden:
    """The factor of one process, shared by its budgets.

    Two beliefs are kept, of one computing thread and of several, since the load may change from call to
    call.  From any thread without a lock: a lost update is no harm.

    Args:
        thread: names the running thread.

    Attributes:
        factor: what captures are charged now, over what was clocked.
        around: the same of spans and the worker.
        several: do several threads compute?
    """

    __slots__ = (
        "_beliefs",
        "_crowd_until",
        "_last",
        "_look_at",
        "_seen",
        "_thread",
        "around",
        "factor",
        "several",
    )

    def __init__(self, thread: Callable[[], int] = get_ident) -> None:
        self._thread = thread
        self._beliefs = {False: Belief(*ALONE), True: Belief(*SEVERAL)}
        self._seen: dict[int, int] = {}  # when a thread last gave way to another
        self._last = 0
        self._look_at = 0
        self._crowd_until = 0
        self.around = AROUND
        self.several = False
        self.factor = self._beliefs[False].charged

    def turn(self, now: int) -> None:
        """A thread that runs a model asks for captures.  Looked at once a millisecond at most."""
        if now < self._look_at:
            return
        self._look_at = now + LOOK_NS
        thread = self._thread()
        if thread != self._last:
            if len(self._seen) >= _MOST_THREADS:
                self._seen.clear()
            self._seen[self._last] = now
            self._last = thread
            left = self._seen.get(thread)
            if left is not None and now - left < RETURN_NS:
                self._crowd_until = now + CROWD_NS
        several = now < self._crowd_until
        if several is not self.several:
            self.several = several
            self.factor = self._beliefs[several].charged

    def learn(self, measured: Measured) -> None:
        """Let an experiment correct the factor that was in force in it."""
        belief = self._beliefs[self.several]
        belief.tries += 1
        if measured.estimate is None or measured.accounted <= 0:
            return
        scale = self.factor / measured.accounted
        # Half an interval of 95 % is two standard deviations, a little more where there were few pairs.
        belief.learn(measured.estimate * scale, (measured.high - measured.low) / 4 * scale)
        self.factor = belief.charged

    def wants_more(self) -> bool:
        """Is little known of the load as it is, and are experiments still few?"""
        belief = self._beliefs[self.several]
        return belief.sd > KNOWN and belief.tries < EAGER

    def __str__(self) -> str:
        alone, several = self._beliefs[False], self._beliefs[True]
        return (
            f"captures are charged {self.factor:.2f} times what was clocked "
            f"(one thread {alone.mean:.2f} ± {alone.sd:.2f}, several {several.mean:.2f} ± {several.sd:.2f})"
        )

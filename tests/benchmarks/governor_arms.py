"""One process, observed and not, block by block: its agent, switched between the arms of a comparison.

Two processes that do the same differ by some per cent for as long as they live, by where things happen to lie
in their memory.  So a process is compared with itself, through the switches that services have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

OFF: Final = "off"  # everything uninstrumented
QUIET: Final = "quiet"  # the agent's captures switched off, spans and all else not
ON: Final = "on"


def there_and_back(arms: Sequence[str]) -> Iterator[str]:
    """One block of each arm, and then one of each in the opposite order: what drifts is in all alike."""
    yield from arms
    yield from reversed(arms)


class Arms:
    """The running agent of this process, which is on.

    Its own experiment, which switches captures off, is taken away but while it is asked for.

    Args:
        instrument: switches observation on again after
        uninstrument: which switches it off.
    """

    def __init__(self, instrument: Callable[[], object], uninstrument: Callable[[], object]) -> None:
        from neuronscope.engine import ENGINE

        self._engine: Any = ENGINE
        self._instrument, self._uninstrument = instrument, uninstrument
        self._arm = ON
        self._experiment: Any = self.steward.experiment
        self.steward.experiment = None

    @property
    def steward(self) -> Any:
        """Who keeps the agent's accounts."""
        return self._engine.steward

    def switch(self, arm: str) -> None:
        """Be one arm from now on."""
        if arm == self._arm:
            return
        if arm == OFF:
            self._uninstrument()
        elif self._arm == OFF:
            self._instrument()
        # Also where nothing is instrumented: spans that stay must not earn what the next arm would spend.
        self.steward.switch(arm != ON)
        self._arm = arm

    def flush(self) -> None:
        """Wait until the worker has emptied its queue: a block pays for its own records."""
        if self._arm != OFF:
            self._engine.flush(10)

    def start_experiment(self) -> None:
        """Let the agent begin its own experiment with the next request."""
        self.steward.measured, self._experiment.due = None, 0
        self.steward.experiment = self._experiment

    @property
    def experiment_ended(self) -> bool:
        """Has it come to a result?"""
        return self.steward.measured is not None

    def end_experiment(self) -> list[float] | None:
        """Estimate, ends of the interval and the accounted figure, in per cent; None: too little data."""
        self._experiment.stop()
        self.steward.experiment = None
        found = self.steward.measured
        if found is None or found.estimate is None:
            return None
        return [100 * value for value in (found.estimate, found.low, found.high, found.accounted)]

    def accounts(self) -> dict[str, Any]:
        """What the agent says of itself."""
        budget = self._engine.budget
        return {
            "accounted": budget.overhead_pct,
            "factor": self.steward.hidden.factor,
            "skipped": budget.skipped,
            "captured": sum(layer.captured for layer in budget.coverage),
            "layers": len(budget.coverage),
            "unseen_calls": budget.unseen_calls,
        }

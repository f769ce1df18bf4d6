"""The visible state: which fidelity is in force, and who is told of its changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from neuronscope.signals.records import Fidelity

_log = logging.getLogger("neuronscope")

STATE_NS: Final = 1_000_000_000  # the state improves only after so long without a refusal
_SOME_WORK_S: Final = 0.01
EXCEEDED: Final = "neuronscope.overhead.exceeded"
CHANGED: Final = "neuronscope.fidelity"
_RANK: Final = {Fidelity.FULL: 0, Fidelity.SUMMARY: 1, Fidelity.CRITICAL: 2, Fidelity.OFF: 3}
_WORDS: Final = {
    Fidelity.FULL: "everything that was asked for is captured again",
    Fidelity.SUMMARY: "full tensors become summaries",
    Fidelity.CRITICAL: "some captures are left out; spans, tokens and errors are not",
    Fidelity.OFF: "captures are off until the cost is within the budget; spans, tokens and errors are not",
}
Facts = dict[str, Any]
OnEvent = Callable[[str, Facts], None]


class Ladder:
    """Goes down at once and up slowly.  Not thread-safe but for `deliver`: `Budget` locks.

    Args:
        facts: the figures to tell with a change.
        on_event: takes changes, for event records.

    Attributes:
        state: the fidelity in force.
        outbox: what has to be told once the lock is free.
    """

    __slots__ = ("_facts", "_low_at", "_on_event", "_warned", "outbox", "state")

    def __init__(self, facts: Callable[[], Facts], on_event: OnEvent | None) -> None:
        self.state = Fidelity.FULL
        self.outbox: list[tuple[str, Fidelity, Facts]] = []
        self._facts = facts
        self._on_event = on_event
        self._low_at = dict.fromkeys(Fidelity, -STATE_NS)
        self._warned: set[str] = set()

    def withheld(self, state: Fidelity, now: int) -> None:
        """Something was withheld: the state is this at most, for a while."""
        self._low_at[state] = now
        if _RANK[state] > _RANK[self.state]:
            self._change(state)

    def recover(self, now: int) -> None:
        """Go up, if nothing was withheld for a while."""
        if self.state is Fidelity.FULL:
            return
        for state in (Fidelity.CRITICAL, Fidelity.SUMMARY, Fidelity.FULL):
            if state is Fidelity.FULL or now - self._low_at[state] < STATE_NS:
                if _RANK[state] < _RANK[self.state]:
                    self._change(state)
                return

    def exceeded(self) -> None:
        """The budget is exceeded: told once."""
        if EXCEEDED not in self._warned:
            self._warned.add(EXCEEDED)
            self.outbox.append((EXCEEDED, self.state, self._facts()))

    def exhausted(self) -> None:
        """Captures end."""
        self._change(Fidelity.OFF)

    def _change(self, state: Fidelity) -> None:
        self.state = state
        self.outbox.append((CHANGED, state, self._facts()))

    def deliver(self, budget: str, outbox: list[tuple[str, Fidelity, Facts]]) -> None:
        """Tell what happened; the caller holds no lock."""
        for name, state, facts in outbox:
            if name == EXCEEDED:
                _log.warning(
                    "observation costs %.1f %% of the observed work, the budget is %g %%; most of it: %s",
                    facts["overhead_pct"], facts["budget_pct"], facts["probe"],
                )  # fmt: skip
            elif state is not Fidelity.FULL and state not in self._warned:
                self._warned.add(state)
                _log.warning(
                    "the overhead budget of %g %% is used up (%s): %s. Most of it: %s",
                    facts["budget_pct"], _share(facts), _WORDS[state], facts["probe"],
                )  # fmt: skip
            if self._on_event is not None:
                self._on_event(name, {"state": state.value, "budget": budget, **facts})


def _share(facts: Facts) -> str:
    if facts["work_s"] < _SOME_WORK_S:
        return "before there was work to have a share of"
    return f"{facts['overhead_pct']:.1f} % of {facts['work_s']:.3g} s of work"

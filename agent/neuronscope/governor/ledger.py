"""Whom the worker works for: its CPU time, told to the budget and the probe of each item."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from neuronscope.governor.accounts import CLIP, MOST_FOLLOWS
from neuronscope.native import new_lock

if TYPE_CHECKING:
    from neuronscope.governor.budget import Budget
    from neuronscope.recording import Recording

# What a layer record, and a byte of its tensor, cost the worker beside a span: finished, encoded, written.
LAYER_WEIGHT: Final = 0.3
BYTE_WEIGHT: Final = 1e-5
WORKER: Final = "worker"
_FIRST_MOST_NS: Final = 100_000.0


class _Share:
    """One client's part of a round."""

    __slots__ = ("hot_ns", "nbytes", "records", "weight")

    def __init__(self) -> None:
        self.hot_ns = 0.0
        self.weight = 0.0
        self.records = 0
        self.nbytes = 0


class Ledger:
    """Divides the worker's CPU time, round by round, among those whose items came since the last one.

    A round without new items (an export) is for those of the round before.  No clock is read for an item:
    a reading costs as much as a layer record.  Thread-safe.

    Args:
        budget: the agent's; an item of a scope is charged to the scope's own.
    """

    __slots__ = ("_before", "_budget", "_lock", "_most", "_shares")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._lock = new_lock()  # re-entered when garbage collection ends a stream
        self._shares: dict[tuple[Recording | None, str], _Share] = {}
        self._before: dict[tuple[Recording | None, str], float] = {}
        self._most: dict[str, float] = {}  # what a wall-clock reading can be, by probe

    def span(self, recording: Recording | None, probe: str, hot_ns: int = 0) -> None:
        """A span is being finished for this client; `hot_ns` went into it in a thread of the service."""
        with self._lock:
            share = self._shares.get((recording, probe)) or self._share(recording, probe)
            share.weight += 1.0
            if hot_ns:
                most = self._most.get(probe, _FIRST_MOST_NS)
                counted = min(most, hot_ns)
                self._most[probe] = most + MOST_FOLLOWS * (CLIP * counted - most)
                share.hot_ns += counted

    def layer(self, recording: Recording | None, probe: str, nbytes: int) -> None:
        """A layer record with a tensor of `nbytes` (0 for a summary) has been queued for this client."""
        with self._lock:
            share = self._share(recording, probe)
            share.records += 1
            share.nbytes += nbytes
            share.weight += LAYER_WEIGHT + BYTE_WEIGHT * nbytes

    def layers(self, recording: Recording | None, probe: str, records: int) -> None:
        """So many layer records without tensors have been queued for this client."""
        with self._lock:
            share = self._share(recording, probe)
            share.records += records
            share.weight += LAYER_WEIGHT * records

    def settle(self, spent_ns: float) -> None:
        """The worker has spent so much since the last time."""
        with self._lock:
            shares, self._shares = self._shares, {}
            before = self._before
            self._before = {client: share.weight for client, share in shares.items()}
        if shares:
            whole = sum(share.weight for share in shares.values())
            for (recording, probe), share in shares.items():
                budget = self._of(recording)
                part = spent_ns * share.weight / whole
                budget.charge_worker(probe, part, share.records, share.nbytes)
                if share.hot_ns:
                    budget.charge(probe, share.hot_ns, clip=False)
                if not share.records:  # what a capture makes others pay is in its charge already
                    budget.set_aside((budget.around - 1.0) * (part + share.hot_ns))
            return
        whole = sum(before.values())
        for (recording, probe), weight in before.items():
            self._of(recording).charge_worker(probe, spent_ns * weight / whole)
        if not before:
            self._budget.charge_worker(WORKER, spent_ns)

    def _of(self, recording: Recording | None) -> Budget:
        return self._budget if recording is None else recording.budget

    def _share(self, recording: Recording | None, probe: str) -> _Share:
        share = self._shares.get((recording, probe))
        if share is None:
            share = self._shares[(recording, probe)] = _Share()
        return share

"""What canaries, embedders and indexes were found to be, and what that is compared with.

Changed in the worker only; a check reads what canaries are compared with.
"""

from __future__ import annotations

from collections.abc import Callable

from neuronscope.diagnosis import embedders as embedding
from neuronscope.diagnosis.baseline import Baseline
from neuronscope.diagnosis.canaries import CanaryReport, CanaryRun
from neuronscope.diagnosis.embedders import EmbedderReport, Fingerprint, IndexReport
from neuronscope.diagnosis.reports import Reporter


class Known:
    """The latest results of all checks.

    Args:
        done: told that a check was completed.

    Attributes:
        runs: what canaries are compared with.
        canaries, embedders, indexes: reports by name.
        fingerprints: of embedders, at present; `stored`: what they are compared with.
    """

    def __init__(self, report: Reporter, done: Callable[[str], None]) -> None:
        self._report = report
        self._done = done
        self.runs: dict[str, CanaryRun] = {}
        self.canaries: dict[str, CanaryReport] = {}
        self.fingerprints: dict[str, Fingerprint] = {}
        self.stored: dict[str, Fingerprint] = {}
        self.embedders: dict[str, EmbedderReport] = {}
        self.indexes: dict[str, IndexReport] = {}
        self.baseline: Baseline | None = None

    def start_from(self, baseline: Baseline) -> None:
        """Compare with what a baseline holds."""
        self.baseline = baseline
        self.stored.update(baseline.embedders)
        self.runs.update(baseline.canaries)

    def take_first_run(self, name: str, run: CanaryRun | None, check: str) -> None:
        """What canaries find at first is what later runs are compared with."""
        self._report.replayed(name, None if run is None else "stored")
        if run is not None:
            self.runs[name] = run
        self._done(check)

    def take_canaries(self, name: str, report: CanaryReport | None, check: str) -> None:
        """What canaries found now, beside that."""
        self._report.canaries(name, report)
        if report is None:
            self.canaries.pop(name, None)
        else:
            self.canaries[name] = report
        self._done(check)

    def take_embedder(self, now: Fingerprint, limit: float, check: str) -> None:
        """An embedder's answers to the probe texts."""
        stored = self.stored
        now = embedding.adopted(now, [*stored.values(), *self.fingerprints.values()])
        earlier = self.fingerprints.get(now.name)
        self.fingerprints[now.name] = now
        before = stored.get(now.name)
        if before is None and self.baseline is not None and self.baseline.embedders:
            # Another name: by its answers it may be the same, or it has taken the other's place.
            before = max(
                self.baseline.embedders.values(), key=lambda other: embedding.beside(other, now).cosine
            )
        if before is None:
            before = stored[now.name] = now
        report = embedding.beside(before, now, limit=limit)
        self.embedders[now.name] = report
        self._report.embedder(report, earlier)
        self._done(check)

    def take_index(self, report: IndexReport, check: str) -> None:
        """Stored vectors beside those that their texts have now."""
        self.indexes[report.name] = report
        self._report.index(report)
        self._done(check)

    def nothing(self, check: str) -> None:
        """A check failed, or had nothing to look at."""
        self._done(check)

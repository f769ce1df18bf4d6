"""From evidence to a cause: what changed, told once, where it began.

A changed embedder moves every score; lost documents do, too, and so do other users.  `explain` puts live
windows, canaries and the embedder's fingerprint together: a cause is told with its evidence, and what it
explains is not told again as a finding of its own.  What nothing explains is told as unexplained.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from neuronscope.diagnosis.canaries import FEW, MOSTLY, CanaryReport
from neuronscope.diagnosis.drift import Test, WindowReport
from neuronscope.diagnosis.embedders import EmbedderReport, IndexReport
from neuronscope.diagnosis.kinds import STAGES, Kind, Stage

__all__ = ["STAGES", "Evidence", "Finding", "Kind", "Stage", "explain"]

SCORES: Final = ("top_score", "kth_score", "margin", "empty", "short", "filtered_empty", "unfiltered_empty")
# How sure a finding is: asked directly; seen in two windows; one of several possibilities.
DIRECT, LIVE, POSSIBLE = 0.99, 0.9, 0.5


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measured fact behind a finding."""

    what: str
    value: float
    threshold: float
    n: int = 0
    m: int = 0

    def __str__(self) -> str:
        sizes = f" (n={self.n}, reference {self.m})" if self.m else f" (n={self.n})" if self.n else ""
        return f"{self.what} {self.value:.4g}, threshold {self.threshold:.4g}{sizes}"


@dataclass(frozen=True, slots=True)
class Finding:
    """What changed.

    Attributes:
        summary: for people, in one sentence.
        effect: size of the change, 0 to 1 where it is a share.
        confidence: 0 to 1.
        traces: examples to look at.
    """

    kind: Kind
    store: str
    collection: str
    summary: str
    effect: float
    confidence: float
    evidence: tuple[Evidence, ...] = ()
    traces: tuple[int, ...] = ()

    @property
    def stage(self) -> Stage:
        """Where it happened."""
        return STAGES[self.kind]

    @property
    def key(self) -> tuple[Kind, str, str]:
        """What stays the same while the finding lasts."""
        return self.kind, self.store, self.collection


def explain(
    window: WindowReport,
    canaries: Sequence[CanaryReport] = (),
    embedders: Sequence[EmbedderReport] = (),
    index: Sequence[IndexReport] = (),
) -> list[Finding]:
    """The causes of what is seen in one collection, in the order of the request's path; none is good news."""
    case = _Case(window, list(canaries), list(embedders), list(index))
    found = [
        *case.embedder_changed(),
        *case.index_stale(),
        *case.canaries_moved(),
        *case.search_changed(),
        *case.filter_changed(),
        *case.queries_shifted(),
    ]
    return found or case.unexplained()


@dataclass
class _Case:
    """The evidence about one collection."""

    window: WindowReport
    canaries: list[CanaryReport]
    embedders: list[EmbedderReport]
    index: list[IndexReport]

    def _finding(
        self, kind: Kind, summary: str, effect: float, confidence: float, evidence: Sequence[Evidence]
    ) -> Finding:
        window = self.window
        traces = tuple(window.traces) if window.suspected else ()
        return Finding(
            *(kind, window.store, window.collection, summary, effect, confidence, tuple(evidence), traces)
        )

    @property
    def _embedder_changed(self) -> bool:
        return any(report.changed for report in self.embedders)

    @property
    def _moved(self) -> list[CanaryReport]:
        return [report for report in self.canaries if report.moved]

    def embedder_changed(self) -> list[Finding]:
        return [
            self._finding(
                Kind.EMBEDDER_CHANGED,
                _embedder_words(report),
                1.0 - max(0.0, report.cosine),
                DIRECT,
                [
                    Evidence(
                        "least cosine of a probe text with its stored vector", report.cosine, report.limit
                    ),
                    *_evidence(self.window.drifted),
                ],
            )
            for report in self.embedders
            if report.changed
        ]

    def index_stale(self) -> list[Finding]:
        return [
            self._finding(
                Kind.INDEX_STALE,
                f"Of {report.n} stored documents the vectors are not what the embedder makes of their texts "
                f"today: median cosine {report.cosine:.3f}.",
                1.0 - max(0.0, report.cosine),
                DIRECT,
                [Evidence("median cosine of stored and fresh vectors", report.cosine, 0.98, report.n)],
            )
            for report in self.index
            if report.stale and not self._embedder_changed
        ]

    def canaries_moved(self) -> list[Finding]:
        return [self._canary_finding(report) for report in self._moved]

    def _canary_finding(self, report: CanaryReport) -> Finding:
        kind, summary, confidence = _canary_cause(report)
        evidence = [
            Evidence("overlap of canaries with their stored results", report.overlap, report.limit, report.n),
            Evidence("rank-biased overlap of canaries", report.rbo, 1.0, report.n),
            *_evidence(self.window.drifted),
        ]
        return self._finding(kind, summary, 1.0 - report.overlap, confidence, evidence)

    def search_changed(self) -> list[Finding]:
        window = self.window
        if not window.unknown_confirmed or self._moved:
            return []
        ways = ", ".join(f"{series.metric or 'unknown metric'}, k = {series.k}" for series in window.unknown)
        return [
            self._finding(
                Kind.SEARCH_CHANGED,
                f"The collection is searched in a way that the baseline does not know: {ways}.",
                1.0,
                LIVE,
                [Evidence("share of queries searched in an unknown way", 1.0, 0.3, window.n)],
            )
        ]

    def filter_changed(self) -> list[Finding]:
        if self._embedder_changed or self._moved:
            return []
        window = self.window
        used, short = window.of("filtered"), window.of("short")
        # Where queries without a filter find nothing either, it is not the filter.
        empty = [] if window.of("unfiltered_empty") else window.of("filtered_empty")
        mostly_filtered = any(t.feature == "filtered" and t.after > MOSTLY for t in window.tests)
        tests = [*used, *empty, *(short if mostly_filtered else ())]
        if not tests:
            return []
        first = tests[0]
        told = {
            "filtered": f"{first.after:.0%} of the queries have a filter; it was {first.before:.0%}.",
            "filtered_empty": f"{first.after:.0%} of the queries with a filter find nothing; "
            f"it was {first.before:.0%}.",
            "short": f"{first.after:.0%} of the queries find less than they ask for; "
            f"it was {first.before:.0%}.",
        }
        return [self._finding(Kind.FILTER_CHANGED, told[first.feature], first.value, LIVE, _evidence(tests))]

    def queries_shifted(self) -> list[Finding]:
        tests = self.window.of("direction", "norm")
        if not tests or self._embedder_changed:
            return []
        evidence = _evidence([*tests, *self.window.of(*SCORES)])
        effect = min(1.0, max(test.value for test in tests))
        if not self.embedders:
            return [
                self._finding(
                    Kind.QUERIES_OR_EMBEDDER,
                    "Query vectors point elsewhere: users ask for other things, or the embedder changed. "
                    "Its fingerprint is not taken, so which of the two cannot be told.",
                    effect,
                    POSSIBLE,
                    evidence,
                )
            ]
        return [
            self._finding(
                Kind.QUERIES_SHIFTED,
                "Users ask for other things than in the baseline; the embedder is the same"
                + (", and so are index and search." if self.canaries else "."),
                effect,
                LIVE,
                evidence,
            )
        ]

    def unexplained(self) -> list[Finding]:
        tests = self.window.of(*SCORES)
        if not tests:
            return []
        missing = [
            *(() if self.canaries else ("canary queries",)),
            *(() if self.embedders else ("the embedder's fingerprint",)),
        ]
        more = f" To find out why, add {' and '.join(missing)}." if missing else ""
        return [
            self._finding(
                Kind.UNEXPLAINED,
                f"Results changed: {_words(tests[0])}.{more}",
                min(1.0, tests[0].value),
                POSSIBLE,
                _evidence(tests),
            )
        ]


def _canary_cause(report: CanaryReport) -> tuple[Kind, str, float]:
    """What the pattern of a canary set's changes says."""
    told = f"Canaries `{report.name}` find {report.overlap:.0%} of what they found"
    if report.emptied > MOSTLY:
        return Kind.INDEX_LOST, f"{told}: most find nothing at all.", DIRECT
    if report.rescored > MOSTLY:
        return (
            Kind.INDEX_REWRITTEN,
            f"{told}; the scores of the same documents changed by {report.score_change:.1%} (median): their "
            "vectors or the distance are not the same.",
            DIRECT,
        )
    if report.shortened > MOSTLY:
        return (
            Kind.SEARCH_CHANGED,
            f"{told}, the first of them and no more: fewer hits are asked for, or a score is demanded.",
            DIRECT,
        )
    if report.missing <= report.lost / 2:
        return (
            Kind.INDEX_GREW,
            f"{told}: others rank higher, {report.arrived} of them new to all canaries.",
            DIRECT,
        )
    certain = report.missing - report.unknown
    if certain == 0:
        return (
            Kind.UNEXPLAINED,
            f"{told}. Whether documents are lost or not found cannot be told: no two canaries share one. "
            "Give the canaries a `fetch`.",
            POSSIBLE,
        )
    if report.elsewhere < FEW * certain:
        return (
            Kind.INDEX_LOST,
            f"{told}: {len(report.vanished)} documents are found by none any more, and nothing else is "
            "missing.",
            DIRECT,
        )
    return (
        Kind.SEARCH_CHANGED,
        f"{told}: {report.elsewhere} of {certain} missing hits are documents that exist, and are not found "
        "though they would rank. The search looks less far.",
        DIRECT,
    )


def _embedder_words(report: EmbedderReport) -> str:
    before, now = report.before, report.now
    if before.dimension != now.dimension:
        return (
            f"Embedder `{report.name}` makes vectors of {now.dimension} numbers; it was {before.dimension}."
        )
    if report.cosine >= report.limit:
        return f"Embedder `{report.name}` makes vectors {report.norm_ratio:.3g} times as long as before."
    return (
        f"Embedder `{report.name}` is not the one of the baseline: a probe text has a cosine of "
        f"{report.cosine:.3f} with its stored vector."
    )


def _words(test: Test) -> str:
    return f"{test.feature.replace('_', ' ')} {test.before:.3g} → {test.after:.3g} (median)"


def _evidence(tests: Sequence[Test]) -> list[Evidence]:
    return [
        Evidence(f"{test.statistic} of {test.feature}", test.value, test.threshold, test.n, test.m)
        for test in tests
    ]

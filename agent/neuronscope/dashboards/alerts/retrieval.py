"""Retrieval: drift, embedders that do not match their index, canaries, and checks that no longer run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from neuronscope.dashboards.alerts.alert import DAY, HOUR, SERVICE, Alert, label, percent
from neuronscope.dashboards.promql import JOB, Source, equal, like, unlike
from neuronscope.dashboards.thresholds import Retrieval, Thresholds
from neuronscope.diagnosis.kinds import Kind
from neuronscope.signals import names

_SOURCE: Final = Source(keep=(JOB,))
_COLLECTION: Final = {names.DB_COLLECTION: "collection"}
_LOST: Final = (Kind.INDEX_LOST, Kind.COLLECTION_SWITCHED)
_EMBEDDER: Final = (Kind.EMBEDDER_CHANGED, Kind.EMBEDDERS_MIXED)


def alerts(thresholds: Thresholds) -> Iterator[Alert]:
    """All of them."""
    yield from _drift()
    yield from _mismatch(thresholds.retrieval)
    yield from _canaries(thresholds.retrieval)
    yield _unwatched()


def _kinds(*kinds: Kind) -> str:
    return "|".join(kind.value for kind in kinds)


def _drift() -> Iterator[Alert]:
    by = (names.DB_SYSTEM, names.DB_COLLECTION, "kind")
    for severity, matcher in (
        ("page", like(_kinds(*_LOST))),
        ("ticket", unlike(_kinds(*_LOST, *_EMBEDDER))),
    ):
        yield Alert(
            name="NeuronscopeRetrievalDrift",
            severity="page" if severity == "page" else "ticket",
            expr=_SOURCE.value(names.DRIFT_ACTIVE, *by, where={"kind": matcher}) + " == 1",
            hold="1m",
            summary=(
                f"{SERVICE}: retrieval from {label(names.DB_COLLECTION)} is not as it was: {label('kind')}."
            ),
            checks=(
                "The finding's sentence and evidence: in the service's log, search for `neuronscope.drift`.",
                "Canaries: if they find what they found, the users changed; if not, the index or its "
                "search did.",
                "What was deployed or re-indexed when it began? The points-written panel, and the "
                "diff command.",
            ),
            board="retrieval",
            span_s=2 * HOUR,
            variables=_COLLECTION,
        )


def _mismatch(limits: Retrieval) -> Iterator[Alert]:
    found = {"kind": like(_kinds(*_EMBEDDER))}
    cases: tuple[tuple[str, str, str, Mapping[str, str]], ...] = (
        (
            "finding",
            _SOURCE.value(names.DRIFT_ACTIVE, names.DB_SYSTEM, names.DB_COLLECTION, "kind", where=found)
            + " == 1",
            f"the agent has found {label('kind')} for {label(names.DB_COLLECTION)}",
            _COLLECTION,
        ),
        (
            "mixed",
            _SOURCE.value(names.EMBEDDERS_SEEN, names.DB_SYSTEM, names.DB_COLLECTION) + " > 1",
            f"{{{{ $value }}}} embedders query {label(names.DB_COLLECTION)}",
            _COLLECTION,
        ),
        (
            "changed",
            _SOURCE.value(names.EMBEDDER_COSINE, "embedder", how="min") + f" < {limits.embedder_cosine:g}",
            f"embedder {label('embedder')} gives other vectors than it did (cosine "
            f"{{{{ $value | humanize }}}})",
            {},
        ),
        (
            "index",
            _SOURCE.value(names.INDEX_COSINE, "index", how="min") + f" < {limits.index_cosine:g}",
            f"index {label('index')} was built by another embedder (cosine {{{{ $value | humanize }}}})",
            {},
        ),
    )
    for cause, expr, told, variables in cases:
        yield Alert(
            name="NeuronscopeEmbedderMismatch",
            severity="page",
            expr=expr,
            hold="2m",
            summary=f"{SERVICE}: {told}. Scores look healthy and mean nothing.",
            checks=(
                "Which process embeds with what: fingerprints by embedder on the retrieval dashboard.",
                "A deployment that is half through, another model version, or a prefix that was dropped?",
                "Was the index rebuilt for the new embedder? If not, go back to the old one first.",
            ),
            board="retrieval",
            span_s=6 * HOUR,
            labels={"cause": cause},
            variables=variables,
        )


def _canaries(limits: Retrieval) -> Iterator[Alert]:
    overlap = _SOURCE.value(names.CANARY_OVERLAP, "canary", how="min")
    limit = _SOURCE.value(names.CANARY_LIMIT, "canary", how="max")
    replays = _SOURCE.over("1h")
    yield Alert(
        name="NeuronscopeCanaryOverlap",
        severity="page",
        expr=f"{overlap} < {limits.canary_overlap:g}\nor {overlap} < {limit}",
        hold="10m",
        summary=(
            f"{SERVICE}: canaries {label('canary')} find only {percent()} of the hits that they used to find."
        ),
        checks=(
            "Documents gone or not found? With `fetch` given, the finding says index_lost or search_changed.",
            "Points written or removed before it began; a re-indexing, an optimiser, other search "
            "parameters.",
            "Is the embedder's fingerprint unchanged? Canaries are vectors: they do not see the embedder.",
        ),
        board="retrieval",
        span_s=2 * HOUR,
        variables={"canary": "canary"},
    )
    failed = replays.increase(names.CANARY_REPLAYS, "canary", where={"outcome": equal("failed")})
    worked = replays.increase(names.CANARY_REPLAYS, "canary", where={"outcome": unlike("failed")})
    yield Alert(
        name="NeuronscopeCanariesFailing",
        severity="ticket",
        expr=f"{failed} > 1\nunless {worked} > 0",
        hold="10m",
        summary=f"{SERVICE}: no replay of canaries {label('canary')} has worked for an hour.",
        checks=(
            "The first exception: in the service's log, search for `canar`.",
            "Credentials, address and timeout of the store as `search` uses them, in a thread of its own.",
            "Was the collection renamed, or has its vector size changed?",
        ),
        board="retrieval",
        variables={"canary": "canary"},
    )
    yield Alert(
        name="NeuronscopeCanariesSilent",
        severity="ticket",
        expr=f"{replays.increase(names.CANARY_REPLAYS, 'canary')} == 0\nand {overlap}",
        hold="30m",
        summary=(
            f"{SERVICE}: canaries {label('canary')} have not been replayed for an hour; their figures "
            "are old."
        ),
        checks=(
            "Does the interval allow it: NEURONSCOPE_CANARY_INTERVAL, 300 seconds unless set.",
            "Does `search` hang? It runs in a thread of ours: give it a timeout.",
            "Has the service been stopping for that long, or is its process suspended?",
        ),
        board="retrieval",
        span_s=3 * HOUR,
        variables={"canary": "canary"},
    )


def _unwatched() -> Alert:
    by = (names.DB_SYSTEM, names.DB_COLLECTION)
    day = _SOURCE.over("1d")
    windows = day.increase(names.DRIFT_WINDOWS, *by)
    queries = day.increase(names.RETRIEVALS, *by)
    return Alert(
        name="NeuronscopeDriftUnwatched",
        severity="ticket",
        expr=f"{windows} == 0\nand {queries} > 2000",
        hold="1h",
        summary=(
            f"{SERVICE}: no window of {label(names.DB_COLLECTION)} has been compared with its "
            "baseline for a day."
        ),
        checks=(
            "Has the baseline a series of this collection and k? `neuronscope baseline show FILE`.",
            "Are there 200 distinct queries within NEURONSCOPE_DRIFT_WINDOW_SECONDS? Repeated ones "
            "count once.",
            "Was the collection renamed, or is another k asked for?",
        ),
        board="retrieval",
        span_s=DAY,
        variables=_COLLECTION,
    )

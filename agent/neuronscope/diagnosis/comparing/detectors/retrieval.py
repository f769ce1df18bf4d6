"""Detectors of index and search: lost, stale, duplicated documents; parameters, places."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, cast

import numpy as np

from neuronscope.diagnosis import statistics as st
from neuronscope.diagnosis.comparing.case import (
    FACT,
    PAIRED,
    TESTED,
    Case,
    Mixed,
    cause,
    fact,
    groups,
)
from neuronscope.diagnosis.comparing.columns import Mask
from neuronscope.diagnosis.comparing.detectors.calling import at_route
from neuronscope.diagnosis.comparing.detectors.searching import (
    OVERLAP_FLOOR,
    SHARE_FLOOR,
    bare_empty,
    by_place,
    changed_traces,
    overlap,
    paired,
    rows_of,
    searches,
    subject_of,
    traces_of,
    unfiltered,
)
from neuronscope.diagnosis.comparing.found import Found, popularity, twins
from neuronscope.diagnosis.comparing.result import Cause, Evidence
from neuronscope.diagnosis.kinds import Kind

MOSTLY: Final = 0.5
PARTLY: Final = 0.05
FEW_PAIRS: Final = 50  # from which on pairs alone say enough of an index
OFTEN: Final = 5  # different queries that find a document
_SAID: Final = {"k": "ask for {} hits", "metric": "read scores as {}", "stages": "run in these steps: {}"}
_WAYS: Final = (("k", "hits asked for"), ("metric", "how scores read"), ("stages", "steps of the search"))


def collection_switched(case: Case) -> Iterator[Cause]:
    """The same route searches in another place."""
    for (route,), before, after in groups(case, searches, ("route",)):
        places = [
            [
                _place(*row)
                for row in zip(
                    *(rows_of(side, mask, name) for name in ("store", "collection", "namespace")), strict=True
                )
            ]
            for side, mask in zip(case.sides, (before, after), strict=True)
        ]
        mixed = case.mix("collection searched", *places)
        if mixed is None or mixed.distance < 0.2 or not mixed.switched:
            continue
        first, second = mixed.usual
        if mixed.after.get(first, 0.0) > 0.05 and mixed.before.get(second, 0.0) > 0.05:
            continue  # both places were in use, and are: it is the traffic
        yield cause(
            Kind.COLLECTION_SWITCHED,
            second,
            f"Searches{at_route(route)} go to {second}; they went to {first}.",
            [fact("collection searched", mixed)],
            FACT,
            traces_of(case, before, after),
        )


def search_changed(case: Case) -> Iterator[Cause]:
    """Another k, metric or other steps; or a search that looks less far than it did."""
    told = False
    for (route, store, collection), before, after in by_place(case):
        for column, what in _WAYS:
            mixed = _mixed(case, column, what, before, after)
            if mixed is None or mixed.distance < 0.3 or not mixed.switched:
                continue
            if column == "metric" and "" in mixed.usual:
                continue  # the client did not know it
            first, second = (_way(value) for value in mixed.usual)
            told = True
            yield cause(
                Kind.SEARCH_CHANGED,
                collection or store,
                f"Searches in {collection or store}{at_route(route)} {_SAID[column].format(second)}; "
                f"it was {first}.",
                [fact(what, mixed, _way)],
                FACT,
                traces_of(case, before, after),
            )
    if told:
        return
    yield from _paired_search(case)


def _paired_search(case: Case) -> Iterator[Cause]:
    """What pairs of searches with the same vector show of the search itself."""
    found = unfiltered(case)
    if found is None:
        return
    shortened = case.share(
        "pairs of searches with fewer hits, the first ones",
        (found.lengthened, found.shortened),
        (found.n, found.n),
    )
    if shortened is not None and shortened.effect >= 0.2:
        more, less = ("more", "fewer") if found.lengthened > found.shortened else ("fewer", "more")
        yield cause(
            Kind.SEARCH_CHANGED,
            subject_of(case),
            f"The same query vectors find {more} hits than before, {less} it was, the first of them equal: "
            "another k, or a score that is demanded.",
            [shortened],
            PAIRED,
            changed_traces(case, found),
        )
        return
    elsewhere = found.lost - found.vanished
    if found.moved < OVERLAP_FLOOR or _rescored(found) > PARTLY or elsewhere <= 0.5 * found.lost:
        return
    if found.arrived and found.unseen > 0.3 * found.arrived:
        return  # new documents push others out
    yield cause(
        Kind.SEARCH_CHANGED,
        subject_of(case),
        f"The same query vectors find {found.overlap:.0%} of what they found; {elsewhere} of "
        f"{found.lost} missing "
        "hits are documents that other queries still find: the search looks less far, or elsewhere.",
        [overlap(case, found)],
        PAIRED,
        changed_traces(case, found),
    )


def index_changed(case: Case) -> Iterator[Cause]:
    """Documents lost, new, rewritten or stale, by searches with the same vector."""
    found = unfiltered(case)
    if found is None or found.n < FEW_PAIRS:
        yield from _vanished(case)
    if found is None:
        return
    evidence = overlap(case, found)
    for told in (_other_vectors(case, found, evidence), _other_documents(case, found, evidence)):
        if told is not None:
            yield told


def _other_vectors(case: Case, found: Found, evidence: Evidence) -> Cause | None:
    """The same documents with other scores: all of them, or a part."""
    rescored, documents = found.rescored_documents
    share = rescored / documents if documents else 0.0
    if documents < 5 or share < PARTLY or found.rescored < 5:
        return None
    if share > 0.8:
        kind = Kind.INDEX_REWRITTEN
        summary = (
            f"The same query vectors get other scores for {share:.0%} of the documents "
            f"(median ratio {found.score_ratio:.4g}): their vectors, or the distance, are not the same."
        )
    else:
        kind = Kind.INDEX_STALE
        summary = (
            f"Of the documents {share:.0%} get another score for the same query vector, the others the same: "
            "a part of the index holds other vectors than the rest."
        )
    what = "documents whose score for the same query vector changed"
    scores = Evidence(what, 0.0, share, share, "pairs", "1", documents, documents)
    return cause(kind, subject_of(case), summary, [scores, evidence], PAIRED, changed_traces(case, found))


def _other_documents(case: Case, found: Found, evidence: Evidence) -> Cause | None:
    """Documents that are found no more, or never were before."""
    if found.moved < OVERLAP_FLOOR:
        return None
    emptied = max(found.emptied, found.filled)
    if emptied > MOSTLY * len(found.changed) and paired(case, filtered=False) is None:
        return None  # every search has a filter, and finds nothing: more likely that lets nothing through
    vanished, unseen = found.vanished / max(1, found.lost), found.unseen / max(1, found.arrived)
    if found.lost and vanished > MOSTLY and vanished >= unseen:
        kind, n = Kind.INDEX_LOST, len(found.vanished_documents)
        summary = (
            f"The same query vectors find {found.overlap:.0%} of what they found: {n} documents are found by "
            "none any more."
        )
        counted = _count("documents that are found no more", n, 0, found.n)
    elif found.arrived and unseen > MOSTLY:
        kind, n = Kind.INDEX_GREW, len(found.unseen_documents)
        summary = f"The same query vectors find {n} documents that none found before, in the place of others."
        counted = _count("documents that were never found before", 0, n, found.n)
    else:
        return None
    return cause(kind, subject_of(case), summary, [evidence, counted], PAIRED, changed_traces(case, found))


def _vanished(case: Case) -> Iterator[Cause]:
    """With few pairs, or none: documents that many queries found, and none does any more."""
    if (case.pairs.texts and not case.pairs.vectors) or _directions_differ(case):
        return
    (counts, n), (later, n_later) = (popularity(side.searches) for side in case.sides)
    if min(n, n_later) < 50:
        return
    items = len({*counts, *later})
    for kind, found, other, share, place in (
        (Kind.INDEX_LOST, counts, later, n / (n + n_later), 0),
        (Kind.INDEX_GREW, later, counts, n_later / (n + n_later), 1),
    ):
        often = {name for name, count in found.items() if count >= OFTEN}
        gone = sorted(often - {*other})
        if len(often) < 10 or len(gone) < max(3, OVERLAP_FLOOR * len(often)):
            continue
        p = st.absent_p_value([found[name] for name in gone], items, share)
        case.p_values.append(p)
        shares = (1.0, 1.0 - len(gone) / len(often))
        yield cause(
            kind,
            subject_of(case),
            f"{len(gone)} of {len(often)} documents that many queries found "
            + ("are found by none any more." if place == 0 else "were found by none before."),
            [
                Evidence(
                    "documents that many queries of the one side find, found on both",
                    shares[place],
                    shares[1 - place],
                    len(gone) / len(often),
                    "share",
                    "1",
                    n,
                    n_later,
                    p,
                )
            ],
            TESTED,
            _finders(case, place, set(gone)),
        )


def _finders(case: Case, place: int, wanted: set[str]) -> tuple[list[str], list[str]]:
    """Traces of one side whose searches find one of these documents."""
    table = case.sides[place].searches
    rows = zip(table.labels("trace"), table.labels("ids"), strict=True)
    traces = [trace for trace, ids in rows if not wanted.isdisjoint(ids)]
    return (traces, []) if place == 0 else ([], traces)


def index_duplicated(case: Case) -> Iterator[Cause]:
    """Neighbours with the very same score: the same document twice."""
    before, after = twins(case.before.searches), twins(case.after.searches)
    share = case.share(
        "hits with the very score of their neighbour", (before[0], after[0]), (before[1], after[1])
    )
    if share is None or share.effect < 0.03:
        return
    more = after[0] / after[1] > before[0] / before[1]
    yield cause(
        Kind.INDEX_DUPLICATED,
        subject_of(case),
        f"Of the hits {share.after:.0%} have the very score of their neighbour; it was "
        f"{share.before:.0%}: documents "
        f"{'are' if more else 'were'} in the index more than once.",
        [share],
        TESTED,
        (case.before.searches.labels("trace"), case.after.searches.labels("trace")),
    )


def everything_empty(case: Case) -> Iterator[Cause]:
    """Searches without a filter find nothing any more."""
    bare = [bare_empty(side, np.ones(len(side.searches), bool)) for side in case.sides]
    share = case.share("searches that find nothing", (bare[0][0], bare[1][0]), (bare[0][1], bare[1][1]))
    if share is None or share.effect < SHARE_FLOOR:
        return
    found = paired(case)
    if found is None or max(found.emptied, found.filled) < 0.3 * found.n:
        return
    yield cause(
        Kind.INDEX_LOST,
        subject_of(case),
        f"{share.after:.0%} of the searches without a filter find nothing; it was {share.before:.0%}.",
        [share],
        PAIRED,
        changed_traces(case, found),
    )


def _count(what: str, before: int, after: int, n: int) -> Evidence:
    return Evidence(what, float(before), float(after), float(abs(after - before)), "count", "", n, n)


def _rescored(found: Found) -> float:
    changed, documents = found.rescored_documents
    return changed / documents if documents else 0.0


def _directions_differ(case: Case) -> bool:
    """Have queries been asked from elsewhere, so that other documents are found for good reasons?"""
    from neuronscope.diagnosis.comparing.detectors.queries import direction

    shift = direction(case)
    return shift is None or shift.effect > float(shift.before or 0.0)


def _mixed(case: Case, column: str, what: str, before: Mask, after: Mask) -> Mixed | None:
    values = [rows_of(side, mask, column) for side, mask in zip(case.sides, (before, after), strict=True)]
    if column == "k":
        values = [[int(value) for value in each if math.isfinite(value)] for each in values]
    return case.mix(what, *values)


def _place(store: str, collection: str, namespace: str) -> str:
    name = collection or store
    return f"{name} ({namespace})" if namespace else name


def _way(value: Any) -> str:
    if isinstance(value, tuple):
        steps = cast("tuple[tuple[str, int], ...]", value)
        return ", ".join(f"{kind} ({k})" if k else kind for kind, k in steps) or "one step"
    return str(value)


DETECTORS = (
    collection_switched,
    search_changed,
    index_changed,
    everything_empty,
    index_duplicated,
)

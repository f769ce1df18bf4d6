"""The detector of rerankers: another one, none any more, or one that orders otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from neuronscope.diagnosis.comparing.case import FACT, TESTED, Case, cause, fact, groups
from neuronscope.diagnosis.comparing.columns import Columns
from neuronscope.diagnosis.comparing.detectors.calling import (
    Masks,
    at_route,
    calls,
    known,
    numbers,
    traces,
)
from neuronscope.diagnosis.comparing.result import Cause
from neuronscope.diagnosis.kinds import Kind

_WORK = (
    ("returned", "documents that the reranker hands on"),
    ("top", "best score of a reranking"),
    ("rerank_shift", "ranks that reranking moves a document, mean"),
)


def reranker_changed(case: Case) -> Iterator[Cause]:
    """The first of: whether traces are reranked at all, by which model, and how."""
    found = _used(case)
    for (operation, route), *masks in groups(case, calls, ("operation", "route")):
        if found is None and operation == "rerank":
            pair = (masks[0], masks[1])
            found = _model(case, route, pair) or _work(case, route, pair)
    if found is not None:
        yield found


def _used(case: Case) -> Cause | None:
    (ranked, searched), (ranked_later, searched_later) = (_reranked(side) for side in case.sides)
    if not searched or not searched_later:
        return None
    share = case.share(
        "traces with a search that are reranked", (ranked, ranked_later), (searched, searched_later)
    )
    if share is None or share.effect < 0.3 or max(ranked, ranked_later) < 3:
        return None
    return cause(
        Kind.RERANKER_CHANGED,
        "",
        f"What searches find is reranked in {share.after:.0%} of the traces; it was {share.before:.0%}.",
        [share],
        FACT,
        (case.before.searches.labels("trace"), case.after.searches.labels("trace")),
    )


def _reranked(side: Columns) -> tuple[int, int]:
    searched = set(side.searches.labels("trace"))
    rows = zip(side.calls.labels("trace"), side.calls.labels("operation"), strict=True)
    ranked = {trace for trace, operation in rows if operation == "rerank"}
    return len(searched & ranked), len(searched)


def _model(case: Case, route: str, masks: Masks) -> Cause | None:
    for column in ("weights", "model", "answered_by", "provider"):
        values = known(case, masks, column)
        if not all(values):
            continue
        mixed = case.mix("reranking model", *values)
        if mixed is not None and mixed.distance >= 0.3 and mixed.switched:
            first, second = mixed.usual
            return cause(
                Kind.RERANKER_CHANGED,
                str(second),
                f"The reranker{at_route(route)} is another ({column}): {second}; it was {first}.",
                [fact("reranking model", mixed)],
                FACT,
                traces(case, masks),
            )
    return None


def _work(case: Case, route: str, masks: Masks) -> Cause | None:
    for column, what in _WORK:
        shift = case.shift(what, *numbers(case, masks, column))
        if shift is not None and shift.effect >= 0.25:
            return cause(
                Kind.RERANKER_CHANGED,
                "",
                f"The reranker{at_route(route)} works otherwise: {what} {shift.after:.3g}; it was "
                f"{shift.before:.3g}.",
                [shift],
                TESTED,
                traces(case, masks),
            )
    return None


DETECTORS = (reranker_changed,)

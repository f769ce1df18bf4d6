"""Detectors of filters: used more or less often, or others than they were."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from neuronscope.diagnosis.comparing.case import PAIRED, TESTED, Case, cause
from neuronscope.diagnosis.comparing.detectors.calling import at_route
from neuronscope.diagnosis.comparing.detectors.searching import (
    MIN_PAIRS,
    SHARE_FLOOR,
    bare_empty,
    by_place,
    changed_traces,
    filtered_empty,
    overlap,
    paired,
    rows_of,
    subject_of,
    traces_of,
)
from neuronscope.diagnosis.comparing.result import Cause
from neuronscope.diagnosis.kinds import Kind


def filter_changed(case: Case) -> Iterator[Cause]:
    """Filters used more or less often, or that let nothing, or everything, through."""
    for (route, store, collection), before, after in by_place(case, 10):
        used = [
            np.array(rows_of(side, mask, "filtered"), bool)
            for side, mask in zip(case.sides, (before, after), strict=True)
        ]
        share = case.share_of("searches with a filter", used[0], used[1])
        if share is not None and share.effect >= 0.1:
            yield cause(
                Kind.FILTER_CHANGED,
                collection or store,
                f"{share.after:.0%} of the searches in {collection or store}{at_route(route)} have a "
                f"filter; it was {share.before:.0%}.",
                [share],
                TESTED,
                traces_of(case, before, after),
            )
            continue
        empty = [filtered_empty(side, mask) for side, mask in zip(case.sides, (before, after), strict=True)]
        bare = [bare_empty(side, mask) for side, mask in zip(case.sides, (before, after), strict=True)]
        emptied = case.share(
            "searches with a filter that find nothing", (empty[0][0], empty[1][0]), (empty[0][1], empty[1][1])
        )
        if emptied is None or emptied.effect < SHARE_FLOOR:
            continue
        if (
            min(bare[0][1], bare[1][1]) >= 10
            and abs(bare[1][0] / bare[1][1] - bare[0][0] / bare[0][1]) > emptied.effect / 2
        ):
            continue  # those without a filter find nothing, too
        yield cause(
            Kind.FILTER_CHANGED,
            collection or store,
            f"{emptied.after:.0%} of the searches with a filter in {collection or store} find "
            f"nothing; it was {emptied.before:.0%}.",
            [emptied],
            TESTED,
            traces_of(case, before, after),
        )
    yield from _filter_by_pairs(case)


def _filter_by_pairs(case: Case) -> Iterator[Cause]:
    """The same vectors find other documents with a filter, and the same without one."""
    filtered, bare = paired(case, filtered=True), paired(case, filtered=False)
    if filtered is None or filtered.n < MIN_PAIRS or filtered.moved < 0.1:
        return
    if bare is not None and bare.n >= MIN_PAIRS and bare.moved < filtered.moved / 3:
        yield cause(
            Kind.FILTER_CHANGED,
            subject_of(case),
            f"With a filter, the same query vectors find {filtered.overlap:.0%} of what they "
            f"found; without one {bare.overlap:.0%}.",
            [overlap(case, filtered)],
            PAIRED,
            changed_traces(case, filtered),
        )


DETECTORS = (filter_changed,)

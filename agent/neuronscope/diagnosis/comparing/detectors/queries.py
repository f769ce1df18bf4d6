"""Detectors of what is asked and how it is embedded: the embedder, and the users."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, cast
from zlib import crc32

import numpy as np

from neuronscope.diagnosis import statistics as st
from neuronscope.diagnosis.comparing.case import (
    FACT,
    PAIRED,
    POSSIBLE,
    TESTED,
    Case,
    cause,
    fact,
    groups,
    ratio,
)
from neuronscope.diagnosis.comparing.columns import Floats, finite
from neuronscope.diagnosis.comparing.detectors.calling import at_route, calls
from neuronscope.diagnosis.comparing.pairs import cosine_of, hamming
from neuronscope.diagnosis.comparing.result import Cause, Evidence
from neuronscope.diagnosis.kinds import Kind
from neuronscope.diagnosis.samples import directions

MIN_PAIRS: Final = 5
MIN_DIRECTIONS: Final = 40
MAX_DIRECTIONS: Final = 2_000
BIT: Final = 1 / 64
NEAR: Final = 6 * BIT  # beyond, two texts are not the same after all
_FACTS: Final = (
    ("weights", "weights of the embedder"),
    ("model", "embedding model"),
    ("answered_by", "embedding model that answered"),
    ("stored_as", "quantisation of the embedder"),
    ("dtype", "element type of the embedder"),
    ("adapters", "adapters of the embedder"),
    ("system", "prompt, normalisation or length that texts are embedded with"),
)


def embedder_changed(case: Case) -> Iterator[Cause]:
    """Another embedder, or the same one with another prefix, length, normalisation or precision."""
    of_vectors = list(_vectors(case))
    evidence = [*_facts(case), *of_vectors]
    angle = text_angle(case)
    moved = angle is not None and _moved(angle)
    if angle is not None and moved:
        evidence.append(angle)
    # An embedder that makes the same vectors of the same texts has not changed, whatever it is called.
    if not evidence or (angle is not None and not moved and not of_vectors and angle.n_after >= 20):
        return
    first = evidence[0]
    twin = angle is not None and moved and cosine_of(angle.effect) >= 0.97
    told = f"{first.what} {_value(first.after)}; it was {_value(first.before)}."
    tail = ""
    if angle is not None and moved:
        alike = f"have a cosine of about {cosine_of(angle.effect):.3f}"
        told = f"vectors of the same texts {alike}." if first is angle else told
        tail = f" Vectors of the same texts {alike}." if first is not angle else ""
    if twin and any("element type" in item.what or "quantisation" in item.what for item in evidence):
        tail += " It is a twin of the former in another precision."
    yield cause(
        Kind.EMBEDDER_CHANGED,
        _embedder(case),
        f"The embedder is not the same: {told}{tail}",
        evidence,
        FACT if first.p is None else PAIRED,
        (case.before.searches.labels("trace"), case.after.searches.labels("trace")),
        effect=max(item.effect for item in evidence if item.statistic != "ratio")
        if any(item.statistic != "ratio" for item in evidence)
        else 1.0,
    )


def _facts(case: Case) -> Iterator[Evidence]:
    """What the calls of embedders tell about them."""
    for (operation, route), before, after in groups(case, calls, ("operation", "route")):
        if operation != "embeddings":
            continue
        for column, what in _FACTS:
            values = [
                side.calls.rows(mask, column) for side, mask in zip(case.sides, (before, after), strict=True)
            ]
            known = [[value for value in each if value] for each in values]
            if column == "weights" and not all(known):
                continue  # one side does not tell
            mixed = case.mix(what, *(known if column == "weights" else values))
            if mixed is not None and mixed.distance >= 0.5 and mixed.switched:
                yield fact(f"{what}{at_route(route)}", mixed, _text)
        pieces = [
            side.calls.rows(mask, "pieces") for side, mask in zip(case.sides, (before, after), strict=True)
        ]
        heads = [[each[0] if each else None for each in side] for side in pieces]
        mixed = case.mix("label that texts begin with", *heads)
        if (
            mixed is not None
            and mixed.distance >= 0.5
            and mixed.switched
            and max(mixed.before.values()) > 0.8
        ):
            yield fact(
                f"label that texts begin with{at_route(route)}",
                mixed,
                lambda value: "none" if value is None else f"#{value:03x}",
            )


def _vectors(case: Case) -> Iterator[Evidence]:
    """What query vectors tell about their embedder: its fingerprint, their length, their norm."""
    for (store, collection), before, after in groups(
        case, lambda side: side.searches, ("store", "collection")
    ):
        masks = (before, after)
        rows = [side.searches.rows(mask, "embedder") for side, mask in zip(case.sides, masks, strict=True)]
        known = [[value for value in side if value] for side in rows]
        mixed = case.mix("fingerprint of the embedder", *known) if all(known) else None
        if mixed is not None and mixed.distance >= 0.3 and mixed.switched:
            yield fact("fingerprint of the embedder", mixed)
        sizes = [
            finite(side.searches.number("dimension")[mask])
            for side, mask in zip(case.sides, masks, strict=True)
        ]
        mixed = case.mix("length of query vectors", *(map(int, side) for side in sizes))
        if mixed is not None and mixed.distance >= 0.3 and mixed.switched:
            yield fact(f"length of query vectors for {collection or store}", mixed)
        norms = [
            finite(side.searches.number("norm")[mask]) for side, mask in zip(case.sides, masks, strict=True)
        ]
        if min(map(len, norms)) < 5:
            continue
        middle = [float(np.median(side)) for side in norms]
        spread = max(float(np.std(side)) for side in norms)
        if ratio(*middle) > 1.02 and abs(middle[1] - middle[0]) > 3 * spread:
            yield Evidence(
                "norm of query vectors, median",
                middle[0],
                middle[1],
                ratio(*middle) - 1,
                "ratio",
                "",
                len(norms[0]),
                len(norms[1]),
            )


def text_angle(case: Case) -> Evidence | None:
    """How far the vectors of the same texts are apart: the share of SimHash bits that differ, median."""
    names = case.before.searches.labels("fingerprint"), case.after.searches.labels("fingerprint")
    apart = [hamming(names[0][row], names[1][later]) for row, later in case.pairs.texts]
    known = [value for value in apart if math.isfinite(value)]
    if len(known) < MIN_PAIRS:
        return None
    n = len(known)
    moved = sum(value > 0 for value in known)
    share = case.pairs_that("same texts with other vectors", n, moved, 0.02 * n)
    middle = float(np.median(known))
    if middle < BIT / 2:  # a twin turns vectors so little that most keep every bit; other embedders never do
        middle = float(np.mean([value for value in known if value <= NEAR]))
    return Evidence(
        "bits of the query vector's SimHash that differ for the same text",
        0.0,
        middle,
        middle,
        "angle",
        "1",
        n,
        n,
        share.p if share is not None else None,
    )


def _moved(angle: Evidence) -> bool:
    """Do the same texts have other vectors?"""
    return angle.effect >= BIT / 2 or (angle.effect > 0 and angle.p is not None and angle.p < 1e-4)


def queries_shifted(case: Case) -> Iterator[Cause]:
    """Users ask for other things; told apart from another embedder where texts can be paired."""
    shift = direction(case)
    angle = text_angle(case)
    sizes = _sizes(case)
    steady = angle is not None and not _moved(angle)
    asked = questions(case) if steady or angle is None else None
    moved = [item for item in (shift, asked, sizes) if item is not None and item.effect > _floor(item)]
    if not moved:
        return
    if steady or _same_embedder(case) or shift is None or case.pairs.vectors:
        yield cause(
            Kind.QUERIES_SHIFTED,
            _embedder(case),
            "Users ask for other things; the same texts still get the same vectors."
            if steady
            else "Users ask for other things; nothing tells of another embedder.",
            [*moved, angle],
            TESTED,
            (case.before.searches.labels("trace"), case.after.searches.labels("trace")),
        )
    else:
        yield cause(
            Kind.QUERIES_OR_EMBEDDER,
            _embedder(case),
            "Query vectors point elsewhere: users ask for other things, or the embedder changed; "
            "it is not recorded.",
            moved,
            POSSIBLE,
            (case.before.searches.labels("trace"), case.after.searches.labels("trace")),
        )


def direction(case: Case) -> Evidence | None:
    """How far the mean direction of query vectors moved, and how far it does by chance (`before`)."""
    sides = [
        sorted({name for name in side.searches.labels("fingerprint") if len(name) == 16})
        for side in case.sides
    ]
    n = min(map(len, sides))
    if n < MIN_DIRECTIONS:
        return None
    # Weighted as asked: a question that is asked twice as often as before counts twice.
    rows = [[name for name in side.searches.labels("fingerprint") if len(name) == 16] for side in case.sides]
    thinned = [side[:: math.ceil(len(side) / MAX_DIRECTIONS)] for side in rows]
    matrices = [directions(side) for side in thinned]
    shift = st.centroid_shift(matrices[0], matrices[1])
    chances = st.centroid_shuffled(matrices[0], matrices[1], splits=60)
    p = st.gamma_p_value(shift, chances)
    case.p_values.append(p)
    return Evidence(
        "direction of query vectors: 1 - cosine of the means, beside what chance does",
        1.5 * float(np.quantile(chances, 0.99)),
        shift,
        shift,
        "centroid",
        "",
        len(thinned[0]),
        len(thinned[1]),
        p,
    )


def questions(case: Case) -> Evidence | None:
    """Are the same questions asked as often?  By buckets of query vectors, beyond what chance does."""
    names = [[name for name in side.searches.labels("fingerprint") if name] for side in case.sides]
    m, n = map(len, names)
    if min(m, n) < MIN_DIRECTIONS:
        return None
    size = int(min(256, max(8, min(m, n) // 10)))
    counts = [
        np.bincount([crc32(name.encode()) % size for name in each], minlength=size).astype(np.float64)
        for each in names
    ]
    together = counts[0] + counts[1]
    some = together > 0
    pooled = together[some] / (m + n)
    expected = np.concatenate((pooled * m, pooled * n))
    squares = float(np.sum((np.concatenate([each[some] for each in counts]) - expected) ** 2 / expected))
    p = st.chi2_p_value(squares, int(some.sum()) - 1)
    case.p_values.append(p)
    chance = float(np.sum(np.sqrt(2 / np.pi * pooled * (1 - pooled) * (1 / m + 1 / n)))) / 2
    apart = float(np.abs(counts[0] / m - counts[1] / n).sum()) / 2
    return Evidence(
        "questions asked: distance of their frequencies, beside what chance does",
        chance, apart, max(0.0, apart - chance), "distance", "", m, n, p,
    )  # fmt: skip


def _floor(item: Evidence) -> float:
    if item.statistic == "centroid":
        return max(0.02, float(item.before or 0.0))
    return 0.12 if item.statistic == "distance" else 0.2


def _sizes(case: Case) -> Evidence | None:
    """Lengths of what is embedded or asked for, where there are no vectors."""
    if len(case.before.searches) and len(case.after.searches):
        return None
    values: list[Floats] = []
    for side in case.sides:
        table = side.calls
        mine = np.array([op == "embeddings" for op in table.labels("operation")], bool)
        values.append(table.number("characters")[mine] if mine.any() else np.empty(0))
    return case.shift("characters of what is embedded", values[0], values[1])


def _same_embedder(case: Case) -> bool:
    """Do both sides tell the same weights, or the same fingerprint?"""
    weights = [{value for value in side.calls.labels("weights") if value} for side in case.sides]
    prints = [{value for value in side.searches.labels("embedder") if value} for side in case.sides]
    return any(values[0] and values[0] == values[1] for values in (weights, prints))


def _embedder(case: Case) -> str:
    for side in case.sides:
        table = side.calls
        for operation, model in zip(table.labels("operation"), table.labels("model"), strict=True):
            if operation == "embeddings" and model:
                return str(model)
    return ""


def _text(value: Any) -> str:
    return ", ".join(map(str, cast("tuple[object, ...]", value))) if isinstance(value, tuple) else str(value)


def _value(value: str | float | None) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else f"{value:.4g}"


DETECTORS = (embedder_changed, queries_shifted)

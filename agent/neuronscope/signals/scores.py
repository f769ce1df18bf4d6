"""How the scores of each store read: which direction is better, and what they are on a common scale.

Stores answer the same search with different numbers.  Qdrant tells the cosine, Chroma one minus it,
Elasticsearch the middle between the cosine and one; FAISS and Milvus tell squared Euclidean distances,
pgvector the root.  A search's `neuronscope.retrieval.metric` names one row of this table.  Pure functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

EPSILON: Final = 1e-12


def _same(score: float) -> float:
    return score


def _negative(score: float) -> float:
    return -score


def _one_minus(score: float) -> float:
    return 1.0 - score


def _closeness(distance: float) -> float:
    return 1.0 / (1.0 + max(distance, 0.0))


def _closeness_squared(distance: float) -> float:
    return 1.0 / (1.0 + math.sqrt(max(distance, 0.0)))


def _closeness_of_share(score: float) -> float:
    # A store's 1 / (1 + d²) as 1 / (1 + d), so that Euclidean searches compare across stores.
    return 1.0 / (1.0 + math.sqrt(1.0 / score - 1.0)) if 0.0 < score <= 1.0 else 0.0


@dataclass(frozen=True, slots=True)
class Scale:
    """How to read one kind of score.

    Attributes:
        smaller_is_better: the score is a distance.
        normalised: the score on a scale where more is better: cosines stay cosines (−1 to 1), inner products
            inner products (unbounded), distances become ``1 / (1 + distance)`` (0 to 1).
    """

    smaller_is_better: bool
    normalised: Callable[[float], float]


UNKNOWN: Final = Scale(False, _same)
UNKNOWN_DISTANCE: Final = Scale(True, _closeness)
SCALES: Final[dict[str, Scale]] = {
    "cosine": Scale(False, _same),
    "cosine_distance": Scale(True, _one_minus),  # 1 - cosine
    "cosine_certainty": Scale(False, lambda score: 2.0 * score - 1.0),  # (1 + cosine) / 2
    "dot": Scale(False, _same),
    "dot_negative": Scale(True, _negative),
    "dot_distance": Scale(True, _one_minus),  # 1 - inner product
    "euclid": Scale(True, _closeness),
    "euclid_squared": Scale(True, _closeness_squared),
    "euclid_share": Scale(False, _closeness_of_share),  # 1 / (1 + distance²)
    "manhattan": Scale(True, _closeness),
    "chebyshev": Scale(True, _closeness),
    "hamming": Scale(True, _closeness),
    "distance": Scale(True, _closeness),  # of a kind that only the store knows
    "jaccard": Scale(True, _one_minus),
    "jaccard_similarity": Scale(False, _same),
    # Distances that only FAISS has.
    "lp": Scale(True, _closeness),
    "canberra": Scale(True, _closeness),
    "bray_curtis": Scale(True, _closeness),
    "jensen_shannon": Scale(True, _closeness),
    "gower": Scale(True, _closeness),
    # Scores on a scale of their own, on which more is better.
    "rrf": UNKNOWN,
    "dbsf": UNKNOWN,
    "hybrid": UNKNOWN,
    "bm25": UNKNOWN,
    "rerank": UNKNOWN,
}
# What others call them.
_ALIASES: Final = {"euclidean": "euclid", "l2": "euclid", "l1": "manhattan"}


def scale_of(metric: str | None, scores: Sequence[float] = ()) -> Scale:
    """The scale that a metric's name stands for.

    Args:
        metric: None where neither request nor client tells it.
        scores: best first, as every store returns them: growing ones of an unknown metric are distances.
    """
    name = (metric or "").lower()
    unknown = UNKNOWN_DISTANCE if len(scores) > 1 and scores[0] < scores[-1] else UNKNOWN
    return SCALES.get(_ALIASES.get(name, name), unknown)


def normalised(scores: Sequence[float], metric: str | None) -> list[float]:
    """Scores on the common scale, in the order given."""
    of = scale_of(metric, scores).normalised
    return [of(score) for score in scores]


def score_band(scores: Sequence[float], metric: str | None) -> tuple[float, float, float] | None:
    """Best score, worst score and relative margin of one query as the store scores; None without finite ones.

    The margin says how far the best hit stands out: ``(best - worst) / max(|best|, eps)`` for similarities,
    ``(worst - best) / max(|worst|, eps)`` for distances, where the best may be 0.
    """
    finite = [score for score in scores if math.isfinite(score)]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    margin = (high - low) / max(abs(high), EPSILON)
    return (low, high, margin) if scale_of(metric, finite).smaller_is_better else (high, low, margin)

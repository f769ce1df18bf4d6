"""The embedder's fingerprint: the same for the same weights, another for every way to be another embedder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from neuronscope.diagnosis.embedders import (
    PROBES,
    TWIN,
    Fingerprint,
    adopted,
    beside,
    fingerprint,
    index_report,
    take,
)
from neuronscope.exceptions import UnsupportedTensorError

MATRIX = np.random.default_rng(0).normal(size=(64, 256))


def embed(texts: Sequence[str], matrix: NDArray[Any] = MATRIX, scale: float = 1.0) -> NDArray[Any]:
    """Unit vectors by the counts of letters: texts that are alike have vectors that are alike."""
    counts = np.array([np.bincount(np.frombuffer(t.encode(), np.uint8), minlength=256) for t in texts])
    vectors = counts @ matrix.T
    return np.asarray(scale * vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def taken(**changes: Any) -> Fingerprint:
    return take("letters", lambda texts: embed(texts, **changes))


def test_the_same_embedder_has_the_same_fingerprint() -> None:
    """Also in single precision, and with the rounding of another machine."""
    stored = taken()
    rounded = taken(matrix=MATRIX * (1 + 1e-6 * np.random.default_rng(1).normal(size=MATRIX.shape)))
    single = take("letters", lambda texts: embed(texts).astype(np.float32))
    for now in (taken(), rounded, single):
        report = beside(stored, now)
        assert not report.changed
        assert report.cosine > 0.99999
        assert adopted(now, [stored]).hash == stored.hash


@pytest.mark.parametrize(
    "changes",
    [
        {"matrix": np.random.default_rng(9).normal(size=(64, 256))},
        {"matrix": MATRIX[:32]},
        {"matrix": MATRIX + 0.2 * np.random.default_rng(9).normal(size=MATRIX.shape)},
        {"scale": 3.0},
    ],
    ids=["other weights", "other dimension", "fine-tuned", "not normalised"],
)
def test_another_embedder_is_told(changes: dict[str, Any]) -> None:
    """By direction, by dimension, or by length."""
    report = beside(taken(), taken(**changes))
    assert report.changed


def test_a_prefix_is_another_embedder() -> None:
    """The index was built with `passage: ` before each text."""
    prefixed = take("letters", lambda texts: embed([f"passage: {text}" for text in texts]))
    report = beside(taken(), prefixed)
    assert report.changed
    assert report.worst == PROBES.index("cat"), "the shortest text suffers most"


def test_a_quantised_twin_is_accepted_where_it_is_declared() -> None:
    """Five-bit weights: close, and not the same."""
    step = np.abs(MATRIX).max() / 15
    twin = taken(matrix=np.round(MATRIX / step) * step)
    assert beside(taken(), twin).changed
    assert not beside(taken(), twin, limit=TWIN).changed


def test_a_model_that_returns_nan_does_not_look_like_itself() -> None:
    """For one kind of text only, as it happens."""
    answers: list[Any] = [embed([text])[0] for text in PROBES]
    answers[11] = np.full(64, np.nan)
    report = beside(taken(), fingerprint("letters", answers))
    assert (report.cosine, report.worst, report.changed) == (0.0, 11, True)
    stored_while_broken = fingerprint("letters", answers)
    assert beside(stored_while_broken, fingerprint("letters", answers)).changed, "nor is that ever normal"


def test_what_is_no_vector_is_refused() -> None:
    """Lists of tokens, for example."""
    with pytest.raises(UnsupportedTensorError):
        fingerprint("x", [np.zeros(3 + n % 2) for n in range(len(PROBES))])


def test_probes_are_what_they_were() -> None:
    """Stored fingerprints are worthless after a change here: raise the baseline's version with it."""
    assert len(PROBES) == len(set(PROBES)) == 16
    assert taken().hash == "fa9a62906765af8d"


def test_an_index_that_the_embedder_did_not_build_is_stale() -> None:
    """Stored vectors beside fresh ones."""
    texts = [f"document {n} about topic {n % 7}" for n in range(30)]
    fresh = list(embed(texts))
    assert not index_report("docs", fresh, fresh).stale
    other = list(embed(texts, matrix=np.random.default_rng(9).normal(size=(64, 256))))
    report = index_report("docs", other, fresh)
    assert report.stale
    assert report.n == 30
    assert index_report("docs", list(embed(texts, matrix=MATRIX[:16])), fresh).stale

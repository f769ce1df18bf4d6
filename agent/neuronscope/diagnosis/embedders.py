"""Is the embedder still the one that the index was built with?  Its answers to fixed texts tell.

Sixteen texts of ours are embedded by the service's own embedder and compared with the vectors it gave when
all was well: the same weights give cosines of 1 to within rounding, whatever the machine.  The texts are
public, so their vectors betray nothing of the service's data.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from neuronscope.diagnosis.statistics import cosines
from neuronscope.engine.fingerprint_query import planes
from neuronscope.exceptions import UnsupportedTensorError

# Fixed for ever: fingerprints are compared across processes, files and years.  Of several lengths, scripts
# and kinds, since faults of embedders are picky: punctuation, long inputs, other alphabets, numbers.
PROBES: Final = (
    "cat",
    "The quick brown fox jumps over the lazy dog.",
    "What is the refund policy for orders that arrive damaged?",
    "def mean(values): return sum(values) / len(values)",
    "SELECT name, price FROM products WHERE stock > 0 ORDER BY price LIMIT 10;",
    "In 2019 revenue rose by 12.5 % to 3,482,000 euros; costs fell by 4 %.",
    "Wie hoch ist die Gebühr für eine Überweisung ins Ausland?",
    "¿Dónde puedo recoger mi pedido si la tienda está cerrada?",
    "人工智能如何改变医疗诊断?",
    "هل يمكنني تغيير موعد الرحلة بعد الحجز؟",
    "Привет! Как настроить двухфакторную аутентификацию?",
    "!!! ... ??? --- *** ((( )))",
    "not not good, not bad; neither hot nor cold",
    "RFC 2616 section 14.9.1: Cache-Control: no-store, max-age=0",
    "🚀 launch day 🎉",
    "The committee met on Tuesday to review the proposal. It heard three experts, who agreed on the aims and "
    "differed on the means. The first asked for more data, the second for more time, and the third for a "
    "smaller pilot in two cities before any decision. After a long debate the chair postponed the vote. " * 3,
)
SAME: Final = 0.999  # least cosine of the same weights and type
TWIN: Final = 0.98  # least cosine of a declared quantised twin
NORM_TOLERANCE: Final = 0.02
_HASH_BITS: Final = 8  # of each probe

EmbedTexts = Callable[[Sequence[str]], Any]


class Fingerprint(Struct, frozen=True):
    """An embedder's answers.

    Attributes:
        name: the embedder's, as the service calls it.
        hash: short name of the answers: equal for equal embedders, and put on the spans of retrievals.
        norm: mean length of the vectors.
        vectors: the answers' directions, as half-precision numbers in base 64.
    """

    name: str
    hash: str
    dimension: int
    norm: float
    dtype: str
    vectors: str

    def directions(self) -> NDArray[np.float32]:
        """A unit vector for each probe."""
        data = np.frombuffer(base64.b64decode(self.vectors), dtype="<f2")
        return data.reshape(-1, self.dimension).astype(np.float32)


@dataclass(frozen=True, slots=True)
class EmbedderReport:
    """An embedder beside its stored fingerprint.

    Attributes:
        cosine: the least cosine of an answer with the stored one; 0 where dimensions differ.
        norm_ratio: mean length over the stored one's.
        limit: the least cosine that counts as unchanged.
        worst: the probe with that cosine.
    """

    name: str
    before: Fingerprint
    now: Fingerprint
    cosine: float
    norm_ratio: float
    limit: float
    worst: int

    @property
    def changed(self) -> bool:
        """Is it another embedder?"""
        return not (self.cosine >= self.limit and abs(self.norm_ratio - 1.0) <= NORM_TOLERANCE)


def take(name: str, embed: EmbedTexts, pause: Callable[[], None] = lambda: None) -> Fingerprint:
    """Embed the probes, one by one, and name the answers.

    One by one, so that a thread of the service that waits for the interpreter never waits for long.

    Raises:
        UnsupportedTensorError: what comes back are not vectors of one length.
    """
    answers: list[Any] = []
    for text in PROBES:
        answers.append(embed([text]))
        pause()
    return fingerprint(name, answers)


def fingerprint(name: str, answers: Sequence[Any]) -> Fingerprint:
    """The fingerprint of the answers to `PROBES`, each a vector or a matrix of one row."""
    rows = [_row(answer) for answer in answers]
    if len({row.size for row in rows}) != 1 or rows[0].size == 0:
        raise UnsupportedTensorError("vectors of several lengths")
    matrix: NDArray[np.float64] = np.stack(rows).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        lengths: NDArray[np.float64] = np.sqrt(np.sum(matrix * matrix, axis=1, keepdims=True))
        usable = np.isfinite(lengths) & (lengths > 0)
        units = np.where(usable, matrix / np.where(usable, lengths, 1.0), 0.0)
    norm = float(np.mean(lengths))
    return Fingerprint(
        name,
        _hash(units),
        rows[0].size,
        norm if math.isfinite(norm) else 0.0,
        str(rows[0].dtype),
        base64.b64encode(units.astype("<f2").tobytes()).decode("ascii"),
    )


def _row(answer: Any) -> NDArray[Any]:
    detach: Any = getattr(answer, "detach", None)
    if detach is not None:  # a tensor; its values on the host
        answer = detach().cpu().float().numpy()
    row: NDArray[Any] = np.asarray(answer)
    return row.reshape(-1)


def _hash(units: NDArray[np.float64]) -> str:
    """Signs of projections, eight a probe: rounding turns one of them about once in ten thousand machines."""
    bits = units @ planes(units.shape[1])[:, :_HASH_BITS] > 0
    digest = hashlib.sha256(f"{units.shape[1]}:".encode() + np.packbits(bits).tobytes())
    return digest.hexdigest()[:16]


def beside(before: Fingerprint, now: Fingerprint, *, limit: float = SAME) -> EmbedderReport:
    """Compare an embedder with what it was."""
    ratio = now.norm / before.norm if before.norm > 0 else math.inf
    if before.dimension != now.dimension:
        return EmbedderReport(now.name, before, now, 0.0, ratio, limit, 0)
    left, right = before.directions(), now.directions()
    if left.shape != right.shape:  # taken with other probes, by another version
        return EmbedderReport(now.name, before, now, 0.0, ratio, limit, 0)
    found = cosines(left, right)
    worst = int(np.argmin(found))
    return EmbedderReport(now.name, before, now, float(found[worst]), ratio, limit, worst)


def adopted(now: Fingerprint, known: Sequence[Fingerprint]) -> Fingerprint:
    """The fingerprint under the hash of one that is its equal, if one is known.

    So rounding that turns a bit of the hash does not make two embedders of one.
    """
    for other in known:
        report = beside(other, now)
        if not report.changed:
            return Fingerprint(now.name, other.hash, now.dimension, now.norm, now.dtype, now.vectors)
    return now


@dataclass(frozen=True, slots=True)
class IndexReport:
    """Stored vectors beside what the embedder makes of the stored texts today.

    Attributes:
        cosine: the median; 1 for an index that this embedder has built.
        lowest: the lowest.
        n: documents looked at.
    """

    name: str
    cosine: float
    lowest: float
    n: int

    @property
    def stale(self) -> bool:
        """Was the index built by another embedder, or from other texts?"""
        return self.n > 0 and self.cosine < TWIN


def index_report(name: str, stored: Sequence[Any], embedded: Sequence[Any]) -> IndexReport:
    """Compare stored vectors with the embeddings of the same documents.

    Raises:
        UnsupportedTensorError: there is nothing to compare.
    """
    pairs = [(_row(a), _row(b)) for a, b in zip(stored, embedded, strict=True)]
    if not pairs:
        raise UnsupportedTensorError("no documents")
    if any(a.size != b.size for a, b in pairs):
        return IndexReport(name, 0.0, 0.0, len(pairs))
    found = cosines(np.stack([a for a, _ in pairs]), np.stack([b for _, b in pairs]))
    return IndexReport(name, float(np.median(found)), float(np.min(found)), len(pairs))

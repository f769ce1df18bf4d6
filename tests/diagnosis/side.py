"""Built recordings: a small service whose every fact can be changed, as the spans that it would have made."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.trace import SpanKind

from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord

START = 1_700_000_000_000_000_000
DOCUMENTS = 200
QUESTIONS = 60


@dataclass
class Service:
    """A question-answering service: embeds, searches, asks a model.

    Attributes:
        attributes: what else the spans of an operation tell, or tell instead; a value may be a function of a
            random generator.
        seconds: durations, median.
        documents: ids that the index holds.
    """

    seed: int = 0
    n: int = 120
    k: int = 5
    questions: tuple[int, ...] = tuple(range(QUESTIONS))
    route: str = "/ask"
    collection: str = "handbook"
    documents: frozenset[int] = frozenset(range(DOCUMENTS))
    embedder: int = 0
    filtered: bool = False
    reranked: bool = False
    pieces: tuple[int, ...] = (11, 22, 33)
    whole: int | None = None
    wait_s: float = 0.002
    score_scale: float = 1.0
    rescored: frozenset[int] = frozenset()
    seconds: Mapping[str, float] = field(
        default_factory=lambda: {"embeddings": 0.01, "retrieval": 0.005, "chat": 0.4, "first": 0.1}
    )
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    gap_s: float = 1.0

    def spans(self) -> list[SpanRecord]:
        """What its recorder kept."""
        draw = random.Random(self.seed)
        return [span for number in range(self.n) for span in self._trace(draw, number)]

    def _trace(self, draw: random.Random, number: int) -> Iterator[SpanRecord]:
        trace, root = draw.getrandbits(127) + 1, draw.getrandbits(63) + 1
        start = START + int(number * self.gap_s * 1e9)
        question = draw.choice(self.questions)
        at = start + int(self.wait_s * draw.lognormvariate(0, 0.2) * 1e9)
        for operation in ("embeddings", "retrieval", *(("rerank",) if self.reranked else ()), "chat"):
            took = int(self.seconds.get(operation, 0.02) * draw.lognormvariate(0, 0.15) * 1e9)
            told = getattr(self, f"_{operation}")(draw, question)
            told |= {
                key: value(draw) if callable(value) else value
                for key, value in self.attributes.get(operation, {}).items()
            }
            told = {names.OPERATION_NAME: operation, **told}
            yield SpanRecord(
                trace,
                draw.getrandbits(63) + 1,
                operation,
                SpanKind.CLIENT,
                at,
                at + took,
                {key: value for key, value in told.items() if value is not None},
                parent_span_id=root,
            )
            at += took + 1000
        request: dict[str, Any] = {names.HTTP_ROUTE: self.route, names.HTTP_RESPONSE_STATUS_CODE: 200}
        yield SpanRecord(trace, root, f"POST {self.route}", SpanKind.SERVER, start, at, request)

    def _embeddings(self, draw: random.Random, question: int) -> dict[str, Any]:
        return {
            names.PROVIDER_NAME: "sentence_transformers",
            names.REQUEST_MODEL: "minilm",
            names.MODEL_NAME: "minilm",
            names.INPUT_COUNT: 1,
            names.PROMPT_CHECKSUM: (question * 37) % 4096,
            names.PROMPT_CHARACTERS: 20 + question,
            names.PROMPT_PIECES: [],
            names.EMBEDDING_DIMENSIONS: 384,
            names.FIDELITY: "summary",
            names.LAYERS_RECORDS: 6,
            names.LAYERS_NON_FINITE: 0,
        }

    def _retrieval(self, draw: random.Random, question: int) -> dict[str, Any]:
        fixed = random.Random(question * 1000 + self.embedder)
        vector = fixed.getrandbits(64)
        ranked = random.Random(question).sample(range(DOCUMENTS), 40)
        found = [name for name in ranked if name in self.documents][: self.k]
        scores = [0.9 - 0.01 * ranked.index(name) for name in found]
        scores = [
            score * self.score_scale * (0.97 if name in self.rescored else 1.0)
            for name, score in zip(found, scores, strict=True)
        ]
        told: dict[str, Any] = {
            names.DB_SYSTEM: "qdrant",
            names.DB_COLLECTION: self.collection,
            names.DB_OPERATION: "query_points",
            names.RETRIEVAL_TOP_K: self.k,
            names.RETRIEVAL_FILTERED: self.filtered,
            names.RETRIEVAL_METRIC: "cosine",
            names.RETRIEVAL_RETURNED: len(found),
            names.RETRIEVAL_IDS: [str(name) for name in found],
            names.RETRIEVAL_SCORES: scores,
            names.QUERY_FINGERPRINT: f"{vector:016x}",
            names.QUERY_NORM: 1.0,
            names.QUERY_DIMENSION: 384,
        }
        if scores:
            told |= {names.RETRIEVAL_TOP_SCORE: scores[0], names.RETRIEVAL_KTH_SCORE: scores[-1]}
        return told

    def _rerank(self, draw: random.Random, question: int) -> dict[str, Any]:
        return {
            names.PROVIDER_NAME: "cohere",
            names.REQUEST_MODEL: "rerank-3",
            names.RETRIEVAL_RETURNED: self.k,
        }

    def _chat(self, draw: random.Random, question: int) -> dict[str, Any]:
        characters = 800 + 3 * question
        return {
            names.PROVIDER_NAME: "openai",
            names.REQUEST_MODEL: "gpt-x",
            names.RESPONSE_MODEL: "gpt-x-2026",
            names.REQUEST_TEMPERATURE: 0.0,
            names.REQUEST_MAX_TOKENS: 64,
            names.FINISH_REASONS: ["stop"],
            names.INPUT_TOKENS: characters // 4,
            names.OUTPUT_TOKENS: draw.randrange(20, 60),
            names.TIME_TO_FIRST_CHUNK: self.seconds["first"] * draw.lognormvariate(0, 0.2),
            names.STREAM_CHUNKS: 40,
            names.STREAM_END: "complete",
            names.STREAM_CONSUMER: 0.002 * draw.lognormvariate(0, 0.2),
            names.PROMPT_CHARACTERS: characters,
            names.PROMPT_CHECKSUM: (question * 91) % 4096,
            names.PROMPT_PIECES: [*self.pieces, *(draw.randrange(100, 4096) for _ in range(8))],
            names.SYSTEM_FINGERPRINT: "aaaa",
            names.SYSTEM_CHARACTERS: 70,
            names.INPUT_MESSAGE_COUNT: 2,
            names.PROMPT_DOCUMENTS_RETRIEVED: self.k,
            names.PROMPT_DOCUMENTS_WHOLE: self.k if self.whole is None else self.whole,
            names.PROMPT_DOCUMENTS_CUT: 0,
        }

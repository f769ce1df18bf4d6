"""Typed views over spans: the same whether the span is live or read from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from neuronscope.signals import names
from neuronscope.signals.records import SpanEvent, SpanRecord
from neuronscope.signals.scores import normalised

LLM_OPERATIONS: Final = frozenset(
    {"chat", "text_completion", "generate_content", "embeddings", "rerank", "moderation"}
)


@dataclass(frozen=True, slots=True)
class _View:
    span: SpanRecord

    def _get(self, key: str) -> Any:
        return self.span.attributes.get(key)

    @property
    def latency_ms(self) -> float:
        """Duration of the call in milliseconds; of a stream, until its end."""
        return self.span.duration_ms

    @property
    def error_type(self) -> str | None:
        """Class of the error, None if the call succeeded."""
        return cast("str | None", self._get(names.ERROR_TYPE))

    @property
    def operation(self) -> str:
        """What was done: ``chat``, ``embeddings``, ``retrieval`` and so on."""
        return str(self._get(names.OPERATION_NAME) or self._get(names.DB_OPERATION) or self.span.name)


@dataclass(frozen=True, slots=True)
class LLMSpan(_View):
    """A call to a language or embedding model.  Unknown facts are None, never estimates."""

    @property
    def model(self) -> str | None:
        """The model that answered, else the one asked for."""
        return cast("str | None", self._get(names.RESPONSE_MODEL) or self._get(names.REQUEST_MODEL))

    @property
    def provider(self) -> str | None:
        """Who serves the model."""
        return cast("str | None", self._get(names.PROVIDER_NAME))

    @property
    def prompt_tokens(self) -> int | None:
        """Input tokens, cached ones included."""
        return cast("int | None", self._get(names.INPUT_TOKENS))

    @property
    def completion_tokens(self) -> int | None:
        """Output tokens, reasoning included."""
        return cast("int | None", self._get(names.OUTPUT_TOKENS))

    @property
    def cost_usd(self) -> float | None:
        """US dollars for the call, by the price table; None if the model or its tokens are not known."""
        return cast("float | None", self._get(names.COST))

    @property
    def finish_reason(self) -> str | None:
        """Why the first choice ended."""
        reasons = self.finish_reasons
        return reasons[0] if reasons else None

    @property
    def finish_reasons(self) -> list[str]:
        """Why each choice ended."""
        return list(self._get(names.FINISH_REASONS) or ())

    @property
    def time_to_first_chunk_ms(self) -> float | None:
        """Of a stream: from the call to the first chunk with content, in milliseconds."""
        seconds = self._get(names.TIME_TO_FIRST_CHUNK)
        return None if seconds is None else float(seconds) * 1000


@dataclass(frozen=True, slots=True)
class SearchStage:
    """One step of a search that has several, such as a hybrid's halves and their fusion.

    Attributes:
        kind: how it ranks: ``dense``, ``sparse``, ``rrf``, ``rerank`` and so on.
        name: of the vector it searches or the model that ranks, if it has one.
        k: hits it hands on; None if the request did not say.
    """

    kind: str
    name: str | None
    k: int | None


@dataclass(frozen=True, slots=True)
class RetrievalSpan(_View):
    """One query to a vector store.  A batch is one span and as many of these as it has queries.

    Attributes:
        event: the record of this query, if it is one of a batch.
    """

    event: SpanEvent | None = None

    def _of_query(self, key: str) -> Any:
        return (self.span if self.event is None else self.event).attributes.get(key)

    @property
    def index(self) -> int:
        """Position of the query in its batch, from 0."""
        return cast("int", self._of_query(names.QUERY_INDEX) or 0)

    @property
    def query_count(self) -> int:
        """Queries of the call that this one is part of."""
        return cast("int", self._get(names.QUERY_COUNT) or 1)

    @property
    def collection(self) -> str | None:
        """Collection searched."""
        return cast("str | None", self._get(names.DB_COLLECTION))

    @property
    def namespace(self) -> str | None:
        """Database, namespace or tenant searched."""
        return cast("str | None", self._get(names.DB_NAMESPACE))

    @property
    def store(self) -> str | None:
        """The store, as ``qdrant``."""
        return cast("str | None", self._get(names.DB_SYSTEM))

    @property
    def k(self) -> int | None:
        """Hits asked for."""
        return cast("int | None", self._of_query(names.RETRIEVAL_TOP_K))

    @property
    def returned(self) -> int | None:
        """Hits returned; None if the search failed."""
        return cast("int | None", self._of_query(names.RETRIEVAL_RETURNED))

    @property
    def filtered(self) -> bool | None:
        """Was the search restricted by a filter?"""
        return cast("bool | None", self._of_query(names.RETRIEVAL_FILTERED))

    @property
    def ids(self) -> list[str]:
        """Document ids, best first."""
        return list(self._of_query(names.RETRIEVAL_IDS) or ())

    @property
    def scores(self) -> list[float]:
        """Scores in the order of `ids`, as the store returned them."""
        return list(self._of_query(names.RETRIEVAL_SCORES) or ())

    @property
    def normalised_scores(self) -> Sequence[float]:
        """Scores where more is better, comparable between stores (see `neuronscope.signals.scores`)."""
        return normalised(self.scores, self.metric)

    @property
    def metric(self) -> str | None:
        """How scores read: ``cosine``, ``cosine_distance``, ``euclid`` and so on; None if unknown."""
        return cast("str | None", self._of_query(names.RETRIEVAL_METRIC))

    @property
    def top_score(self) -> float | None:
        """The best score; None for an empty result."""
        return cast("float | None", self._of_query(names.RETRIEVAL_TOP_SCORE))

    @property
    def margin(self) -> float | None:
        """Relative margin between the best and the worst returned score."""
        return cast("float | None", self._of_query(names.RETRIEVAL_MARGIN))

    @property
    def metadata_keys(self) -> list[str]:
        """Metadata keys of the hits."""
        return list(self._of_query(names.RETRIEVAL_METADATA_KEYS) or ())

    @property
    def documents(self) -> list[Mapping[str, Any]]:
        """The hits with id, score, text (``content``) and ``metadata``, best first; with content only."""
        try:
            found = json.loads(self._of_query(names.RETRIEVAL_DOCUMENTS) or "[]")
        except ValueError:  # masked
            return []
        return cast("list[Mapping[str, Any]]", found) if isinstance(found, list) else []

    @property
    def query_fingerprint(self) -> str | None:
        """SimHash of the query vector: similar vectors share bits."""
        return cast("str | None", self._of_query(names.QUERY_FINGERPRINT))

    @property
    def query_dimension(self) -> int | None:
        """Length of the query vector."""
        return cast("int | None", self._of_query(names.QUERY_DIMENSION))

    @property
    def query_norm(self) -> float | None:
        """L2 norm of the query vector."""
        return cast("float | None", self._of_query(names.QUERY_NORM))

    @property
    def query_dtype(self) -> str | None:
        """Element type of the query vector."""
        return cast("str | None", self._of_query(names.QUERY_DTYPE))

    @property
    def stages(self) -> Sequence[SearchStage]:
        """Steps of a search that has several, in order; the last one ranks the hits."""
        kinds = cast("Sequence[str]", self._of_query(names.RETRIEVAL_STAGES) or ())
        counts = cast("Sequence[int]", self._of_query(names.RETRIEVAL_STAGES_K) or ())
        steps = [kind.partition(":") for kind in kinds]
        known = [*counts, *(0 for _ in steps)]
        return [
            SearchStage(kind, name or None, k or None)
            for (kind, _, name), k in zip(steps, known, strict=False)
        ]


def llm_spans(spans: Sequence[SpanRecord]) -> list[LLMSpan]:
    """The model calls among spans, in order of their start."""
    return [LLMSpan(span) for span in spans if span.attributes.get(names.OPERATION_NAME) in LLM_OPERATIONS]


def retrieval_spans(spans: Sequence[SpanRecord]) -> list[RetrievalSpan]:
    """The similarity searches among spans, in order of their start; of a batch, each of its queries."""
    return [
        view
        for span in spans
        if span.attributes.get(names.OPERATION_NAME) == "retrieval"
        for view in _queries_of(span)
    ]


def _queries_of(span: SpanRecord) -> list[RetrievalSpan]:
    queries = [event for event in span.events if event.name == names.RETRIEVAL_QUERY]
    return [RetrievalSpan(span, event) for event in queries] or [RetrievalSpan(span)]

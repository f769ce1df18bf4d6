"""Typed views over spans: the same whether the span is live or read from a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord

LLM_OPERATIONS: Final = frozenset({"chat", "text_completion", "generate_content", "embeddings", "rerank"})


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
    def finish_reason(self) -> str | None:
        """Why the first choice ended."""
        reasons = self.finish_reasons
        return reasons[0] if reasons else None

    @property
    def finish_reasons(self) -> Sequence[str]:
        """Why each choice ended."""
        return cast("Sequence[str]", self._get(names.FINISH_REASONS) or ())

    @property
    def time_to_first_chunk_ms(self) -> float | None:
        """Of a stream: from the call to the first chunk with content, in milliseconds."""
        seconds = self._get(names.TIME_TO_FIRST_CHUNK)
        return None if seconds is None else float(seconds) * 1000


@dataclass(frozen=True, slots=True)
class RetrievalSpan(_View):
    """A similarity search.  Scores are as the store returned them."""

    @property
    def collection(self) -> str | None:
        """Collection searched."""
        return cast("str | None", self._get(names.DB_COLLECTION))

    @property
    def store(self) -> str | None:
        """The store, as ``qdrant``."""
        return cast("str | None", self._get(names.DB_SYSTEM))

    @property
    def k(self) -> int | None:
        """Hits asked for."""
        return cast("int | None", self._get(names.RETRIEVAL_TOP_K))

    @property
    def ids(self) -> Sequence[str]:
        """Document ids, best first."""
        return cast("Sequence[str]", self._get(names.RETRIEVAL_IDS) or ())

    @property
    def scores(self) -> Sequence[float]:
        """Scores in the order of `ids`."""
        return cast("Sequence[float]", self._get(names.RETRIEVAL_SCORES) or ())

    @property
    def top_score(self) -> float | None:
        """The best score; None for an empty result."""
        return cast("float | None", self._get(names.RETRIEVAL_TOP_SCORE))

    @property
    def margin(self) -> float | None:
        """Relative margin between the best and the worst returned score."""
        return cast("float | None", self._get(names.RETRIEVAL_MARGIN))

    @property
    def metadata_keys(self) -> Sequence[str]:
        """Metadata keys of the hits."""
        return cast("Sequence[str]", self._get(names.RETRIEVAL_METADATA_KEYS) or ())

    @property
    def query_fingerprint(self) -> str | None:
        """SimHash of the query vector."""
        return cast("str | None", self._get(names.QUERY_FINGERPRINT))


def llm_spans(spans: Sequence[SpanRecord]) -> list[LLMSpan]:
    """The model calls among spans, in order of their start."""
    return [LLMSpan(span) for span in spans if span.attributes.get(names.OPERATION_NAME) in LLM_OPERATIONS]


def retrieval_spans(spans: Sequence[SpanRecord]) -> list[RetrievalSpan]:
    """The similarity searches among spans, in order of their start."""
    return [RetrievalSpan(span) for span in spans if span.attributes.get(names.OPERATION_NAME) == "retrieval"]

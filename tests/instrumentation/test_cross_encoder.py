"""A sentence-transformers reranker, observed: one span a call, its scores, equal results, and its blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from opentelemetry.trace import SpanKind
from sentence_transformers import CrossEncoder

import neuronscope as ns
import tinymodels
from client_cases import CANARY, agent
from neuronscope import platform
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord

QUERY = "how do heat pumps work"
DOCUMENTS = ["in the cold", "heat pumps work in the cold", CANARY]
PAIRS: list[Any] = [(QUERY, document) for document in DOCUMENTS]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CrossEncoder:
    """A small reranker with weights from nowhere: only the arithmetic is real."""
    return tinymodels.cross_encoder(tmp_path_factory.mktemp("tiny") / "tiny-cross")


@pytest.fixture
def observed() -> Iterator[ns.Scope]:
    """A scope in which sentence-transformers is instrumented."""
    ns.Platform()
    ns.instrument("sentence_transformers")
    with ns.Scope("test", max_overhead_pct=1000) as scope:
        yield scope


def rerankings(scope: ns.Scope) -> list[SpanRecord]:
    """The spans of the library."""
    spans = scope.artifact.telemetry.spans
    return [span for span in spans if span.library == "neuronscope.sentence_transformers"]


def test_rank_is_one_reranking(model: CrossEncoder, observed: ns.Scope) -> None:
    """Though it goes through `predict`: counts, the scores of best and worst, the blocks beneath."""
    ranked: Any = model.rank(QUERY, DOCUMENTS, top_k=2)
    (span,) = rerankings(observed)
    assert span.name == "rerank tiny-cross"
    assert span.kind is SpanKind.INTERNAL
    assert span.attributes[names.OPERATION_NAME] == "rerank"
    assert span.attributes[names.PROVIDER_NAME] == "sentence_transformers"
    assert span.attributes[names.INPUT_COUNT] == 3
    assert span.attributes[names.RETRIEVAL_TOP_K] == 2
    assert span.attributes[names.RETRIEVAL_RETURNED] == 2
    assert span.attributes[names.RETRIEVAL_TOP_SCORE] == pytest.approx(ranked[0]["score"])
    assert span.attributes[names.RETRIEVAL_KTH_SCORE] == pytest.approx(ranked[-1]["score"])
    assert span.attributes[names.RERANK_TOP_WAS] == ranked[0]["corpus_id"]
    assert span.attributes[names.MODEL_FORWARDS] == 1
    layers = observed.artifact.telemetry.layer_snapshots
    assert len({record.layer_id for record in layers}) == 3
    assert {record.span_id for record in layers} == {span.span_id}


@pytest.mark.parametrize("how", [{}, {"convert_to_tensor": True}])
def test_predict_of_one_query_is_a_reranking(
    model: CrossEncoder, observed: ns.Scope, how: dict[str, Any]
) -> None:
    """As an array or a tensor, in batches too."""
    any_model: Any = model
    scores: Any = any_model.predict(PAIRS, batch_size=2, **how)
    (span,) = rerankings(observed)
    assert span.attributes[names.INPUT_COUNT] == 3
    assert span.attributes[names.MODEL_FORWARDS] == 2
    assert span.attributes[names.RETRIEVAL_TOP_SCORE] == pytest.approx(scores.max().item())
    assert span.attributes[names.RETRIEVAL_KTH_SCORE] == pytest.approx(scores.min().item())
    assert span.attributes[names.RERANK_TOP_WAS] == scores.argmax().item()


def test_scores_that_cannot_be_compared_are_not(
    model: CrossEncoder, observed: ns.Scope, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Pairs of several queries, a pair by itself, a classifier's labels: how many, and no best."""
    model.predict([("heat", "cold"), ("how", "work")])
    model.predict(("heat", "cold"))
    model.predict(PAIRS, convert_to_numpy=False)
    tinymodels.cross_encoder(tmp_path_factory.mktemp("tiny") / "labels", labels=3).predict(PAIRS)
    found = rerankings(observed)
    assert [span.attributes[names.INPUT_COUNT] for span in found] == [2, 1, 3, 3]
    assert all(names.RETRIEVAL_TOP_SCORE not in span.attributes for span in found)


def test_results_are_equal_and_words_are_told_only_when_asked(model: CrossEncoder) -> None:
    """With the agent, with content, without both; the random state too."""
    expected: Any = model.predict(PAIRS)
    order = model.rank(QUERY, DOCUMENTS, return_documents=True)
    state = torch.random.get_rng_state()
    for mode in ("on", "content"):
        with agent(mode, "sentence_transformers") as exporter:
            assert np.array_equal(model.predict(PAIRS), expected)
            assert model.rank(QUERY, DOCUMENTS, return_documents=True) == order
            assert CANARY not in repr(exporter.spans)
            query = exporter.spans[1].attributes.get(names.RETRIEVAL_QUERY_TEXT)
            assert query == (QUERY if mode == "content" else None)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_errors_are_told_by_type(model: CrossEncoder, observed: ns.Scope) -> None:
    """And go through; nothing is left on the model."""
    with pytest.raises(ValueError, match="batch"):
        model.predict(PAIRS, batch_size=0)
    (span,) = rerankings(observed)
    assert span.attributes[names.ERROR_TYPE] == "ValueError"
    assert all("_call_impl" not in vars(module) for module in model.modules())


def test_uninstrumenting_restores_the_methods() -> None:
    """The very functions."""
    originals = [vars(CrossEncoder)[name] for name in ("predict", "rank")]
    ns.Platform()
    ns.instrument("sentence_transformers")
    assert platform.installation("sentence_transformers").missing == set()
    assert vars(CrossEncoder)["rank"] is not originals[1]
    ns.uninstrument("sentence_transformers")
    assert [vars(CrossEncoder)[name] for name in ("predict", "rank")] == originals

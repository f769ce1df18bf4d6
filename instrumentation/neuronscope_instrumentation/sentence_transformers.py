"""sentence-transformers: embedders of every kind (`encode`) and rerankers (`CrossEncoder`) in process.

Sparse ones' vectors are as long as their vocabulary; of many vectors a text, each one's length is told.
`encode_query` and `encode_document` go through `encode`; `rank` goes through `predict` and is one span.
Token counts are not reported: the library does not tell them, and counting would mean tokenising twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, cast

from neuronscope.instrumentation import (
    ClientIntegration,
    Endpoint,
    Kind,
    Operation,
    Peer,
    Request,
    Response,
    Snapshot,
    WrappedMethod,
)
from neuronscope_instrumentation.common.retrieval import rerank_facts

# Arguments of `encode` that shape a vector.  Not `precision`: its ranges are those of a batch.
_SHAPING: Final = ("prompt", "prompt_name", "normalize_embeddings", "truncate_dim")
MAX_INPUTS: Final = 64  # whose structure is looked at
PEER: Final = Peer("sentence_transformers")


def _snapshot(endpoint: Endpoint, instance: Any, arguments: dict[str, Any], content: bool) -> Snapshot:
    from neuronscope.modelnames import model_name

    inputs = arguments.get("inputs", arguments.get("sentences"))  # renamed in 6.0
    kept = {"input_count": input_count(inputs), "precision": arguments.get("precision")}
    if content:
        kept["inputs"] = texts(inputs)
        kept["shaping"] = [(key, value) for key in _SHAPING if (value := arguments.get(key)) is not None]
    return Snapshot(endpoint, model_name(instance), kept, PEER)


def input_count(inputs: Any) -> int | None:
    """How many texts are encoded; None for iterators and columns, which are never touched."""
    if isinstance(inputs, list | tuple):
        items = cast(Sequence[Any], inputs)
        # A conversation, a list of messages, is one input.
        return 1 if items and isinstance(items[0], Mapping) and "role" in items[0] else len(items)
    if isinstance(inputs, str | bytes | Mapping):
        return 1
    kind, shape = getattr(getattr(inputs, "dtype", None), "kind", None), getattr(inputs, "shape", ())
    return int(shape[0]) if kind in ("U", "O") and shape else None  # other arrays are sounds and images


def texts(inputs: Any) -> list[str] | None:
    """The first texts to embed; None for whatever is not text, or would be used up."""
    if isinstance(inputs, str):
        return [inputs]
    if not isinstance(inputs, list | tuple):
        return None
    first = cast(Sequence[Any], inputs)[:MAX_INPUTS]
    return [each for each in first if isinstance(each, str)] or None


def width(result: Any) -> int | None:
    """Length of the vectors that `encode` returned, as arrays, tensors, a list of them, or by output name.

    Runs right after the call, so that nothing keeps the vectors.
    """
    if type(result).__name__ == "list":
        result = result[0] if result else None
    if isinstance(result, Mapping):
        result = cast(Mapping[str, Any], result).get("sentence_embedding")
    shape: Any = getattr(result, "shape", None)
    return int(shape[-1]) if shape and shape[-1] > 0 else None


def read_request(kept: Mapping[str, Any], content: bool) -> Request:
    """How much was asked, and in which format if not in the model's own."""
    precision = kept["precision"]
    return Request(
        input_count=kept["input_count"],
        inputs=kept.get("inputs") if content else None,
        system=[{"type": "text", "content": repr(kept["shaping"])}] if content and kept["shaping"] else None,
        encoding_formats=[precision] if isinstance(precision, str) else None,
    )


def read_response(dimensions: int, _content: bool) -> Response:
    """The length of the vectors."""
    return Response(dimensions=dimensions)


def embeds_alike(_model: Any, arguments: Mapping[str, Any]) -> Callable[[Any, Sequence[str]], Any]:
    """Encode other texts as a call encodes its own: with its prompt, its length, its normalisation."""
    kept = {key: arguments[key] for key in _SHAPING if arguments.get(key) is not None}
    return lambda model, texts: model.encode(list(texts), show_progress_bar=False, **kept)


ENCODE: Final = Endpoint(
    operation=Operation.EMBEDDINGS,
    read_request=read_request,
    read_response=read_response,
    embedder=embeds_alike,
)
# Of vectors that have as many numbers as a vocabulary has words, or one for each token: no fingerprint.
ENCODE_OTHERWISE: Final = replace(ENCODE, embedder=None)


# --- rerankers ------------------------------------------------------------------------------------------
class Ranked(NamedTuple):
    """What a reranking has found: positions, best first, with their scores; both empty where unknown."""

    order: Sequence[int]
    scores: Sequence[float]


def _snapshot_ranking(instance: Any, arguments: dict[str, Any], content: bool) -> Snapshot:
    from neuronscope.modelnames import model_name

    documents = arguments.get("documents")
    pairs = arguments.get("inputs", arguments.get("sentences"))  # renamed in 6.0
    kept = {
        "input_count": input_count(pairs if documents is None else documents),
        "top_k": arguments.get("top_k"),
        "query": arguments.get("query") if content else None,
        "one_query": documents is not None or _one_query(pairs),
    }
    if documents is None and isinstance(pairs, list | tuple) and pairs and isinstance(pairs[0], str):
        kept["input_count"] = 1  # a pair by itself
    return Snapshot(RERANK if kept["one_query"] else PAIRS, model_name(instance), kept, PEER)


def _one_query(pairs: Any) -> bool:
    """Are these pairs of one query and several documents, as far as the first and the last tell?"""
    if not isinstance(pairs, list | tuple):
        return False
    given = cast(Sequence[Any], pairs)
    ends = [given[0], given[-1]] if len(given) > 1 else []
    queries = [cast(Sequence[Any], end)[0] for end in ends if isinstance(end, list | tuple) and end]
    return len(queries) == 2 and isinstance(queries[0], str) and queries[0] == queries[1]


def ranking(result: Any) -> Ranked | None:
    """Order and scores of a result, on the host: copied, since the service may change its own."""
    if isinstance(result, list):
        found = cast("Sequence[Any]", result)
        told = [cast("Mapping[str, Any]", each) for each in found if isinstance(each, Mapping)]
        if not told:
            return None
        if "corpus_id" not in told[0]:
            return None
        return Ranked([each["corpus_id"] for each in told], [float(each["score"]) for each in told])
    plain = type(result).__module__ == "torch" and type(result).__qualname__ == "Tensor"
    if plain:
        result = result.numpy() if result.device.type == "cpu" and not result.requires_grad else None
    if getattr(result, "ndim", None) != 1:
        return None
    scores: list[float] = result.tolist()
    order = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
    return Ranked(order, [scores[position] for position in order])


def read_ranking_request(kept: Mapping[str, Any], content: bool) -> Request:
    """How much was asked, and with content for what."""
    top_k, query = kept["top_k"], kept["query"]
    return Request(
        input_count=kept["input_count"],
        k=top_k if isinstance(top_k, int) else None,
        query_text=query if content and isinstance(query, str) else None,
    )


def read_ranking(found: Ranked, _content: bool) -> Response:
    """How many documents, how the best and the worst fit, how far they moved."""
    return Response(extra=rerank_facts(found.order, found.scores))


RERANK: Final = Endpoint(
    operation=Operation.RERANK, read_request=read_ranking_request, read_response=read_ranking
)
# Pairs of several queries: their scores cannot be compared.
PAIRS: Final = Endpoint(operation=Operation.RERANK, read_request=read_ranking_request)


def _rank(target: str, *, optional: bool = False) -> WrappedMethod:
    return WrappedMethod(
        target=target,
        snapshot=_snapshot_ranking,
        unwrap=ranking,
        in_process=True,
        model=lambda instance, _: instance,
        optional=optional,
    )


def _encode(target: str, *, endpoint: Endpoint = ENCODE, optional: bool = False) -> WrappedMethod:
    return WrappedMethod(
        target=target,
        snapshot=partial(_snapshot, endpoint),
        unwrap=width,
        in_process=True,
        model=lambda instance, _: instance,
        optional=optional,
    )


def _otherwise(target: str) -> WrappedMethod:
    return _encode(target, endpoint=ENCODE_OTHERWISE, optional=True)


SENTENCE_TRANSFORMERS: Final = ClientIntegration(
    name="sentence_transformers",
    requires="sentence-transformers>=3.0",
    kind=Kind.EMBEDDER,
    methods=(
        _encode("sentence_transformers.sentence_transformer.model:SentenceTransformer.encode"),
        _encode("sentence_transformers.SentenceTransformer:SentenceTransformer.encode", optional=True),
        _otherwise("sentence_transformers.sparse_encoder.model:SparseEncoder.encode"),
        _otherwise("sentence_transformers.sparse_encoder.SparseEncoder:SparseEncoder.encode"),
        _otherwise("sentence_transformers.multi_vector_encoder.model:MultiVectorEncoder.encode"),
        _rank("sentence_transformers.cross_encoder.model:CrossEncoder.predict"),
        _rank("sentence_transformers.cross_encoder.model:CrossEncoder.rank"),
        _rank("sentence_transformers.cross_encoder.CrossEncoder:CrossEncoder.predict", optional=True),
        _rank("sentence_transformers.cross_encoder.CrossEncoder:CrossEncoder.rank", optional=True),
    ),
)

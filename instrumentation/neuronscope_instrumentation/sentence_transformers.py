"""sentence-transformers: `SentenceTransformer.encode`, an embedder in this process.

`encode_query` and `encode_document` go through `encode`.  Token counts are not reported: the library
does not tell them, and counting would mean tokenising twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

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

# Arguments of `encode` that shape a vector.  Not `precision`: its ranges are those of a batch.
_SHAPING: Final = ("prompt", "prompt_name", "normalize_embeddings", "truncate_dim")
PEER: Final = Peer("sentence_transformers")


def _snapshot(instance: Any, arguments: dict[str, Any], _content: bool) -> Snapshot:
    from neuronscope.layers import model_name

    inputs = arguments.get("inputs", arguments.get("sentences"))  # renamed in 6.0
    kept = {"input_count": input_count(inputs), "precision": arguments.get("precision")}
    return Snapshot(ENCODE, model_name(instance), kept, PEER)


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


def read_request(kept: Mapping[str, Any], _content: bool) -> Request:
    """How much was asked, and in which format if not in the model's own."""
    precision = kept["precision"]
    return Request(
        input_count=kept["input_count"],
        encoding_formats=[precision] if isinstance(precision, str) else None,
    )


def read_response(dimensions: int, _content: bool) -> Response:
    """The length of the vectors."""
    return Response(dimensions=dimensions)


def embeds_alike(arguments: Mapping[str, Any]) -> Callable[[Any, Sequence[str]], Any]:
    """Encode other texts as a call encodes its own: with its prompt, its length, its normalisation."""
    kept = {key: arguments[key] for key in _SHAPING if arguments.get(key) is not None}
    return lambda model, texts: model.encode(list(texts), show_progress_bar=False, **kept)


ENCODE: Final = Endpoint(
    operation=Operation.EMBEDDINGS,
    read_request=read_request,
    read_response=read_response,
    embedder=embeds_alike,
)


def _encode(target: str, *, optional: bool = False) -> WrappedMethod:
    return WrappedMethod(
        target=target,
        snapshot=_snapshot,
        unwrap=width,
        in_process=True,
        model=lambda instance, _: instance,
        optional=optional,
    )


SENTENCE_TRANSFORMERS: Final = ClientIntegration(
    name="sentence_transformers",
    requires="sentence-transformers>=3.0",
    kind=Kind.EMBEDDER,
    methods=(
        _encode("sentence_transformers.sentence_transformer.model:SentenceTransformer.encode"),
        _encode("sentence_transformers.SentenceTransformer:SentenceTransformer.encode", optional=True),
    ),
)

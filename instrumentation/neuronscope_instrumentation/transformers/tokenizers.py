"""transformers' tokenizers: how much text became how many tokens, and back.

Not among the libraries that are observed by default: tokenizers run inside most calls that are, and each of
their calls would be a span.  ``ns.instrument("tokenizers")`` asks for it.  Texts are recorded with content
only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from neuronscope.instrumentation import (
    ClientIntegration,
    Endpoint,
    Kind,
    Message,
    Operation,
    Peer,
    Request,
    Response,
    Snapshot,
    WrappedMethod,
)
from neuronscope.modelnames import name_from_path
from neuronscope.signals import names

PEER: Final = Peer("transformers")
_BASE: Final = "transformers.tokenization_utils_base:PreTrainedTokenizerBase"
MAX_TEXTS: Final = 64  # recorded of one call


def _name(tokenizer: Any) -> str:
    path = getattr(tokenizer, "name_or_path", None)
    return name_from_path(path) if isinstance(path, str) and path else type(tokenizer).__name__


# --- texts to tokens --------------------------------------------------------------------------------------
def _snapshot_encoding(tokenizer: Any, arguments: dict[str, Any], content: bool) -> Snapshot:
    texts = arguments.get("text")
    kept: dict[str, Any] = {"count": _count(texts)}
    if content:
        kept["texts"] = _texts(texts)
    return Snapshot(ENCODE, _name(tokenizer), kept, PEER)


def _count(texts: Any) -> int | None:
    if isinstance(texts, str):
        return 1
    return len(cast("Sequence[Any]", texts)) if isinstance(texts, list | tuple) else None


def _texts(texts: Any) -> list[str]:
    if isinstance(texts, str):
        return [texts]
    if not isinstance(texts, list | tuple):
        return []
    return [each for each in cast("Sequence[Any]", texts)[:MAX_TEXTS] if isinstance(each, str)]


def unwrap_encoding(result: Any) -> tuple[int | None, int | None]:
    """Tokens without padding, and rows; no device is asked for a value."""
    from neuronscope_instrumentation.transformers.generation import on_host

    ids, mask = result.get("input_ids"), result.get("attention_mask")
    if isinstance(ids, list):
        rows: Any = cast(Any, ids)
        if not rows or not isinstance(rows[0], list):
            return len(rows), 1
        masks: Any = mask
        return sum(map(sum, masks)) if isinstance(mask, list) else sum(map(len, rows)), len(rows)
    shape = tuple(getattr(ids, "shape", ()))
    array = mask if type(mask).__module__ == "numpy" else (None if mask is None else on_host(mask))
    tokens = int(array.sum()) if array is not None else None
    return tokens, int(shape[0]) if len(shape) == 2 else None


def read_encoding(kept: Mapping[str, Any], content: bool) -> Request:
    """How many texts, and with content the texts."""
    messages = [Message("user", [{"type": "text", "content": text}]) for text in kept.get("texts", ())]
    return Request(input_count=kept["count"], messages=messages if content and messages else None)


def read_tokens(result: tuple[int | None, int | None], _content: bool) -> Response:
    """How many tokens."""
    tokens, rows = result
    extra = {names.TOKENIZER_TOKENS: tokens, names.MODEL_BATCH: rows}
    return Response(extra={key: value for key, value in extra.items() if value is not None})


# --- tokens to texts --------------------------------------------------------------------------------------
def _snapshot_decoding(tokenizer: Any, arguments: dict[str, Any], _content: bool) -> Snapshot:
    ids = arguments.get("token_ids", arguments.get("sequences"))
    return Snapshot(DECODE, _name(tokenizer), {"tokens": _size(ids)}, PEER)


def _size(ids: Any) -> int | None:
    shape = getattr(ids, "shape", None)
    if shape is not None:
        size = 1
        for extent in shape:
            size *= int(extent)
        return size
    if isinstance(ids, list | tuple):
        rows: Any = cast(Any, ids)
        return sum(map(_length, rows))
    return 1 if isinstance(ids, int) else None


def _length(row: Any) -> int:
    return len(cast(Any, row)) if isinstance(row, list | tuple) else 1


def read_decoding(kept: Mapping[str, Any], _content: bool) -> Request:
    """How many tokens."""
    return Request(extra={names.TOKENIZER_TOKENS: kept["tokens"]} if kept["tokens"] is not None else {})


def read_texts(result: Any, content: bool) -> Response:
    """With content, the texts."""
    found = _texts(result)
    messages = [Message("assistant", [{"type": "text", "content": text}]) for text in found]
    return Response(messages=messages if content and messages else None)


ENCODE: Final = Endpoint(operation=Operation.TOKENIZE, read_request=read_encoding, read_response=read_tokens)
DECODE: Final = Endpoint(operation=Operation.DETOKENIZE, read_request=read_decoding, read_response=read_texts)
TOKENIZERS: Final = ClientIntegration(
    name="tokenizers",
    requires="transformers>=4.45",
    kind=Kind.FRAMEWORK,
    methods=(
        WrappedMethod(
            target=f"{_BASE}.__call__", snapshot=_snapshot_encoding, unwrap=unwrap_encoding, in_process=True
        ),
        WrappedMethod(target=f"{_BASE}.decode", snapshot=_snapshot_decoding, in_process=True),
        WrappedMethod(target=f"{_BASE}.batch_decode", snapshot=_snapshot_decoding, in_process=True),
    ),
)

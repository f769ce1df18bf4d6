"""Hits of FT.SEARCH in their forms: redis-py's objects, and replies of both versions of the protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from neuronscope.instrumentation import Hit
from neuronscope_instrumentation.redis.commands import text

Row = tuple[str, Mapping[str, Any]]


def taken(result: Any) -> Any:
    """What the worker reads of a result: documents as they are now, or the server's reply."""
    documents = getattr(result, "docs", None)
    return tuple(documents) if documents is not None else result


def hits(result: Any, score: str, content: bool) -> list[Hit] | None:
    """The hits of one search; None if the result is none (an error in a pipeline)."""
    rows = _rows(result)
    return None if rows is None else [_hit(identity, fields, score, content) for identity, fields in rows]


def count(result: Any) -> int | None:
    """How many documents a search brought."""
    rows = _rows(result)
    return None if rows is None else len(list(rows))


def _rows(result: Any) -> Iterator[Row] | None:
    if isinstance(result, tuple):
        return _documents(cast("Sequence[Any]", result))
    if isinstance(result, list) and result:
        return iter(_flat(cast("Sequence[Any]", result)))
    if isinstance(result, Mapping):
        return _mapped(cast("dict[Any, Any]", result))
    return None


def _documents(documents: Sequence[Any]) -> Iterator[Row]:
    for document in documents:
        told = cast("dict[str, Any]", vars(document))
        fields = {name: value for name, value in told.items() if name not in ("id", "payload")}
        yield text(document.id), fields


def _flat(reply: Sequence[Any]) -> list[Row]:
    """The older protocol: a total, then each key with its fields, names and values by turns."""
    found: list[Row] = []
    for item in reply[1:]:
        if isinstance(item, list) and found:
            pairs = cast("Sequence[Any]", item)
            fields = {text(name): value for name, value in zip(pairs[::2], pairs[1::2], strict=False)}
            found[-1] = (found[-1][0], fields)
        elif isinstance(item, str | bytes):
            found.append((text(item), {}))
    return found


def _mapped(reply: Mapping[Any, Any]) -> Iterator[Row]:
    """The newer protocol: a list of documents, each with a map of its fields."""
    plain = {text(key): value for key, value in reply.items()}
    for document in cast("Sequence[Mapping[Any, Any]]", plain.get("results") or ()):
        told = {text(key): value for key, value in document.items()}
        fields = cast("Mapping[Any, Any]", told.get("extra_attributes") or {})
        yield text(told.get("id", "")), {text(name): value for name, value in fields.items()}


def _hit(identity: str, fields: Mapping[str, Any], score: str, content: bool) -> Hit:
    about = {name: _value(value) if content else None for name, value in fields.items() if name != score}
    return Hit(identity, _number(fields.get(score)), about)


def _number(value: Any) -> float | None:
    try:
        return float(value) if value is not None else None
    except ValueError:
        return None


def _value(value: Any) -> str | None:
    """A field's text; of bytes that are none, only that it is there."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return value if isinstance(value, str) else str(value)

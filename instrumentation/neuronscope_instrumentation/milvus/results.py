"""Milvus's results, read by the worker: ids, distances and names of fields.

Newer results unpack some fields when they are first looked at.  That is the service's to start: here they are
read past that, out of what the server sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from neuronscope.instrumentation import Hit, Response
from neuronscope.signals import names

_JSON: Final = 23  # `DataType.JSON`
_COUNTS: Final = ("insert_count", "upsert_count", "delete_count")


class Found(NamedTuple):
    """One query's hits, taken in the caller's thread.

    Attributes:
        hits: as Milvus gave them, the list itself copied.
        result: the list, for the fields that it has not unpacked.
    """

    hits: tuple[Any, ...]
    result: Any


def found(result: Any) -> list[Found] | None:
    """The hits of each query; None for a future, whose result is the service's to wait for."""
    if not isinstance(result, list):
        return None
    queries = cast("Sequence[Any]", result)
    return [Found(raw(hits), hits) for hits in queries if isinstance(hits, list)]


def raw(hits: Any) -> tuple[Any, ...]:
    """A list's members, without what its class does when one looks at them."""
    return tuple(list[Any].__iter__(hits))


def page(result: Any) -> list[Found] | None:
    """The hits of one page of an iterator; None at its end, which is no search without hits."""
    parts = found(result.get_res()) if hasattr(result, "get_res") else None
    if not parts or not any(part.hits for part in parts):
        return None
    return parts if len(parts) == 1 else [Found(tuple(hit for part in parts for hit in part.hits), None)]


def read_hits(queries: Sequence[Found], content: bool) -> Response:
    """The hits of each query."""
    return Response(hits=[list(_hits(each, content)) for each in queries])


def _hits(each: Found, content: bool) -> Iterator[Hit]:
    packed = [field for field in getattr(each.result, "lazy_field_data", ()) if field.type == _JSON]
    start = getattr(each.result, "start", 0)
    for position, hit in enumerate(each.hits):
        raw: Any = getattr(hit, "data", hit)  # a dictionary, or a class around one
        entity: dict[str, Any] = dict(raw.get("entity") or {})
        for field in packed:
            entity.update(_unpacked(field, start + position, content))
        about = {name: value if _is_plain(value) else None for name, value in entity.items()}
        yield Hit(_identity(raw), _distance(raw), about if content else dict.fromkeys(about))


def _unpacked(field: Any, position: int, content: bool) -> dict[str, Any]:
    """A JSON field, or all fields that the schema does not know, of one hit."""
    if not field.is_dynamic:
        return {field.field_name: field.scalars.json_data.data[position].decode() if content else None}
    values = json.loads(field.scalars.json_data.data[position] or b"{}")
    return cast("dict[str, Any]", values) if isinstance(values, dict) else {}


def _identity(hit: Mapping[str, Any]) -> str:
    """The primary key comes first, whatever it is called."""
    return str(hit["id"] if "id" in hit else next(iter(hit.values()), ""))


def _distance(hit: Mapping[str, Any]) -> float | None:
    distance = hit.get("distance")
    return float(distance) if isinstance(distance, int | float) else None


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)


def rows(result: Any) -> int | None:
    """How many rows a query returned."""
    return len(cast("Sequence[Any]", result)) if isinstance(result, list) else None


def read_rows(count: int, _content: bool) -> Response:
    """How many rows came back."""
    return Response(returned=count)


def written(result: Any) -> int | None:
    """How many entities were written or removed, as the server counts them."""
    if isinstance(result, list):  # older servers name what was deleted
        return len(cast("Sequence[Any]", result))
    counts: list[Any] = [
        cast("Mapping[str, Any]", result).get(name)
        if isinstance(result, Mapping)
        else getattr(result, name, None)
        for name in _COUNTS
    ]
    known = [count for count in counts if isinstance(count, int)]
    return max(known) if known else None


def read_written(count: int, _content: bool) -> Response:
    """How many entities were written or removed."""
    return Response(extra={names.WRITE_COUNT: count})

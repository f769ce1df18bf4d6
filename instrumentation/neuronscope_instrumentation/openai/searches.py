"""Vector stores at the provider: searching one is a retrieval like any other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from neuronscope.instrumentation import Endpoint, Hit, Operation, Query, Request, Response
from neuronscope_instrumentation.common.fields import count, document, field, items, mapping, number, text
from neuronscope_instrumentation.openai.answers import read_error
from neuronscope_instrumentation.openai.facts import read_headers

DEFAULT_K: Final = 10
_QUERY: Final = "query"


def store_of(path: str) -> str | None:
    """The store that a path searches: ``/vector_stores/{id}/search``."""
    parts = path.partition("?")[0].rstrip("/").split("/")
    return parts[-2] if parts[-1] == "search" and parts[-3:-2] == ["vector_stores"] else None


def keep_search(kept: dict[str, Any], body: Mapping[str, Any], content: bool) -> None:
    """Add to `kept` how much is searched, and with content the query."""
    kept["k"] = count(body.get("max_num_results")) or DEFAULT_K
    kept["filtered"] = body.get("filters") is not None
    if content:
        query = body.get("query")
        kept[_QUERY] = query if isinstance(query, str) else " ".join(map(str, items(query)))


def read_search_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """A search in our words."""
    return Request(
        k=arguments.get("k"),
        filtered=arguments.get("filtered"),
        queries=[Query(text=text(arguments.get(_QUERY)))],
    )


def read_search(result: Any, content: bool) -> Response:
    """What was found: chunks of files, by the file's id."""
    found = items(field(document(result), "data"))
    return Response(hits=[[_hit(each, content) for each in found]])


def _hit(found: Any, content: bool) -> Hit:
    pieces = (
        [text(field(piece, "text")) or "" for piece in items(field(found, "content"))] if content else None
    )
    return Hit(
        text(field(found, "file_id")) or "",
        number(field(found, "score")),
        mapping(field(found, "attributes")),
        None if pieces is None else "\n".join(pieces),
    )


SEARCH: Final = Endpoint(
    operation=Operation.RETRIEVAL,
    called="search",
    read_request=read_search_request,
    read_response=read_search,
    read_error=read_error,
    read_headers=read_headers,
)

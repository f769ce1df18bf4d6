"""The table of redis-py's and valkey-py's methods, what is kept of each call, and how its result is read.

Commands that are not the search module's pass: one look at the first word.  Documents are written by ordinary
commands (HSET, JSON.SET), which say nothing of vectors: they are not observed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

from neuronscope.instrumentation import (
    ClientIntegration,
    Endpoint,
    Kind,
    Operation,
    Query,
    Request,
    Response,
    Snapshot,
    WrappedMethod,
)
from neuronscope_instrumentation.common.retrieval import store_error
from neuronscope_instrumentation.redis import commands, results
from neuronscope_instrumentation.redis.commands import KnownServer, VectorField, known_server

Arguments = dict[str, Any]
SEARCH, CREATE = "FT.SEARCH", "FT.CREATE"
_WORDS: Final[Mapping[Any, str]] = {
    form: word
    for word in (SEARCH, CREATE, "FT.DROPINDEX", "FT.AGGREGATE")
    for form in (word, word.lower(), word.encode(), word.lower().encode())
}


class Asked(NamedTuple):
    """One search: its index, its query string and what follows that, or redis-py's objects for them."""

    index_name: str
    query: str
    words: Sequence[Any]
    parameters: Mapping[str, Any] | None = None
    limit: int | None = None


# --- requests and results, read by the worker -------------------------------------------------------------
def read_search(kept: Mapping[str, Any], _content: bool) -> Request:
    """Facts of searches by what their snapshot kept."""
    server: KnownServer = kept["server"]
    queries = [_query(asked, server) for asked in cast("Sequence[Asked]", kept["asked"])]
    return Request(namespace=server.database, queries=queries)


def _query(asked: Asked, server: KnownServer) -> Query:
    said = commands.knn(asked.query)
    if said is None:
        return Query()
    told = commands.options(asked.words)
    parameters = asked.parameters if asked.parameters is not None else told.parameters
    known = server.learned.get(asked.index_name, {}).get(said.field, VectorField())
    return Query(
        vector=commands.numbers(parameters.get(said.vector), known.type),
        k=_k(said, parameters, asked.limit if asked.limit is not None else told.limit),
        filtered=said.filtered,
        metric=commands.METRICS.get(known.metric or "", "distance"),
    )


def _k(said: commands.Knn, parameters: Mapping[str, Any], limit: int) -> int | None:
    """Of the k nearest, no more come back than the limit."""
    if said.k is None:
        return limit
    value = str(parameters.get(said.k[1:]) if said.k.startswith("$") else said.k)
    return min(int(value), limit) if value.isdigit() else limit


def read_hits(asked: Sequence[Asked], found: Sequence[Any], content: bool) -> Response:
    """The hits of each search."""
    said = [commands.knn(each.query) for each in asked]
    hits = [
        results.hits(result, knn.score if knn is not None else "", content) or []
        for knn, result in zip(said, found, strict=False)
    ]
    return Response(hits=hits)


def read_other(kept: Mapping[str, Any], _content: bool) -> Request:
    """Facts of a listing or of a command for an index."""
    server: KnownServer = kept["server"]
    return Request(namespace=server.database)


def read_listing(found: Sequence[Any], _content: bool) -> Response:
    """How many documents came back."""
    return Response(returned=results.count(found[0]))


def _learn(server: KnownServer, index: str, words: Sequence[Any], _found: Any, _content: bool) -> Response:
    server.learn(index, commands.vector_fields(words))
    return Response()


_endpoint: Final = partial(Endpoint, read_request=read_other, read_error=store_error)
LISTING: Final = _endpoint(operation=Operation.STORE, read_response=read_listing)
OTHER: Final = _endpoint(operation=Operation.STORE)


def _searching(server: KnownServer, asked: Sequence[Asked], index: str | None) -> Snapshot:
    endpoint = Endpoint(
        operation=Operation.RETRIEVAL,
        read_request=read_search,
        read_response=partial(read_hits, asked),
        read_error=store_error,
    )
    return Snapshot(endpoint, index, {"server": server, "asked": asked}, server.peer, SEARCH)


# --- what the hot path keeps of a call --------------------------------------------------------------------
def _command(client: Any, arguments: Arguments, _content: bool) -> Snapshot | None:
    """Any command; only those of the search module are ours."""
    first = arguments.get("*0")
    word = _WORDS.get(first) if isinstance(first, str | bytes) else None
    if word is None:
        return None
    words = [value for name, value in arguments.items() if name.startswith("*")]
    server, index = known_server(client), commands.text(words[1]) if len(words) > 1 else None
    if word == CREATE and index is not None:
        read = partial(_learn, server, index, words)
        endpoint = _endpoint(operation=Operation.STORE, read_response=read)
        return Snapshot(endpoint, index, {"server": server}, server.peer, word)
    asked = _asked(words) if word == SEARCH else None
    if asked is not None and commands.is_vector_search(asked.query):
        return _searching(server, (asked,), index)
    return Snapshot(LISTING if asked else OTHER, index, {"server": server}, server.peer, word)


def _asked(words: Sequence[Any]) -> Asked | None:
    if len(words) < 3:
        return None
    return Asked(commands.text(words[1]), commands.text(words[2]), tuple(words[3:]))


def _search(index: Any, arguments: Arguments, _content: bool) -> Snapshot | None:
    """`client.ft(index).search`: a string or a `Query`, with parameters beside it."""
    client = getattr(index, "client", None)
    if client is None or hasattr(client, "command_stack"):
        return None  # in a pipeline it is sent later, with others
    query: Any = arguments.get("query")
    told = query if isinstance(query, str) else getattr(query, "_query_string", None)
    if not isinstance(told, str):
        return None
    server, name = known_server(client), commands.text(getattr(index, "index_name", ""))
    if not commands.is_vector_search(told):
        return Snapshot(LISTING, name, {"server": server}, server.peer, SEARCH)
    parameters = arguments.get("query_params")
    limit = getattr(query, "_num", commands.DEFAULT_LIMIT)
    return _searching(server, (Asked(name, told, (), dict(parameters or {}), limit),), name)


def _pipeline(pipeline: Any, _arguments: Arguments, _content: bool) -> Snapshot | None:
    """Commands that are sent together: all vector searches among them are one batch."""
    stack = cast("Sequence[Any]", getattr(pipeline, "command_stack", ()))
    if not any(_WORDS.get(entry[0][0]) == SEARCH for entry in stack if entry[0]):
        return None
    sent = [_asked(entry[0]) if _WORDS.get(entry[0][0]) == SEARCH else None for entry in stack]
    asked = [each if each is not None and commands.is_vector_search(each.query) else None for each in sent]
    searches = [each for each in asked if each is not None]
    if not searches:
        return None
    server, names = known_server(pipeline), {each.index_name for each in searches}
    positions = [position for position, each in enumerate(asked) if each is not None]
    endpoint = Endpoint(
        operation=Operation.RETRIEVAL,
        read_request=read_search,
        read_response=partial(_read_positions, searches, positions),
        read_error=store_error,
    )
    index = names.pop() if len(names) == 1 else None
    return Snapshot(endpoint, index, {"server": server, "asked": searches}, server.peer, SEARCH)


def _read_positions(
    asked: Sequence[Asked], positions: Sequence[int], found: Sequence[Any], content: bool
) -> Response:
    return read_hits(asked, [found[position] for position in positions], content)


# --- results ----------------------------------------------------------------------------------------------
def _one(result: Any) -> Sequence[Any]:
    return (results.taken(result),)


def _many(result: Any) -> Sequence[Any]:
    return [results.taken(each) for each in result]


# --- the table --------------------------------------------------------------------------------------------
_LIBRARIES: Final = (("redis", "Redis", "RedisCluster"), ("valkey", "Valkey", "ValkeyCluster"))


def _methods() -> Iterator[WrappedMethod]:
    for library, client, cluster in _LIBRARIES:
        method = partial(WrappedMethod, optional=library != "redis")
        for module in (library, f"{library}.asyncio"):
            yield method(target=f"{module}.client:{client}.execute_command", snapshot=_command, unwrap=_one)
            yield method(target=f"{module}.client:Pipeline.execute", snapshot=_pipeline, unwrap=_many)
            yield WrappedMethod(
                target=f"{module}.cluster:{cluster}.execute_command",
                snapshot=_command,
                unwrap=_one,
                optional=True,
            )
        for owner in ("SearchCommands", "AsyncSearchCommands"):
            target = f"{library}.commands.search.commands:{owner}.search"
            yield method(target=target, snapshot=_search, unwrap=_one)


def _indexes(*names: str) -> Iterator[str]:
    for library, client, _ in _LIBRARIES:
        for module in (library, f"{library}.asyncio"):
            yield from (f"{module}.client:{client}.{name}" for name in names)


REDIS: Final = ClientIntegration(
    name="redis",
    requires="redis>=5",
    kind=Kind.VECTOR_STORE,
    methods=tuple(_methods()),
    copies=tuple(_indexes("ft", "pipeline")),
)

"""How vector stores are used, as data for the contract suite (tests/contract/test_store_contract.py).

Every store holds the same eight documents; a call's result is compared between runs without the agent, with
it, and with content capture.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, cast

import numpy as np
import pydantic

from client_cases import CANARY, Mode, agent, captured_logs
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from neuronscope.signals.views import RetrievalSpan, retrieval_spans
from observing import mentions

COLLECTION: Final = "documents"
DIMENSION: Final = 4
# No two documents are equally far from the query, nor from another document.
ANGLES: Final = (0.1, 0.25, 0.45, 0.7, 1.0, 1.35, 1.75, 2.2)
VECTORS: Final = tuple((math.cos(angle), math.sin(angle), 0.25, 0.5) for angle in ANGLES)
IDS: Final = tuple(range(1, 9))
TITLES: Final = tuple(f"{CANARY} title {number}" for number in IDS)
TEXTS: Final = tuple(f"{CANARY} text of document {number}" for number in IDS)
QUERY: Final = (1.0, 0.125, 0.25, 0.5)
QUERIES: Final = (QUERY, (0.125, 1.0, 0.25, 0.5), (-0.5, 0.75, 0.25, 0.5))
# Digits of the query's elements, which no record may hold without content.
QUERY_DIGITS: Final = "0.125"


@dataclass(frozen=True, kw_only=True)
class StoreCall:
    """One thing that a service does with a store.

    Attributes:
        name: for the test's id; the asynchronous twin has the same.
        call: ``(store) -> result``; makes exactly one span.
        acall: its asynchronous twin; None if the store has none.
        method: what the span names as the operation.
        search: is it a similarity search?
        facts: attributes that its span has.
        queries: queries of the call.
        metric: how scores read.
        k: hits asked for, if the call says.
        returned: hits of each query.
        fingerprint: is the query vector known to the client?
        secret: with content on, the canary is told.
        ordered: hits come best first; those of groups do not.
    """

    name: str
    call: Callable[[Any], Any]
    method: str
    acall: Callable[[Any], Coroutine[Any, Any, Any]] | None = None
    search: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    queries: int = 1
    metric: str | None = None
    k: int | None = 3
    returned: int = 3
    fingerprint: bool = True
    secret: bool = True
    ordered: bool = True


@dataclass(frozen=True, kw_only=True)
class FailingCall:
    """A call that the store refuses: the error goes through, and is told by this type."""

    name: str
    call: Callable[[Any], Any]
    error_type: str
    acall: Callable[[Any], Coroutine[Any, Any, Any]] | None = None
    status: int | None = None


@dataclass(frozen=True, kw_only=True)
class StoreCase:
    """How one store is used.

    Attributes:
        name: of the case: an adapter may have several (local, over HTTP, over gRPC).
        adapter: the adapter's name.
        system: `db.system.name`.
        open: ``() -> context`` of a client, index or connection to a store with the eight documents in the
            collection `COLLECTION`; each one begins with the same content.
        aopen: its asynchronous twin.
        calls: what a service does.
        failing: what the store refuses.
        errors: what the library raises.
        uploads: ``(store, iterator of (id, vector)) -> how many documents there are afterwards``: writes that
            take an iterator, which nobody else may touch.
        watched: ``module:Class.function`` that must be restored exactly.
        collection: what spans name as collection.
        subjects: ``(store) -> object`` for `ns.Dataset.wrap_vector_store`; None: the store itself.
        servers: it starts a server, which takes a second or more.
    """

    name: str
    adapter: str
    system: str
    open: Callable[[], AbstractContextManager[Any]]
    calls: Sequence[StoreCall]
    failing: Sequence[FailingCall]
    errors: tuple[type[BaseException], ...]
    watched: tuple[str, ...]
    aopen: Callable[[], AbstractAsyncContextManager[Any]] | None = None
    uploads: Sequence[Callable[[Any, Iterator[tuple[int, list[float]]]], int]] = ()
    collection: str | None = COLLECTION
    subjects: Callable[[Any], Any] | None = None
    servers: bool = False


@dataclass(frozen=True)
class Outcome:
    """What the service saw of one run, and what we recorded."""

    value: Any
    logs: list[str]
    spans: list[SpanRecord] = field(compare=False)

    @property
    def searches(self) -> list[RetrievalSpan]:
        """One for each query."""
        return retrieval_spans(self.spans)


def observe(case: StoreCase, mode: Mode, scenario: Callable[[Any], Any]) -> Outcome:
    """Run a scenario once on a fresh store, opened before the agent looks."""
    with case.open() as store, captured_logs() as logs, agent(mode, case.adapter) as exporter:
        try:
            value = plain(scenario(store))
        except case.errors as error:
            value = plain(error)
        return Outcome(value, logs, exporter.spans)


def observe_async(
    case: StoreCase, mode: Mode, scenario: Callable[[Any], Coroutine[Any, Any, Any]]
) -> Outcome:
    """Run an asynchronous scenario once, in an event loop of its own."""
    assert case.aopen is not None
    opening = case.aopen

    async def run() -> Outcome:
        async with opening() as store:
            with captured_logs() as logs, agent(mode, case.adapter) as exporter:
                try:
                    value = plain(await scenario(store))
                except case.errors as error:
                    value = plain(error)
                return Outcome(value, logs, exporter.spans)

    return asyncio.run(run())


def three_ways(run: Callable[[Mode], Outcome]) -> tuple[Outcome, Outcome]:
    """Run in all modes, require that the service saw the same; returns on and content."""
    off, on, content = run("off"), run("on"), run("content")
    assert on == off
    assert content == off
    assert not off.spans
    assert CANARY not in repr(on.spans)
    assert not mentions(repr(on.spans), QUERY_DIGITS)
    return on, content


def plain(value: Any) -> Any:
    """A result together with its types, comparable between runs; clocks and request ids are left out."""
    kind = cast("type[object]", type(value))
    if isinstance(value, BaseException):
        return kind.__qualname__, plain_text(value)
    if isinstance(value, str | int | float | bool | bytes | None):
        return kind.__qualname__, value
    if isinstance(value, pydantic.BaseModel):
        return kind.__qualname__, plain(value.model_dump(warnings=False))
    if type(value) is np.ndarray:
        return "array", str(value.dtype), value.tolist()
    if isinstance(value, list | tuple):
        return kind.__qualname__, [plain(item) for item in cast("list[Any]", value)]
    if issubclass(kind, Mapping):
        found = cast("Mapping[Any, Any]", value)
        return {key: plain(found[key]) for key in found if key not in VOLATILE}
    names_of = getattr(kind, "__struct_fields__", None)  # msgspec
    if names_of is not None:
        return kind.__qualname__, {name: plain(getattr(value, name)) for name in names_of}
    if hasattr(kind, "DESCRIPTOR"):  # protobuf
        return kind.__qualname__, str(value)
    return kind.__qualname__, plain(vars(value)) if hasattr(value, "__dict__") else repr(value)


# Fields of results that differ between any two runs.
VOLATILE: Final = frozenset({"elapsed_seconds", "time", "usage", "took", "date"})


def plain_text(error: BaseException) -> str:
    """What an error says, up to its first line: traces of gRPC have clocks and ports in them."""
    return str(error).partition("\n")[0]


def facts_of(call: StoreCall, case: StoreCase) -> dict[str, Any]:
    """Attributes that the span of a call must have."""
    expected: dict[str, Any] = {
        names.DB_SYSTEM: case.system,
        names.DB_OPERATION: call.method,
        **({names.DB_COLLECTION: case.collection} if case.collection is not None else {}),
        **call.facts,
    }
    if call.search:
        expected[names.OPERATION_NAME] = "retrieval"
        expected[names.QUERY_COUNT] = call.queries
        expected[names.RETRIEVAL_RETURNED] = call.returned * call.queries
        expected[names.RETRIEVAL_EMPTY] = call.returned == 0
        if call.k is not None:
            expected[names.RETRIEVAL_TOP_K] = call.k
    return expected

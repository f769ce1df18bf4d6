"""LanceDB for the contract suite: embedded, sync and async."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

import numpy as np

from neuronscope.signals import names
from store_cases import (
    COLLECTION,
    IDS,
    QUERIES,
    QUERY,
    TEXTS,
    TITLES,
    VECTORS,
    FailingCall,
    StoreCall,
    StoreCase,
)

lancedb: Any = importlib.import_module("lancedb")  # its own types are incomplete
FTS: Any = importlib.import_module("lancedb.index").FTS
WORD = "document"


def documents() -> list[dict[str, Any]]:
    """The documents."""
    return [
        {"id": number, "vector": list(vector), "title": title, "text": text}
        for number, vector, title, text in zip(IDS, VECTORS, TITLES, TEXTS, strict=True)
    ]


@contextmanager
def local() -> Generator[Any]:
    """A table in a folder, its texts indexed."""
    with tempfile.TemporaryDirectory() as folder:
        table = lancedb.connect(folder).create_table(COLLECTION, documents())
        table.create_index("text", config=FTS())
        table.wait_for_index(["text_idx"], timedelta(seconds=30))
        yield table


@asynccontextmanager
async def alocal() -> AsyncGenerator[Any]:
    """Its asynchronous twin."""
    with tempfile.TemporaryDirectory() as folder:
        connection = await lancedb.connect_async(folder)
        table = await connection.create_table(COLLECTION, documents())
        await table.create_index("text", config=FTS())
        yield table


Build = Callable[[Any], Any]


def is_async(table: Any) -> bool:
    """Is it the asynchronous kind?  Few of its methods are called differently."""
    return hasattr(table, "vector_search")


def search(
    name: str, build: Build, abuild: Build | None = None, *, filtered: bool = False, **how: Any
) -> StoreCall:
    """A search, whose result comes as a list."""

    async def acall(table: Any) -> Any:
        return await abuild(table).to_list() if abuild is not None else None

    facts = {names.RETRIEVAL_FILTERED: filtered, **how.pop("facts", {})}
    return StoreCall(
        name=name,
        method="search",
        call=lambda table: build(table).to_list(),
        acall=acall if abuild is not None else None,
        facts=facts,
        **how,
    )


def other(name: str, call: Build, method: str = "", **facts: Any) -> StoreCall:
    """A listing or a write, whose call is the same in both kinds of table."""

    async def acall(table: Any) -> Any:
        return await call(table)

    return StoreCall(
        name=name,
        method=method or name,
        call=call,
        acall=acall,
        search=False,
        secret=False,
        facts=facts.pop("facts", {}),
    )


def merge(table: Any) -> Any:
    """Updates and inserts in one."""
    return (
        table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(documents())
    )


HYBRID_STAGES = {
    names.RETRIEVAL_STAGES: ["dense:vector", "bm25", "rrf"],
    names.RETRIEVAL_STAGES_K: [3, 3, 3],
}
VECTOR = list(QUERY)
CALLS = (
    search(
        "search",
        lambda t: t.search(VECTOR).limit(3),
        lambda t: t.query().nearest_to(VECTOR).limit(3),
        metric="distance",
    ),
    search(
        "filtered",
        lambda t: (
            t.search(np.array(QUERY, dtype=np.float32)).distance_type("cosine").where("id > 2").limit(3)
        ),
        lambda t: t.query().nearest_to(VECTOR).distance_type("cosine").where("id > 2").limit(3),
        metric="cosine_distance",
        filtered=True,
    ),
    search(
        "empty",
        lambda t: t.search(VECTOR).where("id > 99").limit(3),
        lambda t: t.query().nearest_to(VECTOR).where("id > 99").limit(3),
        metric="distance",
        filtered=True,
        returned=0,
        secret=False,
    ),
    search(
        "batch",
        lambda t: t.search([list(query) for query in QUERIES]).distance_type("l2").limit(3),
        metric="euclid_squared",
        queries=3,
    ),
    search(
        "words",
        lambda t: t.search(WORD, query_type="fts").limit(3),
        lambda t: t.query().nearest_to_text(WORD).limit(3),
        metric="bm25",
        fingerprint=False,
    ),
    search(
        "hybrid",
        lambda t: t.search(query_type="hybrid").vector(VECTOR).text(WORD).limit(3),
        metric="rrf",
        facts=HYBRID_STAGES,
    ),
    StoreCall(
        name="data frame",
        method="search",
        call=lambda table: table.search(VECTOR).limit(3).to_pandas().to_dict("records"),
        metric="distance",
    ),
    other(
        "query",
        lambda t: (t.query() if is_async(t) else t.search()).limit(3).to_list(),
        facts={names.DB_RETURNED_ROWS: 3},
    ),
    other("add", lambda t: t.add(documents()), facts={names.WRITE_COUNT: 8}),
    other(
        "update",
        lambda t: t.update({"title": "'new'"}) if is_async(t) else t.update(values={"title": "new"}),
        facts={names.WRITE_COUNT: 8},
    ),
    other("delete", lambda t: t.delete("id < 3"), facts={names.WRITE_COUNT: 2}),
    other("merge_insert", merge, facts={names.WRITE_COUNT: 8}),
)


def upload(table: Any, rows: Any) -> int:
    """From a generator of batches."""
    pyarrow: Any = importlib.import_module("pyarrow")
    schema = table.schema  # asked for here: the generator runs on LanceDB's loop, which would wait for itself

    def batches() -> Any:
        for number, vector in rows:
            row = {"id": number, "vector": vector, "title": "", "text": ""}
            yield pyarrow.RecordBatch.from_pylist([row], schema=schema)

    table.add(batches())
    return int(table.count_rows())


async def _failing(table: Any) -> Any:
    return await table.query().nearest_to(VECTOR).where("no_such > 1").to_list()


CASE = StoreCase(
    name="lancedb",
    adapter="lancedb",
    system="lancedb",
    open=local,
    aopen=alocal,
    calls=CALLS,
    failing=(
        FailingCall(
            name="unknown column",
            call=lambda table: table.search(VECTOR).where("no_such > 1").to_list(),
            acall=_failing,
            error_type="ValueError",
        ),
    ),
    errors=(ValueError, RuntimeError),
    uploads=(upload,),
    watched=(
        "lancedb.query:LanceVectorQueryBuilder.to_arrow",
        "lancedb.query:LanceHybridQueryBuilder.to_arrow",
        "lancedb.query:AsyncQueryBase.to_arrow",
        "lancedb.query:AsyncVectorQuery.to_batches",
        "lancedb.table:LanceTable.add",
    ),
    servers=True,
)

"""Chroma for the contract suite: embedded, and its own server over HTTP, with both clients."""

from __future__ import annotations

import atexit
import functools
import subprocess
import sys
import tempfile
import urllib.request
import uuid
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import chromadb
import numpy as np
from chromadb.config import Settings
from chromadb.errors import ChromaError

from collectors import free_port, until
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


def quiet() -> Settings:
    """Settings without Chroma's own telemetry; a client writes into those that it is given."""
    return Settings(anonymized_telemetry=False)


DOCUMENTS: dict[str, Any] = {
    "ids": [str(number) for number in IDS],
    "embeddings": [list(vector) for vector in VECTORS],
    "documents": list(TEXTS),
    "metadatas": [{"title": title, "parity": number % 2} for number, title in zip(IDS, TITLES, strict=True)],
}
SPACE: dict[str, Any] = {"hnsw": {"space": "cosine"}}


def filled(client: Any) -> Any:
    """A collection with the documents."""
    collection = client.create_collection(COLLECTION, embedding_function=None, configuration=SPACE)
    collection.add(**DOCUMENTS)
    return collection


@contextmanager
def embedded() -> Generator[Any]:
    """A collection in this process, in a database of its own."""
    database = f"db{uuid.uuid4().hex}"
    chromadb.EphemeralClient(quiet())
    chromadb.AdminClient(quiet()).create_database(database)
    yield filled(chromadb.EphemeralClient(quiet(), database=database))


@functools.cache
def running() -> int:
    """The port of a Chroma server, one for all tests of a process."""
    stack, port = ExitStack(), free_port()
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    program = str(Path(sys.executable).with_name("chroma"))
    server = stack.enter_context(
        subprocess.Popen(
            [program, "run", "--path", folder, "--host", "127.0.0.1", "--port", str(port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    )
    stack.callback(server.kill)
    atexit.register(stack.close)
    until(lambda: _beats(port), 100)
    return port


def _beats(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v2/heartbeat", timeout=30).close()
    except OSError:
        return False
    return True


@functools.cache
def clients() -> tuple[Any, Any]:
    """An administrator and a client of the server: a new client takes longer than the test."""
    settings = Settings(
        chroma_api_impl="chromadb.api.fastapi.FastAPI",
        chroma_server_host="127.0.0.1",
        chroma_server_http_port=running(),
        anonymized_telemetry=False,
    )
    return chromadb.AdminClient(settings), chromadb.HttpClient("127.0.0.1", running(), settings=quiet())


def new_collection() -> tuple[str, Any]:
    """A collection with the documents, in a database of its own, and that database."""
    admin, client = clients()
    database = f"db{uuid.uuid4().hex}"
    admin.create_database(database)
    client.set_database(database)
    return database, filled(client)


@contextmanager
def served() -> Generator[Any]:
    """A collection of the server."""
    yield new_collection()[1]


@asynccontextmanager
async def aserved() -> AsyncGenerator[Any]:
    """Its asynchronous twin."""
    database, _ = new_collection()
    client = await chromadb.AsyncHttpClient("127.0.0.1", running(), settings=quiet(), database=database)
    yield await client.get_collection(COLLECTION, embedding_function=None)


def both(method: str, name: str = "", *, arguments: dict[str, Any], **how: Any) -> StoreCall:
    """A method that collections have in both kinds."""

    def call(collection: Any) -> Any:
        return getattr(collection, method)(**arguments)

    return StoreCall(name=name or method, method=method, call=call, acall=call, **how)


def query(name: str, **arguments: Any) -> StoreCall:
    """A search."""
    how = {key: arguments.pop(key) for key in tuple(arguments) if key in StoreCall.__dataclass_fields__}
    return both(
        "query", name, arguments={"n_results": how.get("k", 3), **arguments}, metric="cosine_distance", **how
    )


def other(method: str, name: str = "", *, facts: dict[str, Any] | None = None, **arguments: Any) -> StoreCall:
    """A listing or a write."""
    return both(method, name, arguments=arguments, search=False, secret=False, facts=facts or {})


NEW: dict[str, Any] = {"ids": ["20", "21"], "embeddings": [[0.5, 1.0, 0.25, 1.0]] * 2}
CALLS = (
    query("query", query_embeddings=list(QUERY), facts={names.RETRIEVAL_FILTERED: False}),
    query(
        "array",
        query_embeddings=np.array([QUERY], dtype=np.float32),
        where={"parity": 0},
        facts={names.RETRIEVAL_FILTERED: True, names.QUERY_DTYPE: "float32"},
    ),
    query("batch", query_embeddings=[list(vector) for vector in QUERIES], queries=3),
    query("ids only", query_embeddings=list(QUERY), include=[], secret=False),
    query("empty", query_embeddings=list(QUERY), where={"parity": 7}, returned=0, secret=False),
    other("get", ids=["1", "2"], facts={names.DB_RETURNED_ROWS: 2}),
    other(
        "get",
        "get filtered",
        where={"parity": 1},
        facts={names.DB_RETURNED_ROWS: 4, names.RETRIEVAL_FILTERED: True},
    ),
    other("peek", limit=5, facts={names.DB_RETURNED_ROWS: 5}),
    other("count"),
    other("add", **NEW, facts={names.WRITE_COUNT: 2}),
    other("upsert", **NEW, facts={names.WRITE_COUNT: 2}),
    other("update", ids="1", metadatas={"parity": 3}, facts={names.WRITE_COUNT: 1}),
    other("delete", ids=["1", "2"], facts={names.WRITE_COUNT: 2}),
)


def _wrong_length(collection: Any) -> Any:
    return collection.query(query_embeddings=[[1.0, 2.0]])


EMBEDDED = StoreCase(
    name="chroma-embedded",
    adapter="chroma",
    system="chroma",
    open=embedded,
    calls=CALLS,
    failing=(
        FailingCall(
            name="wrong length",
            call=_wrong_length,
            acall=_wrong_length,
            error_type="chromadb.errors.InvalidArgumentError",
        ),
    ),
    errors=(ChromaError,),
    watched=(
        "chromadb.api.models.Collection:Collection.query",
        "chromadb.api.models.AsyncCollection:AsyncCollection.query",
        "chromadb.api.client:Client.get_collection",
    ),
)
SERVED = replace(EMBEDDED, name="chroma-server", open=served, aopen=aserved, servers=True)

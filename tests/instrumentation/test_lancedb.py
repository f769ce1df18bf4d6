"""LanceDB, embedded: queries that run when their result is asked for, however it is asked for.

What all stores have in common is in tests/contract/test_store_contract.py.
"""

from __future__ import annotations

import asyncio
import importlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import neuronscope as ns
from neuronscope import platform
from neuronscope.engine.fingerprint_query import query_facts
from neuronscope.signals import names
from observing import canary_free, observe, observe_async

lancedb: Any = importlib.import_module("lancedb")  # its own types are incomplete
rerankers: Any = importlib.import_module("lancedb.rerankers")
FTS: Any = importlib.import_module("lancedb.index").FTS
pyarrow: Any = importlib.import_module("pyarrow")
queries: Any = importlib.import_module("lancedb.query")
SECRET = "canary-3a8d"
QUERY = [1.0, 0.0625]
DOCUMENTS = [{"key_id": f"k{i}", "vector": [1.0, i / 4], "title": f"{SECRET} {i} word"} for i in range(6)]


@pytest.fixture
def table() -> Iterator[Any]:
    """A table with an index of words, made before anything is observed."""
    with tempfile.TemporaryDirectory() as folder:
        found = lancedb.connect(folder).create_table("docs", DOCUMENTS)
        found.create_index("title", config=FTS())
        yield found


RESULTS: dict[str, Callable[[Any], Any]] = {
    "list": lambda q: q.to_list(),
    "data frame": lambda q: q.to_pandas().to_dict("records"),
    "arrow": lambda q: q.to_arrow().to_pylist(),
}


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS.keys())
def test_a_search_runs_when_its_result_is_asked_for(table: Any, result: Callable[[Any], Any]) -> None:
    """Building a query is no call; asking twice is two."""

    def use() -> Any:
        query = table.search(QUERY).distance_type("l2").limit(2)
        return [result(query), result(query)]

    expected = use()
    observed, spans = observe("lancedb", use)
    assert repr(observed) == repr(expected)
    assert len(spans) == 2
    facts = query_facts(QUERY)
    assert facts is not None
    for span in spans:
        assert span.name == "retrieval docs"
        assert span.attributes[names.RETRIEVAL_IDS] == ["k0", "k1"]
        assert span.attributes[names.RETRIEVAL_METRIC] == "euclid_squared"
        assert span.attributes[names.QUERY_FINGERPRINT] == facts.fingerprint
        assert span.attributes[names.RETRIEVAL_TOP_SCORE] == pytest.approx(0.0625**2)
    assert canary_free(spans, SECRET, "0.0625")


def test_a_query_that_never_runs_is_no_call(table: Any) -> None:
    """Nor is one that is only explained."""

    def use() -> None:
        table.search(QUERY).limit(2).where("key_id != 'k0'")

    _, spans = observe("lancedb", use)
    assert spans == []


def test_batches_are_the_services_to_read(table: Any) -> None:
    """A reader is handed out as it is; what it will hold is not known yet."""

    def use() -> Any:
        reader = table.search(QUERY).limit(2).to_batches()
        return type(reader), reader.read_all().to_pylist()

    expected = use()
    observed, (span,) = observe("lancedb", use)
    assert observed == expected
    assert span.attributes[names.RETRIEVAL_TOP_K] == 2
    assert names.RETRIEVAL_RETURNED not in span.attributes


def test_a_hybrid_search_is_one_retrieval_with_stages(table: Any) -> None:
    """Its halves run in threads, synchronously, and in tasks, asynchronously: one span all the same."""

    def use() -> Any:
        return table.search(query_type="hybrid").vector(QUERY).text("word").limit(2).to_list()

    expected = use()
    observed, (span,) = observe("lancedb", use)
    assert observed == expected
    assert span.attributes[names.RETRIEVAL_STAGES] == ["dense:vector", "bm25", "rrf"]
    assert span.attributes[names.RETRIEVAL_METRIC] == "rrf"
    assert span.attributes[names.RETRIEVAL_RETURNED] == 2


def test_an_asynchronous_hybrid_search_is_one_retrieval() -> None:
    """LanceDB's Rust keeps vectors and words; both halves and their fusion are told."""

    async def use() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            table = await (await lancedb.connect_async(folder)).create_table("docs", DOCUMENTS)
            await table.create_index("title", config=FTS())
            query = table.query().nearest_to(QUERY).nearest_to_text("word").limit(2)
            return await query.to_list()

    expected = asyncio.run(use())
    observed, (_, span) = observe_async("lancedb", use)
    assert observed == expected
    assert span.attributes[names.RETRIEVAL_STAGES] == ["dense", "bm25", "rrf"]
    facts = query_facts(np.array(QUERY, dtype=np.float32))
    assert facts is not None
    assert span.attributes[names.QUERY_FINGERPRINT] == facts.fingerprint
    assert span.attributes[names.QUERY_DTYPE] == "float32"


def test_a_reranked_search_has_its_rerankers_scores(table: Any) -> None:
    """Distances are replaced by what ranks last."""

    class Reversed(rerankers.Reranker):  # type: ignore[misc]
        def rerank_hybrid(self, query: str, vector_results: Any, fts_results: Any) -> Any: ...

        def rerank_vector(self, query: str, vector_results: Any) -> Any:
            order = list(reversed(range(vector_results.num_rows)))
            found = vector_results.take(order)
            return found.append_column("_relevance_score", pyarrow.array([float(i) for i in order]))

    def use() -> Any:
        return table.search(QUERY).limit(3).rerank(Reversed(), query_string="word").to_list()

    expected = use()
    observed, (span,) = observe("lancedb", use)
    assert observed == expected
    assert span.attributes[names.RETRIEVAL_STAGES] == ["dense:vector", "rerank"]
    assert span.attributes[names.RETRIEVAL_METRIC] == "rerank"
    assert span.attributes[names.RETRIEVAL_SCORES] == [2.0, 1.0, 0.0]


def test_words_are_content(table: Any) -> None:
    """What is searched for by words is told with content only, and so are titles."""
    for capture in ("no_content", "span_only"):

        def use() -> Any:
            return table.search(f"{SECRET} word", query_type="fts").limit(2).to_list()

        _, (span,) = observe("lancedb", use, capture_content=capture)
        assert (SECRET in repr(span)) == (capture == "span_only")
        assert span.attributes[names.RETRIEVAL_METRIC] == "bm25"


def test_an_array_may_change_after_the_search(table: Any) -> None:
    """The fingerprint is of the vector that was searched with."""
    array = np.array(QUERY, dtype=np.float32)
    expected = query_facts(array)
    assert expected is not None

    def use() -> None:
        table.search(array).limit(2).to_list()
        array[:] = -9

    _, (span,) = observe("lancedb", use)
    assert span.attributes[names.QUERY_FINGERPRINT] == expected.fingerprint


def test_hybrid_searches_get_their_threads_back() -> None:
    """The pool that carries the context is LanceDB's own again afterwards."""
    before = queries.ThreadPoolExecutor
    ns.instrument("lancedb")
    assert queries.ThreadPoolExecutor is not before
    assert not platform.installations()["lancedb"].missing
    ns.uninstrument("lancedb")
    assert queries.ThreadPoolExecutor is before


def test_only_the_wrapped_tables_queries_are_observed(table: Any) -> None:
    """A query stands for the table that made it."""
    with tempfile.TemporaryDirectory() as folder:
        other = lancedb.connect(folder).create_table("other", DOCUMENTS)
        ns.Platform()
        ns.Dataset.wrap_vector_store(table)
        with ns.Scope("test") as scope:
            table.search(QUERY).limit(2).to_list()
            other.search(QUERY).limit(2).to_list()
        assert [search.span.name for search in scope.artifact.retrieval_spans] == ["retrieval docs"]

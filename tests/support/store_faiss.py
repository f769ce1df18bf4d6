"""FAISS for the contract suite: its own index, in this process."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np

from neuronscope.signals import names
from store_cases import DIMENSION, IDS, QUERIES, QUERY, VECTORS, FailingCall, StoreCall, StoreCase

faiss: Any = importlib.import_module("faiss")  # its own types are incomplete
MATRIX = np.array(VECTORS, dtype=np.float32)
ONE = np.array([QUERY], dtype=np.float32)
THREE = np.array(QUERIES, dtype=np.float32)


Call = Callable[[Any], Any]


@contextmanager
def index() -> Generator[Any]:
    """An index that knows the documents by their ids."""
    found = faiss.index_factory(DIMENSION, "IDMap2,Flat")
    found.add_with_ids(MATRIX, np.array(IDS))
    yield found


def even() -> Any:
    """Searches among the documents with an even id only."""
    return faiss.SearchParameters(sel=faiss.IDSelectorBatch(np.array(IDS[1::2])))


def search(name: str, call: Call, *, method: str = "search", filtered: bool = False, **how: Any) -> StoreCall:
    """A search; FAISS has neither texts nor metadata."""
    facts = {names.RETRIEVAL_FILTERED: filtered, names.QUERY_DTYPE: "float32"}
    return StoreCall(
        name=name, call=call, method=method, facts=facts, metric="euclid_squared", secret=False, **how
    )


def other(method: str, call: Call, **facts: Any) -> StoreCall:
    """A write."""
    return StoreCall(name=method, call=call, method=method, search=False, secret=False, **facts)


CASE = StoreCase(
    name="faiss",
    adapter="faiss",
    system="faiss",
    open=index,
    collection=None,
    calls=(
        search("search", lambda i: i.search(ONE, 3)),
        search("filtered", lambda i: i.search(ONE, k=3, params=even()), filtered=True),
        search("more than there are", lambda i: i.search(ONE, 12), k=12, returned=8),
        search("range", lambda i: i.range_search(ONE, 1e-9), method="range_search", k=None, returned=0),
        search("batch", lambda i: i.search(THREE, 3), queries=3),
        search("assign", lambda i: i.assign(ONE, 3), method="assign", ordered=False),
        other(
            "add_with_ids", lambda i: i.add_with_ids(MATRIX, np.array(IDS) + 20), facts={names.WRITE_COUNT: 8}
        ),
        other("remove_ids", lambda i: i.remove_ids(np.array([1, 2, 99])), facts={names.WRITE_COUNT: 2}),
        other("reset", lambda i: i.reset()),
    ),
    failing=(
        FailingCall(
            name="wrong dimension",
            call=lambda i: i.search(np.zeros((1, 3), np.float32), 3),
            error_type="AssertionError",
        ),
    ),
    errors=(AssertionError,),
    watched=(
        "faiss:Index.search",
        "faiss:IndexFlat.search",
        "faiss:IndexIDMap.search",
        "faiss:IndexBinary.add",
    ),
)

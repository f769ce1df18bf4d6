"""FAISS's own indexes, observed: every class, padding, batches, writes, and no difference to the caller."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pytest
from opentelemetry.trace import SpanKind, StatusCode

import neuronscope as ns
from neuronscope import platform
from neuronscope.engine import ENGINE
from neuronscope.engine.fingerprint_query import query_facts
from neuronscope.signals import names
from neuronscope_instrumentation.faiss.arrays import MAX_READ
from observing import canary_free, observe, outcome

faiss: Any = importlib.import_module("faiss")  # its own types are incomplete
DIMENSION = 8
VECTORS = np.random.default_rng(7).random((64, DIMENSION)).astype(np.float32)
FACTORIES = (
    "Flat",
    "IDMap,Flat",
    "IDMap2,Flat",
    "IVF1,Flat",
    "IVF1,SQ8",
    "HNSW8",
    "LSH",
    "SQ8",
    "PCA4,Flat",
    "Flat,RFlat",
    "IVF1,PQ4x4fs",
)


def made(factory: str, metric: int = faiss.METRIC_L2) -> Any:
    """A filled index of that kind."""
    index = faiss.index_factory(DIMENSION, factory, metric)
    index.train(VECTORS)
    if factory.startswith("IDMap"):
        index.add_with_ids(VECTORS, np.arange(100, 164))
    else:
        index.add(VECTORS)
    return index


def test_a_search_is_a_retrieval() -> None:
    """Ids, scores, k, metric and the query's fingerprint, on one internal span; never the vector."""
    index = made("Flat")
    (distances, labels), (span,) = observe("faiss", lambda: index.search(VECTORS[:1], 3))
    facts = query_facts(VECTORS[0])
    assert facts is not None
    assert span.name == "retrieval"
    assert span.kind is SpanKind.INTERNAL
    assert dict(span.attributes) == {
        names.OPERATION_NAME: "retrieval",
        names.DB_SYSTEM: "faiss",
        names.DB_OPERATION: "search",
        names.RETRIEVAL_TOP_K: 3,
        names.RETRIEVAL_FILTERED: False,
        names.RETRIEVAL_METRIC: "euclid_squared",
        names.QUERY_COUNT: 1,
        names.QUERY_DIMENSION: DIMENSION,
        names.QUERY_NORM: pytest.approx(facts.norm),
        names.QUERY_DTYPE: "float32",
        names.QUERY_FINGERPRINT: facts.fingerprint,
        names.RETRIEVAL_RETURNED: 3,
        names.DB_RETURNED_ROWS: 3,
        names.RETRIEVAL_EMPTY: False,
        names.RETRIEVAL_IDS: [str(label) for label in labels[0]],
        names.RETRIEVAL_SCORES: distances[0].tolist(),
        names.RETRIEVAL_TOP_SCORE: 0.0,
        names.RETRIEVAL_KTH_SCORE: distances[0][2],
        names.RETRIEVAL_MARGIN: 1.0,
    }
    assert canary_free([span], str(float(VECTORS[0][0])))


@pytest.mark.parametrize("factory", FACTORIES)
def test_every_class_is_observed(factory: str) -> None:
    """Each class has functions of its own; whichever the service makes, before or after, is seen."""

    def use() -> None:
        made(factory).search(VECTORS[:2], 3)

    _, spans = observe("faiss", use)
    added = "add_with_ids" if factory.startswith("IDMap") else "add"
    assert [span.attributes[names.DB_OPERATION] for span in spans] == ["train", added, "search"]
    assert spans[1].attributes[names.WRITE_COUNT] == len(VECTORS)
    assert spans[2].attributes[names.RETRIEVAL_RETURNED] == 6


def test_an_index_of_before_is_observed_too(tmp_path: Any) -> None:
    """Objects made before, read from a file, or downcast are of the same classes."""
    faiss.write_index(made("IVF1,Flat"), str(tmp_path / "index"))
    index = faiss.read_index(str(tmp_path / "index"))
    _, (span,) = observe("faiss", lambda: index.search(VECTORS[:1], 2))
    assert span.attributes[names.RETRIEVAL_RETURNED] == 2


@pytest.mark.parametrize(
    ("metric", "padding"), [(faiss.METRIC_L2, 3.4e38), (faiss.METRIC_INNER_PRODUCT, -3.4e38)]
)
def test_padding_is_no_hit(metric: int, padding: float) -> None:
    """Asked for more than it has, FAISS answers −1 and ±3.4e38: in no id, score or metric."""
    index = faiss.IndexFlat(DIMENSION, metric)
    index.add(VECTORS[:2])
    (distances, labels), (_, span) = observe(
        "faiss", lambda: (index.add(VECTORS[2:3]), index.search(VECTORS[:1], 5))[1]
    )
    assert labels[0].tolist()[3:] == [-1, -1]
    assert distances[0][4] == pytest.approx(padding, rel=0.01)
    assert span.attributes[names.RETRIEVAL_RETURNED] == 3
    assert span.attributes[names.RETRIEVAL_TOP_K] == 5
    scores = span.attributes[names.RETRIEVAL_SCORES]
    assert np.abs(np.array(scores)).max() < 100


def test_an_empty_index_gives_an_empty_retrieval() -> None:
    """No hit: empty, without a score, and counted."""
    _, (span,) = observe("faiss", lambda: faiss.IndexFlatL2(DIMENSION).search(VECTORS[:1], 5))
    assert span.attributes[names.RETRIEVAL_EMPTY] is True
    assert names.RETRIEVAL_TOP_SCORE not in span.attributes
    assert ENGINE.metrics.total(names.RETRIEVALS_EMPTY) == 1


def test_an_inner_product_is_better_when_larger() -> None:
    """The best score of an inner product is the largest."""
    index = made("Flat", faiss.METRIC_INNER_PRODUCT)
    (distances, _), (span,) = observe("faiss", lambda: index.search(VECTORS[:1], 3))
    assert span.attributes[names.RETRIEVAL_METRIC] == "dot"
    assert span.attributes[names.RETRIEVAL_TOP_SCORE] == distances[0].max()


def test_a_batch_is_a_record_for_each_query() -> None:
    """64 queries at once: one span, 64 records, each with its own ids and scores."""
    index = made("Flat")
    (_, labels), (span,) = observe("faiss", lambda: index.search(VECTORS, 2))
    assert span.attributes[names.DB_BATCH_SIZE] == 64
    assert span.attributes[names.RETRIEVAL_RETURNED] == 128
    records = [event for event in span.events if event.name == names.RETRIEVAL_QUERY]
    assert len(records) == 64
    assert [record.attributes[names.RETRIEVAL_IDS] for record in records] == [
        [str(label) for label in row] for row in labels
    ]
    assert ENGINE.metrics.total(names.RETRIEVALS) == 64


def test_a_huge_batch_is_counted_whole_and_read_in_part() -> None:
    """Of ten thousand queries all are counted; vectors and scores are read of the first ones only."""
    index, queries = made("Flat"), np.tile(VECTORS, (MAX_READ // 64 + 2, 1))
    _, (span,) = observe("faiss", lambda: index.search(queries, 2))
    assert span.attributes[names.QUERY_COUNT] == len(queries)
    assert span.attributes[names.RETRIEVAL_RETURNED] == 2 * len(queries)


def test_a_range_search_tells_each_query_s_hits() -> None:
    """Hits of a query lie between its limits; k is not asked for."""
    index = made("Flat")
    (limits, _, labels), (span,) = observe("faiss", lambda: index.range_search(VECTORS[:2], 0.3))
    assert names.RETRIEVAL_TOP_K not in span.attributes
    first, second = span.events
    assert first.attributes[names.RETRIEVAL_IDS] == [str(label) for label in labels[: limits[1]]]
    assert second.attributes[names.RETRIEVAL_IDS] == [str(label) for label in labels[limits[1] :]]


def test_the_caller_s_arrays_are_filled_and_his_again() -> None:
    """Results go into `D` and `I` if given, and may be overwritten at once."""
    index = made("Flat")
    distances, labels = np.empty((1, 3), np.float32), np.empty((1, 3), np.int64)
    query = VECTORS[:1].copy()

    def search_and_overwrite() -> Any:
        result = index.search(query, k=3, D=distances, I=labels)
        found = labels.copy()
        distances[:], labels[:], query[:] = -1, 7, 0
        return result, found

    (result, found), (span,) = observe("faiss", search_and_overwrite)
    assert result[0] is distances
    assert result[1] is labels
    assert span.attributes[names.RETRIEVAL_IDS] == [str(label) for label in found[0]]
    expected = query_facts(VECTORS[0])
    assert expected is not None
    assert span.attributes[names.QUERY_FINGERPRINT] == expected.fingerprint


def test_a_selector_is_a_filter() -> None:
    """`params.sel` restricts what is searched."""
    index = made("Flat")
    params = faiss.SearchParameters(sel=faiss.IDSelectorRange(0, 2))
    _, (span,) = observe("faiss", lambda: index.search(VECTORS[:1], 5, params=params))
    assert span.attributes[names.RETRIEVAL_FILTERED] is True
    assert span.attributes[names.RETRIEVAL_RETURNED] == 2


def test_binary_indexes_count_bits() -> None:
    """Their metric is Hamming's, whatever `metric_type` says, and a query has a dimension of bits."""
    index = faiss.IndexBinaryIDMap(faiss.IndexBinaryFlat(64))
    codes = np.arange(80, dtype=np.uint8).reshape(10, 8)

    def use() -> Any:
        index.add_with_ids(codes, np.arange(10) + 50)
        return index.search(codes[:1], 20)

    (distances, labels), (_, span) = observe("faiss", use)
    assert span.attributes[names.RETRIEVAL_METRIC] == "hamming"
    assert span.attributes[names.QUERY_DIMENSION] == 64
    assert span.attributes[names.RETRIEVAL_RETURNED] == 10
    assert span.attributes[names.RETRIEVAL_IDS] == [str(label) for label in labels[0] if label >= 0]
    assert span.attributes[names.RETRIEVAL_TOP_SCORE] == distances[0][0] == 0


def test_other_searches_and_writes() -> None:
    """Reconstruction brings vectors along, `assign` no distances; removals tell what they removed."""
    index = made("Flat")

    def use() -> None:
        index.search_and_reconstruct(VECTORS[:1], 2)
        index.assign(VECTORS[:1], 1)
        index.remove_ids(np.array([1, 2, 999]))
        index.reset()

    _, (found, assigned, removed, reset) = observe("faiss", use)
    assert found.attributes[names.RETRIEVAL_RETURNED] == 2
    assert assigned.attributes[names.RETRIEVAL_IDS] == ["0"]
    assert names.RETRIEVAL_SCORES not in assigned.attributes
    assert removed.attributes[names.WRITE_COUNT] == 2
    assert reset.name == "reset"


def test_a_subclass_of_the_service_makes_one_span() -> None:
    """An override that calls its base is one call, not two."""

    class Mine(faiss.IndexFlatL2):  # type: ignore[misc]
        def search(self, *args: Any, **kwargs: Any) -> Any:
            return super().search(*args, **kwargs)  # pyright: ignore[reportUnknownVariableType] - untyped base

    index = Mine(DIMENSION)
    index.add(VECTORS)
    _, spans = observe("faiss", lambda: index.search(VECTORS[:1], 2))
    assert len(spans) == 1


def test_a_failure_is_told_and_raised() -> None:
    """A wrong dimension fails as it does without us, and is an error."""
    index, wrong = made("Flat"), np.zeros((1, 3), np.float32)
    expected = outcome(lambda: index.search(wrong, 2))
    result, (span,) = observe("faiss", lambda: outcome(lambda: index.search(wrong, 2)))
    assert result == expected
    assert result[0] == "raised"
    assert span.status is StatusCode.ERROR
    assert span.attributes[names.ERROR_TYPE] == "AssertionError"


CALLS: dict[str, Callable[[Any], Any]] = {
    "search": lambda i: i.search(VECTORS[:3], 4),
    "doubles": lambda i: i.search(VECTORS[:3].astype(np.float64), k=4),
    "range": lambda i: i.range_search(VECTORS[:3], 0.4),
    "reconstruct": lambda i: i.search_and_reconstruct(VECTORS[:3], 4),
    "assign": lambda i: i.assign(VECTORS[:3], 2),
    "remove": lambda i: (i.remove_ids(np.array([3])), i.ntotal),
    "a list": lambda i: i.search([[1.0] * DIMENSION], 2),
    "no argument": lambda i: i.search(),
    "no hit asked for": lambda i: i.search(VECTORS[:1], 0),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
def test_observed_or_not_is_the_same(call: Callable[[Any], Any]) -> None:
    """Same results, same types, same exceptions."""

    def comparable(value: Any) -> Any:
        parts = cast("Sequence[Any]", value) if isinstance(value, tuple) else (value,)
        return [(part.dtype, part.tolist()) if hasattr(part, "dtype") else part for part in parts]

    def run() -> Any:
        kind, value = outcome(lambda: call(made("Flat")))
        return kind, comparable(value)

    expected = run()
    observed, _ = observe("faiss", run)
    assert observed == expected


def test_uninstrumented_exactly() -> None:
    """Every function of every class is the one it was."""
    everything = list(cast("dict[str, Any]", vars(faiss)).values())
    classes: list[Any] = [each for each in everything if inspect.isclass(each)]
    before = [dict(kind.__dict__) for kind in classes]
    ns.instrument("faiss")
    installed = platform.installations()["faiss"]
    assert not installed.missing
    assert len(installed.installed) > 250
    platform.uninstrument("faiss")
    assert [dict(kind.__dict__) for kind in classes] == before


def test_one_index_is_observed_alone() -> None:
    """`wrap_vector_store` observes the index that it is given, and no other."""
    watched, other = made("Flat"), made("Flat")
    ns.Platform()
    assert ns.Dataset.wrap_vector_store(watched) is watched
    with ns.Scope("test") as scope:
        watched.search(VECTORS[:1], 2)
        other.search(VECTORS[:1], 2)
    assert [span.name for span in scope.artifact.telemetry.spans[1:]] == ["retrieval"]


TENSORS = """
import faiss, neuronscope as ns, numpy as np
ns.instrument("faiss")
import faiss.contrib.torch_utils, torch
index = faiss.index_factory(4, "IDMap,Flat")
vectors = torch.eye(4)
index.add_with_ids(vectors, torch.arange(10, 14))
with ns.Scope("test") as scope:
    distances, labels = index.search(vectors[:2], 2)
    assert type(labels) is torch.Tensor, type(labels)
    index.search(vectors.numpy()[:1], 2)
_, tensors, array = scope.artifact.telemetry.spans
assert [event.attributes["neuronscope.retrieval.ids"][0] for event in tensors.events] == ["10", "11"]
assert tensors.attributes["neuronscope.query.dimension"] == 4
assert array.attributes["neuronscope.retrieval.ids"][0] == "10"
ns.uninstrument()
assert torch.equal(index.search(vectors[:2], 2)[1], labels)
"""


@pytest.mark.integration
def test_tensors_are_observed() -> None:
    """`faiss.contrib.torch_utils`, imported later, replaces every function: those are observed as well."""
    done = subprocess.run(
        [sys.executable, "-c", TENSORS], capture_output=True, check=False, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_can_search() -> None:
    """A search in a forked child works with the agent as without it: we start no OpenMP work of our own."""
    index = made("Flat")
    ns.Platform()
    ns.instrument("faiss")
    index.search(VECTORS[:1], 2)
    ENGINE.drain()
    child = os.fork()
    if child == 0:
        found = index.search(VECTORS[:1], 2)[1][0][0] == 0
        os._exit(0 if found else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

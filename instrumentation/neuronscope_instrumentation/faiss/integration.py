"""The table of FAISS's methods, what is kept of each call, and how its result is read.

Python's FAISS gives every class functions of its own, so that wrapping `Index.search` would miss all of its
subclasses: the overrides are wrapped with it.  `faiss.contrib.torch_utils` replaces them once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, cast

from neuronscope.instrumentation import (
    ClientIntegration,
    Endpoint,
    Kind,
    Operation,
    Peer,
    Request,
    Response,
    Snapshot,
    WrappedMethod,
)
from neuronscope.signals import names
from neuronscope_instrumentation.faiss import arrays

Arguments = dict[str, Any]
_BINARY: Final[dict[type[object], bool]] = {}  # by class
FAISS_HERE: Final = Peer("faiss")
# faiss/MetricType.h; inner products and FAISS's Jaccard are similarities, all others distances.
METRICS: Final = {
    0: "dot",
    1: "euclid_squared",
    2: "manhattan",
    3: "chebyshev",
    4: "lp",
    5: "dot",  # its absolute value
    20: "canberra",
    21: "bray_curtis",
    22: "jensen_shannon",
    23: "jaccard_similarity",
    24: "euclid_squared",  # ignoring NaN
    25: "gower",
}


# --- results and requests, read by the worker -------------------------------------------------------------
def read_search(kept: Mapping[str, Any], _content: bool) -> Request:
    """Facts of a search by what its snapshot kept."""
    metric, count = kept["metric"], kept["count"]
    return Request(
        k=kept["k"],
        filtered=kept["filtered"],
        metric="hamming" if metric is None else METRICS.get(metric),
        queries=None if count is None else arrays.queries(count, kept["vectors"], metric is None),
    )


def read_hits(found: arrays.Neighbours | arrays.InRange, _content: bool) -> Response:
    """The hits of each query, without padding."""
    return Response(hits=arrays.hits(found))


def read_write(kept: Mapping[str, Any], _content: bool) -> Request:
    """How many vectors a call adds."""
    return Request(write_count=kept.get("count"))


def read_removed(removed: Any, _content: bool) -> Response:
    """How many vectors `remove_ids` found and removed."""
    return Response(extra={names.WRITE_COUNT: int(removed)})


SEARCH: Final = Endpoint(
    operation=Operation.RETRIEVAL, read_request=read_search, read_response=read_hits, size=arrays.nbytes
)
STORE: Final = Endpoint(operation=Operation.STORE, read_request=read_write)
REMOVE: Final = Endpoint(operation=Operation.STORE, read_request=read_write, read_response=read_removed)


# --- what the hot path keeps of a call --------------------------------------------------------------------
def _search(index: Any, arguments: Arguments, _content: bool, *, k: int | None = None) -> Snapshot:
    vectors, params = arguments.get("x"), arguments.get("params")
    kind = cast("type[object]", type(index))
    binary = _BINARY.get(kind)
    if binary is None:  # a binary index has no `metric_arg`, and always counts differing bits
        binary = _BINARY[kind] = not hasattr(index, "metric_arg")
    kept = {
        "vectors": arrays.kept(vectors),
        "count": arrays.rows(vectors),
        "k": arguments.get("k", k),
        "filtered": getattr(params, "sel", None) is not None,
        "metric": None if binary else index.metric_type,
    }
    return Snapshot(SEARCH, None, kept, FAISS_HERE)


def _write(_index: Any, arguments: Arguments, _content: bool, *, vectors: str) -> Snapshot:
    return Snapshot(STORE, None, {"count": arrays.rows(arguments.get(vectors))}, FAISS_HERE)


def _other(_index: Any, _arguments: Arguments, _content: bool, *, endpoint: Endpoint = STORE) -> Snapshot:
    return Snapshot(endpoint, None, {}, FAISS_HERE)


def _nothing(_result: Any) -> None:
    """Nothing is read of what a write returns."""


# --- the table --------------------------------------------------------------------------------------------
class _Row(NamedTuple):
    name: str
    snapshot: Callable[[Any, Arguments, bool], Snapshot | None]
    unwrap: Callable[[Any], Any] | None = _nothing
    classes: tuple[str, ...] = ("Index", "IndexBinary")
    optional: bool = False


_IVF: Final = ("IndexIVF", "IndexBinaryIVF")
_ROWS: Final = (
    _Row("search", _search, arrays.neighbours),
    _Row("range_search", _search, arrays.in_range),
    _Row("search_and_reconstruct", _search, arrays.neighbours, ("Index",)),
    _Row("assign", partial(_search, k=1), arrays.assigned),
    _Row("search_preassigned", _search, arrays.neighbours, _IVF, optional=True),
    _Row("range_search_preassigned", _search, arrays.in_range, _IVF, optional=True),
    _Row("add", partial(_write, vectors="x")),
    _Row("add_with_ids", partial(_write, vectors="x")),
    _Row("update_vectors", partial(_write, vectors="x"), classes=("IndexIVF",), optional=True),
    _Row("add_sa_codes", partial(_write, vectors="codes"), classes=("Index",), optional=True),
    _Row("remove_ids", partial(_other, endpoint=REMOVE), None),
    _Row("train", _other),
    _Row("reset", _other),
    _Row("merge_from", _other, optional=True),
)


def _methods() -> Iterator[WrappedMethod]:
    for where, again in (("faiss:", False), ("faiss.contrib.torch_utils:faiss.", True)):
        for name, snapshot, unwrap, classes, optional in _ROWS:
            for owner in classes:
                yield WrappedMethod(
                    target=f"{where}{owner}.{name}",
                    snapshot=snapshot,
                    unwrap=unwrap,
                    in_process=True,
                    optional=optional or again,
                    subclasses=True,
                )


FAISS: Final = ClientIntegration(
    name="faiss", requires="faiss-cpu>=1.8", kind=Kind.VECTOR_STORE, methods=tuple(_methods())
)

"""Searches of a collection: by vector, object, text, words, or several of these at once.

Weaviate tells scores only where `return_metadata` asks for them; nothing is asked for in the service's place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from neuronscope.instrumentation import Endpoint, Hit, Operation, Query, Request, Response, Snapshot, Stage
from neuronscope_instrumentation.common.fields import text
from neuronscope_instrumentation.common.retrieval import kept_vector, store_error
from neuronscope_instrumentation.weaviate.collections import Place, learned_metric, place_of

Arguments = dict[str, Any]
# What a search ranks by, if it is no distance.
_SCORES: Final = {"hybrid": "hybrid", "bm25": "bm25"}


# --- in the caller's thread ---------------------------------------------------------------------------------
def snapshot_search(
    instance: Any, arguments: Arguments, _content: bool, *, method: str, generates: bool
) -> Snapshot:
    """A search, or one whose hits a model writes about.

    Args:
        method: name of the search.
        generates: it is one of `collection.generate`.
    """
    place = place_of(instance)
    kept = {
        "method": method,
        "vector": _vector(arguments.get("near_vector", arguments.get("vector"))),
        "text": arguments.get("query"),
        "k": arguments.get("limit"),
        "filtered": arguments.get("filters") is not None,
        "alpha": arguments.get("alpha"),
        "fusion": arguments.get("fusion_type"),
        "rerank": arguments.get("rerank"),
        "generates": generates,
        "target": arguments.get("target_vector"),
        "place": place,
    }
    called = f"generate.{method}" if generates else None
    return Snapshot(SEARCH, place.collection, kept, place.peer, called)


def _vector(told: Any) -> Any:
    """The one dense vector of a search; named ones count if there is just one."""
    if isinstance(told, Mapping):
        named = cast("Mapping[str, Any]", told)
        told = next(iter(named.values())) if len(named) == 1 else None
    told = getattr(told, "vector", told)  # of a hybrid's `HybridVector.near_vector`
    return None if isinstance(told, Mapping) else kept_vector(told)


def objects_of(result: Any) -> Any:
    """The hits, apart from the list that their owner may change; of groups those of all."""
    return tuple(result.objects)


# --- in the worker ------------------------------------------------------------------------------------------
def read_search(kept: Mapping[str, Any], content: bool) -> Request:
    """What was asked."""
    place: Place = kept["place"]
    told = kept["text"]
    return Request(
        k=kept["k"],
        filtered=kept["filtered"],
        namespace=place.tenant,
        queries=[Query(vector=kept["vector"], text=_joined(told) if content else None)],
        metric=_SCORES.get(kept["method"]) or learned_metric(place.url, place.collection),
        stages=_stages(kept),
    )


def _joined(told: Any) -> str | None:
    if isinstance(told, list | tuple):
        return " ".join(map(str, cast("Sequence[Any]", told)))
    return text(told)


def _stages(kept: Mapping[str, Any]) -> list[Stage] | None:
    k, target = kept["k"], kept["target"]
    name = target if isinstance(target, str) else None
    steps = [Stage("dense", name)]
    if kept["method"] == "hybrid":
        fusion = str(getattr(kept["fusion"], "value", kept["fusion"] or "relative score"))
        steps += [Stage("bm25"), Stage("fusion", fusion.removeprefix("FUSION_TYPE_").lower(), k)]
    elif kept["method"] == "bm25":
        steps = [Stage("bm25", k=k)]
    if kept["rerank"] is not None:
        steps.append(Stage("rerank", text(getattr(kept["rerank"], "prop", None)), k))
    if kept["generates"]:
        steps.append(Stage("generate"))
    return steps if len(steps) > 1 else None


def read_objects(objects: Any, _content: bool) -> Response:
    """Hits with their properties, and with what their metadata tells of how near they are."""
    found = cast("Sequence[Any]", objects)
    by, metric = _score(found)
    return Response(hits=[[_hit(one, by) for one in found]], metric=metric)


def _score(objects: Sequence[Any]) -> tuple[str | None, str | None]:
    """Which field of the metadata ranked the hits, and how it reads if the field alone tells that."""
    told = objects[0].metadata if objects else None
    if getattr(told, "rerank_score", None) is not None:
        return "rerank_score", "rerank"
    if getattr(told, "distance", None) is not None:
        return "distance", None
    if getattr(told, "certainty", None) is not None:
        return "certainty", "cosine_certainty"
    return ("score" if getattr(told, "score", None) is not None else None), None


def _hit(one: Any, by: str | None) -> Hit:
    score = getattr(one.metadata, by, None) if by is not None else None
    properties = one.properties
    return Hit(
        str(one.uuid),
        score,
        cast("Mapping[str, Any]", properties) if isinstance(properties, Mapping) else None,
    )


SEARCH: Final = Endpoint(
    operation=Operation.RETRIEVAL,
    read_request=read_search,
    read_response=read_objects,
    read_error=store_error,
)

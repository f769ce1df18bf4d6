"""Elasticsearch: searches by vectors and writes to indexes of vectors, sync and async.

Every request passes one method of the client.  The client traces itself as soon as there is a tracer
provider, and ours is one: what would be a second span for the same call is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from neuronscope.instrumentation import ClientIntegration, Kind, Peer, Snapshot, WrappedMethod
from neuronscope_instrumentation.common.search_api import answers_of, body_of, known_indexes, written
from neuronscope_instrumentation.common.search_calls import Sent, operation_of, snapshot_of

if TYPE_CHECKING:
    from neuronscope.engine import Engine

__all__ = ["ELASTICSEARCH"]


def _request(client: Any, arguments: dict[str, Any], _content: bool) -> Snapshot | None:
    operation, index = operation_of(str(arguments.get("method")), str(arguments.get("path")))
    params: Any = arguments.get("params") or {}
    sent = Sent(arguments.get("endpoint_id") or operation, index, arguments.get("body"), params.get("size"))
    transport = getattr(client, "_transport", client)
    return snapshot_of(sent, known_indexes(transport), _peer(transport))


def _peer(transport: Any) -> Peer:
    """The one node of a transport; of several, nobody knows yet which will answer."""
    pool = getattr(transport, "node_pool", None)
    nodes: Any = pool.all() if pool is not None and len(pool) == 1 else ()
    return Peer("elasticsearch", nodes[0].host, nodes[0].port) if nodes else Peer("elasticsearch")


def _result(result: Any) -> Any:
    """Hits of each search, or how much was written."""
    body = body_of(result)
    if not isinstance(body, dict):
        return None
    several = "responses" in body
    return answers_of(body, several) if several or "hits" in body else written(body)


def _leave_native_spans_out(engine: Engine, module: str) -> Callable[[], None]:
    from neuronscope.engine.native_tracing import merge_spans_of_holder

    undo = [
        merge_spans_of_holder(engine, "neuronscope.elasticsearch", module, f"OpenTelemetry.{name}")
        for name in ("span", "helpers_span")
    ]

    def all_of_it() -> None:
        for each in undo:
            each()

    return all_of_it


def _methods() -> Iterator[WrappedMethod]:
    for kind in ("_sync", "_async"):
        target = f"elasticsearch.{kind}.client._base:BaseClient.perform_request"
        yield WrappedMethod(target=target, snapshot=_request, unwrap=_result)


ELASTICSEARCH: Final = ClientIntegration(
    name="elasticsearch",
    requires="elasticsearch>=8.12",
    kind=Kind.VECTOR_STORE,
    modules=("elasticsearch._otel",),
    methods=tuple(_methods()),
    copies=(
        "elasticsearch._sync.client:Elasticsearch.options",
        "elasticsearch._async.client:AsyncElasticsearch.options",
    ),
    install=_leave_native_spans_out,
)

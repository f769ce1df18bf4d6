"""OpenSearch: searches by vectors and writes to indexes of vectors, sync and async.

Every request passes the client's transport, whatever method, helper or plugin it came from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from neuronscope.instrumentation import ClientIntegration, Kind, Peer, Snapshot, WrappedMethod
from neuronscope_instrumentation.common.search_api import answers_of, known_indexes, written
from neuronscope_instrumentation.common.search_calls import Sent, operation_of, snapshot_of

__all__ = ["OPENSEARCH"]


def _request(transport: Any, arguments: dict[str, Any], _content: bool) -> Snapshot | None:
    operation, index = operation_of(str(arguments.get("method")), str(arguments.get("url")))
    params: Any = arguments.get("params") or {}
    sent = Sent(operation, index, arguments.get("body"), params.get("size"))
    return snapshot_of(sent, known_indexes(transport), _peer(transport))


def _peer(transport: Any) -> Peer:
    """The one host of a transport; of several, nobody knows yet which will answer."""
    hosts: Any = getattr(transport, "hosts", None) or ()
    host: dict[str, Any] = hosts[0] if len(hosts) == 1 else {}
    port = host.get("port")
    return Peer("opensearch", host.get("host"), port if isinstance(port, int) else None)


def _result(result: Any) -> Any:
    """Hits of each search, or how much was written."""
    if not isinstance(result, dict):
        return None
    several = "responses" in result
    return answers_of(result, several) if several or "hits" in result else written(result)


def _transport(client: Any) -> Iterable[Any]:
    transport = getattr(client, "transport", None)
    return () if transport is None else (transport,)


def _methods() -> Iterator[WrappedMethod]:
    for target, optional in (
        ("opensearchpy.transport:Transport.perform_request", False),
        ("opensearchpy._async.transport:AsyncTransport.perform_request", True),
    ):
        yield WrappedMethod(target=target, snapshot=_request, unwrap=_result, optional=optional)


OPENSEARCH: Final = ClientIntegration(
    name="opensearch",
    requires="opensearch-py>=2.4",
    kind=Kind.VECTOR_STORE,
    methods=tuple(_methods()),
    members=_transport,
)

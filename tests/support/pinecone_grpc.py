"""Pinecone's gRPC service on a socket, in front of the fake index.

The client's own messages are compiled into Rust: what it speaks of the public protocol is described here by
its field numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, cast

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2
from google.protobuf.json_format import MessageToDict, ParseDict

from neuronscope.testing.fake_pinecone import FORBIDDEN, FakePinecone

_FLOAT, _STRING, _UINT32, _BOOL, _MESSAGE, _INT32, _DOUBLE = 2, 9, 13, 8, 11, 5, 1
_REPEATED = "repeated"
# Message -> field -> (number, type or message, repeated?).
_MESSAGES: Final[dict[str, dict[str, tuple[Any, ...]]]] = {
    "SparseValues": {"indices": (1, _UINT32, _REPEATED), "values": (2, _FLOAT, _REPEATED)},
    "Vector": {
        "id": (1, _STRING),
        "values": (2, _FLOAT, _REPEATED),
        "metadata": (3, ".google.protobuf.Struct"),
        "sparse_values": (4, ".SparseValues"),
    },
    "ScoredVector": {
        "id": (1, _STRING),
        "score": (2, _FLOAT),
        "values": (3, _FLOAT, _REPEATED),
        "metadata": (4, ".google.protobuf.Struct"),
    },
    "UpsertRequest": {"vectors": (1, ".Vector", _REPEATED), "namespace": (2, _STRING)},
    "UpsertResponse": {"upserted_count": (1, _UINT32)},
    "DeleteRequest": {
        "ids": (1, _STRING, _REPEATED),
        "delete_all": (2, _BOOL),
        "namespace": (3, _STRING),
        "filter": (4, ".google.protobuf.Struct"),
    },
    "DeleteResponse": {},
    "FetchRequest": {"ids": (1, _STRING, _REPEATED), "namespace": (2, _STRING)},
    "FetchEntry": {"key": (1, _STRING), "value": (2, ".Vector")},  # a map's entry, on the wire
    "FetchResponse": {"vectors": (1, ".FetchEntry", _REPEATED), "namespace": (2, _STRING)},
    "QueryRequest": {
        "namespace": (1, _STRING),
        "top_k": (2, _UINT32),
        "filter": (3, ".google.protobuf.Struct"),
        "include_values": (4, _BOOL),
        "include_metadata": (5, _BOOL),
        "vector": (7, _FLOAT, _REPEATED),
        "id": (8, _STRING),
        "sparse_vector": (9, ".SparseValues"),
    },
    "QueryResponse": {"matches": (2, ".ScoredVector", _REPEATED), "namespace": (3, _STRING)},
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="neuronscope_tests/pinecone.proto", syntax="proto3")
    file.dependency.append("google/protobuf/struct.proto")
    file.package = "neuronscope_tests_pinecone"
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, *repeated) in fields.items():
            described = message.field.add(name=field, number=number, label=3 if repeated else 1)
            if isinstance(kind, str):
                inside = kind if kind.startswith(".google") else f".{file.package}{kind}"
                described.type, described.type_name = _MESSAGE, inside  # type: ignore[assignment]
            else:
                described.type = kind
    pool = descriptor_pool.DescriptorPool()
    struct_file = descriptor_pb2.FileDescriptorProto()
    struct_pb2.DESCRIPTOR.CopyToProto(struct_file)
    pool.Add(struct_file)
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))
        for name in _MESSAGES
    }


CLASSES: Final = _classes()
Handler = Callable[[FakePinecone, dict[str, Any]], dict[str, Any]]


def _query(fake: FakePinecone, asked: dict[str, Any]) -> dict[str, Any]:
    answer = fake.query({"topK": asked["topK"], **asked})
    return {"matches": answer["matches"], "namespace": answer["namespace"]}


def _upsert(fake: FakePinecone, asked: dict[str, Any]) -> dict[str, Any]:
    return {"upsertedCount": fake.upsert(asked.get("namespace", ""), asked["vectors"])}


def _delete(fake: FakePinecone, asked: dict[str, Any]) -> dict[str, Any]:
    fake.remove(asked.get("namespace", ""), asked.get("ids"))
    return {}


def _fetch(fake: FakePinecone, asked: dict[str, Any]) -> dict[str, Any]:
    namespace = asked.get("namespace", "")
    stored = fake.namespaces.get(namespace, {})
    found = [{"key": key, "value": stored[key]} for key in asked["ids"] if key in stored]
    return {"vectors": found, "namespace": namespace}


_HANDLERS: Final[dict[str, Handler]] = {
    "Query": _query,
    "Upsert": _upsert,
    "Delete": _delete,
    "Fetch": _fetch,
}


def _method(fake: FakePinecone, name: str, handle: Handler) -> Any:
    request, response = CLASSES[f"{name}Request"], CLASSES[f"{name}Response"]

    def answer(body: bytes, context: grpc.ServicerContext) -> bytes:
        asked = MessageToDict(request.FromString(body))
        if asked.get("namespace") == FORBIDDEN:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "not yours")
        told = ParseDict(handle(fake, asked), response(), ignore_unknown_fields=True)
        return bytes(told.SerializeToString())

    return cast("Any", grpc).unary_unary_rpc_method_handler(answer)


@contextmanager
def serve(fake: FakePinecone) -> Generator[str]:
    """The service; gives its address."""
    methods = {name: _method(fake, name, handler) for name, handler in _HANDLERS.items()}
    server = grpc.server(ThreadPoolExecutor(max_workers=4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("VectorService", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(None)

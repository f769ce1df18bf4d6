"""A Redis on a socket with as much of its search module as the tests use; no package holds the module.

It speaks both versions of the protocol and computes its own answers: hashes hold vectors, FT.SEARCH ranks
them by cosine distance.
"""

from __future__ import annotations

import re
import socketserver
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import numpy as np

__all__ = ["serve"]

Words = list[bytes]


class Status(str):
    """A reply of one word."""


class Store:
    """Keys and indexes of one server.  Thread-safe by one lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.hashes: dict[bytes, dict[bytes, bytes]] = {}
        self.indexes: set[bytes] = set()

    def run(self, words: Words) -> Any:
        """The reply to a command."""
        name = words[0].upper().decode()
        with self.lock:
            known = getattr(self, "do_" + name.replace(".", "_").lower(), None)
            return known(*words[1:]) if known is not None else Status("OK")

    def do_hello(self, *_: bytes) -> Any:
        """Who are you?"""
        return {b"server": b"redis", b"version": b"8.0.0", b"proto": 3, b"id": 1, b"mode": b"standalone"}

    def do_ping(self) -> Any:
        """Are you there?"""
        return Status("PONG")

    def do_hset(self, key: bytes, *pairs: bytes) -> int:
        """Write a document."""
        self.hashes.setdefault(key, {}).update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(pairs) // 2

    def do_get(self, key: bytes) -> bytes | None:
        """An ordinary command."""
        return self.hashes.get(key, {}).get(b"value")

    def do_ft_create(self, index: bytes, *_: bytes) -> Any:
        """Make an index."""
        self.indexes.add(index)
        return Status("OK")

    def do_ft_search(self, index: bytes, query: bytes, *words: bytes) -> Any:
        """The nearest documents, or those that a filter leaves."""
        if index not in self.indexes:
            return ValueError(f"{index.decode()}: no such index")
        parameters, limit = _options(words)
        before, _, after = query.decode().partition("=>")
        found = [
            (key, {b"__score": b"", **fields})
            for key, fields in self.hashes.items()
            if _passes(before, fields)
        ]
        knn = re.match(r"\[KNN (\S+) @(\w+) \$(\w+) AS (\w+)\]", after)
        if knn is not None:
            k = int(parameters[knn[1][1:]] if knn[1].startswith("$") else knn[1])
            vector = np.frombuffer(parameters[knn[3]], np.float32)
            if len(vector) != len(
                np.frombuffer(found[0][1][b"vector"] if found else parameters[knn[3]], np.float32)
            ):
                return ValueError(
                    "Error parsing vector similarity query: query vector blob size does not match"
                )
            found = [
                (key, {**fields, knn[4].encode(): _distance(fields[b"vector"], vector)})
                for key, fields in found
            ]
            found.sort(key=lambda each: float(each[1][knn[4].encode()]))
            found = found[:k]
        rows = [
            (key, {n: v for n, v in fields.items() if n not in (b"vector", b"__score")})
            for key, fields in found[:limit]
        ]
        return Search(len(found), rows)


class Search:
    """A reply that the two versions of the protocol write differently."""

    def __init__(self, total: int, rows: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
        self.total = total
        self.rows = rows

    def old(self) -> list[Any]:
        """A flat list."""
        found: list[Any] = [self.total]
        for key, fields in self.rows:
            found += [key, [part for pair in fields.items() for part in pair]]
        return found

    def new(self) -> dict[bytes, Any]:
        """A map."""
        return {
            b"attributes": [],
            b"total_results": self.total,
            b"format": b"STRING",
            b"results": [
                {b"id": key, b"extra_attributes": fields, b"values": []} for key, fields in self.rows
            ],
            b"warning": [],
        }


def _options(words: tuple[bytes, ...]) -> tuple[dict[str, bytes], int]:
    parameters: dict[str, bytes] = {}
    limit = 10
    for position, word in enumerate(words):
        if word.upper() == b"PARAMS":
            pairs = words[position + 2 : position + 2 + int(words[position + 1])]
            parameters = {name.decode(): value for name, value in zip(pairs[::2], pairs[1::2], strict=True)}
        if word.upper() == b"LIMIT":
            limit = int(words[position + 2])
    return parameters, limit


def _passes(query: str, fields: dict[bytes, bytes]) -> bool:
    wanted = re.match(r"\(?@(\w+):\{(\w+)\}\)?", query)
    return b"vector" in fields and (wanted is None or fields.get(wanted[1].encode()) == wanted[2].encode())


def _distance(data: bytes, vector: Any) -> bytes:
    stored = np.frombuffer(data, np.float32)
    return repr(float(1 - stored @ vector / (np.linalg.norm(stored) * np.linalg.norm(vector)))).encode()


def _write(out: BinaryIO, reply: Any, protocol: int) -> None:
    if isinstance(reply, Search):
        _write(out, reply.new() if protocol == 3 else reply.old(), protocol)
    elif isinstance(reply, Exception):
        out.write(f"-{reply}\r\n".encode())
    elif isinstance(reply, Status):
        out.write(f"+{reply}\r\n".encode())
    elif isinstance(reply, int):
        out.write(b":%d\r\n" % reply)
    elif reply is None:
        out.write(b"_\r\n" if protocol == 3 else b"$-1\r\n")
    elif isinstance(reply, bytes):
        out.write(b"$%d\r\n%s\r\n" % (len(reply), reply))
    elif isinstance(reply, dict):
        told = cast("dict[bytes, Any]", reply)
        items: list[Any] = [part for pair in told.items() for part in pair]
        out.write(b"%%%d\r\n" % len(told) if protocol == 3 else b"*%d\r\n" % len(items))
        for item in items:
            _write(out, item, protocol)
    else:
        out.write(b"*%d\r\n" % len(reply))
        for item in reply:
            _write(out, item, protocol)


class Handler(socketserver.StreamRequestHandler):
    """One connection; a reply is one packet."""

    wbufsize = -1
    disable_nagle_algorithm = True

    def handle(self) -> None:
        """Answer commands until the client hangs up."""
        protocol = 2
        store: Store = self.server.store  # type: ignore[attr-defined]
        while header := self.rfile.readline():
            words: Words = []
            for _ in range(int(header[1:])):
                length = int(self.rfile.readline()[1:])
                words.append(self.rfile.read(length + 2)[:-2])
            if words[0].upper() == b"HELLO" and len(words) > 1:
                protocol = int(words[1])
            _write(self.wfile, store.run(words), protocol)  # type: ignore[arg-type]
            self.wfile.flush()


class Server(socketserver.ThreadingTCPServer):
    """Each connection has a thread."""

    allow_reuse_address = True
    daemon_threads = True


@contextmanager
def serve() -> Generator[int]:
    """A server's port."""
    with Server(("127.0.0.1", 0), Handler) as server:
        server.store = Store()  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()

"""The other formats, in an environment of their own: each as its documentation says to use it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from tests.benchmarks.children import serve
from tests.benchmarks.nsz import workload
from tests.benchmarks.nsz.workload import BURST, SHAPE, SPANS, TENSORS, timed


class Peer(Protocol):
    """A format: opened for writing, given spans and tensors, closed; then read."""

    def span(self, number: int, data: bytes) -> None: ...
    def tensor(self, number: int, values: Any) -> None: ...
    def close(self) -> None: ...


class McapPeer:
    """The PyPI package with its defaults: chunks of 1 MiB, zstd where asked for."""

    def __init__(self, path: str, compress: bool = False) -> None:
        writer_module = import_module("mcap.writer")
        kind = writer_module.CompressionType
        self._file = open(path, "wb")  # noqa: SIM115 - closed by close
        self._writer = writer_module.Writer(self._file, compression=kind.ZSTD if compress else kind.NONE)
        self._writer.start()
        schema = self._writer.register_schema("span", "jsonschema", b"{}")
        self._span = self._writer.register_channel("span", "json", schema)
        self._tensors = [self._writer.register_channel(f"layers.{n}", "raw", 0) for n in range(40)]

    def span(self, number: int, data: bytes) -> None:
        self._writer.add_message(self._span, number, data, number)

    def tensor(self, number: int, values: Any) -> None:
        self._writer.add_message(self._tensors[number % 40], number, values.tobytes(), number)

    def close(self) -> None:
        self._writer.finish()
        self._file.close()

    @staticmethod
    def spans(path: str) -> int:
        reader = import_module("mcap.reader")
        with open(path, "rb") as file:
            return sum(1 for _ in reader.make_reader(file).iter_messages(topics=["span"]))


class ArrowPeer:
    """An IPC file of record batches; a tensor is a binary value."""

    def __init__(self, path: str) -> None:
        self._arrow = import_module("pyarrow")
        arrow = self._arrow
        self._schema = arrow.schema([("span", arrow.binary()), ("tensor", arrow.large_binary())])
        self._writer = arrow.ipc.new_file(path, self._schema)
        self._spans: list[bytes] = []

    def span(self, number: int, data: bytes) -> None:
        self._spans.append(data)
        if len(self._spans) == 1000:
            self._write(self._spans, [None] * 1000)
            self._spans = []

    def tensor(self, number: int, values: Any) -> None:
        self._write([None], [values.data.cast("B")])

    def _write(self, spans: list[Any], tensors: list[Any]) -> None:
        arrays = [self._arrow.array(spans, self._schema.field(0).type)]
        arrays.append(self._arrow.array(tensors, self._schema.field(1).type))
        self._writer.write_batch(self._arrow.record_batch(arrays, schema=self._schema))

    def close(self) -> None:
        self._writer.close()

    @staticmethod
    def spans(path: str) -> int:
        arrow = import_module("pyarrow")
        reader = arrow.ipc.open_file(arrow.memory_map(path))
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        return sum(len(batch.column(0).drop_null().to_pylist()) for batch in batches)


class Hdf5Peer:
    """A dataset a tensor; spans in one of variable length, in blocks of 1000."""

    def __init__(self, path: str) -> None:
        h5py = import_module("h5py")
        self._file = h5py.File(path, "w", libver="latest")
        kind = h5py.vlen_dtype(np.uint8)
        self._dataset = self._file.create_dataset("spans", (0,), kind, maxshape=(None,), chunks=(1000,))
        self._spans: list[Any] = []

    def span(self, number: int, data: bytes) -> None:
        self._spans.append(np.frombuffer(data, np.uint8))
        if len(self._spans) == 1000:
            start = len(self._dataset)
            self._dataset.resize((start + 1000,))
            block = np.empty(1000, object)
            block[:] = self._spans
            self._dataset[start:] = block
            self._spans = []

    def tensor(self, number: int, values: Any) -> None:
        self._file.create_dataset(f"layers.{number}", data=values)

    def close(self) -> None:
        self._file.close()

    @staticmethod
    def spans(path: str) -> int:
        with import_module("h5py").File(path) as file:
            return sum(1 for data in file["spans"][:] if bytes(data))


class SqlitePeer:
    """WAL, NORMAL, a transaction for a hundred records."""

    def __init__(self, path: str) -> None:
        self._connection = sqlite3.connect(path)
        self._connection.executescript(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;"
            "CREATE TABLE span(id INTEGER PRIMARY KEY, data BLOB);"
            "CREATE TABLE tensor(id INTEGER PRIMARY KEY, data BLOB);"
        )
        self._pending = 0

    def span(self, number: int, data: bytes) -> None:
        self._put("INSERT INTO span VALUES(?,?)", number, data)

    def tensor(self, number: int, values: Any) -> None:
        self._put("INSERT INTO tensor VALUES(?,?)", number, values.data)

    def _put(self, statement: str, number: int, data: Any) -> None:
        self._connection.execute(statement, (number, data))
        self._pending += 1
        if self._pending == 100:
            self._connection.commit()
            self._pending = 0

    def close(self) -> None:
        self._connection.commit()
        self._connection.close()

    @staticmethod
    def spans(path: str) -> int:
        connection = sqlite3.connect(path)
        try:
            return len(connection.execute("SELECT data FROM span").fetchall())
        finally:
            connection.close()


class SafetensorsPeer:
    """A file a tensor: it cannot append, and knows no spans."""

    def __init__(self, path: str) -> None:
        self._save = import_module("safetensors.numpy").save_file
        self._path = path
        Path(path + ".d").mkdir(exist_ok=True)

    def span(self, number: int, data: bytes) -> None:
        raise NotImplementedError

    def tensor(self, number: int, values: Any) -> None:
        self._save({"tensor": values}, f"{self._path}.d/{number}.safetensors")

    def close(self) -> None:
        return


PEERS: dict[str, Callable[[str], Any]] = {
    "mcap": McapPeer, "Arrow": ArrowPeer, "HDF5": Hdf5Peer, "SQLite": SqlitePeer,
    "safetensors": SafetensorsPeer,
}  # fmt: skip


@contextmanager
def fresh(name: str, path: str) -> Generator[Any]:
    """A peer writing a new file."""
    for suffix in ("", "-wal", "-shm"):
        Path(path + suffix).unlink(missing_ok=True)
    peer = PEERS[name](path)
    yield peer
    peer.close()


def write_tensors(peer: str, path: str) -> float:
    """Seconds to write a burst of tensors."""
    Path(path).unlink(missing_ok=True)
    values = [workload.tensor(number) for number in range(BURST)]

    def work() -> None:
        with fresh(peer, path) as target:
            for number, array in enumerate(values):
                target.tensor(number, array)

    return timed(work)[0]


def write_spans(peer: str, path: str) -> float:
    """µs of CPU a span, encoded already."""
    spans = [workload.span_json(number) for number in range(SPANS)]
    start = time.process_time()
    with fresh(peer, path) as target:
        for number, data in enumerate(spans):
            target.span(number, data)
    return (time.process_time() - start) / SPANS * 1e6


def make(peer: str, path: str) -> int:
    """The large file; its size."""
    each = SPANS // TENSORS
    with fresh(peer, path) as target:
        for number in range(TENSORS):
            for index in range(each):
                target.span(number * each + index, workload.span_json(number * each + index))
            target.tensor(number, workload.tensor(number))
    return os.path.getsize(path)


def list_spans(peer: str, path: str) -> dict[str, float]:
    """ms to get all spans' bytes, cold, and the disk's bytes."""
    workload.forget(path)
    before = workload.disk_bytes()
    seconds, count = timed(lambda: getattr(PEERS[peer], "spans")(path))  # noqa: B009 - a static method
    assert count == SPANS, count
    return {"ms": seconds * 1e3, "disk": workload.disk_bytes() - before}


def disturb(peer: str, path: str, seconds: float) -> int:
    """Turns of the foreground beside 100 MiB and 10,000 spans a second."""
    data, values = workload.span_json(1), workload.tensor(0)
    with fresh(peer, path) as target:

        def write(tensors: int, spans: int) -> None:
            for number in range(spans):
                target.span(number, data)
            for number in range(tensors):
                target.tensor(number, values)

        return workload.foreground(lambda s: workload.paced(s, 100, 10_000, write), seconds)


COMMANDS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (write_tensors, write_spans, make, list_spans, disturb)
}


def answer(command: str, **arguments: Any) -> Any:
    """Do what the parent asks."""
    return COMMANDS[command](**arguments)


if __name__ == "__main__":
    assert SHAPE == (512, 512)
    serve(answer)

"""What every format is given to write and asked to read.  numpy and the standard library: for peers, too."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MIB: Final = 1 << 20
TENSORS: Final = 1000
SPANS: Final = 20_000
SHAPE: Final = (512, 512)  # float32: 1 MiB
BURST: Final = 64  # tensors of one throughput round


def tensor(number: int) -> NDArray[np.float32]:
    """A tensor that differs from every other, made quickly."""
    values = _BASE.copy()
    values[0, :] = number
    return values


_RANDOM: Final = np.random.default_rng(0)
_BASE: Final[NDArray[np.float32]] = _RANDOM.standard_normal(SHAPE, dtype=np.float32)
_IDS: Final = [int.from_bytes(_RANDOM.bytes(8)) | 1 for _ in range(SPANS)]


def ids(number: int) -> tuple[int, int]:
    """(trace id, span id): random, as real ones are."""
    return _IDS[number // 10] << 64 | _IDS[-1 - number // 10], _IDS[number]


def span_json(number: int) -> bytes:
    """A span of about 400 bytes, as OTLP/JSON."""
    start = 1_700_000_000_000_000_000 + number * 1_000_000
    trace_id, span_id = ids(number)
    attributes = [{"key": key, "value": {kind: value}} for key, kind, value in span_attributes(number)]
    document = {
        "traceId": f"{trace_id:032x}", "spanId": f"{span_id:016x}", "name": "chat gpt-4o",
        "kind": 3, "startTimeUnixNano": str(start), "endTimeUnixNano": str(start + 900_000),
        "attributes": attributes,
    }  # fmt: skip
    return json.dumps(document, separators=(",", ":")).encode()


def span_attributes(number: int) -> list[tuple[str, str, Any]]:
    """(key, OTLP's kind, value)."""
    return [
        ("gen_ai.operation.name", "stringValue", "chat"),
        ("gen_ai.request.model", "stringValue", "gpt-4o"),
        ("gen_ai.usage.input_tokens", "intValue", str(100 + number % 400)),
        ("gen_ai.usage.output_tokens", "intValue", str(number % 90)),
        ("server.address", "stringValue", "127.0.0.1"),
    ]


def forget(path: str) -> None:
    """Have a file on the disk, and out of the system's cache: the next read is cold."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def disk_bytes() -> int:
    """Bytes that this process had the disk read so far."""
    with open("/proc/self/io") as file:
        return int(next(line for line in file if line.startswith("read_bytes")).split()[1])


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """(seconds of wall-clock time, result)."""
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def foreground(background: Callable[[float], None] | None, seconds: float) -> int:
    """Turns of a pure-Python loop in this thread, beside `background(seconds)` in another."""
    sys.setswitchinterval(0.005)
    thread = None if background is None else threading.Thread(target=background, args=(seconds,))
    if thread is not None:
        thread.start()
    turns, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        for value in range(1000):
            turns += value & 1
    if thread is not None:
        thread.join()
    return turns


def paced(seconds: float, tensors_s: int, spans_s: int, write: Callable[[int, int], None]) -> None:
    """Call ``write(tensors, spans)`` every 20 ms so that it comes to these rates."""
    ticks, start = int(seconds * 50), time.perf_counter()
    for tick in range(ticks):
        write(tensors_s * (tick + 1) // 50 - tensors_s * tick // 50, spans_s // 50)
        time.sleep(max(0.0, start + (tick + 1) / 50 - time.perf_counter()))

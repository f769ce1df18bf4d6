"""Reading along an HTTP body: encodings, cut events, limits, and every way a body can end."""

from __future__ import annotations

import base64
import gc
import gzip
import json
import pickle
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import zstandard

from neuronscope.engine import bodies
from neuronscope.engine.streams import StreamState
from neuronscope.instrumentation import Endpoint, Operation, Request, Response
from neuronscope.testing.fake_bedrock import EVENT_STREAM

DOCUMENT = json.dumps({"answer": "x" * 1000}).encode()


class Parts(httpx2.SyncByteStream):
    """A body that arrives in parts."""

    def __init__(self, parts: list[bytes], fail: bool = False) -> None:
        self.parts = parts
        self.fail = fail
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        yield from self.parts
        if self.fail:
            raise httpx2.ReadError("cut")

    def close(self) -> None:
        self.closed = True


def response(parts: list[bytes], encoding: str = "", *, fail: bool = False) -> httpx2.Response:
    headers = {"content-encoding": encoding} if encoding else {}
    return httpx2.Response(200, headers=headers, stream=Parts(parts, fail))


def sliced(data: bytes, size: int = 7) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def collect(answer: httpx2.Response) -> list[Any]:
    """What a collector hands on, in a list that fills as the body is read."""
    seen: list[Any] = []
    collector = bodies.BodyCollector(seen.append, bodies.decoder(bodies.content_encoding(answer)))
    assert bodies.read_along(answer, "test", collector)
    return seen


ENCODED = {
    "": DOCUMENT,
    "gzip": gzip.compress(DOCUMENT),
    "deflate": zlib.compress(DOCUMENT),
    "zstd": zstandard.ZstdCompressor().compress(DOCUMENT),
}


@pytest.mark.parametrize("encoding", list(ENCODED))
def test_a_document_is_seen_decoded(encoding: str) -> None:
    """The service gets the bytes as they came; it decodes for itself, we for ourselves."""
    answer = response(sliced(ENCODED[encoding]), encoding)
    seen = collect(answer)
    assert b"".join(answer.iter_raw()) == ENCODED[encoding]
    assert seen == [DOCUMENT]


def test_what_cannot_be_decoded_or_kept_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoding that we do not know, data that is not what it says, a body beyond the limit."""
    unknown = response([b"?"], "x-own")
    seen = collect(unknown)
    assert b"".join(unknown.iter_raw()) == b"?"
    broken = response([b"not gzip"], "gzip")
    seen += collect(broken)
    assert b"".join(broken.iter_raw()) == b"not gzip"
    monkeypatch.setattr(bodies, "MAX_BODY_BYTES", 10)
    large = response(sliced(DOCUMENT))
    seen += collect(large)
    assert large.read() == DOCUMENT
    assert seen == [None]


def test_a_body_that_is_cut_off_gives_its_error() -> None:
    """The exception goes on to the service."""
    answer = response([b"{"], fail=True)
    seen = collect(answer)
    with pytest.raises(httpx2.ReadError):
        answer.read()
    assert [type(item) for item in seen] == [httpx2.ReadError]


def test_a_body_closed_or_dropped_unread_gives_nothing() -> None:
    """And says so once."""
    answer = response([DOCUMENT])
    stream = answer.stream
    seen = collect(answer)
    answer.close()
    answer.close()
    assert seen == [None]
    assert isinstance(stream, Parts)
    assert stream.closed
    dropped = response([DOCUMENT])
    seen = collect(dropped)
    del dropped
    gc.collect()
    assert seen == [None]


def test_a_watched_response_can_be_pickled() -> None:
    """As it could before: the byte stream is no part of its state."""
    answer = response([DOCUMENT])
    collect(answer)
    assert pickle.loads(pickle.dumps(answer)).status_code == 200
    assert answer.read() == DOCUMENT
    assert pickle.loads(pickle.dumps(answer)).content == DOCUMENT


def test_a_response_without_the_seam_is_left_alone() -> None:
    """Of another HTTP library, or none."""

    class Other:
        stream = [b"a"]  # noqa: RUF012 - a stand-in

    assert not bodies.read_along(Other(), "test", bodies.BodyCollector(lambda _: None, bytes))
    assert not bodies.read_along(object(), "test", bodies.BodyCollector(lambda _: None, bytes))


def new_state(chunks: list[Any], ends: list[Any]) -> StreamState:
    """Of a stream whose chunks, and whose end, go into lists."""

    def fold(so_far: Response, chunk: Any, content: bool) -> Response:
        chunks.append(chunk)
        return so_far

    endpoint = Endpoint(
        operation=Operation.CHAT,
        read_request=lambda _arguments, _content: Request(),
        fold_chunk=fold,
    )
    return StreamState(endpoint, "test", False, lambda state, _error: ends.append(state.end))


@pytest.mark.parametrize("encoding", ["", "gzip"])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_events_are_seen_whole_however_they_arrive(encoding: str, newline: bytes, size: int) -> None:
    """Cut anywhere, with comments, names and several data lines; the end marker is no event."""
    lines = [
        b": hello",
        b"event: x",
        b"data: one",
        b"",
        b"data:two",
        b"data: three",
        b"",
        b"data: [DONE]",
        b"",
        b"",
    ]
    raw = newline.join(lines)
    data = gzip.compress(raw) if encoding else raw
    chunks: list[Any] = []
    ends: list[Any] = []
    state = new_state(chunks, ends)
    answer = response(sliced(data, size), encoding)
    assert bodies.read_along(answer, "test", bodies.EventReader(state, bodies.decoder(encoding)))
    assert b"".join(answer.iter_bytes()) == raw
    assert state.fold() == Response()
    assert chunks == [b"one", b"two\nthree"]
    assert ends == ["complete"]


@pytest.mark.parametrize("size", [1, 7, 64, 4096])
def test_frames_of_awss_event_streams_are_seen_whole(size: int) -> None:
    """However they arrive; frames of other kinds, errors among them, are passed over."""
    events: list[Any] = [
        {"chunk": {"bytes": base64.b64encode(b"one").decode()}},
        {"initial-response": {}},
        {"chunk": {"bytes": base64.b64encode(b"two" * 50).decode()}},
        {"throttlingException": {"message": "no"}},
        {"chunk": {"bytes": "?"}},
    ]
    data = b"".join(map(EVENT_STREAM.encode, events))
    ends: list[str | None] = []
    chunks: list[Any] = []
    state = new_state(chunks, ends)
    answer = response(sliced(data, size), "identity")
    assert bodies.read_along(answer, "test", bodies.FrameReader(state, bodies.decoder("")))
    assert b"".join(answer.iter_bytes()) == data
    state.fold()
    assert chunks == [b"one", b"two" * 50]
    assert ends == ["complete"]


@pytest.mark.parametrize("data", [b"x" * 40, struct.pack("!II", 15, 0) + b"0" * 40, b"\xff" * 64])
def test_what_is_no_event_stream_of_awss_gives_nothing(data: bytes) -> None:
    """Lengths that cannot be: nothing is kept of such a body."""
    chunks: list[Any] = []
    reader = bodies.FrameReader(new_state(chunks, []), bodies.decoder(""))
    reader.take(data)
    reader.take(data)
    reader.close("complete")
    assert chunks == []

"""Reads along while the service reads an HTTP body that was not read yet when the call returned.

SDKs have raw variants (``with_raw_response``, ``with_streaming_response``) that hand the HTTP response
over unread.  The service may parse it, iterate its bytes or lines, close it, or forget it.  One seam sees
all of that: the byte stream inside an httpx-like response, which copies and pickles of the response leave
out.  Bytes pass through unchanged; we keep references, and decode and parse them in the worker.
"""

from __future__ import annotations

import binascii
import struct
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from functools import lru_cache
from typing import Any, Final, Protocol

import msgspec
import zstandard

from neuronscope.engine.guard import GUARD
from neuronscope.engine.streams import StreamEnd, StreamState

# A body that grows beyond this is not kept: its facts stay unknown, the span still ends properly.
MAX_BODY_BYTES: Final = 8 << 20
FRAME_HEAD: Final = 12
FRAME_TAIL: Final = 4
Decode = Callable[[bytes], bytes]


class BodyReader(Protocol):
    """Told what happens to a body."""

    def take(self, data: bytes) -> None:
        """Bytes on their way to the service, as they came over the wire."""
        ...

    def close(self, end: StreamEnd, error: BaseException | None = None) -> None:
        """The body is over; only the first call counts."""
        ...


class CloseNotice:
    """Tells a stream that the response below it was closed, unless the stream itself is doing that."""

    __slots__ = ("_state",)

    def __init__(self, state: StreamState) -> None:
        self._state = state

    def close(self, end: StreamEnd, error: BaseException | None = None) -> None:
        """The response is being closed."""
        if not self._state.reading:
            self._state.close("client_closed")


class EventReader:
    """Server-sent events: each event's data becomes a chunk of the stream, as bytes."""

    __slots__ = ("_decode", "_lines", "_rest", "_state")

    def __init__(self, state: StreamState, decode: Decode | None) -> None:
        self._state = state
        self._decode = decode
        self._rest = b""
        self._lines: list[bytes] = []

    def take(self, data: bytes) -> None:
        """Split off the events that are complete."""
        if self._decode is None:
            return
        *lines, self._rest = (self._rest + self._decode(data)).split(b"\n")
        for line in lines:
            text = line.removesuffix(b"\r")
            if text.startswith(b"data:"):
                self._lines.append(text[5:].removeprefix(b" "))
            elif not text and self._lines:
                event, self._lines = b"\n".join(self._lines), []
                if event == b"[DONE]":
                    self._state.close("complete")
                else:
                    self._state.take(event)
        self._bound()

    def _bound(self) -> None:
        """Give up on a body whose events do not end."""
        if len(self._rest) > MAX_BODY_BYTES:
            self._decode, self._rest = None, b""

    def close(self, end: StreamEnd, error: BaseException | None = None) -> None:
        """The body is over, so the stream is."""
        if error is not None:
            self._state.fail(error)
        else:
            self._state.close(end)


class LineReader(EventReader):
    """JSON lines: each is a chunk of the stream, as bytes."""

    __slots__ = ()

    def take(self, data: bytes) -> None:
        """Split off the lines that are complete."""
        if self._decode is None:
            return
        *lines, self._rest = (self._rest + self._decode(data)).split(b"\n")
        for line in lines:
            if text := line.strip():
                self._state.take(text)
        self._bound()

    def close(self, end: StreamEnd, error: BaseException | None = None) -> None:
        """The body is over; its last line may lack its end."""
        rest = self._rest.strip()
        if rest and end == "complete":
            self._state.take(rest)
        super().close(end, error)


class _Frame(msgspec.Struct):
    bytes: str = ""


class FrameReader(EventReader):
    """AWS's binary event stream: what a frame's JSON has in base64 is a chunk of the stream, as bytes.

    A frame begins with its length and that of its headers, 32 bits each, and a checksum of these; after its
    payload comes one of the whole.  The service's own reader checks them.
    """

    __slots__ = ()

    def take(self, data: bytes) -> None:
        """Split off the frames that are complete."""
        if self._decode is None:
            return
        self._rest += self._decode(data)
        while len(self._rest) >= FRAME_HEAD:
            size, headers = struct.unpack_from("!II", self._rest)
            start, end = FRAME_HEAD + headers, size - FRAME_TAIL
            if not start <= end <= MAX_BODY_BYTES:  # it is none
                self._decode, self._rest = None, b""
                return
            if len(self._rest) < size:
                return
            self._take_payload(self._rest[start:end])
            self._rest = self._rest[size:]

    def _take_payload(self, payload: bytes) -> None:
        try:
            chunk = binascii.a2b_base64(msgspec.json.decode(payload, type=_Frame).bytes)
        except (msgspec.DecodeError, ValueError):
            return  # an error's, which the service's reader will raise
        if chunk:
            self._state.take(chunk)


class BodyCollector:
    """A body that is one document: kept until it is complete, then given to `finish`.

    `finish` gets the document, None when it is not known, or the exception that cut it off.
    """

    __slots__ = ("_decode", "_finish", "_parts", "_size")

    def __init__(self, finish: Callable[[Any], None], decode: Decode | None) -> None:
        self._finish: Callable[[Any], None] | None = finish
        self._decode = decode
        self._parts: list[bytes] = []
        self._size = 0

    def take(self, data: bytes) -> None:
        """Keep a part, while there is room."""
        self._size += len(data)
        if self._decode is None or self._size > MAX_BODY_BYTES:
            self._decode = None
            self._parts.clear()
        else:
            self._parts.append(data)

    def close(self, end: StreamEnd, error: BaseException | None = None) -> None:
        """The body is over: hand it on if all of it came."""
        finish, self._finish = self._finish, None
        if finish is None:
            return
        finish(error if error is not None or end != "complete" else self._document())

    def _document(self) -> bytes | None:
        if self._decode is None:
            return None
        try:
            return self._decode(b"".join(self._parts))
        except (zlib.error, zstandard.ZstdError):
            return None  # the service's own decoder will tell it

    def __del__(self) -> None:
        GUARD.call("bodies.dropped", self.close, "abandoned")


def decoder(encoding: str) -> Decode | None:
    """An incremental decoder of a content encoding; None if we have none."""
    if encoding in ("", "identity"):
        return bytes
    if encoding in ("gzip", "deflate"):
        return zlib.decompressobj(zlib.MAX_WBITS | 32).decompress  # 32: tells gzip and zlib apart itself
    if encoding == "zstd":
        return zstandard.ZstdDecompressor().decompressobj().decompress
    return None


def content_encoding(response: Any) -> str:
    """The encoding of a response's body, in lower case; empty for none."""
    return str(response.headers.get("content-encoding") or "").strip().lower()


def is_event_stream(response: Any) -> bool:
    """Is the body a stream of server-sent events?"""
    return str(response.headers.get("content-type") or "").startswith("text/event-stream")


def is_frame_stream(response: Any) -> bool:
    """Is the body a binary event stream of AWS's?"""
    return str(response.headers.get("content-type") or "").startswith("application/vnd.amazon.eventstream")


def is_line_stream(response: Any) -> bool:
    """Is the body a stream of JSON lines?"""
    kind = str(response.headers.get("content-type") or "").partition(";")[0].strip()
    return kind in ("application/stream+json", "application/x-ndjson", "application/jsonl")


def content_if_read(response: Any) -> bytes | None:
    """The body of a response that has been read already; never reads it."""
    if not response.is_closed:
        return None
    try:
        content = response.content
    except RuntimeError:  # closed unread
        return None
    return content if isinstance(content, bytes) else None


def read_along(response: Any, site: str, reader: BodyReader) -> bool:
    """Let `reader` see the body while the service reads it; False if the response has no such seam."""
    return _tap(response, site, reader.take, reader.close)


def notice_close(response: Any, site: str, notice: CloseNotice) -> bool:
    """Let `notice` know when the response is closed; False if the response has no such seam."""
    return _tap(response, site, None, notice.close)


def _tap(response: Any, site: str, take: Callable[[bytes], None] | None, close: Callable[..., None]) -> bool:
    stream: object = getattr(response, "stream", None)
    kind = _tap_class(type(stream))  # type: ignore[arg-type] # mypy does not see that classes hash
    if kind is None:
        return False
    response.stream = kind(stream, site, take, close)
    return True


class _Tap:
    """Stands in front of a response's byte stream; everything else is the stream's own."""

    def __init__(
        self,
        inner: Any,
        site: str,
        take: Callable[[bytes], None] | None,
        close: Callable[..., None],
    ) -> None:
        self._inner = inner
        self._site = site
        self._take = take
        self._over = close

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # not initialised: being copied
            raise AttributeError(name)
        return getattr(self._inner, name)


class _SyncTap(_Tap):
    def __iter__(self) -> Iterator[bytes]:
        return iter(self._inner) if self._take is None else self._read(self._take)

    def _read(self, take: Callable[[bytes], None]) -> Iterator[bytes]:
        try:
            for data in self._inner:
                GUARD.call(self._site, take, data)
                yield data
        except GeneratorExit:
            raise  # whoever drops the generator closes the response
        except BaseException as error:
            GUARD.call(self._site, self._over, "error", error)
            raise
        GUARD.call(self._site, self._over, "complete")

    def close(self) -> None:
        GUARD.call(self._site, self._over, "client_closed")
        self._inner.close()


class _AsyncTap(_Tap):
    def __aiter__(self) -> AsyncIterator[bytes]:
        inner: AsyncIterator[bytes] = self._inner.__aiter__()
        return inner if self._take is None else self._read(inner, self._take)

    async def _read(self, inner: AsyncIterator[bytes], take: Callable[[bytes], None]) -> AsyncIterator[bytes]:
        try:
            async for data in inner:
                GUARD.call(self._site, take, data)
                yield data
        except GeneratorExit:
            raise
        except BaseException as error:
            GUARD.call(self._site, self._over, "error", error)
            raise
        finally:
            aclose = getattr(inner, "aclose", None)
            if aclose is not None:
                await aclose()
        GUARD.call(self._site, self._over, "complete")

    async def aclose(self) -> None:
        GUARD.call(self._site, self._over, "client_closed")
        await self._inner.aclose()


@lru_cache(maxsize=64)
def _tap_class(stream: type) -> Callable[..., Any] | None:
    """A tap that passes the HTTP library's own type check: httpx insists on its abstract stream class."""
    for base in stream.__mro__:
        if base.__name__ == "SyncByteStream":
            return type("_SyncTap", (_SyncTap, base), {})
        if base.__name__ == "AsyncByteStream":
            return type("_AsyncTap", (_AsyncTap, base), {})
    return None

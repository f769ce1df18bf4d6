"""Requests of bounded size from records of one signal.

Spans and logs are wrapped alike, down to the field numbers: a request holds resources (1), a resource
scopes (2), a scope records (2).  What a record looks like is the business of `encode_spans` and
`encode_logs`.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from neuronscope import compiled, native
from neuronscope._version import __version__
from neuronscope.signals.records import Attributes
from neuronscope_exporters.otlp.attributes import AttributeEncoder, UnencodableError
from neuronscope_exporters.otlp.wire import delimited, string, varint

MAX_RECORDS: Final = 512
# Collectors' gRPC servers refuse messages above 4 MiB.
MAX_BYTES: Final = 3_500 * 1024
# Building a request holds the GIL: a service's thread that wakes meanwhile waits for at most this many, a
# tenth of a millisecond.  To offer it costs ten microseconds.
SLICE: Final = 64 if compiled.MODULE is not None else 16
_ROOM: Final = 512  # for what stands around the records
_OVERHEAD: Final = 6  # of each
_MAX_NAMES: Final = 1024
_MAX_NAME_LENGTH: Final = 256
_MAX_UINT32: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Payload:
    """An encoded request and the number of items in it (spans, log records, or metric points)."""

    body: bytes
    count: int


class Record(Protocol):
    """What a request is made of: it names the library that it comes from."""

    @property
    def library(self) -> str:
        """Name of the instrumentation scope."""
        ...

    @property
    def library_version(self) -> str:
        """Its version, if it is not ours."""
        ...


R = TypeVar("R", bound=Record)


class RequestEncoder(ABC, Generic[R]):
    """Turns records into requests of bounded size.  Safe to use from several threads.

    Args:
        lost: ``lost(reason, n)`` is told of records that can't be encoded or are too large.
        max_bytes: size that a request of several records stays below.
        max_record_bytes: a record larger than this is not sent at all.
        pause: called between slices, so that other threads get the GIL; offers it by default.
    """

    def __init__(
        self,
        lost: Callable[[str, int], None],
        *,
        max_records: int = MAX_RECORDS,
        max_bytes: int = MAX_BYTES,
        max_record_bytes: int = MAX_BYTES,
        pause: Callable[[], None] | None = None,
    ) -> None:
        self._lost = lost
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._max_record_bytes = max_record_bytes
        self._pause = pause or native.Courtesy().offer
        self._attributes = AttributeEncoder()
        self._names: dict[str, bytes] = {}
        self._scopes: dict[tuple[str, str], bytes] = {}
        self._resource: tuple[Attributes, bytes] = ({}, b"\x0a\x00")

    @abstractmethod
    def body(self, record: R) -> bytes:
        """The body of the message that is one record.

        Raises:
            UnencodableError, OverflowError, TypeError, AttributeError, KeyError, struct.error: an id, a
                time or a name is none.
        """

    def run(self, records: list[R], start: int, stop: int, room: int) -> tuple[bytes, int, int]:
        """Records of one library from `start` on as members of their scope, several in one go.

        Args:
            room: what their size has to stay below.

        Returns:
            The bytes, how many records they are, and their size; the run ends before `stop` at a record of
            another library, and at one that has to be looked at alone.
        """
        return b"", 0, 0

    def encode(self, resource: Attributes, records: Iterable[R]) -> Iterator[Payload]:
        """The records, in order, in as few requests as the limits allow.

        A record that is too large for company goes alone; one that is too large or broken is counted as
        lost, and the others go.
        """
        head = self._encoded_resource(resource)
        waiting = list(records)
        request = _Request(head, self._scope)
        at = 0
        while at < len(waiting):
            if at and at % SLICE == 0:
                self._pause()
            stop = min(len(waiting), at - at % SLICE + SLICE, at + self._max_records - request.count)
            members, count, size = self.run(waiting, at, stop, self._max_bytes - request.size - _ROOM)
            if count:
                request.add(waiting[at], members, count, size)
                at += count
                continue
            encoded = self._alone(waiting[at])
            if encoded is not None:
                if request.count and not self._has_room(request, len(encoded)):
                    yield request.payload()
                    request = _Request(head, self._scope)
                request.add(waiting[at], b"\x12" + delimited(encoded), 1, len(encoded) + _OVERHEAD)
            at += 1
        if request.count:
            yield request.payload()

    def _has_room(self, request: _Request, size: int) -> bool:
        return request.count < self._max_records and request.size + size + _ROOM <= self._max_bytes

    def _alone(self, record: R) -> bytes | None:
        """The body of one record; None if it is lost, which has been counted."""
        try:
            encoded = self.body(record)
        except (UnencodableError, OverflowError, TypeError, AttributeError, KeyError, struct.error):
            # Its neighbours must not suffer.
            self._lost("unencodable", 1)
            return None
        if len(encoded) <= self._max_record_bytes:
            return encoded
        self._lost("too_large", 1)
        return None

    def name(self, text: str, tag: bytes) -> bytes:
        """The field that holds a record's name, remembered; a signal has one such field."""
        encoded = self._names.get(text)
        if encoded is None:
            encoded = tag + string(text)
            if len(self._names) < _MAX_NAMES and len(text) <= _MAX_NAME_LENGTH:
                self._names[text] = encoded
        return encoded

    def _encoded_resource(self, resource: Attributes) -> bytes:
        """The resource; a process has one, so the last one is kept."""
        known, encoded = self._resource
        if known is not resource:
            encoded = encode_resource(resource)
            self._resource = (resource, encoded)
        return encoded

    def _scope(self, key: tuple[str, str]) -> bytes:
        encoded = self._scopes.get(key)
        if encoded is None:
            encoded = encode_scope(*key)
            if len(self._scopes) < _MAX_NAMES:
                self._scopes[key] = encoded
        return encoded


class _Request:
    """A request in the making.

    Attributes:
        size: about how many bytes it has; `count`: of records.
    """

    __slots__ = ("_head", "_members", "_scope", "_scopes", "count", "library", "size", "version")

    def __init__(self, head: bytes, scope: Callable[[tuple[str, str]], bytes]) -> None:
        self._head = head
        self._scope = scope
        self._scopes: dict[tuple[str, str], list[bytes]] = {}
        self._members: list[bytes] = []
        self.library: str | None = None
        self.version: str | None = None
        self.size, self.count = len(head), 0

    def add(self, record: Record, members: bytes, count: int, size: int) -> None:
        """Add encoded records of this one's library."""
        if record.library is not self.library or record.library_version is not self.version:
            self.library, self.version = record.library, record.library_version
            key = self.library, self.version
            self._members = self._scopes.setdefault(key, [])
            self.size += len(self._scope(key))
        self._members.append(members)
        self.size += size
        self.count += count

    def payload(self) -> Payload:
        """The request as it is sent; put together in one copy, since it is large."""
        parts = [self._head]
        for key, members in self._scopes.items():
            scope = self._scope(key)
            parts += (b"\x12", varint(len(scope) + sum(map(len, members))), scope, *members)
        return Payload(b"".join([b"\x0a", varint(sum(map(len, parts))), *parts]), self.count)


def encode_resource(resource: Attributes) -> bytes:
    """The `resource` field (1) of `ResourceSpans` and its siblings."""
    attributes, unencodable = AttributeEncoder().encode(resource, b"\x0a")  # attributes = 1
    if unencodable:
        attributes += b"\x10" + counted(unencodable)  # dropped_attributes_count = 2
    return b"\x0a" + delimited(attributes)


def encode_scope(library: str, version: str = "") -> bytes:
    """The `scope` field (1) of `ScopeSpans` and its siblings; our own libraries have our version."""
    if not version and library.partition(".")[0] == "neuronscope":
        version = __version__
    body = b"\x0a" + string(library)  # name = 1
    if version:
        body += b"\x12" + string(version)  # version = 2
    return b"\x0a" + delimited(body)


def counted(number: int) -> bytes:
    """A count as OTLP's `uint32`."""
    return varint(min(number, _MAX_UINT32))

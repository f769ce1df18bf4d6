"""Records that several files of a recording have: one file is a copy, a merge or a cut of another.

A record is another's twin if both are of the same process (their resources are equal) and have the same ids
and times.  Ids alone do not tell: ranks that were given one seed make the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

import msgspec

from neuronscope.exceptions import NszError
from neuronscope_exporters.nsz import documents, layout
from neuronscope_exporters.nsz.chunks import ChunkPlace
from neuronscope_exporters.nsz.layout import ChunkClass, Topic
from neuronscope_exporters.nsz.messages import Message, Messages

_DIGEST_BYTES: Final = 16  # two of a billion records agree by chance in one of 10²⁰ recordings
_ABSENT: Final = msgspec.Raw(b"null")


class _Span(documents.Document):
    trace_id: str
    span_id: str
    start_time_unix_nano: str
    end_time_unix_nano: str
    resource: int = 0


class _Layer(documents.Document):
    model: str
    module: str
    step: int
    time_unix_nano: str
    role: str = "output"
    index: int = 0
    trace_id: str | None = None
    span_id: str | None = None
    resource: int = 0


class _Log(documents.Document):
    time_unix_nano: str
    severity_number: int = 0
    body: msgspec.Raw = _ABSENT
    attributes: msgspec.Raw = _ABSENT
    trace_id: str | None = None
    span_id: str | None = None
    event_name: str = ""
    resource: int = 0


class _Event(documents.Document):
    time_unix_nano: str
    name: str
    attributes: msgspec.Raw = _ABSENT
    resource: int = 0  # events have none: a merged file does not tell whose they are


_KINDS: Final[Mapping[str, type[_Span | _Layer | _Log | _Event]]] = {
    layout.TOPIC_NAMES[Topic.SPAN]: _Span,
    layout.TOPIC_NAMES[Topic.TENSOR_SUMMARY]: _Layer,
    layout.TOPIC_NAMES[Topic.TENSOR_REF]: _Layer,
    layout.TOPIC_NAMES[Topic.LOG]: _Log,
    layout.TOPIC_NAMES[Topic.AGENT]: _Event,
}


class File(Protocol):
    """What is looked at of a file."""

    @property
    def resources(self) -> Sequence[Mapping[str, object]]:
        """Of its records, by position."""
        ...

    @property
    def chunks(self) -> Sequence[ChunkPlace]:
        """Where its chunks are."""
        ...

    @property
    def messages(self) -> Messages:
        """What is in them."""
        ...


class _Stretch(NamedTuple):
    """The time that a file's records are of (both ends included), in unix ns."""

    first: int
    last: int
    number: int
    sources: frozenset[bytes]

    def meets(self, other: _Stretch | ChunkPlace) -> bool:
        first, last = (
            (other.first, other.last) if isinstance(other, _Stretch) else (other.first_time, other.last_time)
        )
        return self.first <= last and first <= self.last


class Twins:
    """Of one file: which of its records an earlier file of the recording has.

    Earlier files are read when the first record is asked for that may be a twin, and only as far as their
    times meet this file's.  Not thread-safe.
    """

    def __init__(self, file: File, own: _Stretch, earlier: Sequence[tuple[File, _Stretch]]) -> None:
        self._file, self._own, self._earlier = file, own, earlier
        self._sources = _sources(file)
        self._known: set[bytes] | None = None
        self._met: set[bytes] = set()

    @property
    def met(self) -> int:
        """How many different ones were passed over so far."""
        return len(self._met)

    def without(self, place: ChunkPlace, messages: Iterable[Message]) -> Iterator[Message]:
        """The messages of a chunk that no earlier file has."""
        if not any(stretch.meets(place) for _, stretch in self._earlier):
            yield from messages
            return
        if self._known is None:
            self._known = set(self._of_earlier())
        topics = self._file.messages.topics
        for channel, data in messages:
            mark = _mark(topics.get(channel), data, self._sources)
            if mark is not None and mark in self._known:
                self._met.add(mark)
            else:
                yield channel, data

    def _of_earlier(self) -> Iterator[bytes]:
        for file, _ in self._earlier:
            sources = _sources(file)
            for place in file.chunks:
                if place.chunk_class is ChunkClass.SMALL and self._own.meets(place):
                    for channel, data in file.messages.all_of(place, kept=False):
                        mark = _mark(file.messages.topics.get(channel), data, sources)
                        if mark is not None:
                            yield mark


def relate(files: Sequence[File]) -> None:
    """Let every file pass over the records that an earlier one of the sequence has."""
    earlier: dict[int, list[tuple[File, _Stretch]]] = {}
    stretches = [stretch for number, file in enumerate(files) if (stretch := _stretch(number, file))]
    open_: list[_Stretch] = []
    for stretch in sorted(stretches):
        open_ = [other for other in open_ if other.last >= stretch.first]
        for other in open_:
            if stretch.sources & other.sources:
                one, two = sorted((stretch, other), key=lambda each: each.number)
                earlier.setdefault(two.number, []).append((files[one.number], one))
        open_.append(stretch)
    own = {stretch.number: stretch for stretch in stretches}
    for number, found in earlier.items():
        files[number].messages.twins = Twins(files[number], own[number], found)


def _stretch(number: int, file: File) -> _Stretch | None:
    small = [place for place in file.chunks if place.chunk_class is ChunkClass.SMALL]
    if not small:
        return None
    first, last = min(place.first_time for place in small), max(place.last_time for place in small)
    return _Stretch(first, last, number, frozenset(_sources(file)))


def _sources(file: File) -> list[bytes]:
    """What stands for each of a file's resources."""
    encode = msgspec.json.Encoder(enc_hook=str, order="deterministic").encode
    return [blake2b(encode(dict(each)), digest_size=_DIGEST_BYTES).digest() for each in file.resources]


def _mark(topic: str | None, data: memoryview, sources: Sequence[bytes]) -> bytes | None:
    """What a record and its twins have in common; None for what is no record, or makes no sense."""
    kind = _KINDS.get(topic or "")
    if kind is None:
        return None
    try:
        head = documents.decode(kind, data)
    except NszError:
        return None
    source = b""
    if kind is not _Event and 0 <= head.resource < len(sources):
        source = sources[head.resource]
    head.resource = 0
    return blake2b(
        source + kind.__name__.encode() + msgspec.json.encode(head), digest_size=_DIGEST_BYTES
    ).digest()

"""The messages in a file's chunks of small records, and the topics of their channels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from neuronscope.exceptions import NszError, NszLimitError
from neuronscope_exporters.nsz import layout
from neuronscope_exporters.nsz.chunks import ChunkPlace
from neuronscope_exporters.nsz.damage import DamageLog, Limits
from neuronscope_exporters.nsz.source import Source
from neuronscope_exporters.nsz.unpacking import unpack

Message = tuple[int, memoryview]  # channel, data


class Filter(Protocol):
    """Passes over what another file of the same recording has."""

    @property
    def met(self) -> int:
        """How many different records were passed over so far."""
        ...

    def without(self, place: ChunkPlace, messages: Iterable[Message]) -> Iterator[Message]:
        """The rest of a chunk's messages."""
        ...


class Messages:
    """Unpacks chunks, and remembers what they declare.  Not thread-safe.

    Attributes:
        topics: by channel, as far as known.
        twins: passes over records that are read from another file; None where there is no such file.
    """

    def __init__(self, source: Source, limits: Limits, log: DamageLog, topics: Mapping[int, str]) -> None:
        self._source, self._limits, self._log = source, limits, log
        self.topics: dict[int, str] = {**layout.TOPIC_NAMES, **topics}
        self._spent: dict[int, int] = {}  # by offset of the chunk: what it counts for
        self._bytes = 0
        self.twins: Filter | None = None

    def of(self, place: ChunkPlace, *, kept: bool = True) -> Iterable[Message]:
        """(channel, data) of a chunk's messages that are to be read from this file.

        As `all_of`.
        """
        found = self.all_of(place, kept=kept)
        return found if self.twins is None else self.twins.without(place, found)

    def all_of(self, place: ChunkPlace, *, kept: bool = True) -> Sequence[Message]:
        """(channel, data) of a chunk's messages; nothing, and damage, if it is not sound.

        Args:
            kept: what is made of them stays in memory, so it counts against the limit.

        Raises:
            NszLimitError: the file's records are more than the limits allow.
        """
        try:
            if place.length > self._limits.small_chunk_bytes + layout.CHUNK_HEADER_MAX:
                raise NszLimitError(f"chunk of {place.length} bytes")
            records = unpack(self._source.read(place.offset, place.length), self._limits)
            messages, channels = layout.messages(records)
            declared = [layout.parse_channel(body) for body in channels]
        except NszError as error:
            self._log.stretch(place.offset, place.length, str(error))
            return ()
        # Topics are always kept.
        self._spend(place, len(records) if kept else sum(map(len, channels)))
        self.topics.update(declared)
        return messages

    def _spend(self, place: ChunkPlace, size: int) -> None:
        more = size - self._spent.get(place.offset, 0)
        if more <= 0:
            return
        self._spent[place.offset] = size
        self._bytes += more
        if self._bytes > self._limits.inflated_bytes:
            raise NszLimitError(
                f"{self._source.path} unpacks to more than {self._limits.inflated_bytes} bytes of records: "
                "read a part of it (`neuronscope cut` makes one), or pass Limits(inflated_bytes=…)"
            )

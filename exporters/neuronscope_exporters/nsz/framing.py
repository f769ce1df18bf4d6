"""The bytes around a tensor in a file, in one go: this runs between two large writes, with cold caches."""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple

from neuronscope_exporters.nsz import layout
from neuronscope_exporters.nsz.layout import ChunkClass, Op

_CHUNK: Final = int(Op.CHUNK)  # plain numbers are packed faster
_GUARD: Final = int(Op.GUARD)
_TENSOR: Final = int(ChunkClass.TENSOR)
_PLAIN_SIZE: Final = layout.PLAIN_CHUNK.size
_AFTER_RECORD: Final = _PLAIN_SIZE - layout.RECORD.size


class Place(NamedTuple):
    """Where in a file a chunk goes.

    Attributes:
        file_id: the file's id.
        number: of the chunk in the file.
        previous: offset of the chunk before it.
        position: where its guard begins.
    """

    file_id: bytes
    number: int
    previous: int
    position: int


class TensorMessage(NamedTuple):
    """The one message of a tensor's chunk.

    Attributes:
        definition: its Channel record where no chunk has had it yet, else empty.
        head: the safetensors document before its data.
        data: the values; aligned in the file.
    """

    channel: int
    sequence: int
    when: int
    definition: bytes
    head: bytes
    data: memoryview

    def parts(self) -> tuple[bytes, bytes, bytes, memoryview]:
        """The records of its chunk."""
        length = len(self.head) + len(self.data)
        header = layout.message_header(self.channel, self.sequence, self.when, length)
        return self.definition, header, self.head, self.data


class Frame(NamedTuple):
    """A tensor's chunk but for its values.

    Attributes:
        front: what comes before the values.
        after: what comes behind them.
        offset: of the Chunk record in the file.
        size: bytes of its records.
        crc: of its records.
    """

    front: bytes
    after: bytes
    offset: int
    size: int
    crc: int


def frame_tensor(place: Place, message: TensorMessage) -> Frame:
    """Guard, Chunk without compression, and Message Index around the values of one message."""
    file_id, number, previous, position = place
    channel, sequence, when, definition, head, data = message
    length = len(head) + len(data)
    size = len(definition) + layout.MESSAGE.size + length
    start = position + layout.GUARD_SIZE
    padding = -(start + _PLAIN_SIZE + size - len(data)) % layout.ALIGNMENT
    fields = layout.GUARD.pack(layout.GUARD_MARK, file_id, number, previous, _TENSOR)
    guard = layout.RECORD.pack(_GUARD, layout.GUARD_FIXED + padding) + fields
    fields_crc = zlib.crc32(fields)
    after = layout.message_index(channel, [when, len(definition)])
    body = definition + layout.message_header(channel, sequence, when, length) + head
    # Everything else is done by now: what follows the checksum finds its caches full of the tensor.
    while not (crc := layout.crc32(data, layout.crc32(body, 0))):  # zero means "none" in MCAP
        sequence += 1
        body = definition + layout.message_header(channel, sequence, when, length) + head
    chunk = layout.PLAIN_CHUNK.pack(_CHUNK, _AFTER_RECORD + size, when, when, size, crc, 0, size)
    checksum = zlib.crc32(chunk, fields_crc).to_bytes(4, "little")
    return Frame(b"".join((guard, checksum, bytes(padding), chunk, body)), after, start + padding, size, crc)

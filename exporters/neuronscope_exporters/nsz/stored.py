"""Tensors in a file: read, checked and put together when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from neuronscope.exceptions import NszError, NszLimitError
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary
from neuronscope_exporters.nsz import documents, layout, tensors
from neuronscope_exporters.nsz.damage import Limits
from neuronscope_exporters.nsz.layout import ChunkHeader, Op
from neuronscope_exporters.nsz.source import Source
from neuronscope_exporters.nsz.unpacking import unpack

if TYPE_CHECKING:
    from numpy.typing import NDArray

_AROUND_VALUES: Final = tensors.MAX_HEADER + (1 << 16)


class StoredTensor(TensorSnapshot):
    """A tensor in a file: `numpy()` reads it, checks it, and returns a read-only view of the file.

    bfloat16 and float8 come as ml_dtypes' types if that package is installed, else as raw integers.
    A tensor stored in several parts, or compressed, is put together in memory.

    Raises:
        NszError: from `numpy()` and `summarize()`: the tensor is damaged.
    """

    __slots__ = ("_limits", "_place", "_read_array", "_source")

    def __init__(self, source: Source, limits: Limits, place: documents.TensorDocument) -> None:
        count = tensors.shape_size(place.shape)
        if count * tensors.element_size(place.dtype) != place.nbytes:
            raise NszError("reference to a tensor does not add up")
        super().__init__(tuple(place.shape), place.dtype)
        self._source = source
        self._limits = limits
        self._place = place
        self._read_array: NDArray[Any] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the values, known without reading them."""
        return self._place.nbytes

    def numpy(self) -> NDArray[Any]:
        """The values, read-only; without a copy when the tensor has one part."""
        if self._read_array is None:
            self._read_array = self._read()
        return self._read_array

    def summarize(self) -> TensorSummary:
        """The statistics of the values."""
        return tensors.summarize(self.numpy(), self.dtype)

    def _read(self) -> NDArray[Any]:
        import numpy as np

        dtype = tensors.numpy_dtype(self.dtype)
        parts = [self._part(number) for number in range(len(self._place.parts))]
        if sum(map(len, parts)) != self.nbytes:
            raise NszError("parts of a tensor do not add up")
        if len(parts) == 1:
            return np.ndarray(self.shape, dtype, parts[0])
        values: NDArray[Any] = np.concatenate([np.frombuffer(part, dtype=np.uint8) for part in parts])
        values.flags.writeable = False
        return values.view(dtype).reshape(self.shape)

    def _part(self, number: int) -> memoryview:
        """The bytes of a part, its checksum verified."""
        part = self._place.parts[number]
        if not 0 <= part.length <= self._limits.tensor_chunk_bytes:
            raise NszLimitError(f"tensor chunk of {part.length} bytes")
        record = self._source.view(part.offset, part.length)
        body = _plain_records(record, part)
        if body is None:
            body = self._unpacked(record, part)
        messages, _ = layout.messages(body)
        if len(messages) != 1:
            raise NszError("a tensor's chunk must hold one message")
        header, values = tensors.parse_document(messages[0][1])
        alone = len(self._place.parts) == 1
        stored = header.metadata.get("nsz.dtype", header.tensor.dtype)
        shape = header.tensor.shape[:-1] if "nsz.dtype" in header.metadata else header.tensor.shape
        if stored != self.dtype or (alone and shape != self._place.shape):
            raise NszError("a tensor's chunk holds another tensor")
        if not self._place.planes:
            return values
        return tensors.join_planes(values, tensors.element_size(self.dtype))

    def _unpacked(self, record: memoryview, part: documents.PartDocument) -> memoryview:
        """The records of a compressed chunk."""
        chunk = ChunkHeader.parse(record[: layout.CHUNK_HEADER_MAX])
        if chunk.total_size != part.length or chunk.crc != part.crc:
            raise NszError("a tensor's chunk is not the one that was written")
        # The reference says how many bytes the tensor has; definitions and headers come on top.
        most = min(self.nbytes + _AROUND_VALUES, self._limits.tensor_chunk_bytes)
        return memoryview(unpack(record, self._limits, most))


def _plain_records(record: memoryview, part: documents.PartDocument) -> memoryview | None:
    """The records of a chunk without compression, their checksum verified; None if it is compressed."""
    start = layout.PLAIN_CHUNK.size
    if len(record) < start:
        return None
    opcode, length, _, _, size, crc, name_size, stored = layout.PLAIN_CHUNK.unpack_from(record)
    if name_size:
        return None
    body = record[start:]
    found = (opcode, length, size, stored, crc)
    if found != (Op.CHUNK, len(record) - layout.RECORD.size, len(body), len(body), part.crc):
        raise NszError("a tensor's chunk is not the one that was written")
    if not crc or layout.crc32(body, 0) != crc:
        raise NszError("a tensor's values are damaged: wrong checksum")
    return body

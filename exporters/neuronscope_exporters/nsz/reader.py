"""Reads one `.nsz` file: finished, still being written, left by a killed process, or damaged.

What can be read is read; what cannot is told by `NszFile.damage`.  Listing spans and layers reads no
tensor bytes; tensors are views of the file, checked when they are first asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

from neuronscope.exceptions import NszError, NszLimitError
from neuronscope.signals.records import AttributeValue, LayerRecord, SpanEvent, SpanRecord
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary
from neuronscope_exporters.nsz import codec, documents, layout, tensors
from neuronscope_exporters.nsz.chunks import (
    ChunkPlace,
    Damage,
    DamageLog,
    Directory,
    Limits,
    locate,
    unpack,
)
from neuronscope_exporters.nsz.layout import ChunkClass, ChunkHeader, Guard, Op, Topic
from neuronscope_exporters.nsz.source import Source

if TYPE_CHECKING:
    from numpy.typing import NDArray

Resource = dict[str, AttributeValue]
_T = TypeVar("_T")
_HEAD: Final = 4096
_KNOWN_SIGNATURES: Final = {
    b"PK\x03\x04": "a ZIP archive",
    b"\x1f\x8b": "gzip data",
    b"\x28\xb5\x2f\xfd": "zstd data",
    b"SQLite format 3\x00": "an SQLite database",
    b"\x89HDF": "an HDF5 file",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"PFS0": "a Nintendo Switch dump, which uses the same extension",
    b"{": "JSON",
}


class NszFile:
    """One `.nsz` file.  Records are read on first use and kept, in order of time.

    Not thread-safe.

    Attributes:
        path: the file.
        finished: False when it has no end yet: still being written, or its process was killed.

    Raises:
        FileNotFoundError: there is no such file.
        NszError: it is empty, something else, or of a version that this reader does not know.
        NszLimitError: it asks for more than `limits` allow.
    """

    def __init__(self, path: str | os.PathLike[str], limits: Limits | None = None) -> None:
        self._source = Source(path)
        self._limits = limits or Limits()
        self._log = DamageLog(self._limits)
        self._unpacked: set[int] = set()
        self._inflated_bytes = 0
        self.path = self._source.path
        self._check_identity()
        self._directory: Directory = locate(self._source, self._limits, self._log)
        self.finished = self._directory.finished
        self._topics = {**layout.TOPIC_NAMES, **self._directory.topics}
        self.manifest = self._read_manifest()

    @property
    def resources(self) -> list[Resource]:
        """OTel resources that the file's records belong to; at least one."""
        return self._resources

    @property
    def resource(self) -> Resource:
        """The first resource: the process's that wrote the file."""
        return self._resources[0]

    @property
    def spans(self) -> list[SpanRecord]:
        """All spans, by start."""
        return [span for span, _ in self.spans_with_resource]

    @property
    def layers(self) -> list[LayerRecord]:
        """All layer records, by time; full tensors are read when asked for."""
        return [layer for layer, _ in self.layers_with_resource]

    @cached_property
    def spans_with_resource(self) -> list[tuple[SpanRecord, Resource]]:
        """Spans, each with its resource."""
        found = self._decode(codec.decode_span, Topic.SPAN)
        found.sort(key=lambda item: item[0].start_unix_ns)
        return [(span, self._resource(position)) for span, position in found]

    @cached_property
    def layers_with_resource(self) -> list[tuple[LayerRecord, Resource]]:
        """Layer records, each with its resource."""
        found = self._decode(self._layer, Topic.TENSOR_SUMMARY, Topic.TENSOR_REF)
        found.sort(key=lambda item: item[0].time_unix_ns)
        return [(layer, self._resource(position)) for layer, position in found]

    @cached_property
    def events(self) -> list[SpanEvent]:
        """What the agent told about itself (losses, governor, alerts), by time."""
        found = self._decode(codec.decode_event, Topic.AGENT)
        found.sort(key=lambda event: event.time_unix_ns)
        return found

    @property
    def damage(self) -> Damage:
        """What could not be read.  Reads all records but the tensors, whose checksums are their own."""
        _ = self.spans_with_resource, self.layers_with_resource, self.events
        return self._log.report()

    @property
    def bytes_read(self) -> int:
        """Bytes read from the file so far; tensors are mapped and not counted."""
        return self._source.bytes_read

    def close(self) -> None:
        """Release the file.  Arrays that came from it stay valid; nothing more can be read."""
        self._source.close()

    def __repr__(self) -> str:
        return f"NszFile({str(self.path)!r})"

    # --- opening --------------------------------------------------------------------------------

    def _check_identity(self) -> None:
        """Refuse what is not `.nsz`; go on where only its first bytes are damaged."""
        if self._source.size == 0:
            raise NszError(f"{self.path} is empty")
        head = self._source.read(0, _HEAD)
        profile = _profile(head)
        if profile == layout.PROFILE:
            return
        if _has_guard(head):
            self._log.stretch(0, len(layout.MAGIC), "the file's header is damaged")
        elif profile is not None:
            raise NszError(
                f"{self.path} is an MCAP file with profile {profile[:40]!r}, not {layout.PROFILE!r}"
            )
        elif layout.MAGIC.startswith(head[: len(layout.MAGIC)]):
            raise NszError(f"{self.path} is cut off within its first record")
        else:
            raise NszError(f"{self.path} is not an .nsz file: it {_looks_like(head)}")

    def _read_manifest(self) -> documents.ManifestDocument | None:
        """The manifest of the first sound checkpoint; None when none survived."""
        self._resources: list[Resource] = [{}]
        for place in self._directory.chunks:
            if place.chunk_class is not ChunkClass.CHECKPOINT:
                continue
            for channel, data in self._messages(place):
                if self._topics.get(channel) != layout.TOPIC_NAMES[Topic.MANIFEST]:
                    continue
                try:
                    manifest = documents.decode(documents.ManifestDocument, data)
                    resources = [codec.resource_attributes(item) for item in manifest.resources]
                except NszError as error:
                    self._log.record(str(error))
                    continue
                self._check_version(manifest)
                self._resources = resources or self._resources
                return manifest
        return None

    def _check_version(self, manifest: documents.ManifestDocument) -> None:
        major = manifest.version.partition(".")[0]
        if major != layout.MAJOR:
            raise NszError(
                f"{self.path} has format version {manifest.version[:20]}; this reader knows "
                f"{layout.MAJOR}.x. Install a newer neuronscope."
            )
        if manifest.features_required:
            names = ", ".join(manifest.features_required)[:200]
            raise NszError(f"{self.path} needs features that this reader does not know: {names}")

    # --- records --------------------------------------------------------------------------------

    def _decode(self, decode: Callable[[memoryview], _T], *topics: Topic) -> list[_T]:
        """All sound records of the topics."""
        found: list[_T] = []
        names = {layout.TOPIC_NAMES[topic] for topic in topics}
        for place in self._directory.chunks:
            if place.chunk_class is not ChunkClass.SMALL:
                continue
            for channel, data in self._messages(place):
                if self._topics.get(channel) not in names:
                    continue
                try:
                    found.append(decode(data))
                except NszError as error:
                    self._log.record(str(error))
        return found

    def _messages(self, place: ChunkPlace) -> Iterator[tuple[int, memoryview]]:
        """(channel, data) of a chunk's messages; nothing, and damage, if it is not sound."""
        try:
            if place.length > self._limits.small_chunk_bytes + layout.CHUNK_HEADER_MAX:
                raise NszLimitError(f"chunk of {place.length} bytes")
            records = unpack(self._source.read(place.offset, place.length), self._limits)
            parsed = list(layout.records(records))
            messages = [layout.parse_message(body) for opcode, body, _ in parsed if opcode == Op.MESSAGE]
            declared = [layout.parse_channel(body) for opcode, body, _ in parsed if opcode == Op.CHANNEL]
        except NszError as error:
            self._log.stretch(place.offset, place.length, str(error))
            return
        self._spend(place, len(records))
        self._topics.update(declared)
        yield from messages

    def _spend(self, place: ChunkPlace, size: int) -> None:
        if place.offset in self._unpacked:
            return
        self._unpacked.add(place.offset)
        self._inflated_bytes += size
        if self._inflated_bytes > self._limits.inflated_bytes:
            raise NszLimitError(
                f"{self.path} unpacks to more than {self._limits.inflated_bytes} bytes of records; "
                "pass Limits(inflated_bytes=…) if you trust it"
            )

    def _resource(self, position: int) -> Resource:
        return self._resources[position] if 0 <= position < len(self._resources) else {}

    def _layer(self, data: memoryview) -> tuple[LayerRecord, int]:
        document = documents.decode(documents.LayerDocument, data)
        tensor = None
        if document.tensor is not None:
            tensor = StoredTensor(self._source, self._limits, document.tensor)
        return codec.layer_record(document, tensor), document.resource


class StoredTensor(TensorSnapshot):
    """A tensor in a file: `numpy()` reads it, checks it, and returns a read-only view of the file.

    bfloat16 and float8 come as ml_dtypes' types if that package is installed, else as raw integers.
    A tensor stored in several parts is put together in memory.

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
            values: NDArray[Any] = np.frombuffer(parts[0], dtype=np.uint8)
        else:
            values = np.concatenate([np.frombuffer(part, dtype=np.uint8) for part in parts])
            values.flags.writeable = False
        return values.view(dtype).reshape(self.shape)

    def _part(self, number: int) -> memoryview:
        """The bytes of a part, its checksum verified."""
        part = self._place.parts[number]
        if not 0 <= part.length <= self._limits.tensor_chunk_bytes:
            raise NszLimitError(f"tensor chunk of {part.length} bytes")
        record = self._source.view(part.offset, part.length)
        chunk = ChunkHeader.parse(record[: layout.CHUNK_HEADER_MAX])
        body = record[chunk.size :]
        if chunk.total_size != part.length or chunk.compression or chunk.crc != part.crc:
            raise NszError("a tensor's chunk is not the one that was written")
        if not part.crc or layout.crc32(body, 0) != part.crc:
            raise NszError("a tensor's values are damaged: wrong checksum")
        messages = [data for opcode, data, _ in layout.records(body) if opcode == Op.MESSAGE]
        if len(messages) != 1:
            raise NszError("a tensor's chunk must hold one message")
        header, values = tensors.parse_document(layout.parse_message(messages[0])[1])
        alone = len(self._place.parts) == 1
        stored = header.metadata.get("nsz.dtype", header.tensor.dtype)
        shape = header.tensor.shape[:-1] if "nsz.dtype" in header.metadata else header.tensor.shape
        if stored != self.dtype or (alone and shape != self._place.shape):
            raise NszError("a tensor's chunk holds another tensor")
        return values


def _profile(head: bytes) -> str | None:
    """The profile of an MCAP header, or None if there is none."""
    start = len(layout.MAGIC) + layout.RECORD.size
    if not head.startswith(layout.MAGIC) or len(head) < start or head[len(layout.MAGIC)] != Op.HEADER:
        return None
    try:
        return layout.read_string(head, start)[0]
    except NszError:
        return None


def _has_guard(head: bytes) -> bool:
    """True when a sound guard is near the start: it is `.nsz` whatever its first bytes say."""
    found = head.find(layout.GUARD_MARK)
    while found >= layout.RECORD.size:
        try:
            Guard.parse(head[found - layout.RECORD.size :])
        except NszError:
            found = head.find(layout.GUARD_MARK, found + 1)
            continue
        return True
    return False


def _looks_like(head: bytes) -> str:
    for signature, name in _KNOWN_SIGNATURES.items():
        if head.startswith(signature):
            return f"looks like {name}"
    if layout.MAGIC in head:
        return "has something before its MCAP magic"
    return f"begins with {head[:8]!r}"

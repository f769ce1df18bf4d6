"""The parts that a writer puts together: gathered messages, definitions, manifest, checksums."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from neuronscope._version import __version__
from neuronscope.signals.records import Attributes, LayerRecord
from neuronscope_exporters.nsz import codec, documents, layout, tensors
from neuronscope_exporters.nsz.layout import Buffer, Op, Topic

LIBRARY: Final = f"neuronscope/{__version__}"
DOCUMENTS: Final[Mapping[Topic, type[documents.Document]]] = {
    Topic.MANIFEST: documents.ManifestDocument,
    Topic.SPAN: documents.SpanDocument,
    Topic.TENSOR_SUMMARY: documents.LayerDocument,
    Topic.TENSOR_REF: documents.LayerDocument,
    Topic.AGENT: documents.EventDocument,
    Topic.INDEX: documents.IndexDocument,
    Topic.LOG: documents.LogDocument,
}


class OpenChunk:
    """Messages gathered for one chunk, with their index."""

    __slots__ = ("body", "index", "last")

    def __init__(self, definitions: bytes = b"") -> None:
        self.body = bytearray(definitions)
        self.index: dict[int, list[int]] = {}
        self.last = 0  # offset of the last message

    def add(self, channel: int, sequence: int, when: int, data: Buffer) -> None:
        """Append a message."""
        body = self.body
        offset = self.last = len(body)
        body += layout.message_header(channel, sequence, when, len(data))
        body += data
        entries = self.index.get(channel)
        if entries is None:
            self.index[channel] = [when, offset]
        else:
            entries += (when, offset)

    def counts(self) -> dict[int, int]:
        """Messages by channel."""
        return {channel: len(entries) // 2 for channel, entries in self.index.items()}


@cache
def fixed_definitions() -> tuple[tuple[int, bytes], ...]:
    """Schemas and channels of the topics that every file has."""
    found: list[tuple[int, bytes]] = []
    for topic, document in DOCUMENTS.items():
        name = layout.TOPIC_NAMES[topic]
        found.append((Op.SCHEMA, layout.schema(topic, name, "jsonschema", documents.json_schema(document))))
        found.append((Op.CHANNEL, layout.channel(topic, topic, name, "json")))
    return tuple(found)


def new_manifest(
    file_id: bytes, resources: Sequence[Attributes], segment: int = 0, previous_segment: str | None = None
) -> documents.ManifestDocument:
    """What a new file of this process says about itself."""
    now = time.time_ns()
    return documents.ManifestDocument(
        version=layout.VERSION,
        file_id=file_id.hex(),
        created_unix_nano=str(now),
        library=LIBRARY,
        pid=os.getpid(),
        resources=[codec.resource_document(attributes) for attributes in resources],
        clock=documents.ClockDocument(str(now), str(time.monotonic_ns())),
        segment=segment,
        previous_segment=previous_segment,
        features_optional=["guard", "checkpoint", "planes"],
    )


def tensor_metadata(layer: LayerRecord, payload: tensors.Payload, part: int, parts: int) -> dict[str, str]:
    """What an extracted document says about itself."""
    metadata = {
        "model": layer.model,
        "module": layer.layer_id,
        "role": layer.role,
        "index": str(layer.index),
        "step": str(layer.step),
        "time_unix_nano": str(layer.time_unix_ns),
    }
    if layer.span_id is not None:
        metadata["span_id"] = f"{layer.span_id:016x}"
    if parts > 1:
        metadata["part"] = f"{part}/{parts}"
        metadata["shape"] = ",".join(map(str, payload.shape))
    return metadata


def nonzero_crc(body: bytearray, sequence_at: int) -> int:
    """CRC-32 of a chunk's records.  Zero means "none" in MCAP: then a sequence number is raised."""
    while not (crc := layout.crc32(body, 0)):
        sequence: int = struct.unpack_from("<I", body, sequence_at)[0]
        struct.pack_into("<I", body, sequence_at, (sequence + 1) & 0xFFFFFFFF)
    return crc

"""What was recorded: the same object from a live scope and from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import Any

from neuronscope.exporters import registry
from neuronscope.signals.records import Attributes, LayerRecord, SpanRecord
from neuronscope.signals.views import LLMSpan, RetrievalSpan, llm_spans, retrieval_spans


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The records themselves.

    Attributes:
        spans: all spans, in order of their start.
        layer_snapshots: all layer records, in the order they were taken.
    """

    spans: Sequence[SpanRecord]
    layer_snapshots: Sequence[LayerRecord]


@dataclass(frozen=True)
class Artifact:
    """A recording.

    Attributes:
        telemetry: spans and layer records.
        resources: OTel resource attributes of the processes that recorded it.
        damage: what a file could not give back, in words; empty for a sound one.
    """

    telemetry: Telemetry
    resources: Sequence[Attributes] = ()
    damage: Sequence[str] = ()
    path: str | None = None
    events: Sequence[Mapping[str, Any]] = field(default=())

    @cached_property
    def llm_spans(self) -> list[LLMSpan]:
        """Calls to language and embedding models, in order of their start."""
        return llm_spans(self.telemetry.spans)

    @cached_property
    def retrieval_spans(self) -> list[RetrievalSpan]:
        """Similarity searches, in order of their start."""
        return retrieval_spans(self.telemetry.spans)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the recording to a `.nsz` file, atomically."""
        resource = self.resources[0] if self.resources else {}
        registry.nsz("write")(path, self.telemetry.spans, self.telemetry.layer_snapshots, resource)


def load(path: str | PathLike[str]) -> Artifact:
    """Read a `.nsz` file, or a directory of them as one recording.

    Unfinished and damaged files are read as far as they go; `Artifact.damage` tells what is missing.

    Raises:
        FileNotFoundError: there is no such file or directory.
        NszError: it is not a `.nsz` file.
    """
    file = registry.nsz("read")(path)
    spans = sorted(file.spans, key=lambda span: span.start_unix_ns)
    return Artifact(
        Telemetry(spans, list(file.layers)),
        tuple(file.resources),
        tuple(file.damage),
        str(path),
        tuple(file.events),
    )

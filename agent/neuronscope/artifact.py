"""What was recorded: the same object from a live scope and from a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import Any

from neuronscope.exporters import registry
from neuronscope.signals.records import Attributes, LayerRecord, LogRecord, SpanEvent, SpanRecord
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
        services: name of the service that made a span, by (trace id, span id), where known.
        logs: log records: events of calls with their content, and what the services logged, by time.
        events: what the agents told about themselves: changes of fidelity, coverage, measured overhead.
        damage: what a file could not give back, in words; empty for a sound one.
    """

    telemetry: Telemetry
    resources: Sequence[Attributes] = ()
    services: Mapping[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    damage: Sequence[str] = ()
    path: str | None = None
    events: Sequence[SpanEvent] = ()
    logs: Sequence[LogRecord] = ()

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
        resource: Attributes = self.resources[0] if self.resources else {}
        telemetry = self.telemetry
        registry.nsz("write")(
            path, telemetry.spans, telemetry.layer_snapshots, resource, self.events, self.logs
        )


def load(path: str | PathLike[str] | Iterable[str | PathLike[str]]) -> Artifact:
    """Read a `.nsz` file, a directory of them, or several of both, as one recording.

    A directory may hold a process's segments, or a directory for each rank.

    Unfinished and damaged files are read as far as they go; `Artifact.damage` tells what is missing.

    Raises:
        FileNotFoundError: there is no such file or directory.
        NszError: it is not a `.nsz` file.
    """
    file = registry.nsz("read")(path)
    spans = sorted(file.spans, key=lambda span: span.start_unix_ns)
    services = {
        (span.trace_id, span.span_id): str(file.resource_of(span).get("service.name", "")) for span in spans
    }
    return Artifact(
        telemetry=Telemetry(spans, list(file.layers)),
        resources=tuple(file.resources),
        services=services,
        damage=tuple(in_words(file.damage)),
        path=str(path) if isinstance(path, str | PathLike) else None,
        events=tuple(file.events),
        logs=tuple(file.logs),
    )


def in_words(damage: Any) -> Iterator[str]:
    """What a file could not give back, a line for each cause."""
    yield from damage.reasons
    if damage.lost_chunks:
        yield f"{damage.lost_chunks} chunks are missing"
    for name, reason in damage.files:
        yield reason if reason.startswith(name) else f"{name}: {reason}"

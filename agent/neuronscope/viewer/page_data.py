"""A recording as the data of the HTML page: compact, bounded, every text fit to be shown.

::

    services, names     texts that spans refer to by number
    keys                [key, heading, name, meaning] of each attribute
    shapes              lists of keys: spans of a kind have the same attributes in the same order
    spans               rows of `SPAN_FIELDS`, trace after trace, each trace depth first
    traces              [id, first span, spans, start in unix µs]
    grids               layer records (see `neuronscope.viewer.grids`), each with `span` and `trace`
    agent               what the agent tells about itself
    notes               what the page leaves out

`html/data.js` reads it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from opentelemetry.trace import SpanKind, StatusCode

from neuronscope._version import __version__
from neuronscope.artifact import Artifact
from neuronscope.signals import names
from neuronscope.signals.records import LayerRecord, LogRecord, SpanEvent, SpanRecord
from neuronscope.viewer import grids
from neuronscope.viewer.document import plain
from neuronscope.viewer.safe import number, visible
from neuronscope.viewer.terminal import facts
from neuronscope.viewer.words import GROUPS, words

SPAN_FIELDS: Final[tuple[str, ...]] = (
    "parent",  # number of the parent span, or -1
    "depth",
    "name",
    "kind",
    "error",
    "service",
    "library",
    "start_us",  # since the start of the trace
    "duration_us",
    "id",
    "facts",
    "shape",
    "values",
    "extra",  # events, links, status message; null when there are none
)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a page may hold; what is beyond is left out, and the page says so.

    Attributes:
        spans: the newest traces are kept.
        layer_records: those of the newest traces are kept.
        text: characters of one text.
        all_text: characters of all attributes; after that every text is cut to `short_text`.
        items: elements of one list.
        events: events and log records of one span, and of the agent.
    """

    spans: int = 50_000
    layer_records: int = 500_000
    text: int = 20_000
    all_text: int = 50_000_000
    short_text: int = 200
    items: int = 1_000
    events: int = 128


def page_data(artifact: Artifact, title: str, limits: Limits | None = None) -> dict[str, Any]:
    """Everything that the page shows of an artifact, as JSON-able data."""
    return _Packer(limits or Limits()).pack(artifact, title)


class _Packer:
    """Puts one page's data together, and keeps count of what it leaves out."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._names: dict[str, int] = {}
        self._services: dict[str, int] = {"": 0}
        self._keys: dict[str, int] = {}
        self._shapes: dict[tuple[int, ...], int] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._text_left = limits.all_text
        self._shortened = 0
        self._logs: dict[tuple[int, int], list[SpanEvent]] = defaultdict(list)

    def pack(self, artifact: Artifact, title: str) -> dict[str, Any]:
        traces = _by_trace(artifact.telemetry.spans)
        kept = self._newest(traces)
        for log in artifact.logs:
            self._logs[log.trace_id, log.span_id].append(_as_event(log))
        rows: list[list[Any]] = []
        heads: list[list[Any]] = []
        for trace_id, spans in kept:
            start = min(span.start_unix_ns for span in spans)
            heads.append([f"{trace_id:032x}", len(rows), len(spans), start / 1e3])
            rows.extend(self._trace(spans, start, artifact.services, len(rows)))
        packed, missing = self._grids(artifact.telemetry.layer_snapshots, dict(kept))
        agent = self._agent(artifact)
        logs = sum(map(len, self._logs.values()))
        return {
            "title": self._text(title),
            "version": __version__,
            "services": list(map(self._text, self._services)),
            "names": list(map(self._text, self._names)),
            "groups": GROUPS,
            "keys": [[self._text(key), *map(self._text, words(key))] for key in self._keys],
            "shapes": list(self._shapes),
            "spans": rows,
            "traces": heads,
            "grids": packed,
            "agent": agent,
            "notes": list(self._notes(len(artifact.telemetry.spans) - len(rows), missing, logs)),
        }

    def _newest(self, traces: Sequence[tuple[int, list[SpanRecord]]]) -> list[tuple[int, list[SpanRecord]]]:
        """The newest traces that fit, oldest first; of a single one that does not, its beginning."""
        kept: list[tuple[int, list[SpanRecord]]] = []
        left = self._limits.spans
        for trace_id, spans in reversed(traces):
            if len(spans) > left:
                if not kept:
                    kept.append((trace_id, spans[:left]))
                break
            left -= len(spans)
            kept.append((trace_id, spans))
        return kept[::-1]

    # --- spans ----------------------------------------------------------------------------------

    def _trace(
        self, spans: Sequence[SpanRecord], start: int, services: Mapping[tuple[int, int], str], first: int
    ) -> Iterator[list[Any]]:
        places: dict[int, int] = {}
        for offset, (position, parent, depth) in enumerate(_depth_first(spans)):
            span = spans[position]
            places[position] = first + offset
            self._numbers.setdefault((span.trace_id, span.span_id), first + offset)
            service = services.get((span.trace_id, span.span_id), "")
            yield [
                places.get(parent, -1),
                depth,
                _number_of(span.name, self._names),
                _kind(span),
                int(span.status is StatusCode.ERROR or names.ERROR_TYPE in span.attributes),
                _number_of(service, self._services),
                _number_of(f"{span.library} {span.library_version}".strip(), self._names),
                (span.start_unix_ns - start) / 1e3,
                (span.end_unix_ns - span.start_unix_ns) / 1e3,
                f"{span.span_id:016x}",
                [self._text(fact, self._limits.short_text) for fact in facts(span)],
                *self._attributes(span.attributes),
                self._extra(span, start),
            ]

    def _attributes(self, attributes: Mapping[str, Any]) -> tuple[int, list[Any]]:
        shape = tuple(_number_of(key, self._keys) for key in attributes)
        return _number_of(shape, self._shapes), [self._value(value) for value in attributes.values()]

    def _extra(self, span: SpanRecord, start: int) -> dict[str, Any] | None:
        logs = self._logs.pop((span.trace_id, span.span_id), [])
        if not (span.events or logs or span.links or span.status_message or _dropped(span)):
            return None
        shown = self._limits.events
        events = sorted([*span.events, *logs], key=lambda event: event.time_unix_ns)
        return {
            "message": self._text(span.status_message or ""),
            "events": [self._event(event, start) for event in events[:shown]],
            "links": [[f"{link.trace_id:032x}", f"{link.span_id:016x}"] for link in span.links[:shown]],
            "dropped": _dropped(span) + max(0, len(events) - shown) + max(0, len(span.links) - shown),
        }

    def _event(self, event: SpanEvent, start: int) -> list[Any]:
        """Name, µs since `start`, and attributes as pairs."""
        pairs = [[self._text(key), self._value(value)] for key, value in event.attributes.items()]
        return [self._text(event.name), (event.time_unix_ns - start) / 1e3, pairs]

    def _value(self, value: object) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list | tuple):
            items = cast("Sequence[object]", value)
            shown = [self._value(item) for item in items[: self._limits.items]]
            if len(items) > len(shown):
                self._shortened += 1
                shown.append(f"… ({len(items):,} in all)")
            return shown
        if isinstance(value, bool | int | float):
            return plain(value)
        if isinstance(value, Mapping):  # a message, in an event
            return self._text(json.dumps(plain(value), ensure_ascii=False, default=str))
        return self._text(repr(value))

    def _text(self, text: str, limit: int | None = None) -> str:
        most = self._limits.text if self._text_left > 0 else self._limits.short_text
        shown = visible(text, min(most, limit or most))
        self._text_left -= len(shown)
        self._shortened += len(text) > most
        return shown

    # --- layers ---------------------------------------------------------------------------------

    def _grids(
        self, layers: Sequence[LayerRecord], kept: Mapping[int, list[SpanRecord]]
    ) -> tuple[list[dict[str, Any]], int]:
        """Grids of the page, and how many records were left out of it."""
        forwards = {
            (span.trace_id, span.span_id): number(span.attributes.get(names.MODEL_FORWARDS))
            for spans in kept.values()
            for span in spans
            if names.MODEL_FORWARDS in span.attributes
        }
        packed: list[dict[str, Any]] = []
        left, missing = self._limits.layer_records, 0
        for key, grid in reversed(grids.grids(layers).items()):
            trace_id, span_id = key[0], key[1]
            elsewhere = trace_id is not None and trace_id not in kept and bool(kept)
            if elsewhere or len(grid.records) > left:
                missing += len(grid.records)
                continue
            left -= len(grid.records)
            place = (trace_id or 0, span_id or 0)
            one = grids.pack(grid, int(forwards.get(place) or 0), self._text)
            one["span"] = self._numbers.get(place, -1)
            one["trace"] = None if trace_id is None else f"{trace_id:032x}"
            packed.append(one)
        return packed[::-1], missing

    # --- the agent ------------------------------------------------------------------------------

    def _agent(self, artifact: Artifact) -> dict[str, Any]:
        events = artifact.events[-self._limits.events :]
        return {
            "resources": [
                [[self._text(key), self._value(value)] for key, value in sorted(resource.items())]
                for resource in artifact.resources
                if resource
            ],
            "events": [self._event(event, 0) for event in events],
            "events_left_out": len(artifact.events) - len(events),
            "damage": [self._text(line) for line in artifact.damage],
        }

    def _notes(self, spans: int, layer_records: int, logs: int) -> Iterator[str]:
        if spans:
            yield f"{spans:,} spans, of the oldest traces, are not in this page. --trace chooses a trace."
        if layer_records:
            yield (
                f"{layer_records:,} layer records are not in this page: they belong to traces that are not, "
                "or are too many. --trace chooses a trace."
            )
        if logs:
            yield f"{logs:,} log records are not in this page: they belong to no span of it."
        if self._shortened:
            yield f"{self._shortened:,} long texts or lists are shortened; the recording has them in full."


def _as_event(log: LogRecord) -> SpanEvent:
    """A log record as an event of its span, which is how it is shown."""
    attributes: dict[str, Any] = dict(log.attributes)
    if log.body is not None:
        attributes = {"message": log.body, **attributes}
    return SpanEvent(log.event_name or log.severity_text or "log", log.time_unix_ns, attributes)


def _by_trace(spans: Iterable[SpanRecord]) -> list[tuple[int, list[SpanRecord]]]:
    found: dict[int, list[SpanRecord]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start_unix_ns):
        found[span.trace_id].append(span)
    return list(found.items())


def _depth_first(spans: Sequence[SpanRecord]) -> Iterator[tuple[int, int, int]]:
    """(position, position of the parent or -1, depth) of every span of a trace, parents first.

    Spans whose parent is not here, and one of each circle of parents, are roots.
    """
    by_id = {span.span_id: position for position, span in reversed(list(enumerate(spans)))}
    children: dict[int, list[int]] = defaultdict(list)
    for position, span in enumerate(spans):
        parent = -1 if span.parent_span_id is None else by_id.get(span.parent_span_id, -1)
        children[parent].append(position)
    seen: set[int] = set()
    for root in (*children[-1], *range(len(spans))):
        stack = [(root, -1, 0)]
        while stack:
            position, parent, depth = stack.pop()
            if position in seen:
                continue
            seen.add(position)
            yield position, parent, depth
            stack.extend((child, position, depth + 1) for child in reversed(children[position]))


def _number_of(value: Any, table: dict[Any, int]) -> int:
    return table.setdefault(value, len(table))


def _kind(span: SpanRecord) -> str:
    """What a span is, for its colour: the stage of the service that it belongs to."""
    operation = span.attributes.get(names.OPERATION_NAME)
    if names.MODEL_NAME in span.attributes and operation != "embeddings":
        return "model"
    if operation in ("embeddings", "rerank"):
        return "embed"
    if operation == "retrieval":
        return "search"
    if operation is not None:
        return "llm"
    if names.DB_SYSTEM in span.attributes:
        return "store"
    return "http" if span.kind in (SpanKind.SERVER, SpanKind.CLIENT) else "other"


def _dropped(span: SpanRecord) -> int:
    return span.dropped_attributes + span.dropped_events + span.dropped_links


def narrowed(artifact: Artifact, last: int | None, trace_id: str | None) -> Artifact:
    """The artifact with only its last traces, or those whose id begins so."""
    traces = _by_trace(artifact.telemetry.spans)
    if trace_id is not None:
        traces = [item for item in traces if f"{item[0]:032x}".startswith(trace_id.lower())]
    kept = dict(traces[-last:] if last else traces)
    telemetry = replace(
        artifact.telemetry,
        spans=[span for span in artifact.telemetry.spans if span.trace_id in kept],
        layer_snapshots=[r for r in artifact.telemetry.layer_snapshots if r.trace_id in kept],
    )
    return replace(artifact, telemetry=telemetry, logs=[log for log in artifact.logs if log.trace_id in kept])


def embeddable(data: Mapping[str, Any]) -> str:
    """The data as ASCII JSON that can stand inside any HTML element: nothing in it can end a script."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")

"""``neuronscope view --follow``: traces in the terminal as they end, while processes record.

A trace has ended when its root is here and nothing of it came for a moment: its other processes write
their parts in their own time.  What comes still later is shown then, under the same trace id.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from neuronscope.exporters import registry
from neuronscope.signals.records import LayerRecord, LogRecord, SpanRecord
from neuronscope.viewer.safe import visible
from neuronscope.viewer.terminal import print_traces
from neuronscope.viewer.tree import Trace, traces

POLL_S: Final = 0.25
SETTLED_S: Final = 1.0  # more than twice the time in which a process writes what it has
GIVEN_UP_S: Final = 30.0  # a trace whose root does not come
MAX_HELD: Final = 200_000  # records of traces that have not ended; the oldest are shown as they are

Arrival = tuple[Any, Mapping[str, Any]]


@dataclass(slots=True)
class _Held:
    """What has come of a trace so far."""

    spans: list[SpanRecord] = field(default_factory=list[SpanRecord])
    layers: list[LayerRecord] = field(default_factory=list[LayerRecord])
    logs: list[LogRecord] = field(default_factory=list[LogRecord])
    services: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    rooted: bool = False
    last: float = 0.0


class Unfinished:
    """Traces between their first record and their end.

    Attributes:
        records: how many records are held.
    """

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}
        self.records = 0

    def take(self, arrivals: Iterable[Arrival], now: float) -> None:
        """Add records, each with the resource of its process."""
        for record, resource in arrivals:
            if not isinstance(record, SpanRecord | LayerRecord | LogRecord) or not record.trace_id:
                continue
            held = self._held.setdefault(record.trace_id, _Held())
            held.last = now
            self.records += 1
            if isinstance(record, LayerRecord):
                held.layers.append(record)
                continue
            if isinstance(record, LogRecord):
                held.logs.append(record)
                continue
            held.spans.append(record)
            held.rooted = held.rooted or record.parent_span_id is None
            held.services[record.trace_id, record.span_id] = str(resource.get("service.name", ""))

    def ended(self, now: float, max_held: int = MAX_HELD) -> Iterator[Trace]:
        """Traces that have ended by now, in the order of their first records; they are let go."""
        for trace_id, held in list(self._held.items()):
            silent = now - held.last
            if silent >= (SETTLED_S if held.rooted else GIVEN_UP_S) or self.records > max_held:
                yield from self._let_go(trace_id)

    def rest(self) -> Iterator[Trace]:
        """All others, as far as they came."""
        for trace_id in list(self._held):
            yield from self._let_go(trace_id)

    def _let_go(self, trace_id: int) -> Iterator[Trace]:
        held = self._held.pop(trace_id)
        self.records -= len(held.spans) + len(held.layers) + len(held.logs)
        yield from traces(held.spans, held.layers, held.services, held.logs)


def follow(
    console: Console,
    path: Path,
    *,
    last: int = 0,
    trace_id: str | None = None,
    all_layers: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Print traces as they end, until Ctrl-C.

    Args:
        last: how many of the traces that ended before are shown first.

    Raises:
        FileNotFoundError: there is no such file or directory.
        NszError: the file is no `.nsz` file.
    """
    tail = registry.nsz("Tail")(path)
    wanted = (trace_id or "").lower()

    def show(ended: Iterable[Trace]) -> None:
        for trace in ended:
            if f"{trace.trace_id:032x}".startswith(wanted):
                print_traces(console, [trace], all_layers=all_layers)

    unfinished = Unfinished()
    unfinished.take(tail.poll(), now=-SETTLED_S)
    before = sorted(unfinished.ended(now=0.0), key=lambda trace: trace.start_unix_ns)
    note = f"following {visible(str(path))}: {len(before)} traces so far; Ctrl-C stops"
    console.print(note, style="dim", markup=False, highlight=False, soft_wrap=True)
    show(before[len(before) - last :] if last else ())
    try:
        # Ctrl-C between a trace and the next must not lose the first.
        with suppress(KeyboardInterrupt):
            while True:
                sleep(POLL_S)
                now = time.monotonic()
                unfinished.take(tail.poll(), now)
                show(unfinished.ended(now))
        show(unfinished.rest())
    finally:
        tail.close()

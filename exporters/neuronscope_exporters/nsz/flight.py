"""The flight recorder: the last seconds in memory, written when something is wrong.

Nothing is encoded until then, so watching costs an append; what leaves the window unwritten is gone by
design and not counted as lost.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from neuronscope.engine.sizes import log_bytes, span_bytes
from neuronscope.exporters import ExporterContext
from neuronscope.signals.records import Batch, LayerRecord, SpanEvent
from neuronscope_exporters.nsz.exporter import Drops, Segments, append_batch
from neuronscope_exporters.nsz.triggers import Trigger, Triggers

LAYER_BYTES: Final = 512  # a layer record without its tensor, or an event
_MAX_OWED: Final = 100


@dataclass(frozen=True, slots=True)
class _Held:
    """Records that came together."""

    at: float
    nbytes: int
    batch: Batch


class FlightRecorder:
    """Holds the last `flight_s` seconds within `flight_bytes`, and dumps them into a segment of their own.

    It dumps when a trigger fires (at the end of the root span, so that the whole trace is in it), when
    `request_dump` was called, and not at shutdown: nothing was wrong.  What was dumped is let go, so two
    dumps never hold the same record.  All methods but `request_dump` are for the worker's thread.
    """

    name = "nsz"

    def __init__(self, context: ExporterContext, directory: Path) -> None:
        self._context = context
        self._directory = directory
        self._requests: deque[tuple[str, Callable[[str], None]]] = deque()
        self._begin()

    def _begin(self) -> None:
        settings = self._context.settings
        self._pid = os.getpid()
        self._segments = Segments(self._context, self._directory, "flight")
        self._triggers = Triggers(settings.flight_margin, settings.flight_pause_s)
        self._drops = Drops(self._context)
        self._owed: list[Trigger] = []  # for which no file could be begun
        self._held: deque[_Held] = deque()
        self._bytes = 0

    def export(self, batch: Batch) -> None:
        """Hold a batch; dump if something is wrong in it, or somebody asked."""
        if self._pid != os.getpid():
            self._begin()
        now = time.monotonic()
        if batch.spans or batch.layers or batch.logs or batch.events:
            self._hold(batch, now)
        fired = [*self._owed, *self._triggers.fired(batch, now)]
        if fired:
            self._dump(fired)
        if self._requests:
            self._answer()

    def flush(self, timeout_s: float) -> bool:
        """Dump for those who asked; else there is nothing to push out."""
        if self._requests:
            self._answer()
        return self._segments.keeper.wait(timeout_s)

    def shutdown(self, timeout_s: float) -> None:
        """Dump if a trigger still waits, for the end of its trace or for a file; then let everything go."""
        if self._pid != os.getpid():
            return
        waiting = [*self._owed, *self._triggers.waiting()]
        if waiting:
            self._dump(waiting, last=True)
        self._segments.keeper.stop(timeout_s)
        self._held.clear()
        self._bytes = 0

    def request_dump(self, reason: str, done: Callable[[str], None]) -> None:
        """Dump at the next export or flush.  Callable from any thread, and from signals.

        Args:
            done: told the segment's path.
        """
        self._requests.append((reason, done))

    @property
    def held_bytes(self) -> int:
        """What is held, as estimated."""
        return self._bytes

    def _hold(self, batch: Batch, now: float) -> None:
        settings = self._context.settings
        size = _batch_bytes(batch)
        if size > settings.flight_bytes:  # more than fits at all: tensors go first
            dropped = sum(1 for layer in batch.layers if layer.tensor is not None)
            if dropped:
                self._segments.count_lost("tensor", "flight_full", dropped)
            batch = replace(batch, layers=tuple([replace(layer, tensor=None) for layer in batch.layers]))
            size = _batch_bytes(batch)
            if size > settings.flight_bytes:
                self._segments.lose(batch, "flight_full")
                return
        self._held.append(_Held(now, size, batch))
        self._bytes += size
        while self._held and (
            self._bytes > settings.flight_bytes or now - self._held[0].at > settings.flight_s
        ):
            self._bytes -= self._held.popleft().nbytes

    def _dump(
        self,
        triggers: list[Trigger],
        done: Callable[[Path], None] = lambda _: None,
        *,
        last: bool = False,
    ) -> None:
        """Write what is held, and why; where there can be no file now, the next export tries again."""
        writer = self._segments.begin(now_or_never=last)
        if writer is None:
            self._owed = triggers[:_MAX_OWED]
            if last:
                for held in self._held:
                    self._segments.lose(held.batch, "io_error")
            return
        self._owed = []
        for trigger in triggers:
            writer.append_event(SpanEvent("nsz.flight", time.time_ns(), trigger.attributes()))
        for event in self._drops.since(self._segments.lost):
            writer.append_event(event)
        while self._held:
            append_batch(writer, self._held.popleft().batch)
        self._bytes = 0
        self._segments.finish(writer, done)

    def _answer(self) -> None:
        waiting = list(self._requests)
        self._requests.clear()

        def done(path: Path) -> None:
            for _, tell in waiting:
                tell(str(path))

        self._dump([Trigger(reason) for reason, _ in waiting], done)


def _batch_bytes(batch: Batch) -> int:
    return (
        LAYER_BYTES * len(batch.events)
        + sum(map(span_bytes, batch.spans))
        + sum(map(_layer_bytes, batch.layers))
        + sum(map(log_bytes, batch.logs))
    )


def _layer_bytes(layer: LayerRecord) -> int:
    return LAYER_BYTES + layer.nbytes

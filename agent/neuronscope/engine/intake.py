"""The worker's queue, as the service's threads see it: bounded by count and by bytes, never blocking.

When it fills, full tensors go first, then summaries and log records, then spans, always the newest, each
drop counted.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from msgspec.structs import replace

from neuronscope import native
from neuronscope.engine.logged import LogItem
from neuronscope.signals.records import Fidelity, LayerRecord, SpanEvent

if TYPE_CHECKING:
    from neuronscope.recording import Recording

# Share of the byte limit beyond which full tensors, and then summaries, are turned away.
TENSOR_SHARE: Final = 0.5
SUMMARY_SHARE: Final = 0.8  # log records, too: a service in trouble must not drown its spans
SPAN_BYTES: Final = 4096  # what a queued span with its request and response holds, about
LAYER_BYTES: Final = 512
MAX_EVENTS: Final = 256  # of the agent itself, in one batch
NO_LIMIT: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class LayerItem:
    """Layer records on their way, and the scope they belong to."""

    records: Sequence[LayerRecord]
    recording: Recording | None


@final
class Weighed:
    """An item of another size than a plain span's: those wait bare, without one object more."""

    __slots__ = ("item", "nbytes")

    def __init__(self, item: Any, nbytes: int) -> None:
        self.item = item
        self.nbytes = nbytes


class Intake:
    """What producers do; the worker that empties it says how it is woken.

    Args:
        max_spans: items that may wait.
        max_bytes: bytes that may wait.
        count_lost: ``(item, reason, n)``.
        inline: nobody waits: an item is worked on when it comes.
    """

    __slots__ = (
        "_asleep",
        "_count_lost",
        "_events",
        "_extra_added",
        "_extra_removed",
        "_inline",
        "_max_bytes",
        "_max_spans",
        "_patience",
        "_producers",
        "_queue",
        "_room",
        "_stopping",
    )

    def __init__(
        self, max_spans: int, max_bytes: int, count_lost: Callable[[str, str, int], None], *, inline: bool
    ) -> None:
        self._max_spans = max_spans
        self._max_bytes = max_bytes
        self._count_lost = count_lost
        self._inline = inline
        self._asleep = not inline
        self._stopping = False
        self._events: deque[SpanEvent] = deque(maxlen=MAX_EVENTS)
        # `_room` is how many items it may hold now; plain spans compare its length with that
        # and take no lock.  Items of another size than `SPAN_BYTES` are added up apart: producers write
        # one sum under their lock, the worker writes the other alone.
        self._queue: deque[Any] = deque()
        self._extra_added = 0
        self._extra_removed = 0
        self._producers = native.new_lock()
        self._patience = NO_LIMIT  # so many items end the lingering
        self._room = 0
        self._make_room()

    def _wake(self) -> None:
        """An item has come while the worker slept."""
        raise NotImplementedError

    def _ring(self) -> None:
        """There is no time to linger."""
        raise NotImplementedError

    def _work_here(self) -> None:
        """Work on what has come in the caller's thread."""
        raise NotImplementedError

    @property
    def pending(self) -> int:
        """Items in the queue."""
        return len(self._queue)

    @property
    def pending_bytes(self) -> int:
        """What the items in the queue hold, as estimated."""
        return len(self._queue) * SPAN_BYTES + self._extra_added - self._extra_removed

    def put(self, item: Any, nbytes: int = SPAN_BYTES) -> None:
        """Queue an item.  Never blocks; what does not fit is dropped and counted.

        Args:
            nbytes: what the item keeps alive.
        """
        queue, queued = self._queue, item
        if nbytes != SPAN_BYTES:
            if not self._reserve(nbytes - SPAN_BYTES):
                self._refuse(item)
                return
            queued = Weighed(item, nbytes)
        if len(queue) >= self._room and not self._hurry():
            if nbytes != SPAN_BYTES:
                self._release(nbytes - SPAN_BYTES)
            self._refuse(item)
            return
        queue.append(queued)
        if self._asleep:
            self._wake()
        elif self._inline:
            self._work_here()
        if self._stopping:
            self._lose_queue("stopped")  # appended while `stop` looked the other way

    def has_room(self, nbytes: int) -> bool:
        """Would a full tensor of this size be taken now?"""
        return self.pending_bytes + nbytes + LAYER_BYTES <= TENSOR_SHARE * self._max_bytes

    def put_layer(self, record: LayerRecord, recording: Recording | None) -> None:
        """Queue a layer record; a full tensor falls back to its summary when space is short."""
        used, limit = self.pending_bytes, self._max_bytes
        nbytes = record.nbytes + LAYER_BYTES
        if record.tensor is not None and used + nbytes > TENSOR_SHARE * limit:
            self._count_lost("tensor", "queue_full", 1)
            record = replace(record, tensor=None, fidelity=Fidelity.SUMMARY)
            nbytes = LAYER_BYTES
        if used + nbytes > SUMMARY_SHARE * limit:
            self._count_lost("layer", "queue_full", 1)
            return
        self.put(LayerItem((record,), recording), nbytes)

    def put_summaries(self, records: Sequence[LayerRecord], recording: Recording | None) -> None:
        """Queue layer records without tensors: as one item, all or none."""
        nbytes = LAYER_BYTES * len(records)
        if self.pending_bytes + nbytes > SUMMARY_SHARE * self._max_bytes:
            self._count_lost("layer", "queue_full", len(records))
            return
        self.put(LayerItem(records, recording), nbytes)

    def put_log(self, item: LogItem) -> None:
        """Queue a log record of the service; it is turned away before spans are."""
        nbytes = max(item.nbytes, SPAN_BYTES)  # the short ones take the quick way of spans
        if (
            self.pending_bytes + nbytes > SUMMARY_SHARE * self._max_bytes
            or len(self._queue) >= SUMMARY_SHARE * self._max_spans
        ):
            self._count_lost("log", "stopped" if self._stopping else "queue_full", 1)
            return
        self.put(item, nbytes)

    def put_event(self, event: SpanEvent) -> None:
        """Have an event of the agent itself exported with the next batch."""
        self._events.append(event)

    def _reserve(self, extra: int) -> bool:
        with self._producers:
            if self.pending_bytes + SPAN_BYTES + extra > self._max_bytes:
                return False
            self._extra_added += extra
        self._make_room()
        if self.pending_bytes > TENSOR_SHARE * self._max_bytes:
            self._ring()  # no time to linger
        return True

    def _release(self, extra: int) -> None:
        with self._producers:
            self._extra_added -= extra
        self._make_room()

    def _make_room(self) -> None:
        extra = self._extra_added - self._extra_removed
        self._room = min(self._max_spans, max(0, self._max_bytes - extra) // SPAN_BYTES, self._patience)

    def _hurry(self) -> bool:
        """There is no room, perhaps only because the worker lingers: then it is called, and there is."""
        if self._patience == NO_LIMIT:
            return False
        self._patience = NO_LIMIT
        self._make_room()
        self._ring()
        return len(self._queue) < self._room

    def _refuse(self, item: Any) -> None:
        self._count_lost(kind_of(item), "stopped" if self._stopping else "queue_full", count_of(item))

    def _lose_queue(self, reason: str) -> None:
        """Count everything that is still queued as lost."""
        lost: Counter[str] = Counter()
        while True:
            try:
                item = self._queue.popleft()
            except IndexError:
                break
            if item.__class__ is Weighed:
                self._extra_removed += item.nbytes - SPAN_BYTES
                item = item.item
            lost[kind_of(item)] += count_of(item)
        for kind, count in lost.items():
            self._count_lost(kind, reason, count)


def count_of(item: Any) -> int:
    """How many of them an item is."""
    return len(item.records) if isinstance(item, LayerItem) else 1


def kind_of(item: Any) -> str:
    """What an item is called where losses are counted."""
    if isinstance(item, LayerItem):
        return "layer"
    if callable(item):
        return "chunks"  # of a stream: its span will know less
    return "log" if isinstance(item, LogItem) else "span"

"""The worker: one thread per process that turns notes into records and hands them on.

The service's threads only append to a queue.  The queue is bounded by count and by bytes; when it
fills, full tensors go first, then summaries, then spans, always the newest, each drop counted.  Work is
sliced: after `SLICE` spans (more when they pile up) the GIL is offered to others, since building a large
batch in one go delays their wake-ups by milliseconds.

Whatever an exporter does, nobody waits for it longer than asked: only this thread calls exporters, and
`flush` and `stop` wait for the thread with a timeout.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from opentelemetry import context as otel_context

from neuronscope import native
from neuronscope.engine.guard import GUARD
from neuronscope.engine.intake import (
    NO_LIMIT,
    SPAN_BYTES,
    TENSOR_SHARE,
    Intake,
    LayerItem,
    Weighed,
    kind_of,
)
from neuronscope.engine.outbox import ExporterSource, Outbox
from neuronscope.engine.propagation import suppressed
from neuronscope.engine.sizes import MAX_SPAN_BYTES, lighten, span_bytes
from neuronscope.signals.records import Attributes, LogRecord, SpanRecord

SLICE: Final = 16
PILE: Final = 64
LONGEST_SLICE: Final = 256
# After so many items it waits no longer, however patient it may be.
PATIENCE: Final = 512
# What `stop` keeps of its time for the interpreter's own end.
EXIT_RESERVE_S: Final = 0.1
PROCESS_SHARE: Final = 0.6
FAULT_PAUSE_S: Final = 1.0


class Finisher(Protocol):
    """Turns a queued item into a record; runs in the worker's thread.

    A `functools.partial` in the queue is no item, but work that the worker does in its place.
    """

    def __call__(self, item: Any) -> SpanRecord | LogRecord:
        """The finished, masked span or log record."""
        ...


class _Request:
    """Somebody waits for the worker to flush or to stop."""

    __slots__ = ("_done", "deadline", "last", "ok")

    def __init__(self, deadline: float, *, last: bool) -> None:
        self.deadline = deadline
        self.last = last
        self.ok = False
        self._done = native.allocate_lock()
        self._done.acquire()

    def wait(self) -> bool:
        return self._done.acquire(timeout=max(0.0, self.deadline - time.monotonic())) and self.ok

    def answer(self, ok: bool) -> None:
        self.ok = ok
        self._done.release()


class Worker(Intake):
    """Owns the queue, the thread and the exporters of one process.

    Args:
        finish: makes a record of a queued item; it may add log records by `add_log`.
        exporters: where records go; or what makes them, called in the worker's thread when it starts.
        resource: the process's resource attributes.
        interval_s: seconds between exports.
        max_spans: items that may wait.
        max_bytes: bytes that may wait.
        count_lost: ``(item, reason, n)``.
        on_cpu: told the worker's CPU time in ns after each round.
        linger_s: how long to wait for more after the first item: a wake-up for each costs more than they do.
        inline: finish and export in the caller's thread instead.
    """

    __slots__ = (
        "_bell",
        "_courtesy",
        "_ended",
        "_export_lock",
        "_finish",
        "_ident",
        "_interval_s",
        "_last_export",
        "_linger_s",
        "_on_cpu",
        "_outbox",
        "_requests",
        "_start_again_at",
        "_started",
        "_work_lock",
    )

    def __init__(
        self,
        finish: Finisher,
        exporters: ExporterSource,
        resource: Attributes,
        *,
        interval_s: float,
        max_spans: int,
        max_bytes: int,
        count_lost: Callable[[str, str, int], None],
        on_cpu: Callable[[int], None],
        linger_s: Callable[[], float] = lambda: 0.05,
        inline: bool = False,
    ) -> None:
        self._finish = finish
        self._outbox = Outbox(exporters, resource)
        self._interval_s = interval_s
        self._on_cpu = on_cpu
        self._linger_s = linger_s
        super().__init__(max_spans, max_bytes, count_lost, inline=inline)
        # The thread.  Producers ring only when it sleeps; ringing takes no lock that anybody holds.
        self._work_lock = native.new_lock()  # while items become records, one slice at a time
        self._export_lock = native.new_lock()  # while exporters are called; taken before `_work_lock`
        self._bell = native.allocate_lock()
        self._bell.acquire()
        self._requests: deque[_Request] = deque()
        self._courtesy = native.Courtesy()
        self._started = False
        self._start_again_at = 0.0
        self._ident: int | None = None
        self._ended = False
        self._last_export = time.monotonic()

    # --- waking the thread ---------------------------------------------------------------------------
    def _wake(self) -> None:
        """The queue was empty and the thread asleep, or not started yet."""
        self._asleep = False
        if self._started or self._start():
            self._ring()
        else:
            self._asleep = True  # try again with a later item

    def _ring(self) -> None:
        try:
            self._bell.release()
        except RuntimeError:  # it rings already
            return

    def _start(self) -> bool:
        """Start the thread; False when that cannot be now."""
        with self._producers:
            if self._started:
                return True
            now = time.monotonic()
            if self._ended or now < self._start_again_at:
                return False
            try:
                native.Thread(self._run, "neuronscope-worker")
            except RuntimeError:  # the interpreter ends, or the system has no thread left
                self._start_again_at = now + FAULT_PAUSE_S
                return False
            self._started = True
            return True

    # --- the thread --------------------------------------------------------------------------------
    def _run(self) -> None:
        self._ident = threading.get_ident()
        otel_context.attach(suppressed(otel_context.get_current()))
        while not self._ended:
            self._wait()
            if not GUARD.contain("worker", self._round):
                # A fault of ours: give up what would only fail again.
                self._lose_queue("fault")
                native.sleep(FAULT_PAUSE_S)
        self._ident = None

    def _wait(self) -> None:
        """Sleep until there is something to do; after the first item, a moment longer for more."""
        self._asleep = True
        if not self._queue and not self._requests:
            self._bell.acquire(timeout=self._until_due())
        self._asleep = False
        if self._queue and not self._requests and self.pending_bytes < TENSOR_SHARE * self._max_bytes:
            self._linger()

    def _linger(self) -> None:
        self._patience = min(PATIENCE, self._max_spans // 2)
        self._make_room()
        if len(self._queue) < self._room:
            self._bell.acquire(timeout=self._linger_s())
        self._patience = NO_LIMIT
        self._make_room()

    def _until_due(self) -> float:
        if not self._outbox:
            return -1
        return max(0.0, self._last_export + self._interval_s - time.monotonic())

    def _round(self) -> bool:
        before = time.thread_time_ns()
        self._outbox.prepare()
        self._process()
        if time.monotonic() - self._last_export >= self._interval_s:
            self._export()
        while self._requests:
            self._answer(self._requests.popleft())
        self._on_cpu(time.thread_time_ns() - before)
        return True

    def _answer(self, request: _Request) -> None:
        ok = False
        try:
            ok = self._finish_up(request.deadline, last=request.last)
        finally:
            request.answer(ok)

    def _process(self, deadline: float | None = None, *, export: bool = True) -> bool:
        """Turn what is queued into records, slice by slice; False if `deadline` came first."""
        while self._queue:
            with self._work_lock:
                self._slice()
            if export and self._outbox.full:
                self._export()
            if deadline is not None and time.monotonic() >= deadline:
                return not self._queue
            if not self._inline:
                self._courtesy.offer()
        return True

    def _slice(self) -> None:
        queue = self._queue
        # A thread of the service that never rests gives the GIL away every 5 ms only: when items pile up,
        # more of them have to fit into each of our turns, or the queue overflows.
        for _ in range(max(SLICE, min(len(queue) // PILE, LONGEST_SLICE))):
            try:
                item = queue.popleft()
            except IndexError:
                break
            nbytes = SPAN_BYTES
            if item.__class__ is Weighed:
                item, nbytes = item.item, item.nbytes
                self._extra_removed += nbytes - SPAN_BYTES
            self._take(item, nbytes)
        self._make_room()

    def _take(self, item: Any, nbytes: int) -> None:
        kind = item.__class__
        if kind is LayerItem:
            self._outbox.layers += item.records
            self._outbox.nbytes += nbytes
            if item.recording is not None:
                item.recording.add_layers(item.records)
            return
        if kind is functools.partial:
            if not GUARD.contain("worker.later", _run, item, default=False):
                self._count_lost(kind_of(item), "fault", 1)
            return
        record = GUARD.contain("worker.finish", self._finish, item)
        if record is None:
            self._count_lost(kind_of(item), "fault", 1)
        elif isinstance(record, LogRecord):
            self._outbox.add_log(record)
        else:
            size = span_bytes(record)
            if size > MAX_SPAN_BYTES:
                record, size = lighten(record, MAX_SPAN_BYTES)
            self._outbox.spans.append(record)
            self._outbox.nbytes += size

    def add_log(self, record: LogRecord) -> None:
        """Take a finished log record; for the finisher, while it runs."""
        self._outbox.add_log(record)

    def export(self) -> None:
        """Export what has been finished; for the worker's own thread, from `on_cpu`."""
        self._export()

    def _export(self) -> None:
        with self._export_lock:
            self._last_export = time.monotonic()
            with self._work_lock:
                events = tuple(self._events)
                for _ in events:
                    self._events.popleft()
                batch = self._outbox.take(events)
            if batch is not None:
                self._outbox.send(batch)

    def _finish_up(self, deadline: float, *, last: bool) -> bool:
        # At the end exporters need time, too: to send, and to count what they could not.
        now = time.monotonic()
        done = self._process(now + PROCESS_SHARE * (deadline - now) if last else deadline)
        self._export()
        if not last:
            return self._outbox.flush(deadline) and done
        self._lose_queue("stopped")  # counted before exporters push their last metrics
        self._outbox.close(deadline)
        self._ended = True
        return done

    # --- owners ------------------------------------------------------------------------------------
    def drain(self, timeout_s: float) -> bool:
        """Process everything queued so far in the caller's thread, without calling any exporter."""
        if not self._work_lock.acquire(timeout=max(0.0, timeout_s)):
            return False
        try:
            return bool(self._here(lambda: self._process(time.monotonic() + timeout_s, export=False)))
        finally:
            self._work_lock.release()
            if not self._inline:
                self._wake()

    def flush(self, timeout_s: float) -> bool:
        """Process and export everything queued so far; True if it went within `timeout_s`."""
        return self._ask(time.monotonic() + timeout_s, last=False)

    def stop(self, timeout_s: float) -> None:
        """Flush, shut the exporters down, end the thread; all within `timeout_s`.  Again does nothing."""
        if self._stopping:
            return
        self._stopping, self._room, self._max_spans = True, 0, 0
        self._ask(time.monotonic() + max(0.0, timeout_s - EXIT_RESERVE_S), last=True)
        self._ended = True
        self._ring()
        self._lose_queue("stopped")

    def _ask(self, deadline: float, *, last: bool) -> bool:
        """Have the thread finish up, and wait for it; where there is no thread, do it here."""
        here = self._inline or self._ident == threading.get_ident()
        if here or not (self._started or self._start()):
            self._outbox.prepare()
            return bool(self._here(lambda: self._finish_up(deadline, last=last)))
        request = _Request(deadline, last=last)
        self._requests.append(request)
        self._ring()
        return request.wait()

    def _here(self, work: Callable[[], bool]) -> bool | None:
        """Do the worker's work in a thread of the service: what it calls is not observed."""
        before = time.thread_time_ns()
        token = otel_context.attach(suppressed(otel_context.get_current()))
        try:
            return GUARD.contain("worker", work)
        finally:
            otel_context.detach(token)
            self._on_cpu(time.thread_time_ns() - before)

    def _work_here(self) -> None:
        self._here(self._process_and_export)

    def _process_and_export(self) -> bool:
        self._process()
        self._export()
        return True

    # --- fork ---------------------------------------------------------------------------------------
    def pause(self, timeout_s: float) -> bool:
        """Keep the thread from working, so that no lock it takes is held now; `resume` undoes it."""
        if not self._export_lock.acquire(timeout=timeout_s):
            return False
        if self._work_lock.acquire(timeout=timeout_s):
            return True
        self._export_lock.release()
        return False

    def resume(self) -> None:
        """Let the thread work again."""
        self._work_lock.release()
        self._export_lock.release()


def _run(work: Callable[[], object]) -> bool:
    """Do what somebody has left to the worker."""
    work()
    return True

"""One page for many processes: each writes its metrics into a folder, and whoever is scraped adds them up.

A prefork server's workers share a port, and a scrape reaches any of them.  So every process keeps a file of
its own in the folder up to date, and the page is the sum: counters and histograms of all processes, also of
those that have ended (a restart of a worker must not look like a reset), gauges of those that live.

A file is replaced as a whole, by renaming, so that a reader never sees half of one.  Files of processes that
have ended are added to `ENDED` and deleted, under a lock: recycled workers leave nothing behind.  What a page
has told is in the files first: whoever serves it may be killed, and the next page must not tell less.  The
folder belongs to one start of a service: clear it before the next.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from neuronscope import native
from neuronscope.engine.cardinality import OTHER
from neuronscope.signals.names import METRICS, Instrument, Metric
from neuronscope.signals.records import (
    Exemplar,
    HistogramValue,
    MetricFamily,
    MetricPoint,
    MetricsSnapshot,
)
from neuronscope_exporters.prometheus.page import Labels, Snapshot

SUFFIX: Final = ".metrics"
ENDED: Final = f"ended{SUFFIX}"
LOCK: Final = ".lock"
# Series of a metric that ended processes may leave behind: each had its own most frequent values of labels.
MAX_ENDED: Final = 250
# Gauges that say how much of something there is, are added up; shares and states are not.
_ADDED: Final = ("s", "By")


# Value, time, trace id, span id.  A trace id has 128 bits, more than msgpack's integers.
StoredExemplar: TypeAlias = tuple[float, int, bytes, int]
# Counts, sum, count, exemplars.
StoredHistogram: TypeAlias = tuple[tuple[int, ...], float, int, tuple[StoredExemplar | None, ...]]


class Stored(msgspec.Struct, frozen=True):
    """A process's metrics in its file: by metric name, then one entry a series."""

    numbers: dict[str, list[tuple[Labels, float]]]
    histograms: dict[str, list[tuple[Labels, StoredHistogram]]]
    start_unix_ns: int
    time_unix_ns: int
    contains: tuple[str, ...] = ()  # files added to this one last: who added them may not have deleted them


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Stored)


class Share:
    """This process's part of a shared page.

    Args:
        folder: made if it is missing.
        snapshot: takes a consistent copy of this process's metrics.

    Raises:
        OSError: the folder cannot be had.
    """

    def __init__(self, folder: Path, snapshot: Snapshot) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._snapshot = snapshot
        self._mine = folder / f"{os.getpid()}-{_started(os.getpid())}{SUFFIX}"
        self._lock = native.new_lock()  # between threads of this process; `LOCK` is between processes

    def write(self) -> None:
        """Bring this process's file up to date.

        Raises:
            OSError: the disk is full, or the folder is gone.
        """
        with self._lock:
            _replace(self._mine, _stored(self._snapshot()))

    def collect(self) -> MetricsSnapshot:
        """The sum over all processes, this one as it is now."""
        with self._lock:
            mine = _stored(self._snapshot())
            with suppress(OSError):  # the page can be made; why the file cannot, the next `write` tells
                _replace(self._mine, mine)
            with self._locked():
                others = self._others()
        return _sum([mine, *others])

    def _others(self) -> list[Stored]:
        """Files of the other processes; those of ended ones become one."""
        living: list[Stored] = []
        gone: list[tuple[Path, Stored]] = []
        total = _read(self._folder / ENDED)
        contained = total.contains if total is not None else ()
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            if path == self._mine or path.name == ENDED:
                continue
            if path.name in contained:
                path.unlink(missing_ok=True)
                continue
            lives = _lives(path)  # asked before it is read: only who has ended writes no more
            stored = _read(path)
            if stored is None:
                continue
            if lives:
                living.append(stored)
            else:
                gone.append((path, _only_sums(stored)))
        if gone:
            parts = [stored for _, stored in gone]
            total = _stored(_sum([*_bounded(parts if total is None else [total, *parts])]))
            total = msgspec.structs.replace(total, contains=tuple(path.name for path, _ in gone))
            _replace(self._folder / ENDED, total)
            for path, _ in gone:
                path.unlink(missing_ok=True)
        return living if total is None else [*living, total]

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Alone among all processes.

        A lock of this kind is the process's own.  One by `flock` would belong to a child, too, that is forked
        meanwhile, and be held for as long as the child lives.
        """
        with (self._folder / LOCK).open("w") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            yield


def _replace(path: Path, stored: Stored) -> None:
    new = path.with_suffix(f".{os.getpid()}.new")
    try:
        new.write_bytes(_ENCODER.encode(stored))
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _read(path: Path) -> Stored | None:
    """A file's content; None if it is gone, or none of ours."""
    with suppress(OSError, msgspec.DecodeError):
        return _DECODER.decode(path.read_bytes())
    return None


def _lives(path: Path) -> bool:
    pid, _, started = path.name.removesuffix(SUFFIX).partition("-")
    return pid.isdecimal() and _started(int(pid)) == started


def _started(pid: int) -> str:
    """When a process was started, so that its number cannot be mistaken for that of another."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        if not Path("/proc/self/stat").exists():  # no Linux: the number has to do
            with suppress(OSError):
                os.kill(pid, 0)
                return "running"
        return ""
    return stat.rpartition(")")[2].split()[19]


# --- adding up -------------------------------------------------------------------------------------------
def _stored(snapshot: MetricsSnapshot) -> Stored:
    numbers: dict[str, list[tuple[Labels, float]]] = {}
    histograms: dict[str, list[tuple[Labels, StoredHistogram]]] = {}
    for family in snapshot.families:
        for point in family.points:
            if isinstance(point.value, HistogramValue):
                histograms.setdefault(family.metric.name, []).append((point.labels, _packed(point.value)))
            else:
                numbers.setdefault(family.metric.name, []).append((point.labels, point.value))
    return Stored(numbers, histograms, snapshot.start_unix_ns, snapshot.time_unix_ns)


def _packed(value: HistogramValue) -> StoredHistogram:
    exemplars = tuple(
        None if e is None else (e.value, e.time_unix_ns, e.trace_id.to_bytes(16), e.span_id)
        for e in value.exemplars
    )
    return tuple(value.counts), value.sum, value.count, exemplars


def _only_sums(stored: Stored) -> Stored:
    """Without gauges: what an ended process had is no more."""
    counters = {
        name: series
        for name, series in stored.numbers.items()
        if name in METRICS and METRICS[name].instrument is Instrument.COUNTER
    }
    return Stored(counters, stored.histograms, stored.start_unix_ns, stored.time_unix_ns)


def _bounded(parts: Sequence[Stored]) -> Iterator[Stored]:
    """The parts, with `other` for all label sets of a metric beyond as many as may be left behind."""
    kept: dict[str, set[Labels]] = {}
    for part in parts:
        yield msgspec.structs.replace(
            part,
            numbers={
                name: [(_bound(kept.setdefault(name, set()), labels), value) for labels, value in series]
                for name, series in part.numbers.items()
            },
            histograms={
                name: [(_bound(kept.setdefault(name, set()), labels), value) for labels, value in series]
                for name, series in part.histograms.items()
            },
        )


def _bound(kept: set[Labels], labels: Labels) -> Labels:
    if labels not in kept and len(kept) >= MAX_ENDED:
        labels = tuple((label, OTHER) for label, _ in labels)
    kept.add(labels)
    return labels


def _sum(parts: Sequence[Stored]) -> MetricsSnapshot:
    families: list[MetricFamily] = []
    for metric in METRICS.values():
        if metric.instrument is Instrument.HISTOGRAM:
            points = _histograms(metric, (part.histograms.get(metric.name, ()) for part in parts))
        else:
            points = _numbers(metric, (part.numbers.get(metric.name, ()) for part in parts))
        if points:
            families.append(MetricFamily(metric, points))
    return MetricsSnapshot(
        families,
        min(part.start_unix_ns for part in parts),
        max(part.time_unix_ns for part in parts),
    )


def _numbers(metric: Metric, parts: Iterable[Iterable[tuple[Labels, float]]]) -> list[MetricPoint]:
    found: dict[Labels, float] = {}
    added = metric.instrument is Instrument.COUNTER or metric.unit in _ADDED or metric.unit.startswith("{")
    added = added and not metric.name.startswith("hw.")  # of the machine, not of the process
    for part in parts:
        for labels, value in part:
            known = found.get(labels)
            found[labels] = value if known is None else known + value if added else max(known, value)
    return [MetricPoint(labels, value) for labels, value in found.items()]


def _histograms(
    metric: Metric, parts: Iterable[Iterable[tuple[Labels, StoredHistogram]]]
) -> list[MetricPoint]:
    found: dict[Labels, list[StoredHistogram]] = {}
    for part in parts:
        for labels, value in part:
            if len(value[0]) == len(metric.buckets) + 1:  # else another version's buckets
                found.setdefault(labels, []).append(value)
    return [MetricPoint(labels, _merged(values)) for labels, values in found.items()]


def _merged(values: Sequence[StoredHistogram]) -> HistogramValue:
    counts, sums, totals, exemplars = zip(*values, strict=True)
    return HistogramValue(
        tuple(map(sum, zip(*counts, strict=True))),
        sum(sums),
        sum(totals),
        tuple(map(_latest, zip(*filter(None, exemplars), strict=False))),
    )


def _latest(exemplars: Iterable[StoredExemplar | None]) -> Exemplar | None:
    known = [exemplar for exemplar in exemplars if exemplar is not None]
    if not known:
        return None
    value, time_ns, trace_id, span_id = max(known, key=itemgetter(1))
    return Exemplar(value, time_ns, int.from_bytes(trace_id), span_id)

"""What retrieval was like when it was good: a small JSON file that live windows are compared with.

::

    baseline = Baseline.of(ns.load("good-week/"))
    baseline.save("retrieval.baseline.json")

It holds numbers and fingerprints, no content: sorted samples of scores, margins and norms, SimHashes of
query vectors, the embedder's vectors of our own probe texts, document ids that canary queries found.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct

from neuronscope._version import __version__
from neuronscope.artifact import Artifact, load
from neuronscope.diagnosis.canaries import CanaryRun
from neuronscope.diagnosis.embedders import Fingerprint
from neuronscope.diagnosis.samples import Collector, Queries, Series, samples, thinned
from neuronscope.exceptions import BaselineError
from neuronscope.replacing import replacement
from neuronscope.signals.records import SpanRecord
from neuronscope.signals.scores import scale_of

FORMAT: Final = "neuronscope.baseline"
VERSION: Final = 1
MAX_BYTES: Final = 64 << 20


class _Series(Struct, frozen=True):
    """A series as it is written."""

    store: str
    collection: str
    metric: str
    k: int
    n: int
    seen: int
    empty: int
    short: int
    filtered: int
    filtered_empty: int
    values: dict[str, list[float]]
    fingerprints: list[str]
    embedders: dict[str, int]


class _Document(Struct, frozen=True):
    """The file."""

    format: str
    version: int
    created_unix_ns: int
    agent: str
    source: str
    series: list[_Series]
    embedders: list[Fingerprint] = []
    canaries: list[CanaryRun] = []


class _Head(Struct, frozen=True):
    format: str = ""
    version: int = 0


@dataclass(frozen=True)
class Baseline:
    """A reference.

    Attributes:
        series: samples of queries, by what they can be compared with.
        embedders: fingerprints of the embedders, by name.
        canaries: what canary queries found, by the canaries' name.
        source: where it comes from, in words.
    """

    series: Mapping[Series, Queries] = field(default_factory=dict[Series, Queries])
    embedders: Mapping[str, Fingerprint] = field(default_factory=dict[str, Fingerprint])
    canaries: Mapping[str, CanaryRun] = field(default_factory=dict[str, CanaryRun])
    source: str = ""
    created_unix_ns: int = 0

    @classmethod
    def of(cls, recording: Artifact | Sequence[SpanRecord], source: str = "") -> Baseline:
        """The baseline of a recording."""
        spans = recording.telemetry.spans if isinstance(recording, Artifact) else recording
        collector = Collector()
        for query in thinned(samples(spans)):
            collector.add(query)
        if not source and isinstance(recording, Artifact):
            source = recording.path or ""
        return cls(collector.queries(), source=source, created_unix_ns=time.time_ns())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all."""
        document = _Document(
            FORMAT,
            VERSION,
            self.created_unix_ns or time.time_ns(),
            __version__,
            self.source,
            [_written(queries) for queries in self.series.values()],
            list(self.embedders.values()),
            list(self.canaries.values()),
        )
        with replacement(path) as new:
            new.touch(0o600)  # for nobody else, as recordings are
            new.write_bytes(msgspec.json.encode(document))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Baseline:
        """Read a baseline's file, or make the baseline of a recording: a `.nsz` file, or a directory of them.

        Raises:
            BaselineError: the file is something else, damaged, or of a version that this one cannot read.
            FileNotFoundError: there is no such file.
        """
        source = Path(path)
        if source.is_dir() or source.name.endswith((".nsz", ".nsz.open")):
            return cls.of(load(source))
        if source.stat().st_size > MAX_BYTES:
            raise BaselineError(f"{source} is no baseline: it is larger than {MAX_BYTES >> 20} MiB.")
        return cls._decoded(source.read_bytes(), source)

    @classmethod
    def _decoded(cls, data: bytes, source: Path) -> Baseline:
        try:
            head = msgspec.json.decode(data, type=_Head)
            if head.format != FORMAT:
                raise BaselineError(f"{source} is no baseline. Make one with `neuronscope baseline make`.")
            if head.version > VERSION:
                raise BaselineError(
                    f"{source} is a baseline of version {head.version}; "
                    f"this NeuronScope reads up to version {VERSION}."
                )
            document = msgspec.json.decode(data, type=_Document)
            series = [_read(item) for item in document.series]
        except (msgspec.MsgspecError, ValueError) as error:
            if isinstance(error, BaselineError):
                raise
            raise BaselineError(f"{source} is no baseline, or a damaged one: {error}") from None
        return cls(
            {queries.series: queries for queries in series},
            {item.name: item for item in document.embedders},
            {item.name: item for item in document.canaries},
            document.source,
            document.created_unix_ns,
        )

    def reference(self, series: Series) -> Queries | None:
        """What a series is compared with: its own past, or that of one whose scores read alike.

        A store's client may not always know a collection's metric; without it scores are taken as they are.
        """
        found = self.series.get(series)
        if found is not None:
            return found
        alike = [
            queries
            for other, queries in self.series.items()
            if other[:2] == series[:2] and other.k == series.k and "" in {other.metric, series.metric}
        ]
        return alike[0] if alike and scale_of(alike[0].series.metric) == scale_of(series.metric) else None

    def knows(self, series: Series) -> bool:
        """Is the collection searched in this way in the baseline, as far as the metric is known?"""
        ways = [other for other in self.series if other[:2] == series[:2] and other.k == series.k]
        return any(other.metric == series.metric or "" in {other.metric, series.metric} for other in ways)

    def within(self, store: str, collection: str) -> list[Queries]:
        """The series of one collection."""
        return [queries for series, queries in self.series.items() if series.place == (store, collection)]


def _written(queries: Queries) -> _Series:
    return _Series(
        **queries.series._asdict(),
        n=queries.n,
        seen=queries.seen,
        empty=queries.empty,
        short=queries.short,
        filtered=queries.filtered,
        filtered_empty=queries.filtered_empty,
        values={feature: values.tolist() for feature, values in queries.values.items()},
        fingerprints=list(queries.fingerprints),
        embedders=dict(queries.embedders),
    )


def _read(item: _Series) -> Queries:
    if any(len(text) != 16 for text in item.fingerprints):
        raise BaselineError("a fingerprint has not 16 digits")
    bytes.fromhex("".join(item.fingerprints))
    return Queries(
        Series(item.store, item.collection, item.metric, item.k),
        n=item.n,
        seen=item.seen,
        empty=item.empty,
        short=item.short,
        filtered=item.filtered,
        filtered_empty=item.filtered_empty,
        values={feature: np.sort(np.asarray(values, np.float64)) for feature, values in item.values.items()},
        fingerprints=tuple(item.fingerprints),
        embedders=item.embedders,
    )


def merged(queries: Iterable[Queries]) -> tuple[int, dict[tuple[str, int], int]]:
    """How many queries several series hold, and how many of each metric and k."""
    by_kind = {(item.series.metric, item.series.k): item.seen for item in queries}
    return sum(by_kind.values()), by_kind

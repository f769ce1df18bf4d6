"""Runs both sides in turn; throughput as a share of raw writes in the same round, since disks have moods."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from tests.benchmarks.children import Child
from tests.benchmarks.figures import Figure, Goal, Run, at_least, at_most
from tests.benchmarks.measure import spread
from tests.benchmarks.nsz.workload import BURST, MIB, SPANS, TENSORS
from tests.benchmarks.venvs import CACHE, environment

REQUIREMENTS: Final = (
    "mcap==1.6.0",
    "pyarrow==26.0.1",
    "h5py==3.14.0",
    "safetensors==0.8.0",
    "numpy==2.4.6",
)
PEERS: Final = ("mcap", "Arrow", "HDF5", "SQLite", "safetensors")
LISTING: Final = ("mcap", "Arrow", "HDF5", "SQLite")
MEMORY: Final = Path("/dev/shm")


def figures(run: Run) -> Iterator[Figure]:
    """All figures, with both children open."""
    made = environment("nsz", REQUIREMENTS)
    for name in ("mcap", "pyarrow", "h5py", "safetensors", "numpy"):
        run.versions[name] = made.version(name)
    run.facts.append("The peers' spans are encoded beforehand; ours are encoded while they are written.")
    run.facts.append("Arrow, HDF5 and SQLite have no checksum of their tensors; ours and mcap's are on.")
    disk = CACHE / "nsz"
    disk.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=MEMORY) as memory,
        tempfile.TemporaryDirectory(dir=disk) as folder,
        Child("tests.benchmarks.nsz.ours_child") as ours,
        Child("tests.benchmarks.nsz.peers_child", python=made.python) as peers,
    ):
        bench = _Bench(run, ours, peers, Path(memory), Path(folder))
        for part in (bench.tensors, bench.spans, bench.reading, bench.beside):
            yield from part()


class _Samples(dict[str, list[float]]):
    """Samples by title, a sample a round."""

    def figure(
        self,
        name: str,
        title: str,
        unit: str,
        goal: Goal | None = None,
        *,
        peers: Sequence[str] = (),
        scale: float = 1.0,
        note: str,
    ) -> Figure:
        """The median of a title's samples, beside that of its peers'."""
        samples = [scale * sample for sample in self[title]]
        others = {peer: median(self[peer]) for peer in peers}
        return Figure(f"nsz.{name}", median(samples), unit, goal, others, spread(samples), note)


class _Bench:
    """The two sides, and where they write."""

    def __init__(self, run: Run, ours: Child, peers: Child, memory: Path, folder: Path) -> None:
        self._run, self._ours, self._peers = run, ours, peers
        self._memory, self._folder = memory, folder
        self._rounds = min(run.rounds, 7)

    def _each(self, measure: Callable[[], dict[str, float]]) -> _Samples:
        """Samples by title, over all rounds."""
        found = _Samples()
        for _ in range(self._rounds):
            for title, value in measure().items():
                found.setdefault(title, []).append(value)
        return found

    def tensors(self) -> Iterator[Figure]:
        """Writing full tensors."""
        if not self._run.wants("nsz.tensor_write", "nsz.tensor_write_compressed", "nsz.tensor_ratio"):
            return
        path = str(self._memory / "x")

        def measure() -> dict[str, float]:
            raw = self._ours.ask("write_raw", path=path)
            share = {"nsz": raw / self._ours.ask("write_tensors", path=path)[0]}
            seconds, ratio = self._ours.ask("write_tensors", path=path, compress=True, bfloat16=True)
            share |= {"planes": raw / seconds, "ratio": ratio}
            for peer in PEERS:
                share[peer] = raw / self._peers.ask("write_tensors", peer=peer, path=path)
            share["over mcap"] = share["nsz"] / share["mcap"]
            return share

        found = self._each(measure)
        note = f"{BURST} tensors of 1 MiB into a memory file system, as a share of os.write's speed"
        yield found.figure("tensor_write", "nsz", "× raw", at_least(0.85), peers=PEERS, note=note)
        yield found.figure("tensor_write_over_mcap", "over mcap", "×", at_least(1.4), note=note)
        note = "bfloat16 with channels of different scale, byte planes and zstd"
        yield found.figure("tensor_write_compressed", "planes", "× raw", at_least(0.20), note=note)
        note = "the same: size over the file's"
        yield found.figure("tensor_ratio", "ratio", "×", at_least(1.40), note=note)

    def spans(self) -> Iterator[Figure]:
        """Writing spans."""
        if not self._run.wants("nsz.span_write", "nsz.span_framing", "nsz.span_size"):
            return
        path = str(self._memory / "x")

        def measure() -> dict[str, float]:
            told: dict[str, float] = self._ours.ask("write_spans", path=path)
            raw = self._ours.ask("write_spans_raw", path=path)
            told["framing"] = max(told["whole"] - told["encode"], 0.0) / raw
            for peer in LISTING:
                told[peer] = self._peers.ask("write_spans", peer=peer, path=path)
            return told

        found = self._each(measure)
        note = f"CPU time of a span of 400 bytes, {SPANS} of them; ours with encoding, the peers' without"
        yield found.figure("span_write", "whole", "µs", at_most(6.0), peers=LISTING, note=note)
        note = "without encoding: chunks, zstd, index, checksums"
        yield found.figure("span_framing", "framing", "× buffered write", at_most(4.0), note=note)
        yield found.figure("span_size", "size", "× JSON", at_most(0.22), note="the file over the JSON in it")

    def reading(self) -> Iterator[Figure]:
        """Reading a file of a gigabyte."""
        names = ("nsz.list_spans", "nsz.list_spans_disk", "nsz.tensor_read", "nsz.tensor_read_disk")
        if not self._run.wants(*names, "nsz.list_spans_over_mcap", "nsz.read_spans"):
            return
        paths = {name: str(self._folder / name) for name in ("nsz", *LISTING)}
        size = self._ours.ask("make", path=paths["nsz"])
        for peer in LISTING:
            self._peers.ask("make", peer=peer, path=paths[peer])

        def measure() -> dict[str, float]:
            told = self._ours.ask("list_spans", path=paths["nsz"], cold=True)
            found = {"nsz": told["ms"], "disk": told["disk"] / size}
            for peer in LISTING:
                found[peer] = self._peers.ask("list_spans", peer=peer, path=paths[peer])["ms"]
            found["over mcap"] = found["mcap"] / found["nsz"]
            found["whole"] = self._ours.ask("read_spans", path=paths["nsz"])
            warm = self._ours.ask("read_tensor", path=paths["nsz"], cold=False)
            found |= {"copies": warm["copies"], "us": warm["us"]}
            found["cold"] = self._ours.ask("read_tensor", path=paths["nsz"], cold=True)["disk"] / MIB
            return found

        found = self._each(measure)
        what = f"{SPANS} spans beside {TENSORS} tensors of 1 MiB, not in the system's cache"
        note = f"{what}; ours with names, ids and times decoded, the peers' bytes alone"
        yield found.figure("list_spans", "nsz", "ms", at_most(100), peers=LISTING, note=note)
        yield found.figure("list_spans_over_mcap", "over mcap", "×", at_least(20), note=what)
        share = "% of the file"
        yield found.figure("list_spans_disk", "disk", share, at_most(1.0), scale=100, note=what)
        note = "the same spans with every attribute, as records, warm"
        yield found.figure("read_spans", "whole", "ms", note=note)
        note = f"1 MiB by layer and step, checksum verified, warm; {median(found['us']):.0f} µs"
        yield found.figure("tensor_read", "copies", "× memcpy", at_most(2.5), note=note)
        note = "what the disk reads for one tensor of a cold file by layer, step and time, with opening"
        yield found.figure("tensor_read_disk", "cold", "× tensor", at_most(1.15), note=note)

    def beside(self) -> Iterator[Figure]:
        """What the service keeps of its speed while a thread records."""
        if not self._run.wants("nsz.foreground"):
            return
        path = str(self._memory / "x")

        def measure() -> dict[str, float]:
            alone = self._ours.ask("disturb", path=path, seconds=1.0, undisturbed=True)
            with_ours = self._ours.ask("disturb", path=path, seconds=1.0, undisturbed=False)
            with_mcap = self._peers.ask("disturb", peer="mcap", path=path, seconds=1.0)
            return {"nsz": with_ours / alone, "mcap": with_mcap / alone}

        found = self._each(measure)
        note = "a Python loop beside a thread recording 100 MiB and 10,000 spans a second; ours with encoding"
        yield found.figure("foreground", "nsz", "× undisturbed", at_least(0.85), peers=("mcap",), note=note)

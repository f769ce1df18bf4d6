"""The exporter, and recordings of several segments."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from opentelemetry.trace import SpanKind

from neuronscope.exceptions import ConfigError, NszError
from neuronscope.exporters import ExporterContext
from neuronscope.settings import Settings
from neuronscope.signals.records import Attributes, Batch, LayerRecord, MetricsSnapshot, SpanRecord
from neuronscope.signals.tensors import TensorSnapshot
from neuronscope_exporters import nsz
from neuronscope_exporters.nsz import exporter as exporter_module

RESOURCE: Attributes = {"service.name": "rag", "process.pid": 1}


def span(number: int, trace: int = 1) -> SpanRecord:
    return SpanRecord(trace, number, "chat", SpanKind.CLIENT, number, number + 5, {"n": number})


def layer(step: int) -> LayerRecord:
    tensor = TensorSnapshot.from_numpy(np.full((32, 32), step, "f4"))
    return LayerRecord("m", "layers.0", step, step, (32, 32), "F32", span_id=1, trace_id=1, tensor=tensor)


class Counts:
    """What the exporter told the platform."""

    def __init__(self) -> None:
        self.lost: Counter[tuple[str, str]] = Counter()
        self.exported: Counter[str] = Counter()

    def count_lost(self, item: str, reason: str, n: int) -> None:
        self.lost[item, reason] += n

    def count_exported(self, item: str, n: int) -> None:
        self.exported[item] += n


def make(directory: Path | str, counts: Counts | None = None, service: str = "rag") -> nsz.NszExporter | None:
    told = counts or Counts()
    settings = Settings(nsz=str(directory), service_name=service)
    context = ExporterContext(settings, RESOURCE, _no_metrics, told.count_lost, told.count_exported)
    return cast("nsz.NszExporter | None", nsz.create(context))


def _no_metrics() -> MetricsSnapshot:
    return MetricsSnapshot((), 0, 0)


def test_without_a_directory_there_is_no_exporter() -> None:
    """`nsz` unset means off."""
    assert make("") is None


def test_every_batch_is_in_the_file_when_export_returns(tmp_path: Path) -> None:
    """Readable while the process runs; finished after shutdown; private; named after the service."""
    counts = Counts()
    exporter = make(tmp_path / "deep" / "records", counts, service="my service/../x")
    assert exporter is not None
    assert list((tmp_path / "deep" / "records").iterdir()) == []
    exporter.export(Batch(RESOURCE, [span(1), span(2)], [layer(0)]))
    (path,) = (tmp_path / "deep" / "records").iterdir()
    assert path.name.startswith(f"my_service_.._x-{os.getpid()}-")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    live = nsz.read(path.parent)
    assert ([item.span_id for item in live.spans], len(live.layers)) == ([1, 2], 1)
    assert live.resource == RESOURCE
    exporter.export(Batch(RESOURCE, [span(3)]))
    assert exporter.flush(60.0)
    exporter.shutdown(60.0)
    recording = nsz.read(path)
    assert recording.finished
    assert len(recording.spans) == 3
    assert counts.exported == {"span": 3, "layer": 1}
    assert not counts.lost


def test_a_process_that_records_nothing_leaves_no_file(tmp_path: Path) -> None:
    """Prefork masters and helper processes."""
    exporter = make(tmp_path)
    assert exporter is not None
    exporter.export(Batch(RESOURCE))
    assert exporter.flush(60.0)
    exporter.shutdown(60.0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("directory", ["file/below", "file", "/proc/nsz"])
def test_a_directory_that_cannot_be_made_is_a_configuration_error(tmp_path: Path, directory: str) -> None:
    """Told once, at the start, by the setting's name."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"`nsz` \(NEURONSCOPE_NSZ\) must be a directory"):
        make(tmp_path / directory)


def test_after_its_directory_was_deleted_a_new_segment_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written meanwhile is counted; the service notices nothing."""
    monkeypatch.setattr(exporter_module, "RETRY_NS", 0)
    counts = Counts()
    exporter = make(tmp_path / "records", counts)
    assert exporter is not None
    exporter.export(Batch(RESOURCE, [span(1)]))
    for item in (tmp_path / "records").iterdir():
        item.unlink()
    (tmp_path / "records").rmdir()
    exporter.export(Batch(RESOURCE, [span(2)]))
    assert counts.lost == {("span", "file_deleted"): 1}
    exporter.export(Batch(RESOURCE, [span(3)]))
    assert [item.span_id for item in nsz.read(tmp_path / "records").spans] == [3]
    for item in (tmp_path / "records").iterdir():
        item.unlink()
    (tmp_path / "records").rmdir()
    (tmp_path / "records").write_text("in the way")
    exporter.export(Batch(RESOURCE, [span(4)]))
    exporter.export(Batch(RESOURCE, [span(5)], [layer(0)]))
    assert counts.lost == {
        ("span", "file_deleted"): 2, ("span", "io_error"): 1, ("layer", "io_error"): 1,
    }  # fmt: skip
    exporter.shutdown(60.0)


FORK = """
import os, sys
from neuronscope.exporters import ExporterContext
from neuronscope.settings import Settings
from neuronscope.signals.records import Batch, MetricsSnapshot, SpanRecord
from neuronscope_exporters import nsz
from opentelemetry.trace import SpanKind
def collect(): return MetricsSnapshot((), 0, 0)
def batch(n): return Batch({}, [SpanRecord(1, n, "s", SpanKind.CLIENT, n, n, {})])
settings = Settings(nsz=sys.argv[1], service_name="rag")
exporter = nsz.create(ExporterContext(settings, {}, collect, print, lambda *_: None))
exporter.export(batch(1))
child = os.fork()
exporter.export(batch(2 if child == 0 else 3))
exporter.shutdown(60.0)
if child:
    os.waitpid(child, 0)
"""


def test_a_forked_child_writes_its_own_segment(tmp_path: Path) -> None:
    """Parent and child never share a file; both are finished, and read as one."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", FORK, str(tmp_path)], check=True, env=environment, timeout=250)
    recording = nsz.read(tmp_path)
    assert sorted([item.span_id for item in segment.spans] for segment in recording.segments) == [[1, 3], [2]]
    assert [item.span_id for item in recording.spans] == [1, 2, 3]
    assert recording.finished
    assert not recording.damage


def segments(folder: Path) -> None:
    """Two processes of one trace, one of which wrote tensors."""
    folder.mkdir()
    nsz.write(folder / "a.nsz", [span(1), span(4)], [layer(0), layer(2)], {"service.name": "rag"})
    nsz.write(folder / "b.nsz", [span(2), span(3)], [layer(1)], {"service.name": "model"})


def test_several_segments_read_as_one(tmp_path: Path) -> None:
    """A directory, several paths, or both; everything in order of time, each span with its resource."""
    segments(tmp_path / "records")
    both: list[Path | str] = [tmp_path / "records/b.nsz", str(tmp_path / "records/a.nsz")]
    for paths in (tmp_path / "records", both):
        recording = nsz.read(paths)
        assert [item.span_id for item in recording.spans] == [1, 2, 3, 4]
        assert [item.step for item in recording.layers] == [0, 1, 2]
        assert {resource["service.name"] for resource in recording.resources} == {"rag", "model"}
        names = [recording.resource_of(item)["service.name"] for item in recording.spans]
        assert names == ["rag", "model", "model", "rag"]
        assert recording.resource_of(span(99)) == {}
    assert len(nsz.load(tmp_path / "records")) == 2


def test_merge_copies_everything_into_one_file(tmp_path: Path) -> None:
    """Resources stay with their spans, tensors come along bit by bit; merging again changes nothing."""
    segments(tmp_path / "records")
    steps: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        steps.append((done, total))

    damage = nsz.merge(tmp_path / "records", tmp_path / "one.nsz", progress)
    nsz.merge(tmp_path / "one.nsz", tmp_path / "two.nsz")
    assert not damage
    assert steps == sorted(steps)
    assert steps[-1][0] == steps[-1][1] > 0
    before = nsz.read(tmp_path / "records")
    for name in ("one.nsz", "two.nsz"):
        merged = nsz.read(tmp_path / name)
        assert len(merged.segments) == 1
        assert merged.spans == before.spans
        assert [merged.resource_of(item) for item in merged.spans] == [
            before.resource_of(item) for item in before.spans
        ]
        for old, new in zip(before.layers, merged.layers, strict=True):
            assert old.tensor is not None
            assert new.tensor is not None
            assert new.tensor.numpy().tobytes() == old.tensor.numpy().tobytes()


def test_one_bad_file_hides_no_other(tmp_path: Path) -> None:
    """In a directory it is reported; named itself, it is an error."""
    segments(tmp_path / "records")
    (tmp_path / "records/empty.nsz").touch()
    (tmp_path / "records/.hidden.nsz.123.tmp").write_text("a file being written")
    recording = nsz.read(tmp_path / "records")
    assert len(recording.spans) == 4
    assert recording.damage.count == 1
    ((path, reason),) = recording.damage.files
    assert path.endswith("empty.nsz")
    assert reason.endswith("is empty")
    with pytest.raises(NszError, match="is empty"):
        nsz.read([tmp_path / "records", tmp_path / "records/empty.nsz"])
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/empty.nsz").touch()
    with pytest.raises(NszError, match=r"can be read; the first: .* is empty"):
        nsz.read(tmp_path / "bad")


def test_merge_leaves_out_a_damaged_tensor_and_says_so(tmp_path: Path) -> None:
    """Its record stays."""
    segments(tmp_path / "records")
    data = bytearray((tmp_path / "records/b.nsz").read_bytes())
    data[data.index(np.full(8, 1, "f4").tobytes()) + 3] ^= 1
    (tmp_path / "records/b.nsz").write_bytes(data)
    damage = nsz.merge(tmp_path / "records", tmp_path / "one.nsz")
    assert damage.records == 1
    assert "layers.0, step 1" in damage.reasons[0]
    merged = nsz.read(tmp_path / "one.nsz")
    assert [item.tensor is not None for item in merged.layers] == [True, False, True]

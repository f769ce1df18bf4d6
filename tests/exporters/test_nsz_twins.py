"""Files of a recording that have the same records: what is there more than once is read once."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from opentelemetry.trace import SpanKind

import neuronscope as ns
from neuronscope.cli import cli
from neuronscope.signals.records import LayerRecord, LogRecord, SpanEvent, SpanRecord
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary
from neuronscope_exporters import nsz

START = 1_700_000_000_000_000_000
MINE = {"service.name": "shop", "service.instance.id": "one"}


def span(number: int, start: int = START) -> SpanRecord:
    return SpanRecord(
        7, number, f"call {number}", SpanKind.CLIENT, start + number, start + number + 5, {"n": 1}
    )


def layer(number: int) -> LayerRecord:
    values = np.full((4, 4), number, "f4")
    return LayerRecord(
        "m", "layers.0", number, START + number, values.shape, "F32", trace_id=7, span_id=number,
        summary=TensorSummary.of(values), tensor=TensorSnapshot.from_numpy(values),
    )  # fmt: skip


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """Four spans, each with a layer and a log record, and an event of the agent."""
    path = tmp_path / "whole.nsz"
    numbers = range(1, 5)
    logs = [
        LogRecord(
            START + n, START + n, 9, "INFO", body={"text": str(n)}, trace_id=7, span_id=n, event_name="e"
        )
        for n in numbers
    ]
    events = [SpanEvent("nsz.note", START + 2, {"why": "x"})]
    nsz.write(path, [span(n) for n in numbers], [layer(n) for n in numbers], MINE, events, logs)
    return path


def counts(*paths: Path) -> tuple[int, int, int, int]:
    """Spans, layer records, log records, events."""
    artifact = ns.load(paths)
    assert not artifact.damage
    records = artifact.telemetry
    return len(records.spans), len(records.layer_snapshots), len(artifact.logs), len(artifact.events)


def merged(out: Path, *paths: Path) -> str:
    """What `neuronscope merge` says; the file is sound."""
    done = CliRunner().invoke(cli, ["merge", *map(str, paths), "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert nsz.check(out).sound
    return done.stderr


def part(whole: Path, out: Path, start: int, end: int) -> Path:
    """A cut of some spans."""
    nsz.cut(whole, out, nsz.Part(start=START + start, end=START + end))
    return out


@pytest.mark.parametrize("kind", ["itself", "symlink", "hard link", "other path"])
def test_a_file_that_is_named_twice_is_read_once(whole: Path, tmp_path: Path, kind: str) -> None:
    """By whatever name; merge says so."""
    (tmp_path / "sub").mkdir()
    again = {"itself": whole, "other path": tmp_path / "sub/../whole.nsz"}.get(kind, tmp_path / "again.nsz")
    if kind == "symlink":
        again.symlink_to(whole)
    elif kind == "hard link":
        os.link(whole, again)
    assert counts(whole, again) == (4, 4, 4, 1)
    told = merged(tmp_path / "out.nsz", whole, again)
    assert told == f"copied once: {again}, which is named more than once\n"
    assert counts(tmp_path / "out.nsz") == (4, 4, 4, 1)


def test_a_directory_and_a_file_of_it(whole: Path, tmp_path: Path) -> None:
    """As `merge run run/a.nsz` has it."""
    assert counts(tmp_path, whole) == (4, 4, 4, 1)


@pytest.mark.parametrize("first", [0, 1])
def test_a_copy_and_a_part_add_nothing(whole: Path, tmp_path: Path, first: int) -> None:
    """In either order; the tensors are there."""
    copy = Path(shutil.copy(whole, tmp_path / "copy.nsz"))
    cut = part(whole, tmp_path / "cut.nsz", 2, 4)
    for other in (copy, cut):
        pair = (whole, other) if first else (other, whole)
        assert counts(*pair) == (4, 4, 4, 1)
        out = tmp_path / f"{other.stem}-out.nsz"
        assert "records that several of the files have" in merged(out, *pair)
        assert counts(out) == (4, 4, 4, 1)
        for record in ns.load(out).telemetry.layer_snapshots:
            assert record.tensor is not None
            assert record.tensor.numpy()[0, 0] == record.step


def test_parts_that_overlap_make_the_whole(whole: Path, tmp_path: Path) -> None:
    """Each record once; the agent's event, which a part by time has if it is of its time, too."""
    nsz.cut(whole, tmp_path / "a.nsz", nsz.Part(end=START + 4))
    nsz.cut(whole, tmp_path / "b.nsz", nsz.Part(start=START + 1))
    merged(tmp_path / "out.nsz", tmp_path / "a.nsz", tmp_path / "b.nsz")
    assert counts(tmp_path / "out.nsz") == (4, 4, 4, 1)


def test_a_merged_file_beside_what_it_was_made_of(tmp_path: Path) -> None:
    """`merge run -o run/all.nsz`, and then `view run`: two processes, each span with its own resource."""
    for instance in ("one", "two"):
        nsz.write(
            tmp_path / f"{instance}.nsz", [span(1), span(2)], [], {**MINE, "service.instance.id": instance}
        )
    merged(tmp_path / "all.nsz", tmp_path)
    recording = nsz.read(tmp_path)
    found = Counter(recording.resource_of(item)["service.instance.id"] for item in recording.spans)
    assert found == {"one": 2, "two": 2}


def test_ids_alone_make_no_twins(tmp_path: Path) -> None:
    """Ranks with one seed, and no name of their own: what happened at other times is something else."""
    nsz.write(tmp_path / "a.nsz", [span(1), span(2)], [], {})
    nsz.write(tmp_path / "b.nsz", [span(1, START + 1), span(2, START + 1)], [], {})
    assert counts(tmp_path) == (4, 0, 0, 0)
    assert merged(tmp_path / "out.nsz", tmp_path / "a.nsz", tmp_path / "b.nsz") == ""


def test_a_part_gives_what_the_whole_has_lost(whole: Path, tmp_path: Path) -> None:
    """A damaged file and a sound part of it: together they have what either has."""
    cut = part(whole, tmp_path / "cut.nsz", 1, 3)
    data = bytearray(whole.read_bytes())
    for place in nsz.NszFile(whole).chunks:
        if place.may_have_records(0, 2**64):
            data[place.offset + place.length - 1] ^= 0xFF
    whole.write_bytes(data)
    assert not nsz.read(whole).spans
    assert len(nsz.read([whole, cut]).spans) == len(nsz.read(cut).spans) > 0


def test_exports_have_a_row_for_each_record_once(whole: Path, tmp_path: Path) -> None:
    """Formats that go through the files themselves."""
    cut = part(whole, tmp_path / "cut.nsz", 2, 4)
    out = tmp_path / "out.jsonl"
    arguments = ["export", "--to", "otlp-json", str(whole), str(cut), "-o", str(out)]
    assert CliRunner().invoke(cli, arguments).exit_code == 0
    assert out.read_text().count('"spanId"') == 8  # four spans and four log records


def test_segments_of_one_process_that_follow_each_other_are_not_compared(tmp_path: Path) -> None:
    """What every recorder writes: no record is looked at twice where times do not meet."""
    nsz.write(tmp_path / "a.nsz", [span(n) for n in range(1, 100)], [], MINE)
    nsz.write(tmp_path / "b.nsz", [span(n) for n in range(100, 200)], [], MINE)
    recording = nsz.read(tmp_path)
    assert [file.messages.twins for file in recording.segments] == [None, None]
    assert len(recording.spans) == 199

"""Damaged files: nothing wrong is returned, nothing but `NszError` is raised."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from neuronscope.exceptions import NszError, NszLimitError
from neuronscope.summaries.arrays import by_numpy
from neuronscope_exporters import nsz
from neuronscope_exporters.nsz import layout
from neuronscope_exporters.nsz.layout import Op
from samples import SPANS, sample, values_of

pytestmark = pytest.mark.exhaustive


def examine(path: Path) -> tuple[int, int, bool]:
    """Read everything: (spans, readable tensors, whether anything was reported).  Fails on a wrong value."""
    try:
        recording = nsz.read(path)
        spans, layers, events = recording.spans, recording.layers, recording.events
        reported = bool(recording.damage)
    except NszError:
        return 0, 0, True
    for span in spans:
        assert span == SPANS[span.span_id]
    assert len({span.span_id for span in spans}) == len(spans)
    tensors = 0
    for record in layers:
        assert record.summary == by_numpy(values_of(record.step))
        assert record.tensor is not None
        try:
            array = record.tensor.numpy()
        except NszError:
            reported = True
            continue
        assert (array == values_of(record.step)).all()
        tensors += 1
    assert [event.name for event in events] in (["last"], [])
    return len(spans), tensors, reported


def test_a_file_cut_anywhere_gives_what_was_before_the_cut(tmp_path: Path) -> None:
    """At every 97th byte; the torn tail is reported with its size."""
    data = sample(tmp_path / "whole.nsz", close=True)
    cut = tmp_path / "cut.nsz"
    seen = 0
    for size in range(1, len(data), 97):
        cut.write_bytes(data[:size])
        spans, tensors, _ = examine(cut)
        assert spans >= seen, "a longer file gives fewer records"
        assert spans == 20 * tensors
        seen = spans
        if size > 4096:
            recording = nsz.read(cut)
            damage = recording.damage
            if recording.finished:  # the data is complete, only the summary is cut
                assert spans == 120
                assert "summary" in damage.reasons[0]
            elif damage:
                assert 0 < damage.truncated_bytes <= size
    assert seen == 120


@pytest.mark.parametrize("close", [True, False], ids=["finished", "unfinished"])
def test_flipped_bits_are_noticed_and_cost_one_chunk(tmp_path: Path, close: bool) -> None:
    """500 single flips: never a wrong value, never a silent loss, at most a chunk's records gone."""
    data = sample(tmp_path / "whole.nsz", close=close)
    flipped = tmp_path / "flipped.nsz"
    random_source = random.Random(11)
    lost: list[int] = []
    for _ in range(500):
        damaged = bytearray(data)
        damaged[random_source.randrange(len(data))] ^= 1 << random_source.randrange(8)
        flipped.write_bytes(damaged)
        spans, tensors, reported = examine(flipped)
        assert reported or (spans, tensors) == (120, 6)
        lost.append((120 - spans) // 20)
    assert sorted(lost)[len(lost) // 2] == 0
    assert sorted(lost)[-5] <= 1, "one flip cost more than one chunk"


@pytest.mark.parametrize("close", [True, False], ids=["finished", "unfinished"])
def test_every_flipped_bit_of_the_framing_is_noticed(tmp_path: Path, close: bool) -> None:
    """Each byte of guards, chunk headers, message indexes and lengths; a sample of the long summary."""
    writer = nsz.NszWriter(tmp_path / "whole.nsz")
    for number in (1, 2):
        writer.append_span(SPANS[number])
        writer.flush()
    if close:
        writer.close()
    data = (tmp_path / "whole.nsz").read_bytes()
    start = data.index(layout.GUARD_MARK, data.index(layout.GUARD_MARK) + 1) - 40
    end = data.index(layout.record(Op.DATA_END, bytes(4))) + 13 if close else len(data)
    flipped = tmp_path / "flipped.nsz"
    for position in [
        *range(start, end),
        *range(end, len(data) - 700, 61),
        *range(max(end, len(data) - 700), len(data)),  # statistics, chunk indexes, footer
    ]:
        damaged = bytearray(data)
        damaged[position] ^= 1 << position % 8
        flipped.write_bytes(damaged)
        spans, _, reported = examine(flipped)
        assert reported or spans == 2, position


def test_random_blasts_and_zeroed_pages_are_survived(tmp_path: Path) -> None:
    """Overwritten stretches cost the chunks they touch; the reader goes on behind them."""
    data = sample(tmp_path / "whole.nsz", close=True)
    path = tmp_path / "blasted.nsz"
    random_source = random.Random(5)
    kept: list[int] = []
    for number in range(60):
        damaged = bytearray(data)
        size = 64 if number % 2 else 1024
        at = random_source.randrange(len(data) - size)
        damaged[at : at + size] = random_source.randbytes(size) if number % 2 else bytes(size)
        path.write_bytes(damaged)
        spans, tensors, reported = examine(path)
        assert reported or (spans, tensors) == (120, 6)
        kept.append(spans)
    assert sorted(kept)[len(kept) // 2] >= 100


def test_an_end_in_the_middle_and_a_length_that_leads_past_chunks_hide_nothing(tmp_path: Path) -> None:
    """Records between chunks have no checksum: the next guard and its number are what is believed."""
    data = sample(tmp_path / "a.nsz", close=False)
    guards = [at - 9 for at in range(len(data)) if data.startswith(layout.GUARD_MARK, at)]
    index = data.rindex(bytes([Op.MESSAGE_INDEX]) + (22).to_bytes(8, "little"), 0, guards[2])
    end = layout.record(Op.DATA_END, bytes(4))
    (tmp_path / "a.nsz").write_bytes(data[:index] + end + data[index + len(end) :])
    assert examine(tmp_path / "a.nsz") == (120, 6, True)
    length = (guards[4] - index - 9).to_bytes(8, "little")
    (tmp_path / "a.nsz").write_bytes(data[: index + 1] + length + data[index + 9 :])
    assert examine(tmp_path / "a.nsz") == (120, 6, True)


def test_damage_says_what_where_and_why(tmp_path: Path) -> None:
    """Count, bytes and a reason for people; the number of lost chunks from the gap in their numbers."""
    data = bytearray(sample(tmp_path / "a.nsz", close=False))
    guards = [at for at in range(len(data)) if data.startswith(layout.GUARD_MARK, at)]
    data[guards[4] + 30] ^= 1  # the second small chunk's guard
    (tmp_path / "a.nsz").write_bytes(data)
    damage = nsz.read(tmp_path / "a.nsz").damage
    assert (damage.count, damage.stretches, damage.lost_chunks) == (1, 1, 1)
    assert damage.bytes == guards[5] - guards[4] + 31  # and the message index before
    assert "guard record does not match" in damage.reasons[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04" + bytes(99), "looks like a ZIP"),
        (b"PFS0" + bytes(99), "Nintendo"),
        (b"hello", "begins with"),
        (layout.MAGIC[:5], "cut off"),
        (layout.MAGIC + layout.record(1, layout.string("ros2") + layout.string("x")), "profile 'ros2'"),
        (b"junk" + layout.MAGIC, "before its MCAP magic"),
    ],
)
def test_what_is_no_nsz_file_is_told(tmp_path: Path, content: bytes, message: str) -> None:
    """One clear line each; also for what is not even a file."""
    (tmp_path / "a.nsz").write_bytes(content)
    with pytest.raises(NszError, match=message):
        nsz.read(tmp_path / "a.nsz")


def test_what_is_not_even_a_file_is_told(tmp_path: Path) -> None:
    """Missing, a FIFO (without waiting for a writer), an empty directory, no path at all."""
    with pytest.raises(FileNotFoundError, match="there is no file"):
        nsz.read(tmp_path / "missing.nsz")
    os.mkfifo(tmp_path / "pipe.nsz")
    with pytest.raises(NszError, match="not a regular file"):
        nsz.read(tmp_path / "pipe.nsz")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NszError, match="holds no"):
        nsz.read(tmp_path / "empty")
    with pytest.raises(NszError, match="no file"):
        nsz.read([])


@pytest.mark.parametrize(
    "limits",
    [nsz.Limits(chunks=3), nsz.Limits(inflated_bytes=5000), nsz.Limits(summary_bytes=100)],
    ids=["chunks", "inflated", "summary"],
)
def test_limits_can_be_set_and_are_told(tmp_path: Path, limits: nsz.Limits) -> None:
    """A file that asks for more is refused as a whole."""
    sample(tmp_path / "a.nsz", close=True)
    with pytest.raises(NszLimitError):
        _ = nsz.read(tmp_path / "a.nsz", limits).spans


# --- many damages -----------------------------------------------------------------------------------


def damage_somehow(data: bytes, source: random.Random) -> bytes:
    """One of the ways in which a file goes bad."""
    kind = source.choice(("flip", "flips", "noise", "zeros", "hole", "cut", "tail"))
    damaged = bytearray(data)
    at = source.randrange(len(data))
    size = min(source.choice((1, 16, 64, 512, 4096)), len(data) - at)
    if kind == "flip":
        damaged[at] ^= 1 << source.randrange(8)
    elif kind == "flips":
        for _ in range(source.randrange(2, 20)):
            damaged[source.randrange(len(data))] ^= 1 << source.randrange(8)
    elif kind == "noise":
        damaged[at : at + size] = source.randbytes(size)
    elif kind == "zeros":
        damaged[at : at + size] = bytes(size)
    elif kind == "hole":
        del damaged[at : at + size]
    elif kind == "cut":
        del damaged[at:]
    else:
        damaged += source.randbytes(size)
    return bytes(damaged)


@pytest.mark.parametrize("damages", [300, pytest.param(10_000, marks=pytest.mark.soak)])
def test_no_damage_returns_a_wrong_value(tmp_path: Path, damages: int) -> None:
    """Flips, noise, zeroed and missing stretches, cuts, rubbish at the end; median loss at most one chunk."""
    files = [sample(tmp_path / f"{close}.nsz", close=close) for close in (True, False)]
    path = tmp_path / "damaged.nsz"
    source = random.Random(damages)
    lost: list[int] = []
    for number in range(damages):
        whole = files[number % 2]
        damaged = damage_somehow(whole, source)
        path.write_bytes(damaged)
        spans, tensors, reported = examine(path)
        if not reported and (spans, tensors) != (120, 6):
            # Cut between two records it is the file of a process that was killed earlier, and unfinished.
            assert whole.startswith(damaged)
            assert not nsz.NszFile(path).finished
        lost.append((120 - spans) // 20 + 6 - tensors)
    assert sorted(lost)[len(lost) // 2] <= 1

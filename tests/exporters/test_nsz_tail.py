"""Files that grow, are renamed and deleted while they are read; files too large to be held."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry.trace import SpanKind

from neuronscope.exceptions import NszLimitError
from neuronscope.signals.records import LayerRecord, SpanEvent, SpanRecord
from neuronscope.signals.tensors import TensorSnapshot
from neuronscope_exporters import nsz
from neuronscope_exporters.nsz import tail as tail_module


def span(number: int) -> SpanRecord:
    return SpanRecord(1, number + 1, f"call {number}", SpanKind.CLIENT, number, number + 5, {"n": number})


def layer(step: int, name: str, values: np.ndarray[Any, Any]) -> LayerRecord:
    tensor = TensorSnapshot.from_numpy(values)
    return LayerRecord("m", name, step, step, values.shape, tensor.dtype, span_id=step % 3 + 1, tensor=tensor)


def test_a_growing_file_is_followed(tmp_path: Path) -> None:
    """Each poll gives what was flushed since, once, also after the file was finished and renamed."""
    writer = nsz.NszWriter(tmp_path / "a.nsz.open", [{"service.name": "rag"}])
    tail = nsz.Tail(tmp_path)
    assert tail.poll() == []
    seen: list[int] = []
    for number in range(30):
        writer.append_span(span(number))
        if number % 7 == 0:
            writer.append_layer(layer(number, "layers.0", np.full(9, number, "f4")))
        if number % 3 == 0:
            writer.flush()
            news = tail.poll()
            seen += [record.span_id - 1 for record, _ in news if isinstance(record, SpanRecord)]
            assert seen == list(range(number + 1))
            assert all(resource == {"service.name": "rag"} for _, resource in news)
    writer.append_event(SpanEvent("last", 1))
    writer.close()
    (tmp_path / "a.nsz.open").rename(tmp_path / "a.nsz")
    kinds = [type(record).__name__ for record, _ in tail.poll()]
    assert kinds == ["SpanRecord", "LayerRecord", "SpanRecord", "SpanEvent"]
    nsz.write(tmp_path / "b.nsz", [span(99)], [], {})
    assert [record.time_unix_ns if isinstance(record, SpanEvent) else 0 for record, _ in tail.poll()] == [0]
    assert tail.poll() == []
    tail.close()


def test_half_an_append_is_waited_for(tmp_path: Path) -> None:
    """A reader may see an append grow: it is no damage until something follows it."""
    nsz.write(tmp_path / "whole.nsz", [span(n) for n in range(40)], [layer(0, "l", np.ones(999))], {})
    data = (tmp_path / "whole.nsz").read_bytes()
    path = tmp_path / "growing.nsz"
    path.write_bytes(data[:500])
    tail = nsz.Tail(path)
    records = list(tail.poll())
    for size in range(500, len(data) + 400, 400):
        path.write_bytes(data[:size])
        records += tail.poll()
    assert len(records) == 41
    file = nsz.NszFile(path)
    assert file.finished
    assert not file.damage


def test_a_file_that_was_opened_early_can_be_looked_at_again(tmp_path: Path) -> None:
    """`refresh` renews every list."""
    writer = nsz.NszWriter(tmp_path / "a.nsz")
    file = nsz.NszFile(tmp_path / "a.nsz")
    assert file.spans == []
    assert not file.refresh()
    writer.append_span(span(1))
    writer.append_layer(layer(1, "layers.0", np.ones(4)))
    writer.flush()
    assert file.refresh()
    assert (len(file.spans), len(file.layers), len(file.span_heads)) == (1, 1, 1)
    tensor = file.layers[0].tensor
    assert tensor is not None
    assert tensor.numpy().sum() == 4
    writer.close()
    assert file.refresh()
    assert file.finished
    assert not file.refresh()


def test_a_tail_is_not_misled_by_numbers_of_deleted_files(tmp_path: Path) -> None:
    """File systems give the inode of a deleted segment to the next one; it is another file all the same."""
    nsz.write(tmp_path / "a.0.nsz", [span(1)], [], {})
    nsz.write(tmp_path / "b", [span(2)], [], {})
    tail = nsz.Tail(tmp_path)
    assert len(tail.poll()) == 1
    inode = (tmp_path / "a.0.nsz").stat().st_ino
    (tmp_path / "a.0.nsz").write_bytes((tmp_path / "b").read_bytes())
    (tmp_path / "a.0.nsz").rename(tmp_path / "a.1.nsz")
    assert (tmp_path / "a.1.nsz").stat().st_ino == inode
    assert [record.span_id for record, _ in tail.poll() if isinstance(record, SpanRecord)] == [3]
    assert tail.poll() == []
    tail.close()


def test_a_tail_goes_on_when_a_segment_is_deleted_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look into the directory and the look at the file."""
    nsz.write(tmp_path / "b.nsz", [span(1)], [], {})

    def recordings(folder: Path) -> list[Path]:
        return [folder / "a.nsz", folder / "b.nsz"]

    monkeypatch.setattr(tail_module, "recordings", recordings)
    tail = nsz.Tail(tmp_path)
    assert len(tail.poll()) == 1
    tail.close()
    with pytest.raises(FileNotFoundError):
        nsz.Tail(tmp_path / "a.nsz").poll()


def test_tools_that_keep_nothing_take_files_of_any_size(tmp_path: Path) -> None:
    """The limit of what is unpacked in all is one of memory: check, merge, ls and a tail hold no records."""
    path = tmp_path / "a.nsz"
    nsz.write(path, [span(number) for number in range(500)], [], {})
    small = nsz.Limits(inflated_bytes=30_000)
    with pytest.raises(NszLimitError, match="neuronscope cut"):
        _ = nsz.NszFile(path, small).spans
    assert nsz.check(path, limits=small).spans == 500
    file = nsz.NszFile(path, small)
    assert sum(1 for _ in file.each_span_head()) == 500
    assert len(nsz.Tail(path, small).poll()) == 500

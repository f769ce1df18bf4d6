"""Golden files: what was written once is read for ever, by our reader and another."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from neuronscope.signals.records import LayerRecord, LogRecord, SpanRecord
from neuronscope_exporters import nsz
from tinynsz import TinyFile, plain

GOLDEN = Path(__file__).parent / "golden"
FILES = sorted(GOLDEN.glob("*.nsz"))


def _make() -> Any:
    spec = importlib.util.spec_from_file_location("golden_make", GOLDEN / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKE = _make()


def same_span(found: SpanRecord, wanted: SpanRecord) -> bool:
    """Equal, NaN to NaN."""
    return repr(found) == repr(wanted)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_golden_file_reads_as_what_was_written(path: Path) -> None:
    """Every span, event and tensor, bit by bit; each with its resource."""
    file = nsz.NszFile(path)
    assert file.finished == ("unfinished" not in path.name)
    assert file.manifest is not None
    assert path.name.startswith(f"v{file.manifest.version}-")
    assert file.resources == list(MAKE.RESOURCES)
    for found, wanted in zip(file.spans, MAKE.spans(), strict=True):
        assert same_span(found, wanted)
    assert [resource["service.name"] for _, resource in file.spans_with_resource] == ["rag", "rag", "model"]
    for layer, wanted in zip(file.layers, MAKE.layers(MAKE.rows_of(path)), strict=True):
        same_layer(layer, wanted)
    logs: list[LogRecord] = MAKE.logs() if file.manifest.version >= "1.2" else []
    assert file.logs == logs
    assert [resource["service.name"] for _, resource in file.logs_with_resource] == ["rag", "model"][
        : len(logs)
    ]
    assert [event.name for event in file.events] == ["governor.reduced"]
    assert not file.damage


def same_layer(found: LayerRecord, wanted: LayerRecord) -> None:
    assert repr(replace(found, tensor=None)) == repr(replace(wanted, tensor=None))
    if wanted.tensor is None:
        assert found.tensor is None
        return
    assert found.tensor is not None
    assert (found.tensor.shape, found.tensor.dtype) == (wanted.tensor.shape, wanted.tensor.dtype)
    assert found.tensor.numpy().dtype == wanted.tensor.numpy().dtype
    assert found.tensor.numpy().tobytes() == wanted.tensor.numpy().tobytes()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_reader_written_from_the_document_alone_agrees(path: Path) -> None:
    """The second reader sees the same spans, layers, tensors and events."""
    tiny = TinyFile(path)
    ours = nsz.NszFile(path)
    assert tiny.lost_chunks == 0
    assert tiny.manifest["fileId"]
    for found, wanted in zip(tiny.spans, ours.spans, strict=True):
        assert int(found["traceId"], 16) == wanted.trace_id
        assert int(found["spanId"], 16) == wanted.span_id
        assert (found["name"], found["kind"] - 1) == (wanted.name, wanted.kind.value)
        assert int(found["startTimeUnixNano"]) == wanted.start_unix_ns
        attributes = {pair["key"]: plain(pair["value"]) for pair in found.get("attributes", [])}
        assert attributes.keys() == wanted.attributes.keys()
        for key in ("text", "count", "score", "yes"):
            assert attributes.get(key) == wanted.attributes.get(key)
        assert math.isnan(attributes.get("nan", math.nan))
    for found, layer in zip(tiny.layers, ours.layers, strict=True):
        assert (found["module"], found["step"]) == (layer.layer_id, layer.step)
        if layer.tensor is not None:
            dtype, shape, data = tiny.tensor(found)
            assert (dtype, tuple(shape)) == (layer.tensor.dtype, layer.tensor.shape)
            assert data == layer.tensor.numpy().tobytes()
    for found, log in zip(tiny.logs, ours.logs, strict=True):
        assert int(found["timeUnixNano"]) == log.time_unix_ns
        assert (found.get("eventName", ""), found["severityNumber"]) == (log.event_name, log.severity)
        assert plain(found.get("body", {})) == log.body
        assert {pair["key"] for pair in found.get("attributes", [])} == log.attributes.keys()
    assert [event["name"] for event in tiny.events] == [event.name for event in ours.events]


def test_the_golden_files_are_all_there() -> None:
    """Nobody deletes one."""
    assert {path.stem for path in FILES} >= {
        "v1.0-finished",
        "v1.0-unfinished",
        "v1.0-parts",
        "v1.1-planes",
        "v1.2-finished",
    }


def test_the_document_s_reader_goes_on_after_damage(tmp_path: Path) -> None:
    """§2: a damaged guard costs its chunk; the gap in the numbers tells."""
    data = bytearray((GOLDEN / "v1.0-finished.nsz").read_bytes())
    mark = data.index(b"NSZ\x01", data.index(b"NSZ\x01") + 1)
    data[mark + 30] ^= 1
    (tmp_path / "a.nsz").write_bytes(data)
    tiny = TinyFile(tmp_path / "a.nsz")
    assert tiny.lost_chunks == 1
    assert [span["name"] for span in tiny.spans] == ["embed"]

"""check, repair, ls, merge, cut and export, as a user runs them, and other people's tools."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import mcap.reader
import numpy as np
import pytest
from click.testing import CliRunner, Result
from google.protobuf.json_format import Parse
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData
from opentelemetry.trace import SpanKind, StatusCode

import neuronscope as ns
from neuronscope.cli import cli
from neuronscope.exceptions import MissingDependencyError
from neuronscope.signals import names
from neuronscope.signals.records import LayerRecord, SpanEvent, SpanRecord
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary
from neuronscope_exporters import nsz
from neuronscope_exporters.nsz import layout

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


def span(number: int, parent: int | None = None, **attributes: Any) -> SpanRecord:
    start = START + number * SECOND
    return SpanRecord(
        7, number, f"call {number}", SpanKind.CLIENT, start, start + SECOND // 2, attributes,
        parent_span_id=parent, status=StatusCode.ERROR if number == 3 else StatusCode.UNSET,
        library="neuronscope.openai",
    )  # fmt: skip


def layer(step: int, span_id: int, name: str = "model.layers.0") -> LayerRecord:
    values = np.full((8, 8), step, "f4")
    return LayerRecord(
        "m", name, step, START + span_id * SECOND + 1, values.shape, "F32", trace_id=7, span_id=span_id,
        summary=TensorSummary.of(values), tensor=TensorSnapshot.from_numpy(values),
    )  # fmt: skip


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Six spans: 1 above 2 above 3, the others alone; layers of 2 and 3."""
    spans = [
        SpanRecord(7, 1, "root", SpanKind.SERVER, START + SECOND, START + 9 * SECOND, {}),
        span(2, 1, **{names.OPERATION_NAME: "chat", names.INPUT_TOKENS: 12, names.REQUEST_MODEL: "gpt-4o"}),
        span(3, 2, big=2**60, bad=float("nan"), list=("a", 'b"')),
        *[span(number) for number in (4, 5, 6)],
    ]
    layers = [layer(0, 2), layer(1, 3), layer(2, 3, "../../evil\n/layer")]
    path = tmp_path / "run.nsz"
    nsz.write(path, spans, layers, {"service.name": "rag"}, [SpanEvent("governor", START + 4 * SECOND)])
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


# --- check ------------------------------------------------------------------------------------------


def test_check_of_a_sound_file(recording: Path) -> None:
    """Exit code 0, and what is in it."""
    done = run("check", recording)
    assert done.exit_code == 0
    assert "6 spans, 3 layer records, 3 full tensors, 0 log records, 1 events" in done.output


def test_check_names_what_is_missing(recording: Path) -> None:
    """A lost chunk by what the file's own index remembers of it; a damaged tensor by its layer."""
    data = bytearray(recording.read_bytes())
    data[data.index(np.full(9, 1, "f4").tobytes())] ^= 1
    recording.write_bytes(data)
    done = run("check", recording, "--format", "json")
    assert done.exit_code == 1
    (result,) = json.loads(done.output)
    assert (result["tensors"], result["spans"], result["damaged_bytes"]) == (2, 6, 0)
    (bad,) = result["damaged_tensors"]
    assert bad.startswith("model.layers.0, step 1: ")


def test_a_lost_chunk_is_known_by_its_time_and_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the index in the checkpoint behind it."""
    writer = nsz.NszWriter(tmp_path / "a.nsz")
    for number in (2, 3, 4):
        writer.append_span(span(number))
        writer.flush()
    monkeypatch.setattr("neuronscope_exporters.nsz.chunkfile.CHECKPOINT_BYTES", 1)
    writer.flush()
    writer.close()
    data = bytearray((tmp_path / "a.nsz").read_bytes())
    marks = [at for at in range(len(data)) if data.startswith(layout.GUARD_MARK, at)]
    data[marks[2] + 100] ^= 1
    (tmp_path / "a.nsz").write_bytes(data)
    report = nsz.check(tmp_path / "a.nsz")
    assert not report.sound
    (missing,) = report.missing
    assert (missing.kind, missing.topics) == ("small", ("nsz/span",))
    assert missing.first_time == missing.last_time == START + 3 * SECOND


def test_check_repairs(recording: Path) -> None:
    """An unfinished file gets its end; a damaged one a sound copy, and is kept; twice changes nothing."""
    data = recording.read_bytes()
    end = data.rindex(layout.record(layout.Op.DATA_END, bytes(4)))
    recording.write_bytes(data[:end] + b"torn")
    done = run("check", recording, "--repair", "--format", "json")
    (result,) = json.loads(done.output)
    assert (result["repair"]["action"], result["torn_bytes"]) == ("finished", 4)
    assert run("check", recording).exit_code == 0
    assert nsz.NszFile(recording).finished
    assert spans_by_mcap(recording) == 6
    damaged = bytearray(data)
    damaged[damaged.rindex(layout.GUARD_MARK) + 100] ^= 1
    recording.write_bytes(damaged)
    (result,) = json.loads(run("check", recording, "--repair", "--format", "json").output)
    assert result["repair"]["action"] == "salvaged"
    assert Path(result["repair"]["original"]).read_bytes() == damaged
    assert run("check", recording).exit_code == 0
    assert spans_by_mcap(recording) == len(nsz.read(recording).spans)


def spans_by_mcap(path: Path) -> int:
    """How many spans the PyPI package finds by the file's index, every checksum verified."""
    with path.open("rb") as file:
        reader = mcap.reader.make_reader(file, validate_crcs=True)
        return sum(1 for _ in reader.iter_messages(topics=["nsz/span"]))


def test_check_of_what_is_no_recording(tmp_path: Path) -> None:
    """One line, exit code 1; a directory without recordings as well."""
    (tmp_path / "a.nsz").write_text("hello")
    done = run("check", tmp_path)
    assert done.exit_code == 1
    assert "is not an .nsz file" in done.output
    (tmp_path / "empty").mkdir()
    assert run("check", tmp_path / "empty").exit_code == 1
    assert run("check", tmp_path / "missing").exit_code == 2


# --- ls, merge, cut -----------------------------------------------------------------------------------


def test_ls_shows_a_line_a_file_or_a_line_a_span(recording: Path) -> None:
    """As a table, or as JSON lines."""
    (row,) = map(json.loads, run("ls", recording.parent, "--format", "json").output.splitlines())
    assert (row["spans"], row["traces"], row["errors"], row["service"]) == (6, 1, 1, "rag")
    assert row["start_unix_nano"] == str(START + SECOND)
    rows = [
        json.loads(line) for line in run("ls", recording, "--spans", "--format", "json").output.splitlines()
    ]
    assert [row["name"] for row in rows][:2] == ["root", "call 2"]
    assert rows[1]["ms"] == 500
    text = run("ls", recording, "--spans").output.splitlines()
    assert len(text) == 7
    assert "call 3" in text[3]


def test_merge_and_cut(recording: Path, tmp_path: Path) -> None:
    """A span with what is below it; a time; never over an existing file unless forced."""
    nsz.write(tmp_path / "second.nsz", [span(20)], [], {"service.name": "other"})
    out = tmp_path / "out" / "one.nsz"
    out.parent.mkdir()
    assert run("merge", recording, tmp_path / "second.nsz", "-o", out).exit_code == 0
    assert len(nsz.read(out).spans) == 7
    assert json.loads(run("ls", out, "--format", "json").output)["service"] == "rag, other"
    assert run("merge", recording, "-o", out).exit_code == 2
    assert run("cut", out, "-o", out, "--span", "2", "--force").exit_code == 0
    part = nsz.read(out)
    assert [item.span_id for item in part.spans] == [2, 3]
    assert len(part.layers) == 3
    assert part.layers[1].tensor is not None
    start = f"{(START + 4 * SECOND) // SECOND}"
    assert (
        run("cut", recording, "-o", out, "--from", start, "--to", "2023-11-14T22:13:26", "--force").exit_code
        == 0
    )
    part = nsz.read(out)
    assert [item.span_id for item in part.spans] == [1, 4, 5]
    assert [event.name for event in part.events] == ["governor"]
    assert part.resource_of(part.spans[0])["service.name"] == "rag"
    assert "no span" in str(run("cut", recording, "-o", tmp_path / "x.nsz", "--trace", "99").exception)
    assert not (tmp_path / "x.nsz").exists()
    assert run("cut", recording, "-o", tmp_path / "x.nsz", "--from", "yesterday").exit_code == 2


def test_the_borders_of_a_cut(tmp_path: Path) -> None:
    """Spans that touch [from, to): one that ends at `from` is in, one that begins at `to` is not."""
    times = ((0, 9), (0, 10), (10, 20), (19, 30), (20, 30))
    spans = [SpanRecord(7, 1 + n, "", SpanKind.CLIENT, *when, {}) for n, when in enumerate(times)]
    layers = [
        LayerRecord("m", "l", when, when, (1,), "F32", trace_id=7, span_id=3) for when in (9, 10, 19, 20)
    ]
    nsz.write(tmp_path / "a.nsz", spans, layers, {})
    nsz.cut(tmp_path / "a.nsz", tmp_path / "b.nsz", nsz.Part(start=10, end=20))
    part = nsz.read(tmp_path / "b.nsz")
    assert [item.span_id for item in part.spans] == [2, 3, 4]
    assert [record.step for record in part.layers] == [10, 19]


def test_several_ranks_load_as_one_artifact(recording: Path, tmp_path: Path) -> None:
    """`ns.load` takes paths, too."""
    nsz.write(tmp_path / "rank1.nsz", [span(20)], [], {"service.name": "other"})
    artifact = ns.load([recording, tmp_path / "rank1.nsz"])
    assert len(artifact.telemetry.spans) == 7
    assert set(artifact.services.values()) == {"rag", "other"}


# --- export -------------------------------------------------------------------------------------------


def test_otlp_json_is_what_protobuf_s_own_reader_takes(recording: Path, tmp_path: Path) -> None:
    """Line by line as `TracesData`; nothing unknown in it."""
    assert run("export", recording, "--to", "otlp-json", "-o", tmp_path / "spans.jsonl").exit_code == 0
    (line,) = (tmp_path / "spans.jsonl").read_text().splitlines()
    document = json.loads(line)
    for entry in document["resourceSpans"][0]["scopeSpans"]:
        for item in entry["spans"]:
            # protobuf's JSON has base64 where OTLP's has hexadecimal.
            for key in ("traceId", "spanId", "parentSpanId"):
                item.pop(key, None)
    data = Parse(json.dumps(document), TracesData())
    spans = [item for scope in data.resource_spans[0].scope_spans for item in scope.spans]
    assert sorted(item.name for item in spans) == sorted(["root", *[f"call {n}" for n in (2, 3, 4, 5, 6)]])
    assert {item.start_time_unix_nano for item in spans} == {START + n * SECOND for n in range(1, 7)}


PERFETTO: dict[str, Any] = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object", "additionalProperties": {"type": "string"}},
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["ph", "pid", "tid", "name"],
                "properties": {
                    "pid": {"type": "integer"},
                    "tid": {"type": "integer"},
                    "name": {"type": "string"},
                    "cat": {"type": "string"},
                    "args": {"type": "object"},
                    "ts": {"type": "number"},
                },
                "oneOf": [
                    {
                        "properties": {"ph": {"const": "X"}, "dur": {"type": "number", "minimum": 0}},
                        "required": ["ts", "dur"],
                    },
                    {
                        "properties": {"ph": {"const": "i"}, "s": {"enum": ["g", "p", "t"]}},
                        "required": ["ts", "s"],
                    },
                    {
                        "properties": {
                            "ph": {"const": "M"},
                            "name": {"enum": ["process_name", "thread_name"]},
                            "args": {"required": ["name"], "properties": {"name": {"type": "string"}}},
                        },
                        "required": ["args"],
                    },
                ],
            },
        },
    },
}


def test_a_perfetto_trace_follows_the_format_and_its_threads_nest(recording: Path, tmp_path: Path) -> None:
    """By a schema of the trace event format; overlapping spans are on lanes of their own."""
    path = tmp_path / "trace.json"
    overlapping = [
        SpanRecord(9, n, f"o{n}", SpanKind.CLIENT, START + n, START + n + 100, {}) for n in range(1, 30)
    ]
    nsz.write(tmp_path / "overlap.nsz", overlapping, [], {})
    assert run("export", recording, tmp_path / "overlap.nsz", "--to", "perfetto", "-o", path).exit_code == 0

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    trace = json.loads(path.read_text(), parse_constant=refuse)
    jsonschema: Any = import_module("jsonschema")  # without types
    jsonschema.validate(trace, PERFETTO)
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(complete) == 35
    assert sum(1 for event in trace["traceEvents"] if event["ph"] == "i") == 3
    for lane in {(event["pid"], event["tid"]) for event in complete}:
        open_until: list[float] = []
        events = [event for event in complete if (event["pid"], event["tid"]) == lane]
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            while open_until and open_until[-1] <= event["ts"]:
                open_until.pop()
            end = event["ts"] + event["dur"]
            assert not open_until or end <= open_until[-1] + 1e-6
            open_until.append(end)


def test_extracted_tensors_open_in_safetensors_and_stay_in_their_directory(
    recording: Path, tmp_path: Path
) -> None:
    """Whatever a layer is called; the index tells which is which."""
    import safetensors.numpy

    out = tmp_path / "tensors"
    assert run("export", recording, "--to", "safetensors", "-o", out).exit_code == 0
    index = json.loads((out / "index.json").read_text())
    assert sorted(path.name for path in out.iterdir()) == sorted([*[e["file"] for e in index], "index.json"])
    assert index[2]["layer"] == "../../evil\n/layer"
    for step, entry in enumerate(index):
        tensors = safetensors.numpy.load_file(out / entry["file"])
        assert (tensors["tensor"] == step).all()
        assert tensors["tensor"].shape == (8, 8)


def fleet(folder: Path) -> Iterator[Path]:
    for host in range(3):
        path = folder / f"host{host}.nsz"
        spans = [
            span(number, None, **{names.INPUT_TOKENS: host * 10 + number, names.REQUEST_MODEL: "gpt-4o"})
            for number in range(1, 5)
        ]
        nsz.write(path, spans, [layer(0, 1)], {"service.name": f"rag-{host}"})
        yield path


def test_a_fleet_s_recordings_are_a_table_for_duckdb(tmp_path: Path) -> None:
    """Many files, one query; the README's."""
    duckdb: Any = import_module("duckdb")  # without types
    for path in fleet(tmp_path):
        assert run("export", path, "--to", "parquet", "-o", tmp_path / path.stem).exit_code == 0
    found = duckdb.sql(
        f"""SELECT service, count(*) AS calls, sum(input_tokens) AS tokens,
                   quantile_cont(duration_ms, 0.99) AS p99
            FROM '{tmp_path}/*/spans.parquet' WHERE request_model = 'gpt-4o'
            GROUP BY service ORDER BY tokens DESC"""
    ).fetchall()
    assert found == [("rag-2", 4, 90, 500.0), ("rag-1", 4, 50, 500.0), ("rag-0", 4, 10, 500.0)]
    when = duckdb.sql(f"SELECT min(epoch_ns(start)), min(start_unix_ns) FROM '{tmp_path}/*/spans.parquet'")
    assert when.fetchall() == [(START + SECOND, START + SECOND)]
    joined = duckdb.sql(
        f"""SELECT l.layer, max(l.abs_max), any_value(s.name)
            FROM '{tmp_path}/*/layers.parquet' l JOIN '{tmp_path}/*/spans.parquet' s USING (trace_id, span_id)
            GROUP BY l.layer"""
    ).fetchall()
    assert joined == [("model.layers.0", 0.0, "call 1")]


def test_tables_of_nothing_have_the_same_columns(recording: Path, tmp_path: Path) -> None:
    """Else a fleet's tables could not be read as one as soon as one host was idle."""
    nsz.write(tmp_path / "none.nsz", [], [], {})
    schema = import_module("pyarrow.parquet").read_schema
    for path in (recording, tmp_path / "none.nsz"):
        assert run("export", path, "--to", "parquet", "-o", tmp_path / path.stem).exit_code == 0
    for table in ("spans", "layers", "logs"):
        full, none = (schema(tmp_path / name / f"{table}.parquet") for name in ("run", "none"))
        assert none.equals(full, check_metadata=True)


def test_parquet_without_pyarrow_says_what_to_install(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line."""

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("neuronscope_exporters.nsz.export.parquet.import_module", missing)
    done = run("export", recording, "--to", "parquet", "-o", tmp_path / "p")
    assert isinstance(done.exception, MissingDependencyError)
    assert "neuronscope[parquet]" in str(done.exception)


def test_an_export_that_fails_leaves_nothing(recording: Path, tmp_path: Path) -> None:
    """No half file, no temporary one, and what was there stays."""
    target = tmp_path / "trace.json"
    target.write_text("before")
    assert run("export", recording, "--to", "perfetto", "-o", target).exit_code == 2
    assert target.read_text() == "before"
    assert run("export", recording, "--to", "perfetto", "-o", tmp_path / "no" / "x.json").exit_code == 1
    assert sorted(os.listdir(tmp_path)) == ["run.nsz", "trace.json"]

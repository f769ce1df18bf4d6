"""Log records in `.nsz`: events of calls with their content, and what the service logged."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from google.protobuf.json_format import Parse
from msgspec.structs import replace
from opentelemetry.proto.logs.v1.logs_pb2 import LogsData
from opentelemetry.trace import SpanKind, StatusCode

import neuronscope as ns
from collectors import Protocol, rotel, serving, until
from neuronscope.cli import cli
from neuronscope.exporters import ExporterContext
from neuronscope.settings import Settings
from neuronscope.signals import names
from neuronscope.signals.records import Batch, LogRecord, MetricsSnapshot, SpanRecord
from neuronscope.testing.fake_openai import FakeOpenAI
from neuronscope_exporters import nsz
from openai_cases import CANARY, sync_client
from tinynsz import TinyFile, plain

START = 1_700_000_000_000_000_000
MESSAGES: Any = ({"role": "user", "parts": ({"type": "text", "content": "grüße 🙂"}, {"raw": b"\x00\xff"})},)
DETAILS = LogRecord(
    START + 5, START + 6, 9, "INFO", None,
    {"gen_ai.input.messages": MESSAGES, "n": 3, "big": 2**62, "score": 0.5, "ok": True, "none": None},
    trace_id=7, span_id=2, trace_flags=1, event_name=names.INFERENCE_DETAILS.name,
    library="neuronscope.openai", library_version="1.2", dropped_attributes=4,
)  # fmt: skip
LOGGED = LogRecord(START + 7, START + 8, 17, "ERROR", "it broke", {"user": "x"}, 7, 1, 1, "", "shop.cart")
LOOSE = LogRecord(START + 9, START + 9, body={"structured": (1, 2)})
LOGS = [DETAILS, LOGGED, LOOSE]


def span(number: int, parent: int | None = None, trace_id: int = 7, **changes: Any) -> SpanRecord:
    return SpanRecord(
        trace_id, number, f"call {number}", SpanKind.CLIENT, START + number, START + 100, {},
        parent_span_id=parent, trace_flags=1, **changes,
    )  # fmt: skip


SPANS = [span(1), span(2, 1), span(3, trace_id=8)]


Loss = tuple[str, str, int]


def telling(lost: list[Loss]) -> Callable[[str, str, int], None]:
    """A callback that notes what was lost."""

    def note(item: str, reason: str, n: int) -> None:
        lost.append((item, reason, n))

    return note


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Two spans of a trace, one of another, and three log records."""
    path = tmp_path / "run.nsz"
    nsz.write(path, SPANS, [], {"service.name": "rag"}, logs=LOGS)
    return path


def run(*arguments: str | Path) -> Result:
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done


# --- written and read -------------------------------------------------------------------------------


def test_every_field_comes_back_with_its_type(recording: Path) -> None:
    """Nested content too; sequences as tuples, as everywhere."""
    assert nsz.read(recording).logs == LOGS


def test_they_are_found_by_event_trace_span_and_time(recording: Path) -> None:
    """And nothing else."""
    file = nsz.NszFile(recording)
    assert file.find_logs(names.INFERENCE_DETAILS.name) == [DETAILS]
    assert file.find_logs(trace_id=7) == [DETAILS, LOGGED]
    assert file.find_logs(span_id=1) == [LOGGED]
    assert file.find_logs(start=START + 7, end=START + 9) == [LOGGED]
    assert file.find_logs("another") == []


def test_a_reader_written_from_the_document_agrees(recording: Path) -> None:
    """Topic 7, under OTLP's names."""
    tiny = TinyFile(recording)
    assert [log.get("eventName", "") for log in tiny.logs] == [log.event_name for log in LOGS]
    assert plain(tiny.logs[1]["body"]) == "it broke"
    (first, *_) = (pair for pair in tiny.logs[0]["attributes"] if pair["key"] == "gen_ai.input.messages")
    assert plain(first["value"])[0]["parts"][0]["content"] == "grüße 🙂"


def test_one_that_is_too_large_or_makes_no_sense_is_lost_and_told(tmp_path: Path) -> None:
    """The others are not."""
    lost: list[Loss] = []
    writer = nsz.NszWriter(tmp_path / "a.nsz", on_lost=telling(lost))
    writer.append_log(replace(LOGGED, body="x" * (5 << 20)))
    writer.append_log(replace(LOGGED, severity=None))  # as a faulty adapter might
    writer.append_log(LOGGED)
    writer.close()
    assert lost == [("log", "record_too_large", 1), ("log", "unencodable", 1)]
    file = nsz.NszFile(tmp_path / "a.nsz")
    assert file.logs == [LOGGED]
    assert {event.attributes["reason"] for event in file.events} == {"record_too_large", "unencodable"}


# --- recorded ---------------------------------------------------------------------------------------


def exporter(directory: Path, lost: list[Loss], **settings: Any) -> Any:
    context = ExporterContext(
        Settings(nsz=str(directory), nsz_sync_s=0.0, **settings),
        {"service.name": "rag"},
        lambda: MetricsSnapshot((), 0, 0),
        telling(lost),
        Counter[str]().__setitem__,
    )
    return nsz.create(context)


@pytest.mark.parametrize("mode", ["continuous", "flight"])
def test_the_recorder_keeps_them(tmp_path: Path, mode: str) -> None:
    """Also in the window of the flight recorder; a batch of nothing else begins a segment."""
    lost: list[Loss] = []
    recorder = exporter(tmp_path, lost, nsz_mode=mode)
    recorder.export(Batch({}, logs=LOGS))
    recorder.export(Batch({}, [span(1, status=StatusCode.ERROR)]))
    recorder.shutdown(60.0)
    recording = nsz.read(tmp_path)
    assert recording.logs == LOGS
    assert len(recording.spans) == 1
    assert not lost


def test_those_of_a_trace_that_is_left_out_are_left_out(tmp_path: Path) -> None:
    """Those of a trace that is kept are kept, and those of none."""
    recorder = exporter(tmp_path, [], nsz_sample_pct=0.0)
    recorder.export(Batch({}, [span(1)], logs=[LOGGED, LOOSE]))
    failed = span(3, trace_id=8, status=StatusCode.ERROR)
    recorder.export(Batch({}, [failed], logs=[replace(LOGGED, trace_id=8)]))
    recorder.shutdown(60.0)
    recording = nsz.read(tmp_path)
    assert [log.trace_id for log in recording.logs] == [8, 0]
    (facts,) = [event.attributes for event in recording.events if event.name == "neuronscope.sampling"]
    assert facts["left_out.log"] == 1


def test_content_on_events_only_is_in_the_file_and_in_a_scope_s(tmp_path: Path) -> None:
    """Where spans must not have content the events are the only place that does."""
    with FakeOpenAI() as server:
        with ns.Platform(
            nsz=str(tmp_path / "all"), capture_content="event_only", logs="export", deferred=False
        ):
            ns.instrument("openai")
            with ns.Scope("turn") as scope:
                with sync_client(server) as client:
                    create: Any = client.chat.completions.create
                    create(model="gpt-4o-mini", messages=[{"role": "user", "content": CANARY}])
                logging.getLogger("shop").warning("stock is low")
        live = scope.artifact
        live.save(tmp_path / "scope.nsz")
    for path in (tmp_path / "all", tmp_path / "scope.nsz"):
        found = ns.load(path)
        assert CANARY not in repr(found.telemetry.spans)
        (details,) = [log for log in found.logs if log.event_name == names.INFERENCE_DETAILS.name]
        assert CANARY in repr(details.attributes)
        (logged,) = [log for log in found.logs if not log.event_name]
        assert (logged.body, logged.severity_text) == ("stock is low", "WARNING")
        assert logged.trace_id == details.trace_id
    assert [log.body for log in live.logs] == [log.body for log in ns.load(tmp_path / "scope.nsz").logs]


# --- copied, checked, exported, shown ---------------------------------------------------------------


def test_merge_cut_and_salvage_take_them_along(recording: Path, tmp_path: Path) -> None:
    """Of a part, those of its spans; those of no span only where nothing was chosen but a time."""
    run("merge", recording, "-o", tmp_path / "merged.nsz")
    assert nsz.read(tmp_path / "merged.nsz").logs == LOGS
    run("cut", recording, "--span", "2", "-o", tmp_path / "span.nsz")
    assert nsz.read(tmp_path / "span.nsz").logs == [DETAILS]
    run("cut", recording, "--to", str(START + 9), "-o", tmp_path / "time.nsz")
    assert nsz.read(tmp_path / "time.nsz").logs == [DETAILS, LOGGED]
    told = json.loads(run("check", recording, "--format", "json").stdout)
    assert told[0]["logs"] == 3


def test_otlp_json_has_them_in_lines_of_their_own(recording: Path, tmp_path: Path) -> None:
    """As `LogsData`, which the Collector's receiver takes beside `TracesData`."""
    run("export", recording, "--to", "otlp-json", "-o", tmp_path / "records.jsonl")
    documents = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert [list(document) for document in documents] == [["resourceSpans"], ["resourceLogs"]]
    for group in documents[1]["resourceLogs"][0]["scopeLogs"]:
        for item in group["logRecords"]:
            for key in ("traceId", "spanId"):  # hexadecimal, where protobuf's JSON has base64
                item.pop(key, None)
    data = Parse(json.dumps(documents[1]), LogsData())
    (resource,) = data.resource_logs
    assert {group.scope.name for group in resource.scope_logs} == {log.library for log in LOGS}
    records = [log for group in resource.scope_logs for log in group.log_records]
    assert {log.time_unix_nano for log in records} == {log.time_unix_ns for log in LOGS}
    assert [log.body.string_value for log in records if log.severity_number == 17] == ["it broke"]


@pytest.mark.integration
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_a_real_collector_takes_the_replay(
    recording: Path, tmp_path: Path, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rotel passes on what it gets: spans and log records with their own times, ids and resource."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    with serving() as collector, rotel(collector.port, tmp_path) as endpoints:
        told = run("export", recording, "--to", "otlp", "--otlp-endpoint", endpoints[protocol]).output
        until(lambda: len(collector.spans) >= len(SPANS) and len(collector.logs) >= len(LOGS))
    assert "3 spans sent\n3 of 3 log records sent" in told
    assert sorted(collector.spans) == [span.name for span in SPANS]
    assert sorted(log.time_unix_nano for log in collector.logs) == [log.time_unix_ns for log in LOGS]
    (details,) = [log for log in collector.logs if log.event_name]
    assert details.trace_id == (7).to_bytes(16, "big")
    (messages,) = [pair.value for pair in details.attributes if pair.key == "gen_ai.input.messages"]
    assert "grüße 🙂".encode() in messages.SerializeToString()
    assert any(b"rag" in body for path, _, body in collector.requests if path.endswith("logs"))


def test_tables_and_traces_have_them(recording: Path, tmp_path: Path) -> None:
    """A row of `logs.parquet`, an instant of Perfetto's."""
    run("export", recording, "--to", "parquet", "-o", tmp_path / "tables")
    duckdb: Any = import_module("duckdb")  # without types
    rows = duckdb.sql(
        f"SELECT l.body, s.name FROM '{tmp_path}/tables/logs.parquet' l "
        f"JOIN '{tmp_path}/tables/spans.parquet' s USING (trace_id, span_id) WHERE l.severity >= 17"
    ).fetchall()
    assert rows == [("it broke", "call 1")]
    run("export", recording, "--to", "perfetto", "-o", tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [event["name"] for event in events if event.get("cat") == "log"] == [
        names.INFERENCE_DETAILS.name, "ERROR", "log"
    ]  # fmt: skip


def test_the_tree_and_the_page_show_them_at_their_span(recording: Path, tmp_path: Path) -> None:
    """The tree what was logged, the page events too; what belongs to no span is told."""
    from neuronscope.viewer.page_data import page_data

    lines = run("view", recording).output.splitlines()
    (place,) = [number for number, line in enumerate(lines) if "it broke" in line]
    assert "call 1" in "\n".join(lines[:place])
    document = json.loads(run("view", recording, "--format", "json").stdout)
    assert [log["body"] for log in document["logs"]] == [None, "it broke", {"structured": [1, 2]}]
    data = page_data(ns.load(recording), "run")
    extras = {row[9]: row[-1] for row in data["spans"]}
    assert [event[0] for event in extras[f"{1:016x}"]["events"]] == ["ERROR"]
    assert "grüße" in json.dumps(extras[f"{2:016x}"]["events"], ensure_ascii=False)
    assert any("1 log records" in note for note in data["notes"])

"""The main job: `neuronscope demo`, one trace through both processes, exported every way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
import psutil
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from opentelemetry.trace import SpanKind

from client_cases import agent
from collectors import rotel, serving, until
from neuronscope.artifact import Artifact, load
from neuronscope.cli.demo import PREFIX
from neuronscope.demo.models import SMOLLM2, prepare_smollm2
from neuronscope.demo.programs import MODEL_SERVER
from neuronscope.demo.runner import DemoError, DemoProcesses
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from neuronscope.viewer.tree import Node, traces
from wiretap import Tap, Wire, told_by_openai

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

CANARY = "xylograph-9134"
QUESTION = f"Which colour does the {CANARY} lamp have?"
DOCUMENTS = (
    {"id": "lamp", "title": f"The {CANARY} lamp", "text": f"The {CANARY} lamp is teal.", "topic": "lamps"},
    {"id": "moss", "title": "Moss", "text": "Moss grows on the north side of old stones.", "topic": "plants"},
    {"id": "tide", "title": "Tides", "text": "Tides follow the moon and the sun.", "topic": "sea"},
)


@dataclass(frozen=True)
class Run:
    """One finished run of the demo's two programs under `neuronscope run`."""

    answer: str
    recording: Artifact
    folder: Path
    bodies: list[bytes]
    asked: list[tuple[SpanRecord, Wire]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Both programs with a corpus of our own, exporting to `.nsz`, /metrics and a real collector.

    The service speaks OTLP over HTTP and the model server over gRPC.
    """
    folder = tmp_path_factory.mktemp("demo")
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    with serving() as sink, rotel(sink.port, folder) as endpoints:
        settings = {
            "OTEL_METRICS_EXPORTER": "none",
            "NEURONSCOPE_NSZ": str(folder / "nsz"),
            # Every layer at every step: on a busy machine the usual budget would leave some out, and say so.
            "NEURONSCOPE_MAX_OVERHEAD_PCT": "1000",
        }
        with DemoProcesses(
            folder / "work",
            prepare_smollm2(),
            command_prefix=PREFIX,
            environment={**settings, "RAG_CORPUS": str(corpus), "RAG_MAX_TOKENS": "12"},
            program_environment={
                "rag-service": {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoints["http/protobuf"]},
                "model-server": {
                    "OTEL_EXPORTER_OTLP_ENDPOINT": endpoints["grpc"],
                    "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                },
            },
        ) as processes:
            answer = processes.ask(QUESTION)
            asked = [ask(processes.model_port, **options) for options in ({}, STREAMED)]
        recording = load(folder / "nsz")
        expected = {span.span_id for span in recording.telemetry.spans}
        until(lambda: len(span_ids(body for _, _, body in sink.requests)) >= len(expected))
        bodies = [body for path, _, body in sink.requests if path.endswith("traces")]
    return Run(answer.text, recording, folder, bodies, asked)


STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


def ask(port: int, **options: Any) -> tuple[SpanRecord, Wire]:
    """Ask the model server from here: our span, and what the server answered."""
    wire = Wire()
    with agent("on", "openai") as exporter, httpx2.Client(transport=Tap(wire, port), timeout=120) as http:
        client: Any = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", http_client=http)
        messages = [{"role": "user", "content": "Name a colour."}]
        answer = client.chat.completions.create(model=SMOLLM2, messages=messages, max_tokens=6, **options)
        if options:
            assert list(answer)
    (span,) = exporter.spans
    return span, wire


def span_ids(bodies: Iterator[bytes]) -> set[int]:
    return {int.from_bytes(span.span_id, "big") for body in bodies for span in spans(body)}


def spans(body: bytes) -> list[Span]:
    request = ExportTraceServiceRequest.FromString(body)
    return [s for resource in request.resource_spans for scope in resource.scope_spans for s in scope.spans]


def question_trace(recording: Artifact) -> Node:
    """The root of the trace of the question."""
    found = traces(recording.telemetry.spans, recording.telemetry.layer_snapshots, recording.services)
    (trace,) = [t for t in found if t.roots[0].span.name == "POST /ask"]
    (root,) = trace.roots
    return root


def child(node: Node, operation: str) -> Node:
    (found,) = [n for n in node.children if n.span.attributes.get(names.OPERATION_NAME) == operation]
    return found


def test_one_trace_runs_through_both_processes(run: Run) -> None:
    """Server span → embeddings → retrieval → chat → server span → model call, with what each knows."""
    root = question_trace(run.recording)
    assert root.span.kind is SpanKind.SERVER
    assert root.service == "rag-service"
    assert root.span.attributes[names.HTTP_ROUTE] == "/ask"

    embeddings = child(root, "embeddings").span.attributes
    assert embeddings[names.EMBEDDING_DIMENSIONS] == 384
    assert embeddings[names.LAYERS_OBSERVED] == 6

    retrieval = child(root, "retrieval").span.attributes
    assert retrieval[names.DB_SYSTEM] == "qdrant"
    assert retrieval[names.DB_COLLECTION] == "handbook"
    assert retrieval[names.RETRIEVAL_TOP_K] == 3
    assert retrieval[names.RETRIEVAL_IDS][0] == "0"  # type: ignore[index]
    assert len(retrieval[names.RETRIEVAL_SCORES]) == 3  # type: ignore[arg-type]
    assert retrieval[names.RETRIEVAL_METRIC] == "cosine"
    assert retrieval[names.QUERY_DIMENSION] == 384

    chat = child(root, "chat")
    facts = chat.span.attributes
    assert facts[names.REQUEST_MODEL] == "SmolLM2-135M-Instruct"
    assert facts[names.INPUT_TOKENS] > 20  # type: ignore[operator]
    assert 0 < facts[names.OUTPUT_TOKENS] <= 12  # type: ignore[operator]
    assert facts[names.FINISH_REASONS]
    assert 0 < float(str(facts[names.TIME_TO_FIRST_CHUNK])) < chat.span.duration_ms / 1000
    assert facts[names.STREAM_END] == "complete"

    (served,) = chat.children
    assert served.span.kind is SpanKind.SERVER
    assert served.service == "model-server"
    assert served.span.attributes[names.HTTP_ROUTE] == "/v1/chat/completions"

    model = child(served, "text_completion")
    inside = model.span.attributes
    assert inside[names.MODEL_FORWARDS] == inside[names.OUTPUT_TOKENS]
    assert inside[names.INPUT_TOKENS] == facts[names.INPUT_TOKENS]
    assert float(str(inside[names.MODEL_PREFILL])) > 0
    assert float(str(inside[names.MODEL_DECODE_RATE])) > 0
    assert inside[names.LAYERS_OBSERVED] == 30
    assert len(inside[names.LAYERS_IDS]) == 30  # type: ignore[arg-type]
    assert inside[names.LAYERS_NON_FINITE] == 0


def test_spans_say_what_the_model_server_says(run: Run) -> None:
    """`transformers serve`, whole and streamed: tokens and reason as in its own answer."""
    for span, wire in run.asked:
        told = told_by_openai(wire.documents())
        assert {key: span.attributes.get(key) for key in told} == told
        assert span.attributes[names.OUTPUT_TOKENS] == 6
        assert span.attributes[names.FINISH_REASONS] == ["length"]
        assert f"{span.span_id:016x}" in wire.requests[0].headers["traceparent"]


def test_each_step_of_the_model_has_layer_records(run: Run) -> None:
    """Per-layer, per-step records in `.nsz`; what was not affordable is counted on the span."""
    served = child(question_trace(run.recording), "chat").children[0]
    model = child(served, "text_completion")
    steps = int(str(model.span.attributes[names.MODEL_FORWARDS]))
    skipped = int(str(model.span.attributes[names.LAYERS_SKIPPED]))
    assert len(model.layers) + skipped == 30 * steps
    assert {record.step for record in model.layers} == set(range(steps))
    assert all(record.summary is not None and record.summary.finite for record in model.layers)
    prefill = [record for record in model.layers if record.step == 0]
    assert all(record.shape[-1] == 576 and record.shape[-2] > 20 for record in prefill)


def test_the_collector_received_the_same_spans(run: Run) -> None:
    """A real OTLP collector took both processes' spans, over HTTP and gRPC: read back and compared."""
    received = {int.from_bytes(s.span_id, "big"): s for body in run.bodies for s in spans(body)}
    recorded = {span.span_id: span for span in run.recording.telemetry.spans}
    assert set(received) == set(recorded)
    for span_id, span in recorded.items():
        there = received[span_id]
        assert there.name == span.name
        assert int.from_bytes(there.trace_id, "big") == span.trace_id
        assert int.from_bytes(there.parent_span_id, "big") == (span.parent_span_id or 0)
        assert there.start_time_unix_nano == span.start_unix_ns
        assert there.end_time_unix_nano == span.end_unix_ns
        assert {a.key for a in there.attributes} == set(span.attributes)


def test_no_content_leaves_by_default(run: Run) -> None:
    """A word that is in question, documents and answer is in no span, layer record or OTLP byte."""
    assert CANARY.encode() not in b"".join(run.bodies)
    assert CANARY not in repr(run.recording.telemetry.spans)
    assert "teal" not in repr(run.recording.telemetry.spans)
    document = view(run.folder / "nsz")
    assert CANARY not in json.dumps(document)
    # Files on disk, their compressed chunks included, were read through `load` above; tensors are none.
    assert not any(record.tensor is not None for record in run.recording.telemetry.layer_snapshots)


def view(path: Path) -> dict[str, Any]:
    """What `neuronscope view --format json` prints."""
    done = subprocess.run(
        [sys.executable, "-m", "neuronscope", "view", str(path), "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_view_and_load_agree(run: Run) -> None:
    """The same LLM, retrieval and layer records."""
    document, recording = view(run.folder / "nsz"), run.recording
    assert [(d["span_id"], d["prompt_tokens"], d["completion_tokens"]) for d in document["llm_spans"]] == [
        (f"{s.span.span_id:016x}", s.prompt_tokens, s.completion_tokens) for s in recording.llm_spans
    ]
    assert [(d["ids"], d["scores"], d["top_score"]) for d in document["retrieval_spans"]] == [
        (list(s.ids), list(s.scores), s.top_score) for s in recording.retrieval_spans
    ]
    assert [(d["layer_id"], d["step"], d["summary"]["mean"]) for d in document["layer_snapshots"]] == [
        (r.layer_id, r.step, r.summary.mean if r.summary else None)
        for r in recording.telemetry.layer_snapshots
    ]


def test_kill_leaves_readable_files(tmp_path: Path) -> None:
    """SIGKILL to either process while it works: what was flushed before is readable."""
    with DemoProcesses(
        tmp_path / "work",
        prepare_smollm2(),
        command_prefix=PREFIX,
        environment={"NEURONSCOPE_NSZ": str(tmp_path / "nsz"), "NEURONSCOPE_EXPORT_INTERVAL": "0.2"},
    ) as processes:
        processes.ask("What does the ef parameter change in an HNSW search?")
        until(lambda: {"chat", "text_completion"} <= operations(tmp_path / "nsz"))
        threading.Timer(1.0, kill_both, [tmp_path / "work"]).start()
        with pytest.raises(DemoError):
            ask_again_and_again(processes)
    recording = load(tmp_path / "nsz")
    chats = [span for span in recording.llm_spans if span.operation == "chat"]
    assert chats
    assert all(chat.completion_tokens for chat in chats)
    assert [span for span in recording.llm_spans if span.operation == "text_completion"]
    assert {r["service.name"] for r in recording.resources} == {"rag-service", MODEL_SERVER}


def ask_again_and_again(processes: DemoProcesses) -> None:
    """Until there is no answer."""
    while True:
        processes.ask("Why is float16 used?")


def operations(folder: Path) -> set[str | None]:
    """What is on record so far."""
    return {span.operation for span in load(folder).llm_spans} if folder.exists() else set()


def kill_both(folder: Path) -> None:
    """SIGKILL every Python program working in the folder."""
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and "_lifeline.py" not in " ".join(process.cmdline()):
                process.kill()
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue


def test_the_command_answers_and_leaves_nothing_running(tmp_path: Path) -> None:
    """`neuronscope demo --format json --out`: answers, one merged file, accounted overhead.

    Where the test may, it takes every network but loopback away from it.
    """
    out = tmp_path / "demo.nsz"
    command = [sys.executable, "-m", "neuronscope", "demo", "--questions", "1", "--format", "json"]
    command = [*loopback_only(), *command, "--out", str(out)]
    done = subprocess.run(command, env=marked(out), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["answers"][0]["text"]
    assert result["recording"] == str(out)
    assert set(result["overhead_accounted_pct"]) == {"rag-service", "model-server"}
    assert all(0 <= pct < 15 for pct in result["overhead_accounted_pct"].values())
    root = question_trace(load(out))
    assert child(root, "chat").children[0].service == "model-server"
    until(lambda: not list(running_programs(out)))


def loopback_only() -> list[str]:
    """A prefix that runs a command in a network namespace with nothing but loopback; empty if not allowed."""
    prefix = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    try:
        subprocess.run([*prefix, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return prefix


def test_ctrl_c_leaves_nothing_running(tmp_path: Path) -> None:
    """While the models load: exit code 130, both programs gone."""
    out = tmp_path / "x.nsz"
    demo = subprocess.Popen(
        [sys.executable, "-m", "neuronscope", "demo", "--keep-running", "--out", str(out)],
        env=marked(out), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    until(lambda: len(list(running_programs(out))) >= 2, timeout_s=200)
    os.killpg(demo.pid, signal.SIGINT)
    output, _ = demo.communicate(timeout=250)
    assert demo.returncode == 130, output.decode()
    assert b"Traceback" not in output
    until(lambda: not list(running_programs(out)))


MARK = "NEURONSCOPE_TEST_RUN"


def marked(out: Path) -> dict[str, str]:
    """An environment by which the programs of one demo are known from others' on the same machine."""
    return {**os.environ, MARK: str(out)}


def running_programs(out: Path) -> Generator[psutil.Process]:
    """The demo's programs that are running now."""
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            ours = process.environ().get(MARK) == str(out)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if ours and ("demo/service.py" in words or "transformers.cli.transformers serve" in words):
            yield process

"""`neuronscope doctor`: what is observed, what is missing, and whether observations arrive."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from opentelemetry.trace import SpanKind

import fakelib
import neuronscope as ns
from collectors import free_port, serving, spans_in
from neuronscope.cli.doctor import doctor
from neuronscope.doctor import examine_apart, examine_library
from neuronscope.doctor.arrival import look_for_trace
from neuronscope.doctor.exports import first_calls
from neuronscope.engine.metrics import Aggregator
from neuronscope.instrumentation import ClientIntegration, Gap, Kind, WrappedMethod
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from neuronscope_exporters.nsz.writer import NszWriter
from neuronscope_exporters.prometheus.page import MetricsPage
from neuronscope_exporters.prometheus.server import MetricsServer
from neuronscope_instrumentation.jax.adapter import JaxAdapter


def run(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(doctor, ["openai", *arguments], env=environment)


def exports(**environment: str) -> list[dict[str, Any]]:
    result = run("--format", "json", **environment)
    found: list[dict[str, Any]] = json.loads(result.stdout)["exports"]
    assert (result.exit_code == 0) is all(examination["ok"] for examination in found)
    return found


@pytest.fixture
def partly() -> Iterator[str]:
    """An adapter of a library whose release has lost a method; `pip` knows it as click."""
    table = fakelib.integration("fakelib")
    lost = WrappedMethod(target="fakelib:Client.gone", snapshot=table.methods[0].snapshot)
    ns.registry.register_adapter(
        ClientIntegration(
            name="click",
            requires="click>=99.1",
            kind=Kind.LLM,
            methods=(*table.methods, lost),
            gaps=(Gap("fakelib:Client.talk", "a websocket"),),
        )
    )
    yield "click"
    ns.registry.unregister_adapter("click")


def test_an_installed_library_is_told_with_its_methods_and_gaps() -> None:
    """OpenAI: everything that the adapter knows is there; websockets are not observed."""
    report = examine_library("openai")
    assert (report.state, report.fits, report.absent) == ("observed", True, ())
    assert report.wrapped
    assert any("websocket" in why for _, why in report.gaps)
    assert report.unknown == ()
    assert not ns.platform.installations()  # looking changes nothing
    import openai

    assert not hasattr(openai.OpenAI.request, "__wrapped__")


def test_a_method_that_is_gone_is_named(partly: str) -> None:
    """Known, but absent in this version; the version is not what the adapter is made for; exit code 1."""
    report = examine_library(partly)
    assert report.state == "partly"
    assert report.absent == ("fakelib:Client.gone",)
    assert not report.fits
    shown = CliRunner().invoke(doctor, [partly, "--no-exports"])
    assert shown.exit_code == 1
    assert "known, but absent in this version: fakelib:Client.gone" in shown.output
    assert "not observed, a websocket: Client.talk" in shown.output
    assert "made for click>=99.1" in shown.output


def test_a_method_that_nobody_knows_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release of the SDK with an API that came after the adapter."""
    from openai.resources.moderations import Moderations

    def imagine(self: Moderations, *, model: str) -> None:
        """Not known to anybody."""

    monkeypatch.setattr(Moderations, "imagine", imagine, raising=False)
    assert examine_library("openai").unknown == ("moderations:Moderations.imagine",)
    shown = CliRunner().invoke(doctor, ["openai", "--no-exports"])
    assert "unknown to the adapter: moderations:Moderations.imagine" in shown.output


def test_what_is_not_installed_or_disabled_is_no_failure() -> None:
    """vLLM is not here; an adapter that the settings leave alone is told so."""
    shown = CliRunner().invoke(
        doctor, ["vllm", "openai", "--no-exports"], env={"NEURONSCOPE_DISABLE": "openai"}
    )
    assert shown.exit_code == 0
    assert "not installed: vllm" in shown.output
    assert "disabled" in shown.output


def test_private_names_that_a_runtime_stands_on_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX without a function of its own that the adapter stands before: partly observed, and named."""
    from jax._src import dispatch

    whole = examine_library("jax")
    assert (whole.kind, whole.state, whole.absent) == ("model runtime", "observed", ())
    assert "jax._src.pjit._infer_params" in whole.wrapped
    monkeypatch.delattr(dispatch, "xla_primitive_callable")
    lacking = examine_library("jax")
    assert (lacking.state, lacking.absent) == ("partly", ("jax._src.dispatch.xla_primitive_callable",))
    result = CliRunner().invoke(doctor, ["jax", "--no-exports"])
    assert result.exit_code == 1
    assert "absent in this version: jax._src.dispatch.xla_primitive_callable" in result.output


def test_a_runtime_that_cannot_be_imported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation of JAX that is broken is a finding, no traceback."""

    def broken(_: object) -> dict[str, bool]:
        raise ImportError("no jaxlib")

    monkeypatch.setattr(JaxAdapter, "private_names", broken)
    report = examine_library("jax")
    assert (report.state, report.problem) == ("broken", "ImportError: no jaxlib")


SHAM = """
import os, sys
from importlib.machinery import ModuleSpec

class Sham:
    # Stands before the real library: one that kills its process, one that leaves it.
    def find_spec(self, name, path=None, target=None):
        return ModuleSpec(name, self) if name in ("ollama", "cohere") else None
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        print("hello from", module.__name__)
        if module.__name__ == "ollama":
            os.kill(os.getpid(), 9)
        sys.exit(3)

sys.meta_path.insert(0, Sham())
"""


def test_a_library_that_ends_its_process_is_told_and_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed by its own compiled part, or left by `sys.exit`; what it prints is no report."""
    (tmp_path / "sitecustomize.py").write_text(SHAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    told: list[str] = []
    names = ("ollama", "vllm", "cohere", "uvicorn", "openai")
    reports = examine_apart(names, disabled=("openai",), seen={"uvicorn": 7.0}, done=told.append)
    assert [report.name for report in reports] == list(names)
    assert sorted(told) == sorted(names)
    killed, absent, left, sound, disabled = reports
    assert (killed.state, killed.problem) == ("broken", "importing it ended the process by signal SIGKILL")
    assert (left.state, left.problem) == ("broken", "importing it ended the process with code 3")
    assert killed.version
    assert absent.state == "not installed"
    assert sound == examine_library("uvicorn", seen=7.0)
    assert disabled.state == "disabled"


def test_an_unknown_name_is_wrong_usage() -> None:
    """The names that there are."""
    shown = CliRunner().invoke(doctor, ["opanai"])
    assert shown.exit_code == 2
    assert "no adapter for opanai" in shown.output


def test_a_mistyped_variable_is_told() -> None:
    """It is ignored by everything else; ours that are no settings are not mistaken for one."""
    typed = {"NEURONSCOPE_PROMETEUS": "9464", "NEURONSCOPE_OWN": "1", "NEURONSCOPE_CACHE": "/tmp"}
    told = run("--no-exports", **typed).output
    assert (
        "NEURONSCOPE_PROMETEUS is no setting, and does nothing: did you mean NEURONSCOPE_PROMETHEUS?" in told
    )
    assert "NEURONSCOPE_OWN is no setting, and does nothing." in told
    assert "NEURONSCOPE_CACHE" not in told
    found = json.loads(run("--no-exports", "--format", "json", **typed).output)["unknown_variables"]
    assert {"NEURONSCOPE_PROMETEUS", "NEURONSCOPE_OWN"} <= set(found)


def test_no_exporter_is_a_finding() -> None:
    """What is observed would go nowhere."""
    (found,) = exports()
    assert not found["ok"]
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in found["advice"]


def test_probes_arrive_at_a_collector() -> None:
    """A span, metrics and a log record, really sent; the trace to look for is told."""
    with serving() as collector:
        found = {e["what"]: e for e in exports(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)}
        requests = list(collector.requests)
    assert {"traces", "metrics"} <= found.keys()
    assert all(examination["ok"] for examination in found.values())
    (span,) = [span for path, _, body in requests if path == "/v1/traces" for span in spans_in(body)]
    assert span.trace_id.hex() in found["traces"]["detail"]


@pytest.mark.parametrize(
    ("status", "advice"),
    [(401, "OTEL_EXPORTER_OTLP_HEADERS"), (404, "the path is wrong"), (415, "PROTOCOL=grpc")],
)
def test_a_refusal_is_told_with_its_likely_cause(status: int, advice: str) -> None:
    """By the receiver's status."""
    with serving() as collector:
        collector.answers = [(status, {}, b"")]
        found = exports(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{collector.url}/v1/traces")
    assert not found[0]["ok"]
    assert advice in found[0]["advice"]


def test_nobody_listening_is_told() -> None:
    """And what the other protocol's port is."""
    found = exports(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"http://127.0.0.1:{free_port()}/v1/traces")
    assert not found[0]["ok"]
    assert "Nobody listens there" in found[0]["advice"]


def test_the_page_of_metrics_is_scraped() -> None:
    """Where it is free, where a process of ours serves it, and where something else has the port."""
    port = free_port()
    (free,) = exports(NEURONSCOPE_PROMETHEUS=f"127.0.0.1:{port}")
    assert free["ok"]
    assert "with exemplars" in free["detail"]

    metrics = Aggregator()
    metrics.set(names.OVERHEAD_BUDGET, 0.15)
    server = MetricsServer("127.0.0.1", port, MetricsPage(metrics.collect, {}))
    (ours,) = exports(NEURONSCOPE_PROMETHEUS=f"127.0.0.1:{port}")
    server.close()
    assert ours["ok"]
    assert "served by a running process" in ours["detail"]

    with serving() as stranger:
        (taken,) = exports(NEURONSCOPE_PROMETHEUS=stranger.url.removeprefix("http://"))
    assert not taken["ok"]


def test_a_recording_is_written_and_read_back(tmp_path: Path) -> None:
    """Nothing is left of the probe; a directory that cannot be is told."""
    (found,) = exports(NEURONSCOPE_NSZ=str(tmp_path / "records"), NEURONSCOPE_NSZ_KEEP_BYTES="1000000")
    assert found["ok"], found
    assert not list((tmp_path / "records").iterdir())
    (tmp_path / "file").write_text("")
    (found,) = exports(NEURONSCOPE_NSZ=str(tmp_path / "file" / "records"))
    assert not found["ok"]
    assert "may write" in found["advice"]


def test_the_first_call_is_read_from_recordings(tmp_path: Path) -> None:
    """A library that has been called is told with the time."""
    with ns.testing.FakeOpenAI() as server, ns.Platform(nsz=str(tmp_path)):
        ns.instrument("openai")
        import openai

        client = openai.OpenAI(base_url=server.base_url, api_key="test", max_retries=0)
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hello"}])
    shown = run("--no-exports", NEURONSCOPE_NSZ=str(tmp_path))
    assert "first call 20" in shown.output


# --- do they arrive? ---------------------------------------------------------------------------------
class Backend:
    """Answers like Jaeger and Prometheus, by path; what it is not told is not there.

    Attributes:
        told: by beginning of path: status and content.
        asked: paths so far.
    """

    def __init__(self) -> None:
        self.told: dict[str, tuple[int, Any]] = {}
        self.asked: list[str] = []
        self.url = ""

    def answer(self, path: str) -> tuple[int, bytes]:
        self.asked.append(path)
        for beginning, (status, content) in self.told.items():
            if path.startswith(beginning):
                return status, content if isinstance(content, bytes) else json.dumps(content).encode()
        return 404, b"{}"


@pytest.fixture
def backend() -> Iterator[Backend]:
    told = Backend()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = told.answer(self.path)
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    told.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield told
    server.shutdown()
    thread.join()
    server.server_close()


def vector(*samples: tuple[str, float]) -> dict[str, Any]:
    result = [{"metric": {"job": job}, "value": [time.time(), str(at)]} for job, at in samples]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def arrivals(*arguments: str, **environment: str) -> dict[str, dict[str, Any]]:
    result = run("--format", "json", "--wait", "0", *arguments, **environment)
    found = {each["what"]: each for each in json.loads(result.stdout)["exports"]}
    assert (result.exit_code == 0) is all(each["ok"] for each in found.values())
    return found


def test_the_probe_is_looked_for_where_it_should_arrive(backend: Backend) -> None:
    """Its trace in Jaeger or Tempo, fresh metrics in Prometheus."""
    backend.told["/api/traces/"] = 200, {"data": [{}]}
    backend.told["/api/v1/query"] = 200, vector(("shop", time.time() + 5))
    with serving() as collector:
        found = arrivals(
            "--traces-at", backend.url, "--metrics-at", f"{backend.url}/",
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        )  # fmt: skip
    assert found["traces arrive"]["ok"]
    assert found["traces"]["trace_id"] in backend.asked[0]
    assert found["metrics arrive"]["ok"]
    assert "job shop" in found["metrics arrive"]["detail"]


@pytest.mark.parametrize("status", [404, 500, 0])
def test_a_probe_that_does_not_arrive_is_told_with_the_likely_cause(backend: Backend, status: int) -> None:
    """Taken and lost on the way; another API; nobody there."""
    backend.told["/api/"] = status, {}
    base = backend.url if status else f"http://127.0.0.1:{free_port()}"
    with serving() as collector:
        found = arrivals("--traces-at", base, "--metrics-at", base, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    assert found["traces"]["ok"]
    causes = {404: "tail sampling", 500: "not Jaeger's or Tempo's API", 0: "address of Jaeger's or Tempo's"}
    assert causes[status] in found["traces arrive"]["advice"]
    assert not found["metrics arrive"]["ok"]


def test_a_probe_that_nobody_took_is_not_looked_for(backend: Backend) -> None:
    """The first fault is the one to tell."""
    found = arrivals("--traces-at", backend.url, NEURONSCOPE_PROMETHEUS=f"127.0.0.1:{free_port()}")
    assert "no probe was sent" in found["traces arrive"]["detail"]
    assert not backend.asked


@pytest.mark.parametrize(
    ("targets", "cause"),
    [
        ([], "No target"),
        ([("down", "connection refused")], "cannot scrape"),
        ([("up", "")], "none of our metrics"),
    ],
)
def test_metrics_that_are_not_scraped(backend: Backend, targets: list[tuple[str, str]], cause: str) -> None:
    """Stale samples are none; the target's own error is the likely cause."""
    port = free_port()
    backend.told["/api/v1/query"] = 200, vector(("shop", time.time() - 3600))
    backend.told["/api/v1/targets"] = (
        200,
        {
            "data": {
                "activeTargets": [
                    {"scrapeUrl": f"http://shop:{port}/metrics", "health": health, "lastError": error}
                    for health, error in targets
                ]
            }
        },
    )
    found = arrivals("--metrics-at", backend.url, NEURONSCOPE_PROMETHEUS=f"127.0.0.1:{port}")
    assert cause in found["metrics arrive"]["advice"]


def test_a_port_that_does_not_speak_http_is_told() -> None:
    """Asked at the port of gRPC, which answers with frames of HTTP/2: a finding, no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = threading.Event()

        def answer() -> None:
            while not done.is_set():
                connection, _ = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        base = f"http://127.0.0.1:{server.getsockname()[1]}"
        told = look_for_trace(base, "0" * 32, wait_s=0)
        done.set()
        socket.create_connection(server.getsockname()).close()
        thread.join(60)
    assert not told.ok
    assert "no HTTP" in told.detail
    assert "not Jaeger's or Tempo's API" in told.advice


def test_a_recording_that_cannot_be_read_hides_no_first_call(tmp_path: Path) -> None:
    """Beside the sound file there is one of noise."""
    (tmp_path / "noise.nsz").write_bytes(b"noise" * 100)
    writer = NszWriter(tmp_path / "sound.nsz")
    writer.append_span(
        SpanRecord(
            trace_id=1,
            span_id=2,
            name="chat",
            kind=SpanKind.CLIENT,
            start_unix_ns=3_000_000_000,
            end_unix_ns=4_000_000_000,
            attributes={},
            library="neuronscope.openai",
        )
    )
    writer.close()
    assert first_calls(str(tmp_path)) == {"openai": 3.0}


def test_metrics_that_are_neither_sent_nor_served(backend: Backend) -> None:
    """Nothing could arrive."""
    backend.told["/api/v1/query"] = 200, vector()
    found = arrivals("--metrics-at", backend.url)
    assert "NEURONSCOPE_PROMETHEUS" in found["metrics arrive"]["advice"]


def test_edits_that_change_answers_are_told() -> None:
    """Of the process that serves the page; those that are switched off change nothing."""
    port = free_port()
    metrics = Aggregator()
    metrics.set(names.OVERHEAD_BUDGET, 0.15)
    metrics.set(names.EDITS_ACTIVE, 1, (("edit", "calm@2"),))
    metrics.set(names.EDITS_ACTIVE, 0, (("edit", "gone@1"),))
    server = MetricsServer("127.0.0.1", port, MetricsPage(metrics.collect, {}))
    (page,) = exports(NEURONSCOPE_PROMETHEUS=f"127.0.0.1:{port}")
    server.close()
    assert page["detail"].endswith("edits that change answers: calm@2")

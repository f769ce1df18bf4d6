"""The demo's service answers byte for byte alike: bare, observed, observed with content, sabotaged."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from collectors import free_port, until
from neuronscope.artifact import load
from neuronscope.cli.run import observed_environment
from neuronscope.testing import FakeOpenAI

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
SERVICE = ROOT / "agent" / "neuronscope" / "demo" / "service.py"
SABOTEUR = ROOT / "tests" / "support" / "saboteur"
REQUESTS = (
    ("POST", "/ask", b'{"question": "What is an embedding?"}'),
    ("POST", "/ask", b'{"question": ""}'),
    ("POST", "/ask?secret=canary-7f3a", b'{"question": "Why does k matter?"}'),
    ("POST", "/ask", b"not json"),
    ("GET", "/healthz", None),
    ("GET", "/nowhere", None),
    ("PUT", "/ask", b"{}"),
)


@contextmanager
def service(folder: Path, llm_url: str, environment: Mapping[str, str]) -> Generator[int]:
    """The service as a child process on a free port."""
    port = free_port()
    offline = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    rag = {"RAG_LLM_BASE_URL": llm_url, "RAG_LLM_MODEL": "gpt-4o-mini", "RAG_PORT": str(port)}
    with (folder / "service.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(SERVICE)],
            env={**environment, **offline, **rag, "OTEL_SERVICE_NAME": "rag"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_until_healthy(process, port, folder)
            yield port
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def wait_until_healthy(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    until(lambda: process.poll() is not None or is_healthy(port), 240)
    assert process.poll() is None, (folder / "service.log").read_text()


def is_healthy(port: int) -> bool:
    try:
        return exchange(port, "GET", "/healthz", None)[0] == 200
    except OSError:
        return False


Answer = tuple[int, list[tuple[str, str]], bytes]


def exchange(port: int, method: str, path: str, body: bytes | None) -> Answer:
    """One request: status, headers that do not tell the time, body."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(method, path, body, {"content-type": "application/json"} if body else {})
        response = connection.getresponse()
        headers = sorted((name, value) for name, value in response.getheaders() if name.lower() != "date")
        return response.status, headers, response.read()


def answers(folder: Path, environment: Mapping[str, str]) -> tuple[list[Answer], list[tuple[str, bytes]]]:
    """What the service answers, and what it sends to the model."""
    folder.mkdir()
    with FakeOpenAI() as llm, service(folder, llm.base_url, environment) as port:
        given = [exchange(port, *request) for request in REQUESTS]
        return given, [(request.path, request.body) for request in llm.requests]


def test_observation_changes_no_byte_and_leaks_none(tmp_path: Path) -> None:
    """Same status, headers and body for every request, same requests to the model; and no content kept."""
    bare = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def observed(name: str, **more: str) -> dict[str, str]:
        return observed_environment({**bare, "NEURONSCOPE_NSZ": str(tmp_path / f"{name}.segments"), **more})

    expected = answers(tmp_path / "bare", bare)
    assert [answer[0] for answer in expected[0]] == [200, 422, 200, 422, 200, 404, 405]
    assert answers(tmp_path / "observed", observed("observed")) == expected
    capture = {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "span_and_event"}
    assert answers(tmp_path / "content", observed("content", **capture)) == expected
    assert answers(tmp_path / "sabotaged", observed("sabotaged", PYTHONPATH=str(SABOTEUR))) == expected

    plain, full = load(tmp_path / "observed.segments"), load(tmp_path / "content.segments")
    for recording in (plain, full):
        assert [span.operation for span in recording.llm_spans].count("chat") == 2
        assert len(recording.retrieval_spans) == 2
    secrets = ("canary-7f3a", "Why does k matter", "embedding?")
    kept, captured = (json.dumps([repr(span) for span in r.telemetry.spans]) for r in (plain, full))
    assert not [secret for secret in secrets if secret in kept]
    assert "Why does k matter" in captured  # so the first assertion can fail

    broken = load(tmp_path / "sabotaged.segments")
    assert not [span for span in broken.retrieval_spans if span.ids]  # the sabotage was real
    log = (tmp_path / "sabotaged" / "service.log").read_text()
    assert "Traceback" not in log
    assert "sabotage" not in log

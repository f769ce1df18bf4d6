"""The demo's service in a process of its own, recorded and measured, beside a provider of our making."""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import neuronscope.demo
from collectors import free_port
from neuronscope.demo.models import prepare_minilm
from programs import running

READY_S = 240


@dataclass(frozen=True, slots=True)
class Handbook:
    """The service, running.

    Attributes:
        port: of its questions; `metrics`: of its measurements.
    """

    port: int
    metrics: int

    def ask(self, questions: Iterable[str]) -> None:
        """Ask all, four at a time; every one is answered."""
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(self._ask, questions))
        assert set(answers) == {200}

    def _ask(self, question: str) -> int:
        status, _ = _request(self.port, "POST", "/ask", json.dumps({"question": question}))
        return status

    def measured(self) -> str:
        """The page of metrics, with exemplars."""
        _, body = _request(
            self.metrics, "GET", "/metrics", accept="application/openmetrics-text; version=1.0.0"
        )
        return body


@contextmanager
def handbook(folder: Path, provider: str, **env: str) -> Generator[Handbook]:
    """``neuronscope run --nsz recordings/ python service.py``, until the block ends.

    Args:
        folder: where the recording goes, in ``recordings``.
        provider: base URL of the language model's provider.
    """
    prepare_minilm()
    port, metrics = free_port(), free_port()
    service = Path(neuronscope.demo.__file__).with_name("service.py")
    command = [
        sys.executable,
        "-m",
        "neuronscope",
        "run",
        "--nsz",
        "recordings",
        sys.executable,
        str(service),
    ]
    more = {
        "RAG_LLM_BASE_URL": provider,
        "RAG_PORT": str(port),
        "NEURONSCOPE_PROMETHEUS": f"127.0.0.1:{metrics}",
        "OTEL_SERVICE_NAME": "handbook",
        "HF_HUB_OFFLINE": "1",
        **env,
    }
    with (
        (folder / "service.log").open("ab") as log,
        running(command, output=log, cwd=folder, **more) as process,
    ):
        deadline = time.monotonic() + READY_S
        while not _healthy(port):
            assert process.poll() is None, (folder / "service.log").read_text(errors="replace")[-2000:]
            assert time.monotonic() < deadline, "the service does not start"
            time.sleep(0.1)
        yield Handbook(port, metrics)
        process.terminate()
        process.wait(60)


def _healthy(port: int) -> bool:
    try:
        return _request(port, "GET", "/healthz")[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def _request(
    port: int, method: str, path: str, body: str | None = None, accept: str = "*/*"
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json", "Accept": accept})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()

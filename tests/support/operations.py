"""Prometheus, Alertmanager and a webhook as real programs, for tests of dashboards and alerts."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

PATIENCE_S = 90.0  # for what takes a second on an idle machine


def program(*names: str) -> str:
    """The path of an installed program, by any of its names."""
    found = [path for name in names if (path := shutil.which(name))]
    assert found, f"this test needs {names[0]}: make services"
    return found[0]


def eventually(ask: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """The first true answer."""
    deadline = monotonic() + patience_s
    while True:
        try:
            if answer := ask():
                return answer
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass  # not up yet, or too busy
        assert monotonic() < deadline, f"in vain: {what}"
        sleep(0.2)


@contextmanager
def running(
    command: list[str], log: Path, env: dict[str, str] | None = None
) -> Generator[subprocess.Popen[bytes]]:
    """A program for the time of the block; its output is in the log."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=env)
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server's HTTP API."""

    port: int

    def api(self, path: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=20) as response:
            return json.load(response)["data"]

    def query(self, expression: str) -> list[Any]:
        """The result of an instant query; may be empty."""
        result = self.api("query", query=expression)["result"]
        found: list[Any] = result
        return found

    def exemplars(self, expression: str) -> list[dict[str, str]]:
        """Labels of the exemplars of the last ten minutes."""
        now = time()
        found = self.api("query_exemplars", query=expression, start=str(now - 600), end=str(now + 60))
        return [exemplar["labels"] for series in found for exemplar in series["exemplars"]]


@contextmanager
def prometheus(config: Path, data: Path, port: int) -> Generator[Prometheus]:
    """A server with this configuration; its files are in `data`."""
    command = [
        program("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={data}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
    ]
    with running(command, data.with_suffix(".log")):
        server = Prometheus(port)
        eventually(lambda: server.api("query", query="1"), "Prometheus answers")
        yield server


@contextmanager
def alertmanager(config: Path, data: Path, port: int) -> Generator[None]:
    """A server with this configuration."""
    command = [
        program("prometheus-alertmanager", "alertmanager"),
        f"--config.file={config}",
        f"--storage.path={data}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with running(command, data.with_suffix(".log")):
        eventually(
            lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5),
            "Alertmanager is ready",
        )
        yield


@dataclass(slots=True)
class Webhook:
    """What Alertmanager delivered."""

    url: str
    alerts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


@contextmanager
def webhook() -> Generator[Webhook]:
    """A receiver on a free port."""
    kept = Webhook("")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            kept.alerts += body["alerts"]
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    kept.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
    try:
        yield kept
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()

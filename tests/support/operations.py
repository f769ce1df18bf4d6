"""Prometheus, Alertmanager and a webhook as real programs, for tests of dashboards and alerts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

from collectors import free_port
from neuronscope.dashboards import thresholds as limits
from neuronscope.dashboards.build import write
from programs import ROOT, environment

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
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server's HTTP API."""

    port: int

    def api(self, path: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=60) as response:
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
        thread.join(60)
        server.server_close()


# --- the shop, with everything around it -------------------------------------------------------------


@dataclass(slots=True)
class Stack:
    """Everything that runs."""

    folder: Path
    url: str
    prometheus: Prometheus
    hook: Webhook

    def post(self, path: str) -> None:
        request = urllib.request.Request(f"{self.url}{path}", method="POST", data=b"")
        try:
            urllib.request.urlopen(request, timeout=120).close()
        except urllib.error.HTTPError as error:
            if error.code != 500:
                raise


def quickly(folder: Path, alertmanager_port: int, metrics_port: int) -> None:
    """The generated configuration, with seconds for minutes, and the ports of this test."""
    rules = folder / "prometheus" / "rules.yml"
    rules.write_text(
        re.sub(r'interval: "\w+"', 'interval: "1s"', rules.read_text(encoding="utf-8")), encoding="utf-8"
    )
    alerts = folder / "prometheus" / "alerts.yml"
    alerts.write_text(
        re.sub(r'for: "\w+"', 'for: "1s"', alerts.read_text(encoding="utf-8")), encoding="utf-8"
    )
    config = folder / "prometheus" / "prometheus.yml"
    text = config.read_text(encoding="utf-8").replace('"15s"', '"500ms"').replace('"30s"', '"1s"')
    config.write_text(text.replace("alertmanager:9093", f"127.0.0.1:{alertmanager_port}"), encoding="utf-8")
    for target in (folder / "prometheus" / "targets").glob("*.yml"):
        target.unlink()
    (folder / "prometheus" / "targets" / "shop.yml").write_text(
        f'- targets: ["127.0.0.1:{metrics_port}"]\n  labels: {{job: shop}}\n', encoding="utf-8"
    )
    routes = folder / "alertmanager" / "alertmanager.yml"
    routes.write_text(
        re.sub(r'group_(wait|interval): "\w+"', r'group_\1: "1s"', routes.read_text(encoding="utf-8")),
        encoding="utf-8",
    )


@contextmanager
def shop_stack(folder: Path, otlp_url: str, **more: str) -> Generator[Stack]:
    """`shop.py` after a thousand questions, scraped, with rules and alerts as generated."""
    port, metrics, own, manager = (free_port() for _ in range(4))
    with webhook() as hook:
        mine = folder / "thresholds.toml"
        mine.write_text(f'[receivers]\npage = "{hook.url}"\n', encoding="utf-8")
        write(limits.load(mine), folder)
        quickly(folder, manager, metrics)
        settings = {
            "NEURONSCOPE_PROMETHEUS": f"127.0.0.1:{metrics}",
            "NEURONSCOPE_BASELINE": str(folder / "baseline.json"),
            "NEURONSCOPE_DRIFT_WINDOW": "200",
            "NEURONSCOPE_CANARY_INTERVAL": "2",
            "NEURONSCOPE_NSZ": str(folder / "recordings"),
            "NEURONSCOPE_NSZ_SAMPLE_PCT": "100",
            "NEURONSCOPE_PROBES": "blocks:summary,model.layers.0:full",
            "NEURONSCOPE_MAX_OVERHEAD_PCT": "90",
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "span_only",
            "OTEL_SERVICE_NAME": "shop",
            "OTEL_EXPORTER_OTLP_ENDPOINT": otlp_url,
            "OTEL_METRICS_EXPORTER": "none",
            "HF_HUB_OFFLINE": "1",
        }
        env = environment(**settings, **more)
        env["PYTHONPATH"] += f":{ROOT}"
        command = [sys.executable, "-m", "neuronscope", "run", str(ROOT / "tests/support/shop.py"), str(port)]
        with (
            running(command, folder / "shop.log", env),
            alertmanager(folder / "alertmanager/alertmanager.yml", folder / "am", manager),
            prometheus(folder / "prometheus/prometheus.yml", folder / "data", own) as server,
        ):
            found = Stack(folder, f"http://127.0.0.1:{port}", server, hook)
            ready = partial(urllib.request.urlopen, f"{found.url}/openapi.json", timeout=5)
            eventually(ready, "the shop is open", 200)
            found.post("/ask")
            found.post("/learn?queries=1400")  # the baseline, and two windows to compare with it
            yield found


def failing_call(stack: Stack) -> dict[str, str]:
    """Make calls fail until the alert about it fires; the exemplar of one of them."""

    def fires() -> bool:
        for _ in range(10):
            stack.post("/fault/provider")
        alerts = stack.prometheus.api("alerts")["alerts"]
        return any(
            alert["labels"]["alertname"] == "NeuronscopeLlmErrors" and alert["state"] == "firing"
            for alert in alerts
        )

    eventually(fires, "the alert about failing calls fires")
    series = 'gen_ai_client_operation_duration_seconds_bucket{error_type!=""}'
    exemplars: list[dict[str, str]] = eventually(lambda: stack.prometheus.exemplars(series), "an exemplar")
    return exemplars[-1]


def recorded(stack: Stack, exemplar: dict[str, str]) -> str:
    """What the command on the dashboard shows of an exemplar's trace; empty while its span is not on disk."""
    command = [sys.executable, "-m", "neuronscope", "view", str(stack.folder / "recordings")]
    done = subprocess.run(
        [*command, "--trace", exemplar["trace_id"], "--format", "json"],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env=environment(),
    )
    return done.stdout if exemplar["span_id"] in done.stdout else ""

"""A real OTLP back end with a user interface of its own: an alert leads to a trace in Arize Phoenix.

Phoenix and what it needs are 620 MB, in an environment of their own in the user's cache.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from collectors import free_port
from neuronscope.demo.models import default_cache_dir
from operations import eventually, failing_call, recorded, running, shop_stack

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]

VERSION = "20.26.1"
PROJECT = "shop"


@pytest.fixture(scope="module")
def program() -> Path:
    """Phoenix's command, in its own environment."""
    folder = default_cache_dir() / "tests" / f"phoenix-{VERSION}"
    command = folder / "bin" / "phoenix"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=300)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", f"arize-phoenix=={VERSION}"]
        subprocess.run(pip, check=True, timeout=1200)
        (folder / "complete").touch()
    return command


@pytest.fixture
def phoenix(program: Path, tmp_path: Path) -> Generator[str]:
    """A running server's address."""
    port = free_port()
    env = {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "PHOENIX_WORKING_DIR": str(tmp_path),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(free_port()),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    url = f"http://127.0.0.1:{port}"
    with running([str(program), "serve"], tmp_path / "phoenix.log", env):
        eventually(lambda: urllib.request.urlopen(f"{url}/healthz", timeout=5), "Phoenix is up", 300)
        yield url


def test_an_alert_leads_to_a_trace_in_phoenix_and_to_the_recording(phoenix: str, tmp_path: Path) -> None:
    """Calls fail, the alert fires, the exemplar of its series is a span with its parents in both."""
    resource = f"openinference.project.name={PROJECT}"
    with shop_stack(tmp_path, phoenix, OTEL_RESOURCE_ATTRIBUTES=resource, OTEL_LOGS_EXPORTER="none") as stack:
        exemplar = failing_call(stack)

        def spans() -> list[Any]:
            found: list[Any] = []
            cursor = ""
            while True:
                page = f"{phoenix}/v1/projects/{PROJECT}/spans?limit=1000{cursor}"
                with urllib.request.urlopen(page, timeout=20) as answer:
                    body = json.load(answer)
                found += [
                    span for span in body["data"] if span["context"]["trace_id"] == exemplar["trace_id"]
                ]
                if not body.get("next_cursor"):
                    return found
                cursor = f"&cursor={body['next_cursor']}"

        def there() -> list[Any]:
            found = spans()
            return found if exemplar["span_id"] in {span["context"]["span_id"] for span in found} else []

        trace = eventually(there, "the trace is in Phoenix")
        (failed,) = [span for span in trace if span["context"]["span_id"] == exemplar["span_id"]]
        assert failed["status_code"] == "ERROR"
        assert failed["name"].startswith("chat ")
        assert failed["parent_id"] in {span["context"]["span_id"] for span in trace}
        assert eventually(lambda: recorded(stack, exemplar), "the span is in the recording")

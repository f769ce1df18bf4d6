"""A prefork server, started by `neuronscope run`: every worker exports what it did, once."""

from __future__ import annotations

import os
import signal
import sys
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest

import programs
from collectors import free_port, serving, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

APP = """
import os
import fakelib
client = fakelib.Client()

def app(environ, start_response):
    call = environ["PATH_INFO"].strip("/")
    if call != "ready":
        client.chat("a b", model=call)
    start_response("200 OK", [("content-type", "text/plain")])
    return [str(os.getpid()).encode()]
"""
# `neuronscope run` knows no fake library; the environment's own start file introduces it.
SITE = """
import neuronscope as ns, fakelib
ns.registry.register_adapter(fakelib.integration("fakelib"))
"""


@pytest.mark.parametrize("kind", ["sync", "gthread", "gevent"])
def test_gunicorn_with_preload(tmp_path: Path, kind: str) -> None:
    """Calls before and after a worker is killed; the master exports nothing; the end is quick."""
    (tmp_path / "service.py").write_text(APP)
    (tmp_path / "sitecustomize.py").write_text(SITE)
    port = free_port()
    with serving() as collector, (tmp_path / "log").open("wb") as log:
        command = [
            sys.executable, "-m", "neuronscope", "run", "-m", "gunicorn", "service:app", "--preload",
            "--workers", "2", "--worker-class", kind, "--bind", f"127.0.0.1:{port}",
            "--graceful-timeout", "5",
        ]  # fmt: skip
        env = programs.environment()
        with programs.running(
            command,
            output=log,
            cwd=tmp_path,
            PYTHONPATH=os.pathsep.join([str(tmp_path), env["PYTHONPATH"]]),
            PYTHONWARNINGS="ignore",
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            NEURONSCOPE_INSTRUMENT="fake",
            NEURONSCOPE_EXPORT_INTERVAL="0.05",
        ) as server:
            until(lambda: listens(port))
            workers = {call(port, f"first-{n}") for n in range(12)}
            until(lambda: len(collector.spans) == 12)
            os.kill(workers.pop(), signal.SIGKILL)
            until(lambda: len(psutil.Process(server.pid).children()) == 2)
            for number in range(12):
                call(port, f"second-{number}")
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0, (tmp_path / "log").read_text()
    calls = [f"chat {turn}-{n}" for turn in ("first", "second") for n in range(12)]
    assert Counter(collector.spans) == Counter(calls), (tmp_path / "log").read_text()


def test_workers_share_one_page_of_metrics(tmp_path: Path) -> None:
    """Calls of all workers on one page, also of one that was killed."""
    (tmp_path / "service.py").write_text(APP)
    (tmp_path / "sitecustomize.py").write_text(SITE)
    port, page = free_port(), free_port()
    command = [
        sys.executable, "-m", "neuronscope", "run", "-m", "gunicorn", "service:app", "--preload",
        "--workers", "3", "--bind", f"127.0.0.1:{port}", "--graceful-timeout", "5",
    ]  # fmt: skip
    env = programs.environment()
    with (
        (tmp_path / "log").open("wb") as log,
        programs.running(
            command,
            output=log,
            cwd=tmp_path,
            PYTHONPATH=os.pathsep.join([str(tmp_path), env["PYTHONPATH"]]),
            PYTHONWARNINGS="ignore",
            NEURONSCOPE_INSTRUMENT="fake",
            NEURONSCOPE_PROMETHEUS=f"127.0.0.1:{page}",
            NEURONSCOPE_PROMETHEUS_DIR=str(tmp_path / "shared"),
        ) as server,
    ):
        until(lambda: listens(port))
        callers, made = set[int](), 0
        with ThreadPoolExecutor(6) as pool:
            while len(callers) < 2 and made < 600:
                callers |= set(pool.map(partial(call, port), [f"n-{n % 4}" for n in range(12)]))
                made += 12
        assert len(callers) > 1
        until(lambda: counted(page) == made)
        os.kill(callers.pop(), signal.SIGKILL)
        until(lambda: len(psutil.Process(server.pid).children()) == 3)
        for number in range(12):
            call(port, f"n-{number % 4}")
        until(lambda: counted(page) == made + 12)
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0, (tmp_path / "log").read_text()


def counted(page: int) -> float:
    """Calls on the page of metrics; -1 while nobody serves it."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return -1
    name = "gen_ai_client_operation_duration_seconds_count"
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def listens(port: int) -> bool:
    try:
        call(port, "ready")
    except OSError:
        return False
    return True


def call(port: int, name: str) -> int:
    """Have the service make a call; returns the process that did."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=30) as answer:
        return int(answer.read())

"""`neuronscope run` before programs of many kinds: a call in any of their processes is exported, once.

uvicorn and gunicorn have tests of their own (`test_service_unchanged`, `test_lifecycle_gunicorn`).
"""

from __future__ import annotations

import os
import signal
import sys
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from streamlit.proto.BackMsg_pb2 import BackMsg
from websockets.sync.client import connect

import programs
from collectors import Collector, free_port, serving, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# `neuronscope run` knows no fake library; the environment's own start file introduces it.
SITE = """
import neuronscope as ns, fakelib
ns.registry.register_adapter(fakelib.integration("fakelib"))
"""
RUN = (sys.executable, "-m", "neuronscope", "run")


def environment(folder: Path, collector: Collector) -> dict[str, str]:
    (folder / "sitecustomize.py").write_text(SITE)
    return {
        "PYTHONPATH": os.pathsep.join([str(folder), programs.environment()["PYTHONPATH"]]),
        "PYTHONWARNINGS": "ignore",
        "HOME": str(folder),
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "NEURONSCOPE_INSTRUMENT": "fake",
        "NEURONSCOPE_EXPORT_INTERVAL": "0.05",
    }


# --- celery ----------------------------------------------------------------------------------------
TASKS = """
import os
import fakelib
from celery import Celery

app = Celery("tasks")
app.conf.update(
    broker_url="filesystem://",
    broker_transport_options={
        "data_folder_in": "queue", "data_folder_out": "queue", "control_folder": "control",
        "polling_interval": 0.05,
    },
    worker_hijack_root_logger=False,
)
client = fakelib.Client()

@app.task
def ask(name):
    client.chat("a b", model=name)
"""
ASK = "import tasks\nfor number in range(6):\n    tasks.ask.delay(f'n-{number}')\n"


@pytest.mark.parametrize("pool", [["solo"], ["prefork", "--concurrency", "2"]], ids=["solo", "prefork"])
def test_a_celery_worker(tmp_path: Path, pool: list[str]) -> None:
    """Each task's call once, whichever process of the pool made it; a warm shutdown is clean."""
    (tmp_path / "tasks.py").write_text(TASKS)
    for name in ("queue", "control"):
        (tmp_path / name).mkdir()
    with serving() as collector, (tmp_path / "log").open("wb") as log:
        env = environment(tmp_path, collector)
        worker = [
            *RUN, "-m", "celery", "-A", "tasks", "worker", "--pool", *pool,
            "--without-gossip", "--without-mingle", "--without-heartbeat",
        ]  # fmt: skip
        with programs.running(worker, output=log, cwd=tmp_path, **env) as server:
            asking = [sys.executable, "-c", ASK]
            with programs.running(asking, output=log, cwd=tmp_path, **env) as client:
                assert client.wait(120) == 0, (tmp_path / "log").read_text()
            until(lambda: len(collector.spans) >= 6 or server.poll() is not None, 120)
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0, (tmp_path / "log").read_text()
    assert Counter(collector.spans) == Counter(f"chat n-{number}" for number in range(6))


# --- streamlit ---------------------------------------------------------------------------------------
APP = """
import fakelib, streamlit
streamlit.title("Ask")
fakelib.Client().chat("a b", model="from-the-app")
"""


def test_a_streamlit_app(tmp_path: Path) -> None:
    """A session runs the script in a thread of the server: its call is there, once for each run."""
    (tmp_path / "app.py").write_text(APP)
    port = free_port()
    rerun = BackMsg()
    rerun.rerun_script.query_string = ""
    with serving() as collector, (tmp_path / "log").open("wb") as log:
        command = [
            *RUN, "streamlit", "run", "app.py", "--server.headless", "true", "--server.port", str(port),
            "--server.address", "127.0.0.1", "--browser.gatherUsageStats", "false",
            "--server.fileWatcherType", "none",
        ]  # fmt: skip
        env = environment(tmp_path, collector)
        with programs.running(command, output=log, cwd=tmp_path, **env) as server:
            until(lambda: listens(port) or server.poll() is not None, 120)
            assert server.poll() is None, (tmp_path / "log").read_text()
            with connect(f"ws://127.0.0.1:{port}/_stcore/stream", open_timeout=60) as session:
                session.send(rerun.SerializeToString())
                until(lambda: len(collector.spans) >= 1)
                session.send(rerun.SerializeToString())
                until(lambda: len(collector.spans) >= 2)
            server.send_signal(signal.SIGTERM)
            server.wait(60)
    assert collector.spans == ["chat from-the-app"] * 2, (tmp_path / "log").read_text()


def listens(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=30) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


# --- notebooks -----------------------------------------------------------------------------------------
NOTEBOOK = """
import sys
import nbformat
from nbclient import NotebookClient

cells = [nbformat.v4.new_code_cell(source) for source in sys.argv[1:]]
notebook = nbformat.v4.new_notebook(cells=cells)
NotebookClient(notebook, timeout=120, startup_timeout=120, kernel_name="python3").execute()
"""
CELL = "import fakelib\nfakelib.Client().chat('a b', model='from-a-cell')"


@pytest.mark.parametrize(
    ("launcher", "cells"),
    [
        (RUN, [CELL]),
        ((sys.executable,), ["%load_ext neuronscope", CELL]),
        (RUN, ["%load_ext neuronscope", CELL]),
    ],
    ids=["run", "load_ext", "both"],
)
def test_a_notebook(tmp_path: Path, launcher: tuple[str, ...], cells: list[str]) -> None:
    """The kernel is a process of its own, observed because of its environment, or because a cell says so."""
    (tmp_path / "execute.py").write_text(NOTEBOOK)
    with serving() as collector, (tmp_path / "log").open("wb") as log:
        env = environment(tmp_path, collector)
        command = [*launcher, "execute.py", *cells]
        with programs.running(command, output=log, cwd=tmp_path, **env) as program:
            assert program.wait(240) == 0, (tmp_path / "log").read_text()
    assert collector.spans == ["chat from-a-cell"], (tmp_path / "log").read_text()


# --- python -m -------------------------------------------------------------------------------------------
def test_a_module(tmp_path: Path) -> None:
    """`python -m package`, in both spellings; its arguments and exit code are its own."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "__main__.py").write_text(
        "import sys, fakelib\nfakelib.Client().chat('a b', model=sys.argv[1])\nsys.exit(7)\n"
    )
    with serving() as collector, (tmp_path / "log").open("wb") as log:
        env = environment(tmp_path, collector)
        for command in ([*RUN, "-m", "job", "one"], [*RUN, "python", "-m", "job", "two"]):
            with programs.running(command, output=log, cwd=tmp_path, **env) as program:
                assert program.wait(120) == 7, (tmp_path / "log").read_text()
    assert collector.spans == ["chat one", "chat two"]

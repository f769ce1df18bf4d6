"""Soak: a long run under load, the collector killed and revived; every span is accounted for.

A million calls take several minutes (`make soak`); a twentieth of them runs with the integration tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import fakelib
import neuronscope as ns
import programs
from collectors import OK, Answer, Collector, free_port, serving, spans_in
from neuronscope.cli import cli
from neuronscope.engine import ENGINE
from neuronscope.signals import names
from neuronscope.testing import InMemoryExporter

LOAD = Path(__file__).with_name("load.py")
SIZES = [
    pytest.param(50_000, 4_000, id="short", marks=[pytest.mark.integration, pytest.mark.timeout(180)]),
    pytest.param(1_000_000, 6_000, id="a million", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
]
# Of twenty steps: when the collector goes away, comes back, and goes away for good.
DIES, RETURNS, DIES_AGAIN = 6, 12, 18


class Counting:
    """A collector that counts spans and keeps none."""

    def __init__(self) -> None:
        self.spans = 0
        self._lock = threading.Lock()

    def attach(self, collector: Collector) -> None:
        def take(path: str, headers: dict[str, str], body: bytes) -> Answer:
            if path.endswith("traces"):
                count = len(spans_in(body))
                with self._lock:
                    self.spans += count
            return OK

        collector.take = take  # type: ignore[method-assign]


def run_load(how: str, calls: int, rate: int, nsz: Path) -> tuple[dict[str, Any], int]:
    """Run the program, and the collector as planned; returns its report and the spans that arrived."""
    port, received = free_port(), Counting()
    command = [sys.executable, str(LOAD), how, str(calls), str(rate), f"http://127.0.0.1:{port}", str(nsz)]
    report: dict[str, Any] = {}
    load = subprocess.Popen(command, env=programs.environment(), stdout=subprocess.PIPE, text=True)
    with ExitStack() as life, load as process:
        assert process.stdout is not None
        received.attach(life.enter_context(serving(port)))
        for line in process.stdout:
            if line.startswith("{"):
                report = json.loads(line)
            elif int(line) in (DIES, DIES_AGAIN):
                life.close()
            elif int(line) == RETURNS:
                received.attach(life.enter_context(serving(port)))
    assert process.wait(30) == 0
    return report, received.spans


@pytest.mark.parametrize(("calls", "rate"), SIZES)
@pytest.mark.parametrize("how", ["threads", "tasks"])
def test_every_span_is_accounted_for(tmp_path: Path, how: str, calls: int, rate: int) -> None:
    """Made = exported + lost; the recording has all of them, and can be sent later; memory is flat."""
    nsz = tmp_path / "nsz"
    report, received = run_load(how, calls, rate, nsz)
    print(json.dumps({**report, "received": received}))
    assert report["made"] == calls
    exported, lost = report["exported"], report["lost"]
    assert exported["nsz"] == calls, report
    assert exported["otlp"] + sum(lost.values()) == calls, report
    assert lost, "the collector was away at the end"
    # A request whose answer did not come back is sent again: it may arrive twice, never not at all.
    assert received >= exported["otlp"]
    assert report["shutdown_seconds"] < 3
    early, last = report["rss"][3], report["rss"][-1]
    assert last - early < 80e6, report["rss"]  # the sender's queue may hold 32 MiB; 80 B a call would show

    again = Counting()
    with serving() as collector:
        again.attach(collector)
        arguments = ["export", "--to", "otlp", "--otlp-endpoint", collector.url, "--format", "json", str(nsz)]
        done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    assert json.loads(done.output) == {"exported": calls, "lost": {}, "logs": {"exported": 0, "lost": {}}}
    assert again.spans == calls


@pytest.mark.integration
@pytest.mark.timeout(120)
def test_an_overload_is_counted_to_the_last_span() -> None:
    """64 threads as fast as they can, and a queue that is much too short."""
    threads, each = 64, 1_000
    memory = InMemoryExporter()
    ns.registry.register_adapter(fakelib.integration(fakelib.__name__))
    platform = ns.Platform(exporters=[memory], queue_max_spans=500)
    ns.instrument("fake")

    def work() -> None:
        client = fakelib.Client()
        for _ in range(each):
            client.chat("a")

    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    platform.shutdown()
    ns.registry.unregister_adapter("fake")
    lost = sum(
        int(point.value)
        for family in ENGINE.metrics.collect().families
        for point in family.points
        if family.metric is names.DROPPED and isinstance(point.value, float | int)
    )
    assert lost > 0
    assert len(memory.spans) + lost == threads * each

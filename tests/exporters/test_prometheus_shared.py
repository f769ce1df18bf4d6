"""One /metrics page for many processes: real ones, that end, are killed, and come and go."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import programs
from collectors import free_port
from neuronscope.engine.metrics import Aggregator
from neuronscope.exporters import ExporterContext
from neuronscope.settings import Settings
from neuronscope.signals import names
from neuronscope.signals.records import Attributes, HistogramValue, MetricsSnapshot
from neuronscope_exporters.prometheus import SharedPage, create
from neuronscope_exporters.prometheus.shared import ENDED, Share

ROUTE = ((names.HTTP_ROUTE, "/a"),)
# A process with some metrics: it writes its part, says so, and stays until its input ends.
PROCESS = """
import sys
from pathlib import Path
from neuronscope.engine.metrics import Aggregator
from neuronscope.signals import names
from neuronscope_exporters.prometheus.shared import Share

metrics = Aggregator()
span = int(sys.argv[2])
metrics.observe(names.HTTP_DURATION, 0.02, ((names.HTTP_ROUTE, "/a"),), (span << 120, span))
metrics.add(names.RETRIEVALS, span)
metrics.set(names.OVERHEAD_ACCOUNTED, span / 100)
metrics.set(names.TENSOR_BYTES, span)
getattr(Share(Path(sys.argv[1]), metrics.collect), sys.argv[3])()
print("written", flush=True)
sys.stdin.read()
"""
# A page is being made while the program forks; the child lives on, the parent makes the next page.
FORKING = """
import os, signal, sys
from pathlib import Path
from neuronscope.engine.metrics import Aggregator
from neuronscope.signals import names
from neuronscope_exporters.prometheus.shared import Share

metrics = Aggregator()
metrics.add(names.RETRIEVALS, 7)
share = Share(Path(sys.argv[1]), metrics.collect)
with share._locked():
    child = os.fork()
    if not child:
        signal.pause()
signal.alarm(30)
try:
    share.collect()
    print("made")
finally:
    os.kill(child, signal.SIGKILL)
"""


def started(folder: Path, span: int, does: str = "write") -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(folder), str(span), does],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=programs.environment(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    return process


def value(snapshot: MetricsSnapshot, name: str) -> Any:
    """The first series of a metric; None if there is none."""
    found = [family for family in snapshot.families if family.metric.name == name]
    return found[0].points[0].value if found else None


def test_processes_are_added_up_and_ended_ones_still_count(tmp_path: Path) -> None:
    """Counters and histograms of all, gauges of the living; the newest exemplar; one file for the ended."""
    mine = Aggregator()
    mine.observe(names.HTTP_DURATION, 0.02, ROUTE)
    share = Share(tmp_path / "metrics", mine.collect)
    share.write()
    two, three = started(tmp_path / "metrics", 2), started(tmp_path / "metrics", 3)
    together = share.collect()
    histogram = value(together, names.HTTP_DURATION.name)
    assert isinstance(histogram, HistogramValue)
    assert (histogram.count, sum(histogram.counts)) == (3, 3)
    assert histogram.sum == pytest.approx(0.06)
    assert [e.trace_id for e in histogram.exemplars if e is not None] == [3 << 120]
    assert value(together, names.RETRIEVALS.name) == 5
    assert value(together, names.OVERHEAD_ACCOUNTED.name) == 0.03  # a share: the worst of all
    assert value(together, names.TENSOR_BYTES.name) == 5

    three.kill()
    three.communicate("")
    for _ in range(2):  # adding its file to the ended ones counts it once
        together = share.collect()
        assert value(together, names.RETRIEVALS.name) == 5
        assert value(together, names.HTTP_DURATION.name).count == 3
        assert value(together, names.OVERHEAD_ACCOUNTED.name) == 0.02
    assert len(list((tmp_path / "metrics").glob("*.metrics"))) == 3  # mine, its, and the ended one's
    four = started(tmp_path / "metrics", 4)
    for process in (two, four):
        process.communicate("")
    assert value(share.collect(), names.RETRIEVALS.name) == 9
    files = {path.name for path in (tmp_path / "metrics").glob("*.metrics")}
    assert ENDED in files
    assert len(files) == 2
    assert value(share.collect(), names.OVERHEAD_ACCOUNTED.name) is None


def test_a_page_never_tells_less_than_the_one_before(tmp_path: Path) -> None:
    """Whoever served it may be killed at once: what it told of itself is in its file by then."""
    share = Share(tmp_path, Aggregator().collect)
    serving = started(tmp_path, 4, "collect")
    serving.kill()
    serving.communicate("")
    assert value(share.collect(), names.RETRIEVALS.name) == 4


def test_files_added_up_but_not_deleted_count_once(tmp_path: Path) -> None:
    """Who adds up the files of ended processes may be killed before it deletes them."""
    share = Share(tmp_path, Aggregator().collect)
    process = started(tmp_path, 4)
    (file,) = (path for path in tmp_path.glob("*.metrics") if path.name.startswith(f"{process.pid}-"))
    process.kill()
    process.communicate("")
    content = file.read_bytes()
    assert value(share.collect(), names.RETRIEVALS.name) == 4
    file.write_bytes(content)
    assert value(share.collect(), names.RETRIEVALS.name) == 4
    assert not file.exists()


def test_ended_processes_leave_a_bounded_number_of_series(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that come and go have different rare values each; beyond the limit they are one."""
    monkeypatch.setattr("neuronscope_exporters.prometheus.shared.MAX_ENDED", 3)
    for number in range(6):
        gone = Aggregator()
        for route in ("/a", "/b", f"/{number}"):
            gone.observe(names.HTTP_DURATION, 0.02, ((names.HTTP_ROUTE, route),))
        Share(tmp_path, gone.collect).write()
        (mine,) = (path for path in tmp_path.glob(f"{os.getpid()}-*.metrics"))
        mine.rename(tmp_path / f"1-{number}.metrics")  # of a process that was never there
        Share(tmp_path, Aggregator().collect).collect()
    (family,) = (
        each
        for each in Share(tmp_path, Aggregator().collect).collect().families
        if each.metric is names.HTTP_DURATION
    )
    told = {
        dict(point.labels)[names.HTTP_ROUTE]: point.value.count
        for point in family.points
        if isinstance(point.value, HistogramValue)
    }
    assert told == {"/a": 6, "/b": 6, "/0": 1, "other": 5}


def test_a_fork_while_a_page_is_made_stops_no_other_page(tmp_path: Path) -> None:
    """A prefork master that serves the page starts a worker: the worker holds nothing of it."""
    done = programs.run(FORKING, str(tmp_path), prelude="")
    assert (done.code, done.output.strip()) == (0, "made"), done.errors


def test_a_damaged_or_foreign_file_costs_nothing(tmp_path: Path) -> None:
    """Whatever else lies in the folder is left out, and left alone."""
    mine = Aggregator()
    mine.add(names.RETRIEVALS, 7)
    share = Share(tmp_path, mine.collect)
    (tmp_path / "1-2.metrics").write_bytes(b"\xff\x00 not ours")
    (tmp_path / "counter_1.db").write_bytes(b"prometheus_client's")
    assert value(share.collect(), names.RETRIEVALS.name) == 7
    assert len(list(tmp_path.iterdir())) == 4  # those two, ours, and the lock


def lose(_item: str, _reason: str, _n: int) -> None:
    """No exporter of metrics loses anything."""


def keep(_item: str, _n: int) -> None:
    """Nor does it count."""


def shared_page(folder: Path, port: int, metrics: Aggregator) -> SharedPage:
    settings = Settings(prometheus=f"127.0.0.1:{port}", prometheus_dir=str(folder))
    resource: Attributes = {"service.name": "shop", "service.instance.id": "one", "process.pid": os.getpid()}
    made = create(ExporterContext(settings, resource, metrics.collect, lose, keep))
    assert isinstance(made, SharedPage)
    return made


def test_a_taken_port_is_no_news_and_is_taken_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second process waits, without a warning, and serves as soon as the first has gone."""
    monkeypatch.setattr("neuronscope_exporters.prometheus.SHARE_S", 0.05)
    with caplog.at_level(logging.WARNING):
        port = free_port()
        first = shared_page(tmp_path, port, Aggregator())
        second = shared_page(tmp_path, port, Aggregator())
        assert (first.serving, second.serving) == (True, False)
        first.shutdown(1)
        first.shutdown(1)
        end = time.monotonic() + 60
        while not second.serving and time.monotonic() < end:
            time.sleep(0.02)
        assert second.serving
        assert second.flush(1)
        second.shutdown(1)
    assert not caplog.records


def test_a_folder_that_cannot_be_had_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The process has a page of its own then."""
    (tmp_path / "file").write_text("")
    metrics = Aggregator()
    settings = Settings(prometheus=f"127.0.0.1:{free_port()}", prometheus_dir=str(tmp_path / "file"))
    made = create(ExporterContext(settings, {}, metrics.collect, lose, keep))
    assert made is not None
    made.shutdown(1)
    assert "metrics are not shared" in caplog.text

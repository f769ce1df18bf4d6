"""A real Prometheus scrapes the page, with exemplar storage, and answers queries about it."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import neuronscope as ns
from collectors import free_port
from neuronscope.doctor.arrival import look_for_metrics
from neuronscope.engine import ENGINE
from neuronscope.engine.metrics import Aggregator
from neuronscope.signals import names
from neuronscope_exporters.prometheus import PrometheusExporter
from neuronscope_exporters.prometheus.page import MetricsPage
from neuronscope_exporters.prometheus.server import render

pytestmark = pytest.mark.integration

PATIENCE_S = 120.0
ROUTE = 'say/"{what}"\\'
TRACES = {0.02: (0xA1, 0xB1), 0.3: (0xA2, 0xB2), 4.0: (0xA3, 0xB3)}

CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: neuronscope
    static_configs: [{{targets: ["{target}"]}}]
"""


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server's HTTP API."""

    port: int

    def api(self, path: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as response:
            return json.load(response)["data"]

    def query(self, expression: str) -> list[Any]:
        """Result of an instant query, once it is not empty."""
        found: list[Any] = eventually(lambda: self.api("query", query=expression)["result"])
        return found

    def value(self, expression: str) -> float:
        (series,) = self.query(expression)
        return float(series["value"][1])


def eventually(ask: Callable[[], Any]) -> Any:
    """The first true answer."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            if answer := ask():
                return answer
        except OSError:
            pass  # not up yet, or too busy
        assert time.monotonic() < deadline, "Prometheus never had it"
        time.sleep(0.1)


@pytest.fixture
def exporter() -> PrometheusExporter:
    """The platform's own page, after some traffic."""
    ns.Platform(prometheus="127.0.0.1:0", service_name="shop")
    labels = ((names.HTTP_REQUEST_METHOD, "GET"), (names.HTTP_ROUTE, ROUTE))
    for seconds, span in TRACES.items():
        for _ in range(10):
            ENGINE.metrics.observe(names.HTTP_DURATION, seconds, labels, span)
    ENGINE.metrics.observe(names.HTTP_DURATION, 0.02, labels)  # not sampled: no exemplar
    ENGINE.metrics.add(names.RETRIEVALS, 41, ((names.DB_SYSTEM, "qdrant"),))
    for score in (-0.5, 0.42, 0.83):
        ENGINE.metrics.observe(names.TOP_SCORE, score, ((names.DB_SYSTEM, "qdrant"),), (0xC1, 0xD1))
    (exporter,) = [item for item in ENGINE.exporters if isinstance(item, PrometheusExporter)]
    return exporter


@pytest.fixture
def prometheus(exporter: PrometheusExporter, tmp_path: Path) -> Iterator[Prometheus]:
    """A real server on a free port; its files are gone afterwards."""
    binary = shutil.which("prometheus")
    assert binary, "this test needs a real Prometheus: apt-get install --no-install-recommends prometheus"
    host, port = exporter.address
    config = tmp_path / "prometheus.yml"
    config.write_text(CONFIG.format(target=f"{host}:{port}"), encoding="utf-8")
    own_port = free_port()
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{own_port}",
                "--enable-feature=exemplar-storage",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield Prometheus(own_port)
        finally:
            process.terminate()
            process.wait(60)


def test_prometheus_reads_what_was_measured(prometheus: Prometheus, exporter: PrometheusExporter) -> None:
    """The target is up, in OpenMetrics; counters, quantiles, the service's name and exemplars are right."""
    eventually(lambda: prometheus.value("up") == 1)  # not where a busy machine needs a second for the page
    (target,) = prometheus.api("targets")["activeTargets"]
    assert target["scrapeUrl"] == exporter.url

    assert prometheus.value("neuronscope_retrieval_queries_total") == 41
    ENGINE.metrics.add(names.RETRIEVALS, 1, ((names.DB_SYSTEM, "qdrant"),))
    eventually(lambda: prometheus.value("neuronscope_retrieval_queries_total") == 42)
    assert prometheus.value("neuronscope_overhead_budget_ratio") == pytest.approx(0.15)

    # 31 observations: 11 of 20 ms, 10 of 300 ms, 10 of 4 s; quantiles interpolate within the bucket.
    http = "http_server_request_duration_seconds"
    assert prometheus.value(f"{http}_count") == 31
    assert prometheus.value(f"{http}_sum") == pytest.approx(43.22)
    median = prometheus.value(f"histogram_quantile(0.5, sum by (le) ({http}_bucket))")
    assert 0.25 < median <= 0.5
    assert 2.5 < prometheus.value(f"histogram_quantile(0.95, {http}_bucket)") <= 5.0
    (series,) = prometheus.query(f"{http}_count")
    assert series["metric"]["http_route"] == ROUTE
    low = prometheus.value("histogram_quantile(0.1, neuronscope_retrieval_top_score_bucket)")
    assert -0.55 < low <= -0.5

    (info,) = prometheus.query("target_info")
    assert info["metric"]["service_name"] == "shop"
    joined = prometheus.query(f"{http}_count * on (job, instance) group_left (service_name) target_info")
    assert joined[0]["metric"]["service_name"] == "shop"


def test_doctor_finds_our_metrics_there(prometheus: Prometheus, exporter: PrometheusExporter) -> None:
    """And says why they are not, when another page is asked for."""
    base = f"http://127.0.0.1:{prometheus.port}"
    page = f"127.0.0.1:{exporter.address[1]}"
    found = look_for_metrics(base, time.time(), PATIENCE_S, pushed=False, page=page)
    assert found.ok
    assert "job neuronscope" in found.detail
    later = time.time() + 1e6  # nothing is that fresh
    missing = look_for_metrics(base, later, 0, pushed=False, page="127.0.0.1:1")
    assert not missing.ok
    assert "No target" in missing.advice


def test_exemplars_lead_to_traces(prometheus: Prometheus) -> None:
    """`query_exemplars` gives trace and span ids with the values they were measured at."""
    now = time.time()

    def exemplars(metric: str) -> dict[float, dict[str, str]]:
        found = prometheus.api("query_exemplars", query=metric, start=str(now - 600), end=str(now + 600))
        return {float(e["value"]): e["labels"] for series in found for e in series["exemplars"]}

    http = eventually(lambda: exemplars("http_server_request_duration_seconds_bucket"))
    assert http == {
        seconds: {"trace_id": f"{trace_id:032x}", "span_id": f"{span_id:016x}"}
        for seconds, (trace_id, span_id) in TRACES.items()
    }
    scores = eventually(lambda: exemplars("neuronscope_retrieval_top_score_bucket"))
    assert sorted(scores) == [-0.5, 0.42, 0.83]


def test_nothing_of_ours_is_not_a_number(prometheus: Prometheus) -> None:
    """Every sample that Prometheus holds of us is finite."""
    for series in prometheus.query('{job="neuronscope"}'):
        assert math.isfinite(float(series["value"][1])), series["metric"]


def test_promtool_has_nothing_to_say() -> None:
    """Names, units, suffixes and help of every metric in the registry pass Prometheus's own linter.

    But for two of OpenTelemetry's names, which end in what Prometheus keeps for histograms.
    """
    binary = shutil.which("promtool")
    assert binary, "this test needs promtool: apt-get install --no-install-recommends prometheus"
    aggregator = Aggregator()
    for metric in names.METRICS.values():
        labels = tuple((key, "v") for key in metric.labels)
        match metric.instrument:
            case names.Instrument.HISTOGRAM:
                aggregator.observe(metric, 1.0, labels, (1, 2))
            case names.Instrument.COUNTER:
                aggregator.add(metric, 1, labels)
            case names.Instrument.GAUGE:
                aggregator.set(metric, 1, labels)
    page, _ = render(MetricsPage(aggregator.collect, {"service.name": "shop"}), "")
    done = subprocess.run(
        [binary, "check", "metrics"], input=page, capture_output=True, timeout=30, check=False
    )
    said = {
        line for line in (done.stdout + done.stderr).decode().splitlines() if "_count" not in line.split()[0]
    }
    assert not said
    assert (done.stdout + done.stderr).count(b"\n") == 2

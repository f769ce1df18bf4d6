"""A service under load, a real Prometheus and a real Alertmanager: no panel is empty, no alert is lost.

The service is `tests/support/shop.py`: a handbook with MiniLM and Qdrant, a model behind an API (a fake), and
one in the process.  Plain traffic comes first; what is empty then must be in `CONDITIONAL`.  Then each of
these conditions is made, and nothing may be empty any more.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from collectors import Collector, free_port, serving, spans_in
from neuronscope.dashboards import thresholds as limits
from neuronscope.dashboards.build import write
from operations import Prometheus, Webhook, alertmanager, eventually, prometheus, running, webhook
from programs import ROOT, environment

pytestmark = [pytest.mark.integration, pytest.mark.timeout(420)]

VIEW = (sys.executable, "-m", "neuronscope", "view")
# Panels that are empty until something happens, and what that is: a fault of the shop's, or a way to ask it.
# `gpu` and `measured` are told to the agent's aggregator: there is no GPU here, and a measurement of the
# overhead takes minutes.
CONDITIONAL = {
    "Findings": "documents",
    "NaN and Inf": "nan",
    "Overhead, measured": "measured",
    "Pairs of blocks measured": "measured",
    "Accounted and measured": "measured",
    "At work": "gpu",
    "Memory": "gpu",
    "PyTorch's allocator": "gpu",
    "Allocations that had to wait or failed": "gpu",
    "Power and temperature": "gpu",
    "Calls": "tenant",
    "Tokens": "tenant",
    "Dollars an hour": "tenant",
}
# Alerts whose expression needs a past of hours, or a fault that cannot be made here: that they fire and end
# is shown by promtool (tests/dashboards).  All others have results here.
PROMTOOL_ONLY = {
    "NeuronscopeObjectiveSilent": "a day of traffic, then none",
    "NeuronscopeCanariesFailing": "an hour of failures",
    "NeuronscopeCanariesSilent": "an hour without a replay",
    "NeuronscopeDriftUnwatched": "a day without a window",
    "NeuronscopeDeadUnits": "layers of a day before",
    "NeuronscopeCostHigh": "a hundred dollars",
    "NeuronscopeCostSpike": "costs of a day before",
    "NeuronscopeAgentSilent": "a service that is gone",
    "NeuronscopeAgentAbsent": "no service at all",
    "NeuronscopeAgentDropping": "records that are lost",
    "NeuronscopeAgentOverBudget": "more overhead than the governor lets happen",
    "NeuronscopeAgentFaults": "a fault of ours",
    "NeuronscopeAgentOff": "no budget for layers",
    "NeuronscopeSeriesFolded": "more values of a label than have series",
    "NeuronscopeRangeUsed": "activations near the end of their type",
    "NeuronscopeEmbedderMismatch": "another embedder",
}


@dataclass(slots=True)
class Stack:
    """Everything that runs."""

    folder: Path
    url: str
    prometheus: Prometheus
    hook: Webhook
    collector: Collector

    def post(self, path: str) -> None:
        request = urllib.request.Request(f"{self.url}{path}", method="POST", data=b"")
        try:
            urllib.request.urlopen(request, timeout=120).close()
        except urllib.error.HTTPError as error:
            if error.code != 500:
                raise


def expressions(folder: Path) -> Iterator[tuple[str, str]]:
    """Each panel's title and each rule's name, with its expression as Prometheus is asked."""
    for path in sorted((folder / "grafana").glob("*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel.get("targets", []):
                expr = target["expr"].replace("$__rate_interval", "1m").replace("$__range", "10m")
                yield panel["title"], re.sub(r'=~"\$\w+"', '=~".*"', expr)


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


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stack]:
    """The service after a thousand questions, scraped, with rules and alerts as generated."""
    folder = tmp_path_factory.mktemp("operations")
    port, metrics, own, manager = (free_port() for _ in range(4))
    with webhook() as hook, serving() as collector:
        mine = folder / "thresholds.toml"
        mine.write_text(f'[receivers]\npage = "{hook.url}"\n', encoding="utf-8")
        write(limits.load(mine), folder)
        quickly(folder, manager, metrics)
        env = environment(
            NEURONSCOPE_PROMETHEUS=f"127.0.0.1:{metrics}",
            NEURONSCOPE_BASELINE=str(folder / "baseline.json"),
            NEURONSCOPE_DRIFT_WINDOW="200",
            NEURONSCOPE_CANARY_INTERVAL="2",
            NEURONSCOPE_NSZ=str(folder / "recordings"),
            NEURONSCOPE_NSZ_SAMPLE_PCT="100",
            NEURONSCOPE_PROBES="blocks:summary,model.layers.0:full",
            NEURONSCOPE_MAX_OVERHEAD_PCT="90",
            OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT="span_only",
            OTEL_SERVICE_NAME="shop",
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            OTEL_METRICS_EXPORTER="none",
            HF_HUB_OFFLINE="1",
        )
        env["PYTHONPATH"] += f":{ROOT}"
        command = [sys.executable, "-m", "neuronscope", "run", str(ROOT / "tests/support/shop.py"), str(port)]
        with (
            running(command, folder / "shop.log", env),
            alertmanager(folder / "alertmanager/alertmanager.yml", folder / "am", manager),
            prometheus(folder / "prometheus/prometheus.yml", folder / "data", own) as server,
        ):
            found = Stack(folder, f"http://127.0.0.1:{port}", server, hook, collector)
            eventually(
                lambda: urllib.request.urlopen(f"{found.url}/openapi.json", timeout=5),
                "the shop is open",
                180,
            )
            found.post("/ask")
            found.post("/learn?queries=1400")  # the baseline, and two windows to compare with it
            yield found


def empty(stack: Stack) -> list[tuple[str, str]]:
    """Titles and expressions without data, after one more question."""
    stack.post("/ask")
    return [(title, expr) for title, expr in expressions(stack.folder) if not stack.prometheus.query(expr)]


def test_no_panel_is_empty(stack: Stack) -> None:
    """Every expression of every dashboard has data: conditional ones when their condition has been made."""
    eventually(lambda: {title for title, _ in empty(stack)} <= set(CONDITIONAL), "all others have data")

    for fault in ("request", "provider", "empty", "measured", "gpu"):
        stack.post(f"/fault/{fault}")
    stack.post("/ask?tenant=acme")
    stack.post("/ask?model=a-model-of-ours")
    stack.post("/fault/documents")

    def all_there() -> bool:
        stack.post("/ask?tenant=acme")
        stack.post("/fault/nan")
        return not empty(stack)

    try:
        eventually(all_there, "every expression has data")
    except AssertionError:
        pytest.fail(f"empty: {empty(stack)}")


def test_recorded_series_are_there(stack: Stack) -> None:
    """Every recording rule returns data under load, for all five objectives."""
    groups = stack.prometheus.api("rules", type="record")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == 50

    def healthy() -> bool:
        stack.post("/ask")
        found = stack.prometheus.api("rules", type="record")["groups"]
        return all(rule["health"] == "ok" for group in found for rule in group["rules"])

    eventually(healthy, "every rule has been evaluated")
    for rule in rules:
        chosen = f'{rule["name"]}{{slo="{rule["labels"]["slo"]}"}}'
        eventually(partial(stack.prometheus.query, chosen), chosen)


def test_every_alert_has_data_or_is_shown_elsewhere(stack: Stack) -> None:
    """Burn rates, drift, canaries, NaN, errors and prices: their expressions have results, as they should."""
    alerts = stack.prometheus.api("rules", type="alert")["groups"]
    expected = {rule["name"]: rule for group in alerts for rule in group["rules"]}
    assert set(PROMTOOL_ONLY) < set(expected)

    def missing() -> set[str]:
        for fault in ("nan", "provider", "request", "empty"):
            for _ in range(5):
                stack.post(f"/fault/{fault}")
        stack.post("/ask?model=a-model-of-ours")
        firing = {a["labels"]["alertname"] for a in stack.prometheus.api("alerts")["alerts"]}
        return {
            name
            for name in set(expected) - set(PROMTOOL_ONLY) - firing
            # Windows without enough events cannot fire within a minute: then what is compared must be there.
            if not (name.endswith("Burn") and operands(stack, name, alerts))
        }

    try:
        eventually(lambda: not missing(), "every alert has results")
    except AssertionError:
        pytest.fail(f"without a result: {missing()}")


def operands(stack: Stack, name: str, groups: Any) -> bool:
    """Do all the series that a burn-rate alert compares exist?"""
    texts = [rule["query"] for group in groups for rule in group["rules"] if rule["name"] == name]
    selectors = {found for text in texts for found in re.findall(r'neuronscope:[\w:]+\{slo="\w+"\}', text)}
    assert selectors
    return all(stack.prometheus.query(selector) for selector in selectors)


def test_alertmanager_delivers_what_whoever_is_woken_needs(stack: Stack) -> None:
    """Half of the documents are gone: the webhook of pages is told, with links and the command filled in."""
    stack.post("/fault/documents")

    def delivered() -> Any:
        return [a for a in stack.hook.alerts if a["labels"]["alertname"] == "NeuronscopeCanaryOverlap"]

    (alert, *_) = eventually(delivered, "the webhook is told")
    told = alert["annotations"]
    assert alert["labels"]["severity"] == "page"
    assert alert["labels"]["job"] == "shop"
    assert told["summary"].startswith("shop: canaries handbook find only ")
    assert told["runbook_url"].endswith("/canary-overlap.md")
    assert "var-service=shop&var-canary=handbook" in told["dashboard_url"]
    assert re.fullmatch(
        r"neuronscope diff \S+ --before (\S+Z)\.\.(\S+Z) --after (\S+Z)\.\.(\S+Z)", told["diff_command"]
    )
    assert {a["labels"]["severity"] for a in stack.hook.alerts} == {"page"}


def test_an_exemplar_leads_to_its_span(stack: Stack) -> None:
    """A point of the latency panel: its trace is in the OTLP back end and in the recording, span and all."""
    stack.post("/ask")
    series = 'neuronscope_stage_duration_seconds_bucket{stage="first_chunk"}'
    exemplar = eventually(lambda: stack.prometheus.exemplars(series), "an exemplar")[-1]

    def exported() -> Any:
        return [
            span
            for path, _, body in list(stack.collector.requests)
            if path.endswith("traces")
            for span in spans_in(body)
            if span.span_id.hex() == exemplar["span_id"]
        ]

    (span,) = eventually(exported, "the span arrives over OTLP")
    assert span.trace_id.hex() == exemplar["trace_id"]
    assert span.name.startswith("chat ")

    def recorded() -> Any:
        done = subprocess.run(
            [*VIEW, str(stack.folder / "recordings"), "--trace", exemplar["trace_id"], "--format", "json"],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            env=environment(),
        )
        return exemplar["span_id"] in done.stdout and done.stdout

    shown = eventually(recorded, "the span is in the recording")
    assert "search" in shown or "retrieval" in shown

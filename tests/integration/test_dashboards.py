"""A service under load, a real Prometheus and a real Alertmanager: no panel is empty, no alert is lost.

The service is `tests/support/shop.py`: a handbook with MiniLM and Qdrant, a model behind an API (a fake), and
one in the process.  Plain traffic comes first; what is empty then must be in `CONDITIONAL`.  Then each of
these conditions is made, and nothing may be empty any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from collectors import Collector, serving, spans_in
from operations import Stack, eventually, failing_call, recorded, shop_stack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(420)]

COLLECTORS: dict[str, Collector] = {}  # what each stack sends to
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


def expressions(folder: Path) -> Iterator[tuple[str, str]]:
    """Each panel's title and each variable's name, with its expression as Prometheus is asked."""
    for path in sorted((folder / "grafana").glob("*.json")):
        board = json.loads(path.read_text(encoding="utf-8"))
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                query = re.sub(r"\{.*\}", "", variable["query"]["query"])
                series, label = query.removeprefix("label_values(").removesuffix(")").split(", ")
                yield f"${variable['name']}", f'{series}{{{label}!=""}}'
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                expr = target["expr"].replace("$__rate_interval", "1m").replace("$__range", "10m")
                yield panel["title"], re.sub(r'=~"\$\w+"', '=~".*"', expr)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stack]:
    """The service after a thousand questions, scraped, with rules and alerts as generated."""
    with serving() as collector, shop_stack(tmp_path_factory.mktemp("operations"), collector.url) as found:
        COLLECTORS[found.url] = collector
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
        for fault in ("nan", "provider", "request", "empty", "documents"):
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


def test_an_alert_leads_to_its_trace_and_to_the_recording(stack: Stack) -> None:
    """Calls fail, an alert fires: the exemplar of its series is a span over OTLP and in the recording."""
    exemplar = failing_call(stack)

    def exported() -> Any:
        return [
            span
            for path, _, body in list(COLLECTORS[stack.url].requests)
            if path.endswith("traces")
            for span in spans_in(body)
            if span.span_id.hex() == exemplar["span_id"]
        ]

    (span,) = eventually(exported, "the span arrives over OTLP")
    assert span.trace_id.hex() == exemplar["trace_id"]
    assert span.name.startswith("chat ")
    assert span.status.code == span.status.STATUS_CODE_ERROR
    shown = eventually(lambda: recorded(stack, exemplar), "the span is in the recording")
    assert '"error"' in shown.lower()

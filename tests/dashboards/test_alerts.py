"""Every alert fires when it should, not before, and ends: Prometheus' own unit tests of rules."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.dashboards.alert_cases import CASES, DAY, HOUR, JOB, Case, counter, gauge, named, traffic

from neuronscope.dashboards import thresholds as limits
from neuronscope.dashboards.alerts import all_alerts
from neuronscope.dashboards.build import files

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ALERTS = [alert for group in all_alerts(limits.default()).values() for alert in group]


def promtool(*arguments: str) -> None:
    binary = shutil.which("promtool")
    assert binary, "this test needs promtool: apt-get install --no-install-recommends prometheus"
    done = subprocess.run([binary, *arguments], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@cache
def built(name: str) -> list[dict[str, Any]]:
    """The rules of a generated file."""
    groups = yaml.safe_load(files(limits.default())[f"prometheus/{name}.yml"])["groups"]
    return [rule for group in groups for rule in group["rules"]]


def rules_of(alert: str, *, told: bool) -> list[dict[str, Any]]:
    """The rules of an alert and the recorded series that they read: the fewer, the faster."""
    record, alerts = built("rules"), built("alerts")
    wanted = [rule for rule in alerts if rule["alert"] == alert]
    text = " ".join(rule["expr"] for rule in wanted)
    slos = set(re.findall(r'slo="(\w+)"', text)) or {"availability"}
    read = [rule for rule in record if rule["record"] in text and rule["labels"]["slo"] in slos]
    if not told:  # annotations are filled in anew at each evaluation, and no test of courses reads them
        wanted = [{key: value for key, value in rule.items() if key != "annotations"} for rule in wanted]
    return [*read, *wanted]


def run(folder: Path, tests: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Each test with the rules of one alert; all in one go of promtool's."""
    paths: list[str] = []
    for n, (alert, test) in enumerate(tests):
        rules = rules_of(alert, told="alert_rule_test" in test)
        (folder / f"rules-{n}.json").write_text(
            json.dumps({"groups": [{"name": "all", "rules": rules}]}), encoding="utf-8"
        )
        document = {
            "rule_files": [f"rules-{n}.json"],
            "evaluation_interval": test["interval"],
            "tests": [test],
        }
        path = folder / f"test-{n}.json"
        path.write_text(json.dumps(document), encoding="utf-8")
        paths.append(str(path))
    promtool("test", "rules", *paths)


def course(series: Mapping[str, str], **more: Any) -> dict[str, Any]:
    """A test with a sample a minute."""
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    return {"interval": "1m", "input_series": inputs, **more}


def firing(alert: str, minute: int, n: int, **labels: str) -> dict[str, Any]:
    chosen = ",".join(f'{k}="{v}"' for k, v in {"alertname": alert, "alertstate": "firing", **labels}.items())
    return {
        "expr": f"count(ALERTS{{{chosen}}}) or vector(0)",
        "eval_time": f"{minute}m",
        "exp_samples": [{"labels": "{}", "value": n}],
    }


def as_test(case: Case) -> dict[str, Any]:
    wanted = [*((m, 0) for m in case.quiet), *((m, 1) for m in case.fires), *((m, 0) for m in case.resolved)]
    return {
        "name": case.name,
        "interval": f"{case.step}m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "promql_expr_test": [
            firing(case.alert, minute, n, severity=case.severity, **case.labels) for minute, n in wanted
        ],
    }


def test_every_rule_has_a_case() -> None:
    """By name, severity and labels; and no case is about a rule that is gone."""
    rules = {(alert.name, alert.severity, *sorted(alert.labels.items())) for alert in ALERTS}
    cases = {(case.alert, case.severity, *sorted(case.labels.items())) for case in CASES}
    assert cases == rules
    assert all(case.quiet and case.fires and case.resolved for case in CASES)


@pytest.mark.parametrize("step", sorted({case.step for case in CASES}))
def test_alerts_fire_and_resolve(step: int, tmp_path: Path) -> None:
    """All cases with samples so many minutes apart."""
    run(tmp_path, [(case.alert, as_test(case)) for case in CASES if case.step == step])


def test_few_events_do_not_fire(tmp_path: Path) -> None:
    """Two failures in twelve requests an hour are 17 %, and no reason to wake anybody."""
    alert = "NeuronscopeAvailabilityBurn"
    series = traffic("availability", (0.2, 0, 60), (0, 0.2, 10), (0.2, 0, 60))
    quiet = [firing(alert, minute, 0) for minute in range(0, 130, 5)]
    run(tmp_path, [(alert, course(series, promql_expr_test=quiet))])


def test_what_is_told_elsewhere_is_not_told_twice(tmp_path: Path) -> None:
    """A changed embedder is no drift; a good service burns nothing; a vague measurement is no excess."""
    place = {"db_system_name": "qdrant", "db_collection_name": "handbook"}
    series = {
        named("neuronscope_drift_active", kind="embedder_changed", **place): gauge((1, 60)),
        **traffic("first_chunk", (60, 0, 60)),
        named("neuronscope_overhead_budget_ratio"): gauge((0.15, 60)),
        named("neuronscope_overhead_measured_ratio", bound="high"): gauge((0.4, 60)),
        named("neuronscope_overhead_measured_ratio", bound="low"): gauge((0.1, 60)),
        named("neuronscope_model_non_finite_total", neuronscope_model_name="net"): counter((0, 60)),
    }
    expected = {alert.name: 0 for alert in ALERTS} | {"NeuronscopeEmbedderMismatch": 1}
    run(
        tmp_path,
        [(name, course(series, promql_expr_test=[firing(name, 50, n)])) for name, n in expected.items()],
    )


def test_the_measured_overhead_counts_as_much_as_the_accounts(tmp_path: Path) -> None:
    """When even the low end of its interval is above the budget."""
    alert = "NeuronscopeAgentOverBudget"
    series = {
        named("neuronscope_overhead_budget_ratio"): gauge((0.15, 60)),
        named("neuronscope_overhead_accounted_ratio"): gauge((0.05, 60)),
        named("neuronscope_overhead_measured_ratio", bound="low"): gauge((0.2, 60)),
    }
    run(tmp_path, [(alert, course(series, promql_expr_test=[firing(alert, 20, 1)]))])


def test_an_alert_is_told_with_everything_filled_in(tmp_path: Path) -> None:
    """Value, labels, links and the command with its window: word for word."""
    place = {"db_system_name": "qdrant", "db_collection_name": "hand book"}
    start = DAY + 3 * HOUR
    series = {named("neuronscope_drift_active", kind="index_lost", **place): gauge((0, start), (1, 30))}
    checks = (
        "1. The finding's sentence and evidence: in the service's log, search for `neuronscope.drift`.\n"
        "2. Canaries: if they find what they found, the users changed; if not, the index or its search did.\n"
        "3. What was deployed or re-indexed when it began? The points-written panel, and the diff command."
    )
    told = {
        "summary": f"{JOB}: retrieval from hand book is not as it was: index_lost.",
        "first_checks": checks,
        "runbook_url": "http://127.0.0.1:8088/retrieval-drift.md",
        "dashboard_url": "http://127.0.0.1:3000/d/neuronscope-retrieval?from=90600000&to=97800000"
        "&var-service=shop&var-collection=hand+book",
        "diff_command": "neuronscope diff recordings/ --before 1970-01-01T01:10Z..1970-01-01T03:10Z"
        " --after 1970-01-02T01:10Z..1970-01-02T03:10Z",
    }
    labels = {"severity": "page", "job": JOB, "kind": "index_lost", **place}
    expected = {
        "eval_time": f"{start + 10}m",
        "alertname": "NeuronscopeRetrievalDrift",
        "exp_alerts": [{"exp_labels": labels, "exp_annotations": told}],
    }
    run(tmp_path, [("NeuronscopeRetrievalDrift", course(series, alert_rule_test=[expected]))])


def test_files_are_what_prometheus_and_alertmanager_accept(tmp_path: Path) -> None:
    """`promtool check config` with its rules, and `amtool check-config`."""
    for path, text in files(limits.default()).items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    promtool("check", "config", str(tmp_path / "prometheus/prometheus.yml"))
    binary = shutil.which("amtool")
    assert binary, "this test needs amtool: apt-get install --no-install-recommends prometheus-alertmanager"
    done = subprocess.run(
        [binary, "check-config", str(tmp_path / "alertmanager/alertmanager.yml")],
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr

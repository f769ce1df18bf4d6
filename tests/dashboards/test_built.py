"""Dashboards, rules and configurations as they are generated: current, valid, and only about what we emit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from click.testing import CliRunner
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from neuronscope.cli import cli
from neuronscope.dashboards import runbooks
from neuronscope.dashboards import thresholds as limits
from neuronscope.dashboards.alerts import all_alerts
from neuronscope.dashboards.build import files
from neuronscope.dashboards.promql import NoSuchSeriesError, Source, equal, or_zero, share
from neuronscope.dashboards.sheet import tidy
from neuronscope.dashboards.yaml import dump
from neuronscope.exceptions import ConfigError
from neuronscope.signals import names
from neuronscope.signals.names import Instrument

ROOT = Path(__file__).parents[2]
BUILT = files(limits.default())
BOARDS = sorted(path for path in BUILT if path.endswith(".json"))
RULES: list[dict[str, Any]] = [
    rule
    for name in ("rules", "alerts")
    for group in yaml.safe_load(BUILT[f"prometheus/{name}.yml"])["groups"]
    for rule in group["rules"]
]
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
# Grafana's variables, as they may be filled in.
VARIABLES = {"$__rate_interval": "5m", "$__range": "1h"}


def panels(board: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(BUILT[board])["panels"]
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Where each expression is, and itself with Grafana's variables filled in."""
    for board in BOARDS:
        for panel in panels(board):
            for target in panel.get("targets", []):
                expr: str = target["expr"]
                for variable, value in VARIABLES.items():
                    expr = expr.replace(variable, value)
                yield f"{board}: {panel['title']}", re.sub(r'=~"\$\w+"', '=~".*"', expr)
    for rule in RULES:
        yield rule.get("record") or rule["alert"], rule["expr"]


def sampled() -> set[str]:
    """Names that our series have in Prometheus: of a histogram only those with a suffix."""
    suffixes = {Instrument.HISTOGRAM: ("_bucket", "_count", "_sum")}
    return {
        metric.prometheus_sample + suffix
        for metric in names.METRICS.values()
        for suffix in suffixes.get(metric.instrument, ("",))
    }


def variables(board: str) -> dict[str, str]:
    """The queries of a dashboard's variables, by their names."""
    found: list[dict[str, Any]] = json.loads(BUILT[board])["templating"]["list"]
    return {item["name"]: item["query"]["query"] for item in found if item["type"] == "query"}


@pytest.mark.parametrize("board", BOARDS)
def test_variables_ask_for_series_that_there_are(board: str) -> None:
    """A list that asks for a histogram by its bare name stays empty: nothing can be chosen from it."""
    for name, query in variables(board).items():
        found = re.fullmatch(r"label_values\((\w+)(?:\{job=~\"\$service\"\})?, (\w+)\)", query)
        assert found is not None, query
        assert found[1] in sampled(), (name, query)


def test_what_is_committed_is_what_this_version_generates() -> None:
    """`neuronscope dashboards build`, and commit."""
    result = CliRunner().invoke(cli, ["dashboards", "check", "--out", str(ROOT / "dashboards")])
    assert result.exit_code == 0, result.output


def test_every_expression_is_promql_about_metrics_that_we_emit() -> None:
    """A parser of the grammar reads it; every selector is of the registry, or a recorded series."""
    ours = {*sampled(), *RECORDED, "ALERTS"}
    seen: list[promql_parser.VectorSelector] = []

    def keep(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            seen.append(node)

    for where, expression in expressions():
        seen.clear()
        promql_parser.walk(promql_parser.parse(expression), keep)
        unknown = {selector.name for selector in seen} - ours
        assert not unknown, (where, expression)
        assert seen or expression.startswith("vector("), where


def test_an_expression_about_what_is_not_emitted_cannot_be_made() -> None:
    """An unknown label, an edge that no bucket has, a rate of a gauge."""
    source = Source()
    with pytest.raises(NoSuchSeriesError, match="has no label tenant"):
        source.rate(names.RETRIEVALS, "tenant")
    with pytest.raises(NoSuchSeriesError, match="has no label kind"):
        source.rate(names.RETRIEVALS, where={"kind": equal("x")})
    with pytest.raises(NoSuchSeriesError, match=r"no bucket that ends at 0\.4; its edges are 0\.005"):
        source.within(names.STAGE_DURATION, 0.4)
    with pytest.raises(NoSuchSeriesError, match="is a gauge"):
        source.rate(names.OVERHEAD_BUDGET)
    with pytest.raises(NoSuchSeriesError, match="is a counter"):
        source.value(names.RETRIEVALS)


def test_expressions_read_as_one_would_write_them() -> None:
    """A few, in full."""
    source = Source(matchers=('job="a"',), window="5m", keep=("job",))
    assert source.rate(names.RETRIEVALS, names.DB_COLLECTION, where={names.DB_SYSTEM: equal('q"')}) == (
        "sum by (job, db_collection_name) "
        '(rate(neuronscope_retrieval_queries_total{job="a",db_system_name="q\\""}[5m]))'
    )
    assert source.within(names.STAGE_DURATION, 2.0).endswith('_bucket{job="a",le=~"2|2.0"}[5m]))')
    # A histogram of what may be negative has neither count nor sum.
    assert '_bucket{job="a",le="+Inf"}' in source.rate(names.TOP_SCORE)
    assert share("bad", "all") == "(bad or (all) * 0) / (all > 0)"
    assert or_zero("sum by (job) (x)", "sum by (job) (y)") == "sum by (job) (x) or (sum by (job) (y)) * 0"
    assert (
        or_zero("sum by (a) (x)", "sum(y)") == "sum by (a) (x) or ((sum(y)) * 0 unless on () sum by (a) (x))"
    )


@pytest.mark.parametrize("board", BOARDS)
def test_a_dashboard_survives_the_sdk(board: str) -> None:
    """Read into Grafana's own types and written again, nothing is missing."""
    register_default_plugins()
    built = json.loads(BUILT[board])
    again = json.loads(json.dumps(Dashboard.from_json(built), cls=JSONEncoder))
    tidy(again)
    assert again == built


@pytest.mark.parametrize("board", BOARDS)
def test_panels_fill_rows_without_overlap(board: str) -> None:
    """Each panel has its own cells within 24 columns, an id of its own, and a description."""
    taken: dict[tuple[int, int], str] = {}
    seen: set[int] = set()
    for panel in panels(board):
        at = panel["gridPos"]
        assert panel["id"] not in seen
        seen.add(panel["id"])
        assert 0 <= at["x"] < at["x"] + at["w"] <= 24, panel["title"]
        for cell in (
            (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
        ):
            assert taken.setdefault(cell, panel["title"]) == panel["title"], (panel["title"], taken[cell])
        assert panel["type"] in ("row", "text") or panel["description"]
    for y in range(max(y for _, y in taken) + 1):
        assert sum((x, y) in taken for x in range(24)) == 24, f"row {y} of {board} has a hole"


@pytest.mark.parametrize("board", BOARDS)
def test_panels_ask_the_chosen_data_source_and_say_when_there_is_no_traffic(board: str) -> None:
    """Everywhere the variable, services by the variable, and no empty panel without a word."""
    for panel in panels(board):
        if panel["type"] in ("row", "text"):
            continue
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["fieldConfig"]["defaults"]["noValue"] == "No traffic"
        for target in panel["targets"]:
            assert 'job=~"$service"' in target["expr"] or target["expr"].startswith("count(ALERTS"), target
            for window in re.findall(r"\[(.*?)\]", target["expr"]):
                assert window in ("$__rate_interval", "$__range", "1h", "1d"), target["expr"]


def test_exemplars_are_asked_for_where_there_are_any() -> None:
    """Every board but the agent's has lines with exemplars, and histograms under them."""
    for board in BOARDS:
        asked = [t["expr"] for p in panels(board) for t in p.get("targets", []) if t["exemplar"]]
        assert asked or "agent" in board, board
        assert all("_bucket" in expr for expr in asked)


def test_every_alert_tells_what_to_do() -> None:
    """Severity, three checks, a runbook and a dashboard that are there, the command to compare."""
    alerts = [rule for rule in RULES if "alert" in rule]
    uids = {json.loads(BUILT[board])["uid"] for board in BOARDS}
    for rule in alerts:
        told = rule["annotations"]
        assert rule["labels"]["severity"] in ("page", "ticket", "info")
        assert len(told["first_checks"].splitlines()) == 3
        assert (ROOT / "docs" / "runbooks" / told["runbook_url"].rpartition("/")[2]).is_file(), rule["alert"]
        found = re.search(r"/d/([\w-]+)\?", told["dashboard_url"])
        assert found is not None
        assert found[1] in uids
        assert told["diff_command"].startswith("neuronscope diff recordings/ --before ")
    n, m = len(alerts), len({rule["alert"] for rule in alerts})
    page = (ROOT / "docs" / "how-to" / "alerts.md").read_text(encoding="utf-8")
    assert f"{n} rules under {m} names" in page


def test_the_alerts_of_a_name_differ_in_their_labels() -> None:
    """Prometheus would otherwise take two rules for one alert."""
    seen: set[tuple[object, ...]] = set()
    for group in all_alerts(limits.default()).values():
        for alert in group:
            key = (alert.name, alert.severity, *sorted(alert.labels.items()))
            assert key not in seen, key
            seen.add(key)


# --- thresholds ------------------------------------------------------------------------------------------


def rebuilt(text: str, tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return files(limits.load(path))


def test_a_threshold_changes_rules_alerts_and_dashboards(tmp_path: Path) -> None:
    """What is left out keeps its default."""
    built = rebuilt(
        "[slo.retrieval]\nobjective = 0.9\nseconds = 0.1\n[receivers]\npage = 'http://pager/hook'\n", tmp_path
    )
    assert 'le=~"0.1|0.1"' in built["prometheus/rules.yml"]
    assert 'slo="retrieval"} > 0.95' in built["prometheus/alerts.yml"]  # 14.4 times 10 % is more than all
    assert "Retrieval within 0.1 s" in built["grafana/service.json"]
    assert "http://pager/hook" in built["alertmanager/alertmanager.yml"]
    assert 'slo="availability"} > 0.072' in built["prometheus/alerts.yml"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[slo.retrieval]\nsecond = 1", "there is no `slo.retrieval.second`"),
        ("[slo.retrieval]\nseconds = 0.4", "must be an edge of the histogram"),
        ("[slo.availability]\nobjective = 99.5", "`objective` must be between"),
        ("[slo.availability]\nobjective = 'high'", "must be a number"),
        ("[cost]\nusd_per_day = -1", "must not be negative"),
        ("slo = 3", "`slo` must be a table"),
        ("[agent]\nsilent_minutes = 1.5", "must be a whole number"),
        ("x = ", "is no TOML"),
    ],
)
def test_a_wrong_thresholds_file_is_refused_with_the_reason(text: str, says: str, tmp_path: Path) -> None:
    """One sentence that names the key."""
    with pytest.raises(ConfigError, match=re.escape(says)):
        rebuilt(text, tmp_path)


def test_the_defaults_file_names_every_key() -> None:
    """So that what can be set can be read in one place."""
    assert limits.load(limits.DEFAULT_FILE) == limits.default()
    path = ROOT / "dashboards" / "thresholds.toml"
    assert path.read_text(encoding="utf-8") == limits.DEFAULT_FILE.read_text(encoding="utf-8")


def test_what_the_user_has_edited_is_kept(tmp_path: Path) -> None:
    """The thresholds file and the scrape targets; all else is written anew."""
    run = CliRunner().invoke
    assert run(cli, ["dashboards", "build", "--out", str(tmp_path)]).exit_code == 0
    (tmp_path / "thresholds.toml").write_text("[cost]\nusd_per_day = 7\n", encoding="utf-8")
    mine = tmp_path / "prometheus/targets/rag-service.yml"
    mine.write_text("- targets: [shop:1]\n", encoding="utf-8")
    (tmp_path / "prometheus/alerts.yml").write_text("groups: []\n", encoding="utf-8")
    checked = run(cli, ["dashboards", "check", "--out", str(tmp_path), "--format", "json"])
    assert checked.exit_code == 1
    assert set(json.loads(checked.output)["outdated"]) == {"prometheus/alerts.yml", "grafana/llm.json"}
    assert run(cli, ["dashboards", "build", "--out", str(tmp_path)]).exit_code == 0
    assert "> 7" in (tmp_path / "prometheus/alerts.yml").read_text(encoding="utf-8")
    assert mine.read_text(encoding="utf-8") == "- targets: [shop:1]\n"
    assert run(cli, ["dashboards", "check", "--out", str(tmp_path)]).exit_code == 0


def test_our_yaml_is_read_as_it_was_meant() -> None:
    """By a YAML library: words that look like something else, blocks, empty things, nesting."""
    value: dict[str, Any] = {
        "plain": "a b/c",
        "on": "off",
        "5m": "5m",
        "nothing": "",
        "empty": [[], {}],
        "quote": '{slo="x"} > 0.5',
        "long": "word " * 30 + "end",
        "numbers": [1, 0.5, True],
        "text": "first: {{ x }}\nsecond # no comment",
        "list": [{"a": [1, {"b": "c: d"}]}, "x", []],
    }
    assert yaml.safe_load(dump(value, "two\nlines")) == value


def test_rules_in_yaml_are_the_rules() -> None:
    """Expressions and templates survive."""
    first = next(rule for rule in RULES if rule.get("alert") == "NeuronscopeAvailabilityBurn")
    assert first["expr"] == all_alerts(limits.default())["slo"][0].expr


# --- runbooks --------------------------------------------------------------------------------------------


def test_the_heads_of_runbooks_are_current() -> None:
    """`neuronscope dashboards build --runbooks docs/runbooks`, and commit; no page without an alert."""
    folder = ROOT / "docs" / "runbooks"
    texts = runbooks.texts(limits.default(), folder)
    assert {path.name for path in folder.iterdir()} == set(texts)
    for name, text in texts.items():
        assert (folder / name).read_text(encoding="utf-8") == text, name


def test_every_runbook_has_been_written() -> None:
    """Each of its parts has a few sentences."""
    for path in (ROOT / "docs" / "runbooks").glob("[a-z]*.md"):
        _, _, below = path.read_text(encoding="utf-8").partition(runbooks.END)
        parts = re.split(r"^## (.*)$", below, flags=re.MULTILINE)[1:]
        assert parts[::2] == ["What it means", "Find the cause", "Repair", "If it was no fault"], path.name
        assert all(len(part.split()) >= 5 for part in parts[1::2]), path.name

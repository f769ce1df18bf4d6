"""docs/how-to/from-alert-to-cause.md, run: an exemplar leads to the recorded trace, and diff to the cause."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.faults.provider import Behaviour, Provider
from tests.faults.service import questions

from handbook import handbook
from neuronscope.dashboards.alerts import all_alerts
from neuronscope.dashboards.thresholds import default
from programs import ROOT, environment

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PAGE = ROOT / "docs" / "how-to" / "from-alert-to-cause.md"
SLOW_S = 0.16  # the first bound of the histogram above what a short prompt takes
BUCKET = re.compile(
    r'^gen_ai_client_operation_time_to_first_chunk_seconds_bucket\{.*le="(?P<le>[^"]+)"\} (?P<count>\S+)'
    r'(?: # \{.*trace_id="(?P<trace>[0-9a-f]{32})".*\} (?P<value>\S+))?',
    re.MULTILINE,
)


@dataclass(frozen=True)
class Incident:
    """What is there when somebody is woken: a folder with the recording, two windows, an exemplar."""

    folder: Path
    good: str
    bad: str
    trace: str


@pytest.fixture(scope="module")
def incident(tmp_path_factory: pytest.TempPathFactory) -> Incident:
    """A good day; then a release that asks for twelve passages instead of three."""
    folder = tmp_path_factory.mktemp("incident")
    asked = [text for group in questions().values() for text in group][::4]
    windows: list[str] = []
    page = ""
    with Provider() as provider:
        for passages in ("3", "12"):
            provider.begin(Behaviour(per_token_s=0.0001))
            with handbook(folder, provider.base_url, RAG_TOP_K=passages) as service:
                began = time.time()
                service.ask(asked)
                windows.append(f"{began:.3f}..{time.time():.3f}")
                page = service.measured()
    slow = [found for found in BUCKET.finditer(page) if found["trace"] and float(found["value"]) > SLOW_S / 2]
    assert slow, page
    good, bad = windows
    return Incident(folder, good, bad, slow[-1]["trace"])


def commands(language: str = "sh") -> list[str]:
    """The page's commands."""
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def run(command: str, incident: Incident) -> str:
    """A command of the page, in a shell, with its variables."""
    script = f'neuronscope() {{ "{sys.executable}" -m neuronscope "$@"; }}\n{command}'
    env = environment(TRACE=incident.trace, GOOD=incident.good, BAD=incident.bad, COLUMNS="200")
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=incident.folder, env=env, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_alert_of_the_page_carries_a_command_that_diff_understands(incident: Incident) -> None:
    """Its annotation names the same command, with windows in the form in which it writes them."""
    alerts = {alert.name: alert for group in all_alerts(default()).values() for alert in group}
    rule = alerts["NeuronscopeFirstChunkBurn"].rule(default().links)
    written = str(rule["annotations"]["diff_command"])
    assert written.startswith("neuronscope diff ")
    minutes = itertools.count(10)  # in the order in which they are written: windows begin before they end
    filled = re.sub(r"\{\{ with .*?\{\{ end \}\}", lambda _: f"2026-11-24T09:{next(minutes)}Z", written)
    filled = filled.split(" --before ")[1]
    assert "too little to compare" in run(f"neuronscope diff recordings/ --before {filled}", incident).lower()


def test_the_exemplar_leads_to_the_recorded_trace(incident: Incident) -> None:
    """With its search and its model call."""
    (view,) = [command for command in commands() if "view" in command]
    shown = run(view, incident)
    assert incident.trace[:8] in shown
    assert "retrieval handbook" in shown
    assert "chat" in shown


def test_diff_names_the_cause_not_the_symptom(incident: Incident) -> None:
    """Twelve passages are asked for; that the provider answers later follows from it."""
    plain, stories = [command for command in commands() if "diff" in command]
    assert "search_changed" in run(plain, incident)
    found = json.loads(run(plain.rstrip() + " --format json", incident))
    assert found["causes"][0]["kind"] == "search_changed", found["causes"]
    assert "first_chunk" in found["causes"][0]["explains"] or "prompt_size" in found["causes"][0]["explains"]
    run(stories, incident)
    assert "12" in (incident.folder / "ticket.md").read_text("utf-8")
    assert "<h1>" in (incident.folder / "story.html").read_text("utf-8")

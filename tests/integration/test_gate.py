"""docs/how-to/gate-releases.md: the gate's commands decide as the page says, and its workflow is one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.faults.changes import FAULTS, Change, Day
from tests.faults.recorder import Studio

from neuronscope.diagnosis.kinds import Kind
from programs import ROOT, environment

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

PAGE = (ROOT / "docs" / "how-to" / "gate-releases.md").read_text("utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings as the workflow has them: the live release, one like it, and one with another embedder."""
    folder = tmp_path_factory.mktemp("gate")
    (swapped,) = [fault for fault in FAULTS if fault.name == "embedder swapped"]
    with Studio() as studio:
        studio.record(folder / "baseline", Day(), 1)
        studio.record(folder / "alike", Day(), 2)
        studio.record(folder / "candidate", _changed(swapped), 3)
    return folder


def _changed(fault: Change) -> Day:
    day = fault.start()
    fault.apply(day)
    return day


def run(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """A command of the page, in a shell."""
    script = f'neuronscope() {{ "{sys.executable}" -m neuronscope "$@"; }}\n{command}'
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def workflow() -> dict[str, Any]:
    """The page's workflow."""
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def gate() -> str:
    """The workflow's command that decides."""
    (step,) = [step for step in workflow()["jobs"]["gate"]["steps"] if step.get("id") == "compare"]
    return str(step["run"])


def test_a_release_that_changes_what_is_forbidden_is_held(folder: Path) -> None:
    """With page and ticket written all the same, and the reason on standard error."""
    done = run(folder, gate())
    assert done.returncode == 1, done.stderr
    assert "embedder_changed" in done.stderr
    assert "embedder changed" in (folder / "ticket.md").read_text("utf-8")
    assert "<h1>" in (folder / "story.html").read_text("utf-8")


def test_a_release_that_changes_nothing_passes(folder: Path) -> None:
    """The same gate."""
    done = run(folder, gate().replace("candidate/", "alike/"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_first_command_of_the_page_decides_alike(folder: Path) -> None:
    """It is the one that people try first."""
    (block,) = list(re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
    (command,) = [line for line in block.splitlines() if line.startswith("neuronscope diff")]
    assert run(folder, command).returncode == 1


# --- the workflow, step by step ----------------------------------------------------------------------------
ASK_ALL = """
import os
from openai import OpenAI
from neuronscope.testing.fake_openai import FakeOpenAI

with FakeOpenAI() as server, OpenAI(api_key="none", base_url=server.base_url) as client:
    for number in range(24):
        text = f"question {number}"
        client.embeddings.create(model=os.environ["EMBEDDER"], input=text)
        messages = [{"role": "user", "content": f"Question: {text}"}]
        client.chat.completions.create(model="gpt-4o-mini", messages=messages)
"""
# What the runner has and this machine may not: GitHub's program, and a registry to install from.
GH = """#!/bin/bash
echo "gh $*" >> calls.txt
case "$1 $2" in
  "run list") echo 4711 ;;
  "run download") [ "$3" = 4711 ] && mkdir -p "$7" && cp live/* "$7" ;;
  "pr comment") [ "$3" = 17 ] && cp "$5" comment.md ;;
  *) exit 9 ;;
esac
"""
PIP = """#!/bin/bash
echo "pip $*" >> calls.txt
"""


def steps(folder: Path, embedder: str) -> tuple[int, list[str]]:
    """Run the workflow's steps as the runner would: (exit code, names of the steps that ran)."""
    failed, ran = 0, list[str]()
    env = environment(EMBEDDER=embedder, GH_TOKEN="token")
    env["PATH"] = f"{folder / 'bin'}:{env['PATH']}"
    for step in workflow()["jobs"]["gate"]["steps"]:
        asked = str(step.get("if", ""))
        if "run" not in step or (failed and not asked) or (asked.startswith("failure()") and not failed):
            continue
        command = str(step["run"]).replace("${{ github.event.number }}", "17")
        done = subprocess.run(
            ["bash", "-e", "-c", command],
            cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        ran.append(str(step.get("name", command)))
        if done.returncode and step.get("id") != "compare":
            pytest.fail(f"{command}: {done.stdout}{done.stderr}")
        failed = failed or done.returncode
    return failed, ran


@pytest.fixture
def runner(tmp_path: Path) -> Path:
    """A checkout on a runner, and the recording of the live release where `gh` finds it."""
    (tmp_path / "bin").mkdir()
    python = f'#!/bin/bash\nexec "{sys.executable}" '
    programs = {
        "gh": GH,
        "pip": PIP,
        "python": f'{python}"$@"\n',
        "neuronscope": f'{python}-m neuronscope "$@"\n',
    }
    for name, text in programs.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "ask_all.py").write_text(ASK_ALL)
    command = [sys.executable, "-m", "neuronscope", "run", "--nsz", "live/", sys.executable, "ask_all.py"]
    env = environment(EMBEDDER="text-embedding-3-small")
    subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, timeout=240, check=True)
    return tmp_path


def test_the_workflow_holds_a_release_and_tells_the_pull_request(runner: Path) -> None:
    """Every shell line of it: recorded, fetched, compared, told; the candidate has another embedder."""
    failed, ran = steps(runner, "text-embedding-3-large")
    assert failed == 1
    assert ran[-1] == "Tell the pull request"
    assert "embedder changed" in (runner / "comment.md").read_text("utf-8")
    called = (runner / "calls.txt").read_text("utf-8")
    assert called.startswith("pip install -r requirements.txt neuronscope")


def test_the_workflow_lets_a_release_pass_that_changes_nothing(runner: Path) -> None:
    """And the pull request is told nothing."""
    failed, ran = steps(runner, "text-embedding-3-small")
    assert failed == 0
    assert ran[-1] == "Compare"
    assert (runner / "story.html").exists()


def test_every_kind_that_the_page_names_exists() -> None:
    """In the table and in the workflow."""
    named = {
        *re.findall(r"`([a-z_]+)(?::[0-9.]+)?`", PAGE.split("## What to forbid")[1].split("## GitHub")[0])
    }
    named |= {*re.findall(r"--fail-on ([a-z_]+)", PAGE)}
    assert named - {"any"} <= {kind.value for kind in Kind}
    assert len(named) > 10

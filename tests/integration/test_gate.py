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


def test_every_kind_that_the_page_names_exists() -> None:
    """In the table and in the workflow."""
    named = {
        *re.findall(r"`([a-z_]+)(?::[0-9.]+)?`", PAGE.split("## What to forbid")[1].split("## GitHub")[0])
    }
    named |= {*re.findall(r"--fail-on ([a-z_]+)", PAGE)}
    assert named - {"any"} <= {kind.value for kind in Kind}
    assert len(named) > 10

"""docs/tutorial/first-alert.md, run: its files, its commands, and the alert that fires."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.docs.blocks import DOCS, blocks_of

from collectors import free_port
from operations import program
from programs import environment

PAGE = DOCS / "tutorial" / "first-alert.md"
# Minutes of the page become seconds; its commands are what they are.
SHORTER = {
    "seq 60": "seq 40",
    "sleep 1": "sleep 0.05",
    # Two seconds are enough for a person; a busy machine may need more until the recording is begun.
    "sleep 2": "until ls recordings/*.nsz* > /dev/null 2>&1; do sleep 0.1; done; sleep 2",
    "sleep 5": "sleep 0.5",
    ": 5s": ": 500ms",
}
QUICKLY = """
sed -i 's/interval: "[0-9a-z]*"/interval: "1s"/' dashboards/prometheus/rules.yml
sed -i 's/for: "[0-9a-z]*"/for: "1s"/' dashboards/prometheus/alerts.yml
"""


def prepared(folder: Path) -> str:
    """The files are written, and the page's commands are one script, on ports that are free."""
    ports = {port: str(free_port()) for port in ("8000", "9464", "9095")}
    script = [
        "set -euo pipefail",
        "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT",
    ]
    for block in blocks_of(PAGE):
        code = block.code
        for there, here in {**ports, **SHORTER}.items():
            code = re.sub(rf"\b{there}\b" if there.isdigit() else re.escape(there), here, code)
        if "file" in block.marks:
            (folder / block.marks["file"]).write_text(code, encoding="utf-8")
        elif block.language == "sh" and "venv" not in code:  # what it installs is installed
            script.append(code)
            if "dashboards build" in code:
                script.append(QUICKLY)
    return "\n".join(script)


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_the_tutorial(tmp_path: Path) -> None:
    """Every command works; the alert fires; its trace is the empty search's, and diff names the filter."""
    program("prometheus")
    script = prepared(tmp_path)
    (tmp_path / "bin").mkdir()
    for name, module in {"neuronscope": " -m neuronscope", "python": ""}.items():
        tool = tmp_path / "bin" / name
        tool.write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n', encoding="utf-8")
        tool.chmod(0o755)
    env = environment(HF_HUB_OFFLINE="1", COLUMNS="200")
    env["PATH"] = f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{env['PATH']}"
    log = tmp_path / "log"
    with log.open("wb") as output:
        running = subprocess.Popen(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=env,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code = running.wait(540)
        finally:
            with suppress(ProcessLookupError):  # all have ended
                os.killpg(running.pid, signal.SIGKILL)
            running.wait(20)
    told = log.read_text(encoding="utf-8", errors="replace")
    assert code == 0, told[-4000:]
    assert "retrieval handbook" in told
    assert "searches find nothing" in told
    assert (tmp_path / "trace.html").stat().st_size > 10_000
    story = (tmp_path / "story.txt").read_text(encoding="utf-8")
    assert "filter_changed" in story.partition("\n2. ")[0], story

"""What becomes of a test that failed: the second run that `make test` gives it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FIRST_TIME = """
import pathlib, pytest
def test_first_time_only():
    mark = pathlib.Path("been_here")
    if not mark.exists():
        mark.touch()
        pytest.fail("the machine was busy")
"""
ALWAYS = "def test_always_{0}(): assert False\n"


def test_as_make_runs_it() -> None:
    """The Makefile hands pytest's status over; without that nothing here would count."""
    assert "$(PYTEST) $(ARGS) || $(BIN)/python -m tests.support.again $$?" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize(
    ("tests", "status", "told"),
    [
        pytest.param(FIRST_TIME, 0, "FLAKY test_it.py::test_first_time_only", id="passes the second time"),
        pytest.param(ALWAYS.format(1), 1, "Once more", id="fails again"),
        pytest.param(FIRST_TIME + ALWAYS.format(1), 1, "Once more", id="one of two fails again"),
        pytest.param("".join(map(ALWAYS.format, range(4))), 1, "4 failed", id="too many for bad luck"),
        pytest.param("import nothing_of_this_name", 2, "error", id="cannot be collected"),
    ],
)
def test_second_run(tmp_path: Path, tests: str, status: int, told: str) -> None:
    """Only failures that do not come again are forgiven, and they are named."""
    (tmp_path / "test_it.py").write_text(tests)
    python = f"PYTHONPATH={ROOT} {sys.executable}"
    run = subprocess.run(
        ["bash", "-c", f"{python} -m pytest || {python} -m tests.support.again $?"],
        cwd=tmp_path,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == status, run.stdout + run.stderr
    assert told in run.stdout
    assert ("FLAKY" in run.stdout) == (status == 0)

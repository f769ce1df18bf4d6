"""Compiled turns and their twins in Python do the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import turns_told
from neuronscope import compiled
from neuronscope_instrumentation.torch.interventions import turning

ROOT = Path(__file__).parents[2]


@pytest.mark.integration
def test_compiled_turns_and_python_s_tell_the_same() -> None:
    """Scene by scene, in the first trace and in those that find the sites of an earlier one."""
    assert turning.COMPILED, compiled.WHY_NOT
    run = subprocess.run(
        [sys.executable, str(Path(turns_told.__file__))],
        env={**os.environ, compiled.SWITCH: "false", "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == turns_told.told()

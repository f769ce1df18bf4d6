"""The `.nsz` reader under coverage-guided fuzzing: an hour with `make soak`, seconds otherwise."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fresh import FRESH_PYTHON

HERE = Path(__file__).parent
CORPUS = HERE / "corpus" / "nsz"


@pytest.mark.integration
@pytest.mark.parametrize("seconds", [15, pytest.param(3600, marks=pytest.mark.soak)])
def test_no_input_crashes_or_hangs_the_reader_or_fills_memory(tmp_path: Path, seconds: int) -> None:
    """Every input of the corpus, then new ones; a finding is shown so that it can be kept."""
    work, found = tmp_path / "corpus", tmp_path / "found"
    found.mkdir()
    shutil.copytree(CORPUS, work)
    shutil.copytree(HERE.parent / "exporters" / "golden", work, dirs_exist_ok=True)
    command = [
        *FRESH_PYTHON, str(HERE / "fuzz_nsz.py"), str(work), f"-max_total_time={seconds}", "-timeout=60",
        "-rss_limit_mb=2048", "-max_len=65536", f"-artifact_prefix={found}/", "-print_final_stats=1",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    shown = [f"{path}: {base64.b64encode(path.read_bytes()).decode()}" for path in found.iterdir()]
    assert done.returncode == 0, "\n".join([done.stderr[-4000:], *shown])
    assert "number_of_executed_units" in done.stderr


def test_the_peak_of_a_fresh_program_is_its_own() -> None:
    """Else the limit on the fuzzer's memory, and on that of hostile files, would measure these tests."""
    ballast = b"x" * (256 << 20)
    show = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    told = subprocess.run([*FRESH_PYTHON, "-c", show], capture_output=True, text=True, check=True).stdout
    assert int(told) * 1024 < len(ballast)

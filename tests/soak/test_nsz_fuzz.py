"""The `.nsz` reader under coverage-guided fuzzing: an hour with `make soak`, seconds otherwise."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CORPUS = HERE / "corpus" / "nsz"


@pytest.mark.integration
@pytest.mark.parametrize("seconds", [15, pytest.param(3600, marks=pytest.mark.soak)])
def test_no_input_crashes_or_hangs_the_reader_or_fills_memory(tmp_path: Path, seconds: int) -> None:
    """Every input of the corpus, then new ones; a finding is left beside the corpus."""
    work = tmp_path / "corpus"
    shutil.copytree(CORPUS, work)
    shutil.copytree(HERE.parent / "exporters" / "golden", work, dirs_exist_ok=True)
    command = [
        sys.executable, str(HERE / "fuzz_nsz.py"), str(work), f"-max_total_time={seconds}", "-timeout=10",
        "-rss_limit_mb=2048", "-max_len=65536", f"-artifact_prefix={CORPUS.parent}/finding-",
        "-print_final_stats=1",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "number_of_executed_units" in done.stderr

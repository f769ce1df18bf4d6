"""`ns.fingerprint` names a model alike in every process, on every device, in whatever order things load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_fingerprints_are_the_same_in_every_process() -> None:
    """Other hash seeds, devices, orders of imports, of models and of weights; torch, Flax, Equinox, Keras."""
    programs: list[subprocess.Popen[str]] = []
    for seed, arguments in (("0", []), ("4711", ["backwards"])):
        environment = os.environ | {
            "PYTHONHASHSEED": seed,
            "KERAS_BACKEND": "torch",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(SUPPORT),
        }
        programs.append(
            subprocess.Popen(
                [sys.executable, str(SUPPORT / "fingerprinted.py"), *arguments],
                env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    answers: list[dict[str, str]] = []
    for program in programs:
        output, errors = program.communicate(timeout=500)
        assert program.returncode == 0, errors[-4000:]
        answers.append(json.loads(output.splitlines()[-1]))
    first, other = answers
    assert first == other
    assert first.keys() == {"torch", "linen", "nnx", "equinox", "keras", "plain"}
    assert len(set(first.values())) == len(first)

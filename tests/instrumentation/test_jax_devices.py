"""JAX on several devices: `pmap`, `shard_map` and sharded arrays, in a process with two of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxnets

SUPPORT = Path(__file__).parents[1] / "support"
WAYS = ["jit over sharded rows", "shard_map", "shard_map, eager", "shard_map, grad", "pmap"]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What the process printed."""
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "jax_devices.py")],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(SUPPORT)])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.integration
@pytest.mark.parametrize("fidelity", ["full", "summary"])
@pytest.mark.parametrize("way", WAYS)
def test_each_device_sends_its_part(found: dict[str, Any], way: str, fidelity: str) -> None:
    """The whole array in `jit`; in `shard_map` and `pmap` a record for each part, which names its axis."""
    seen = found[f"{way}: {fidelity}"]
    model, variables = jaxnets.linen()
    output = np.asarray(model.apply(variables, jaxnets.ROWS[:2]), np.float64)
    assert seen["equal"]
    if way == "jit over sharded rows":
        assert seen["shapes"] == [[2, 2]]
        assert seen["axes"] == [[]]
    else:
        assert seen["shapes"] == [[1, 2], [1, 2]]
        assert all(len(axes) == 1 for axes in seen["axes"])
    assert seen["sum"] == pytest.approx(output.sum(), abs=1e-5)


@pytest.mark.integration
def test_modules_are_found_by_structure_on_each_device(found: dict[str, Any]) -> None:
    """nnx inside `shard_map`."""
    seen = found["shard_map, nnx: summary"]
    assert seen["equal"]
    assert seen["shapes"] == [[1, 2], [1, 2]]

"""Keras on each of its backends, in processes of their own.

TensorFlow takes 0.7 GB and starts threads that would be there in every later test of the process, those
of forks included; and Keras' backend can be chosen once in a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from neuronscope.exceptions import UnsupportedTensorError
from neuronscope_instrumentation.common.host_arrays import of_array

TESTS = Path(__file__).parents[1]
SUITES = (
    *(TESTS / "instrumentation" / name for name in ("keras_suite.py", "keras_graphs.py", "keras_probes.py")),
    TESTS / "contract" / "test_backend_contract.py",
)


@pytest.mark.integration
@pytest.mark.timeout(660)  # a suite of its own, and on a busy machine TensorFlow alone takes a minute to load
@pytest.mark.parametrize("backend", ["tensorflow", "torch", "jax"])
def test_keras_models_are_observed(backend: str) -> None:
    """The suite of Keras and the contract of model runtimes pass on this backend."""
    environment = os.environ | {
        "KERAS_BACKEND": backend,
        "NEURONSCOPE_TEST_KERAS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_ENABLE_ONEDNN_OPTS": "0",
    }
    command = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly",
        # Keras' own way of reading tensors, which numpy 2 would have otherwise
        "-W", "ignore:__array__ implementation:DeprecationWarning",
        "-k", "keras_ or tf", *map(str, SUITES),
    ]  # fmt: skip
    done = subprocess.run(
        command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_a_type_whose_bits_have_no_name_is_refused_with_its_own() -> None:
    """Some element types that extend numpy are wider than those whose bits are given."""
    with pytest.raises(UnsupportedTensorError, match="void32"):
        of_array(np.zeros(3, dtype="V4")).numpy()
    assert of_array(np.zeros(3, dtype="V2")).numpy().dtype == np.uint16

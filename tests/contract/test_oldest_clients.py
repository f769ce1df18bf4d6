"""The oldest SDKs that we claim, against the same contract as the newest: in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clients import CHOICE
from neuronscope.instrumentation import registry

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SUITE = ("test_client_contract.py", "test_method_contract.py")
# Later ones no longer have arguments that these SDKs pass.
HTTP_LIBRARY = "httpx==0.27.2"


@pytest.mark.parametrize("client", ["openai", "anthropic"])
def test_the_oldest_version_is_observed_like_the_newest(client: str, tmp_path: Path) -> None:
    """Two small wheels in a folder of this test; everything else is this environment's."""
    oldest = registry.client(client).requires.replace(">=", "==")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    run([*pip, "--target", str(tmp_path / "site"), oldest, HTTP_LIBRARY])
    pytest_command = [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    path = os.pathsep.join(filter(None, (str(tmp_path / "site"), os.environ.get("PYTHONPATH"))))
    told = run(
        [
            *pytest_command,
            f"--basetemp={tmp_path / 'tests'}",
            *map(str, map(Path(__file__).with_name, SUITE)),
        ],
        PYTHONPATH=path,
        **{CHOICE: client},
    )
    assert " passed" in told
    assert "skipped" not in told


def run(command: list[str], **environment: str) -> str:
    """What a command says; it must succeed."""
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout

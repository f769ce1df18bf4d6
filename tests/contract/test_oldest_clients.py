"""The oldest SDKs that we claim, against the same contract as the newest: in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from clients import CHOICE
from fetched import from_pypi
from neuronscope.instrumentation import registry

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
SUITE = ("test_client_contract.py", "test_client_endings.py", "test_method_contract.py")
# Later ones no longer have arguments that these SDKs pass.
HTTP_LIBRARY = "httpx==0.27.2"


@pytest.mark.integration
@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", ["openai", "anthropic", "ollama"])
def test_the_oldest_version_is_observed_like_the_newest(client: str, tmp_path: Path) -> None:
    """One or two small wheels in a folder of this test; everything else is this environment's."""
    oldest = registry.client(client).requires.replace(">=", "==")
    from_pypi(tmp_path / "site", oldest, HTTP_LIBRARY)
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


MODELS = (
    "openai",
    "anthropic",
    "ollama",
    "mistral",
    "cohere",
    "google_genai",
    "bedrock",
    "litellm",
    "langchain",
)


@pytest.mark.parametrize("client", [*MODELS, "llama_index", "vllm"])
def test_an_extra_installs_what_its_adapter_is_made_for(client: str) -> None:
    """One minimum, told by the doctor and by pip."""
    entry = registry.CLIENTS[client]
    extras: Any = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    (installs, *_) = extras[entry.extra]
    told = registry.client(client).requires
    if client == "bedrock":  # whose clients boto3 makes, at botocore's version
        told = told.replace("botocore", "boto3")
    assert installs == told


def run(command: list[str], **environment: str) -> str:
    """What a command says; it must succeed."""
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    return done.stdout

"""`opentelemetry-instrument python service.py`: OpenTelemetry's own launcher starts the agent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import neuronscope as ns
import programs

pytestmark = pytest.mark.integration

PROGRAM = """
import sys, openai
client = openai.OpenAI(base_url=sys.argv[1], api_key="test", max_retries=0)
client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hello"}])
"""


def launched(folder: Path, **environment: str) -> list[str]:
    """Names of the spans of a program run by the launcher."""
    (folder / "program.py").write_text(PROGRAM)
    with ns.testing.FakeOpenAI() as server:
        subprocess.run(
            [
                Path(sys.executable).with_name("opentelemetry-instrument"),
                *("--traces_exporter", "none", "--metrics_exporter", "none", "--logs_exporter", "none"),
                sys.executable,
                str(folder / "program.py"),
                server.base_url,
            ],
            check=True,
            timeout=250,
            env=programs.environment(NEURONSCOPE_NSZ=str(folder / "records"), **environment),
        )
    if not list((folder / "records").glob("*")):
        return []
    return [span.name for span in ns.load(folder / "records").telemetry.spans]


def test_the_launcher_starts_the_agent(tmp_path: Path) -> None:
    """Every call is observed, once."""
    assert launched(tmp_path) == ["chat m"]


@pytest.mark.parametrize("disabled", ["openai", "neuronscope", "*"])
def test_the_launchers_own_variable_leaves_out(tmp_path: Path, disabled: str) -> None:
    """One adapter, the agent, or all."""
    name = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
    also = "openai-v2," if disabled == "openai" else ""
    assert launched(tmp_path, **{name: also + disabled}) == []

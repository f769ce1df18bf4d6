"""`neuronscope export --to otlp`: a recording reaches a collector afterwards."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

import fakelib
import neuronscope as ns
from collectors import free_port, serving
from neuronscope.cli import cli

pytestmark = pytest.mark.integration


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Two processes' worth of segments: 30 spans of one service, 1 of another."""
    ns.registry.register_adapter(fakelib.integration(fakelib.__name__))
    for service, calls in (("shop", 30), ("mail", 1)):
        with ns.Platform(nsz=str(tmp_path), service_name=service):
            ns.instrument("fake")
            for number in range(calls):
                fakelib.Client().chat("x", model=f"{service}-{number}")
    ns.registry.unregister_adapter("fake")
    return tmp_path


def test_a_recording_is_sent(recorded: Path) -> None:
    """Every span, once, with its service and its own times."""
    with serving() as collector:
        arguments = ["export", "--to", "otlp", "--otlp-endpoint", collector.url, str(recorded)]
        done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    assert "31 spans sent" in done.output
    names = [f"chat shop-{n}" for n in range(30)] + ["chat mail-0"]
    assert Counter(collector.spans) == Counter(names)
    assert not collector.metrics


def test_what_does_not_arrive_is_told(recorded: Path) -> None:
    """By reason, and by the exit code."""
    url = f"http://127.0.0.1:{free_port()}"
    arguments = ["export", "--to", "otlp", "--otlp-endpoint", url, "--timeout", "0.2", "--format", "json"]
    done = CliRunner().invoke(cli, [*arguments, str(recorded)])
    assert done.exit_code == 1
    told = json.loads(done.output)
    assert told["exported"] == 0
    assert sum(told["lost"].values()) == 31


def test_no_collector_named(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong usage."""
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    done = CliRunner().invoke(cli, ["export", "--to", "otlp", str(recorded)])
    assert "--otlp-endpoint" in str(done.exception)

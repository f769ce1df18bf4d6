"""For `neuronscope doctor`: is the page there, and does a scrape get our metrics with exemplars?"""

from __future__ import annotations

import ipaddress
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Final

from neuronscope.exceptions import ConfigError
from neuronscope.exporters import Examination, ExporterContext
from neuronscope.signals import names
from neuronscope_exporters.prometheus import parse_address
from neuronscope_exporters.prometheus.page import MetricsPage
from neuronscope_exporters.prometheus.server import PAGE_OPENMETRICS, PATH, MetricsServer

TIMEOUT_S: Final = 5.0
OURS: Final = names.OVERHEAD_BUDGET.prometheus_sample
EDITS: Final = names.EDITS_ACTIVE.prometheus_sample


def examine(context: ExporterContext) -> Iterator[Examination]:
    """Scrape the page where it is served; where nobody serves it, serve it for a moment and scrape it."""
    try:
        host, port = parse_address(context.settings.prometheus)
    except ConfigError as error:
        yield Examination("page", context.settings.prometheus, ok=False, detail=str(error))
        return
    try:
        server = MetricsServer(host, port, MetricsPage(context.collect, context.resource))
    except OSError as error:
        reachable = "127.0.0.1" if _stands_for_all(host) else host
        url = f"http://{f'[{reachable}]' if ':' in reachable else reachable}:{port}{PATH}"
        yield _scrape(url, f"served by a running process ({error.strerror} for us)")
        return
    try:
        yield _scrape(server.url, "free: a service that starts with these settings will serve it")
    finally:
        server.close()


def _stands_for_all(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _scrape(url: str, state: str) -> Examination:
    request = urllib.request.Request(url, headers={"Accept": PAGE_OPENMETRICS})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            text = answer.read().decode("utf-8", "replace")
            kind = answer.headers.get("content-type", "")
    except (OSError, urllib.error.URLError) as error:
        return Examination(
            "page", url, ok=False, detail=f"{state}; a scrape failed: {error}",
            advice="Another program has the port, or the address is not this machine's.",
        )  # fmt: skip
    if OURS not in text:
        return Examination(
            "page", url, ok=False, detail=f"{state}; the page has none of our metrics",
            advice="Another program has the port: choose another for NEURONSCOPE_PROMETHEUS.",
        )  # fmt: skip
    series = sum(not line.startswith("#") for line in text.splitlines())
    exemplars = "with" if "openmetrics" in kind else "without"
    edits = f"; edits that change answers: {', '.join(found)}" if (found := _edits(text)) else ""
    return Examination(
        "page", url, ok=True, detail=f"{state}; {series} samples, {exemplars} exemplars{edits}"
    )


def _edits(page: str) -> list[str]:
    """Lasting edits that are switched on in the process that serves the page."""
    return sorted(
        line.partition('"')[2].rpartition('"')[0]
        for line in page.splitlines()
        if line.startswith(f"{EDITS}{{") and line.endswith(" 1.0")
    )

"""The /metrics page: our metrics in Prometheus's text format or OpenMetrics, with exemplars.

The page reads the same aggregator as OTLP metrics do; nothing is measured twice, and nothing is kept
here.  It never costs the service more than a scrape: a port that is taken leaves the process running
without a page, and says so.
"""

from __future__ import annotations

import errno
import logging
from typing import Final

from neuronscope.exceptions import ConfigError
from neuronscope.exporters import Exporter, ExporterContext
from neuronscope.signals.records import Batch
from neuronscope_exporters.prometheus.page import MetricsPage
from neuronscope_exporters.prometheus.server import MetricsServer

__all__ = ["PrometheusExporter", "create"]
_log: Final = logging.getLogger("neuronscope")


def create(context: ExporterContext) -> Exporter | None:
    """Serve the page at `Settings.prometheus`; None if no address is set, or if it cannot be had.

    Raises:
        ConfigError: the setting is no address.
    """
    setting = context.settings.prometheus
    if not setting:
        return None
    host, port = parse_address(setting)
    try:
        server = MetricsServer(host, port, MetricsPage(context.collect, context.resource))
    except OSError as error:
        _log.warning("%s", _why_not(host, port, error))
        return None
    _log.info("metrics are served at %s", server.url)
    return PrometheusExporter(server)


class PrometheusExporter:
    """The running page.  Scrapes pull; batches of spans are none of its business.

    Attributes:
        address: ``(host, port)`` as bound.
        url: where to scrape.
    """

    name: str = "prometheus"

    def __init__(self, server: MetricsServer) -> None:
        self._server = server
        self.address = server.address
        self.url = server.url

    def export(self, batch: Batch) -> None:
        """Nothing: the page reads the aggregator."""

    def flush(self, timeout_s: float) -> bool:
        """Nothing is buffered."""
        return True

    def shutdown(self, timeout_s: float) -> None:
        """Stop serving and free the port.  Safe to call again."""
        self._server.close()


def parse_address(setting: str) -> tuple[str, int]:
    """``HOST:PORT`` or ``[IPV6]:PORT`` or ``PORT``; without a host, loopback only.

    Raises:
        ConfigError: it is none of these.
    """
    host, _, port = setting.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or int(port) > 65535 or any(c.isspace() or c == "/" for c in host):
        raise ConfigError(
            f"`NEURONSCOPE_PROMETHEUS` must be HOST:PORT, or a port (0 picks a free one); got {setting!r}."
        )
    return host or "127.0.0.1", int(port)


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"no /metrics page: port {port} on {host} is taken by another process, perhaps a worker of "
            "this service. Give each process a port of its own, set NEURONSCOPE_PROMETHEUS=0 to have one "
            "picked, or send metrics over OTLP. The service runs on."
        )
    reason = error.strerror or str(error)
    return f"no /metrics page: cannot listen on {host}:{port} ({reason}). The service runs on."

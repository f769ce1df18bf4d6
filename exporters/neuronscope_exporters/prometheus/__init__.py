"""The /metrics page: our metrics in Prometheus's text format or OpenMetrics, with exemplars.

The page reads the same aggregator as OTLP metrics do; nothing is measured twice, and nothing is kept
here.  It never costs the service more than a scrape: a port that is taken leaves the process running
without a page, and says so.

Several processes of one service share a page when they are given a folder (`Settings.prometheus_dir`): one
of them serves the sum, and if it ends another takes over.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Final

from neuronscope import native
from neuronscope.engine.guard import GUARD
from neuronscope.exceptions import ConfigError
from neuronscope.exporters import Exporter, ExporterContext
from neuronscope.signals.records import Attributes, Batch
from neuronscope_exporters.prometheus.families import MetricsCollector
from neuronscope_exporters.prometheus.page import MetricsPage
from neuronscope_exporters.prometheus.server import MetricsServer
from neuronscope_exporters.prometheus.shared import Share

__all__ = ["MetricsCollector", "PrometheusExporter", "SharedPage", "create", "parse_address"]
_log: Final = logging.getLogger("neuronscope")
SHARE_S: Final = 2.0  # how old another process's figures on a shared page may be


def create(context: ExporterContext) -> Exporter | None:
    """Serve the page at `Settings.prometheus`; None if no address is set, or if it cannot be had.

    Raises:
        ConfigError: the setting is no address.
    """
    setting, folder = context.settings.prometheus, context.settings.prometheus_dir
    if not setting:
        return None
    host, port = parse_address(setting)
    if folder and port:
        try:
            share = Share(Path(folder), context.collect)
        except OSError as error:
            _log.warning("metrics are not shared: cannot use the folder %s (%s).", folder, error.strerror)
        else:
            return SharedPage(host, port, share, MetricsPage(share.collect, _of_all(context.resource)))
    try:
        server = MetricsServer(host, port, MetricsPage(context.collect, context.resource))
    except OSError as error:
        _log.warning("%s", _why_not(host, port, error))
        return None
    _log.info("metrics are served at %s", server.url)
    return PrometheusExporter(server)


def _of_all(resource: Attributes) -> Attributes:
    """The resource of a service, without what names one of its processes."""
    return {
        key: value
        for key, value in resource.items()
        if not key.startswith("process.") and key != "service.instance.id"
    }


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


class SharedPage:
    """This process's part of a shared page, and the page itself where this process got the port.

    Attributes:
        serving: does this process serve the page?
    """

    name: str = "prometheus"

    def __init__(self, host: str, port: int, share: Share, page: MetricsPage) -> None:
        self._host = host
        self._port = port
        self._share = share
        self._page = page
        self._server: MetricsServer | None = None
        self._told = False
        self._over = False
        self._changed = native.Condition()
        self._update()
        self._thread = native.Thread(self._run, "neuronscope-metrics-share")

    @property
    def serving(self) -> bool:
        """Does this process serve the page?"""
        return self._server is not None

    def export(self, batch: Batch) -> None:
        """Nothing: the file is written every two seconds."""

    def flush(self, timeout_s: float) -> bool:
        """Bring this process's file up to date; False if that fails."""
        return self._write()

    def shutdown(self, timeout_s: float) -> None:
        """Write a last time, and free the port for another process.  Safe to call again."""
        if self._over:
            return
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._thread.join(timeout_s)
        self._write()
        if self._server is not None:
            self._server.close()

    def _run(self) -> None:
        while not self._wait():
            GUARD.call("prometheus.share", self._update)

    def _wait(self) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._over, SHARE_S)

    def _update(self) -> None:
        self._write()
        if self._server is None:
            self._serve()

    def _serve(self) -> None:
        try:
            self._server = MetricsServer(self._host, self._port, self._page)
        except OSError as error:
            if error.errno != errno.EADDRINUSE and not self._told:
                self._told = True
                _log.warning("%s", _why_not(self._host, self._port, error))
            return
        _log.info("metrics of all processes are served at %s, by process %d", self._server.url, os.getpid())

    def _write(self) -> bool:
        try:
            self._share.write()
        except OSError as error:
            if not self._told:
                self._told = True
                _log.warning("metrics of process %d are not shared (%s).", os.getpid(), error.strerror)
            return False
        return True


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
            "this service. Give the workers a folder to share one page (NEURONSCOPE_PROMETHEUS_DIR), set "
            "NEURONSCOPE_PROMETHEUS=0 to have a port picked for each, or send metrics over OTLP. The service "
            "runs on."
        )
    reason = error.strerror or str(error)
    return f"no /metrics page: cannot listen on {host}:{port} ({reason}). The service runs on."

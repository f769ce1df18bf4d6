"""The contract of exporters, and how they are found.

An exporter takes finished, masked records in batches on the worker's thread.  It must come back
quickly: whatever waits (a network, a slow disk) belongs in the exporter's own thread behind a bounded
buffer, and whatever that buffer loses is told through `ExporterContext.count_lost`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from neuronscope.settings import Settings
from neuronscope.signals.records import Attributes, Batch, MetricsSnapshot


@dataclass(frozen=True, slots=True)
class ExporterContext:
    """What the platform gives an exporter.

    Attributes:
        settings: the process's settings.
        resource: OTel resource attributes of this process.
        collect: takes a consistent snapshot of all metrics; callable from any thread.
        count_lost: ``count_lost(item, reason, n)``, e.g. ``("span", "collector_unreachable", 12)``.
        count_exported: ``count_exported(item, n)``: handed over for good.
    """

    settings: Settings
    resource: Attributes
    collect: Callable[[], MetricsSnapshot]
    count_lost: Callable[[str, str, int], None]
    count_exported: Callable[[str, int], None]


class Exporter(Protocol):
    """Ships records somewhere.  All methods are called from the worker's thread."""

    name: str

    def export(self, batch: Batch) -> None:
        """Take a batch.  Must not wait; must not keep references to `batch.layers`' lazy tensors."""
        ...

    def flush(self, timeout_s: float) -> bool:
        """Push out what is buffered; True if everything went within `timeout_s` seconds."""
        ...

    def shutdown(self, timeout_s: float) -> None:
        """Flush within `timeout_s` seconds, then release threads, sockets and files."""
        ...


@runtime_checkable
class Recorder(Protocol):
    """What an exporter may be besides: one that finishes a file when asked to (`ns.dump`)."""

    def request_dump(self, reason: str, done: Callable[[str], None]) -> None:
        """Finish a file at the next flush, and tell its path.  Any thread may ask."""
        ...


class ExporterFactory(Protocol):
    """What a registry entry names: makes an exporter from settings, or None when not configured."""

    def __call__(self, context: ExporterContext) -> Exporter | None:
        """Build the exporter for this process (also called in a forked child)."""
        ...


# name -> (module:object, distribution that it needs, extra that brings it)
BUILT_IN: dict[str, tuple[str, str, str | None]] = {
    "otlp": ("neuronscope_exporters.otlp:create", "urllib3", None),
    "prometheus": ("neuronscope_exporters.prometheus:create", "prometheus-client", None),
    "nsz": ("neuronscope_exporters.nsz:create", "zstandard", None),
}
ENTRY_POINT_GROUP = "neuronscope.exporters"


@dataclass(frozen=True, slots=True)
class Examination:
    """What `neuronscope doctor` found out about one place that something is exported to.

    Attributes:
        what: ``"traces"``, ``"metrics"``, ``"page"``, ``"recording"``, …
        target: where it goes.
        ok: it arrives there, as far as can be seen from here.
        detail: what was tried and what came of it.
        advice: the likely cause, and what to do, if it does not.
        trace_id: of a probe that was taken, to be looked for in a back end; in hexadecimal.
    """

    what: str
    target: str
    ok: bool
    detail: str
    advice: str = ""
    trace_id: str = ""

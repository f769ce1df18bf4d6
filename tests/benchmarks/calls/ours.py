"""NeuronScope switched on as a peer is: spans and metrics, by the worker, to an exporter that counts."""

from __future__ import annotations

import importlib
from typing import Any

from tests.benchmarks.calls.peers import Counter


class CountingExporter:
    """Counts spans."""

    name = "counting"

    def __init__(self, counter: Counter) -> None:
        self._counter = counter

    def export(self, batch: Any) -> None:
        self._counter.spans += len(batch.spans)
        if batch.spans:
            self._counter.attributes = len(batch.spans[-1].attributes)

    def flush(self, timeout_s: float) -> bool:
        return True

    def shutdown(self, timeout_s: float) -> None:
        """Nothing to do."""


def switch_on(library: str, content: bool, **settings: Any) -> Counter:
    """Observe this library with the default settings; `settings` change them."""
    # By name: this module is also read in environments that do not have it.
    ns: Any = importlib.import_module("neuronscope")
    counter = Counter()
    ns.Platform(
        exporters=[CountingExporter(counter)],
        capture_content="span_only" if content else "no_content",
        **settings,
    )
    ns.instrument(library)
    counter.flush = ns.flush
    return counter


def flush() -> None:
    """Export everything recorded so far."""
    importlib.import_module("neuronscope").flush()

"""A continuous recording that keeps a share of the ordinary traces, and everything out of the ordinary."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from neuronscope.sampling import TailSampler
from neuronscope.signals.records import Batch, SpanEvent
from neuronscope_exporters.nsz.exporter import NszExporter

TELL_S: Final = 60.0


class SampledExporter:
    """Lets the tail decision stand between the worker and the file.  For the worker's thread.

    How many traces were left out is noted in the file every minute and at its end: what is not there is
    never mistaken for what did not happen.
    """

    name = "nsz"

    def __init__(self, inner: NszExporter, sampler: TailSampler) -> None:
        self._inner = inner
        self._sampler = sampler
        self._told_at = time.monotonic()
        self._resource: Batch | None = None

    def export(self, batch: Batch) -> None:
        """Write what is decided and kept."""
        now = time.monotonic()
        kept = self._sampler.offer(batch, now)
        if now - self._told_at >= TELL_S:
            self._told_at = now
            kept = self._with_facts(kept)
        self._resource = batch
        self._inner.export(kept)

    def flush(self, timeout_s: float) -> bool:
        """Flush the file; traces whose root has not ended stay undecided."""
        return self._inner.flush(timeout_s)

    def shutdown(self, timeout_s: float) -> None:
        """Decide the rest, and finish the file."""
        if self._resource is not None:
            rest = self._sampler.rest(Batch(self._resource.resource))
            self._inner.export(self._with_facts(rest))
        self._inner.shutdown(timeout_s)

    def request_dump(self, reason: str, done: Callable[[str], None]) -> None:
        """Finish the segment at the next export or flush.  Callable from any thread."""
        self._inner.request_dump(reason, done)

    def _with_facts(self, batch: Batch) -> Batch:
        event = SpanEvent("neuronscope.sampling", time.time_ns(), self._sampler.facts())
        return Batch(batch.resource, batch.spans, batch.layers, batch.logs, (*batch.events, event))

"""The tail decision: which traces a recording keeps in full, made in process when the root span ends.

What is out of the ordinary is kept for certain: errors, slow roots, many tokens, empty or low-margin
retrievals, non-finite layers, everything while a drift alert is active.  Of the rest a share is kept,
derived from the trace id, so that every process and every run keeps the same traces.  Each kept span says
how many it stands for (`neuronscope.sampling.weight`): 1 for what is kept for certain, the inverse of the
share for the others.  Sums over spans, weighted so, estimate the sums over all traces without bias
(Horvitz and Thompson): whether a trace is out of the ordinary depends on itself and on traces before it,
never on the draw.

OTLP is not concerned: it follows the head sampler, so that two processes never keep halves of a trace.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any, Final

from msgspec.structs import replace
from opentelemetry.trace import StatusCode

from neuronscope.engine.sizes import log_bytes, span_bytes
from neuronscope.signals import names
from neuronscope.signals.records import Attributes, Batch, LayerRecord, LogRecord, SpanRecord

# A trace whose root does not end is decided without it after so many seconds, or beyond so many bytes.
ROOT_WAIT_S: Final = 30.0
MAX_HELD_BYTES: Final = 32 << 20
DRIFT_EVENT: Final = names.DRIFT.name  # its attribute `active` switches "keep everything" on and off
RANDOM: Final = "random"
_LAYER_BYTES: Final = 512
_MAX_KEYS: Final = 256


class RollingQuantile:
    """A quantile of recent values: counts in buckets of 9 % width, halved now and then to forget.

    Values that are not positive share a bucket at the bottom.
    """

    __slots__ = ("_counts", "_forget", "_minimum", "_quantile", "_total")

    def __init__(self, quantile: float, *, minimum: int = 200, forget: int = 10_000) -> None:
        self._quantile = quantile
        self._minimum = minimum
        self._forget = forget
        self._counts: dict[int, int] = {}
        self._total = 0

    def rank(self, value: float) -> float | None:
        """The share of the values so far that is smaller, by buckets; None while they are too few."""
        if self._total < self._minimum:
            return None
        bucket = self._bucket(value)
        return sum(count for other, count in self._counts.items() if other < bucket) / self._total

    def above(self, value: float) -> bool:
        """Is the value above the quantile of those before it?  Takes it into account afterwards."""
        rank = self.rank(value)
        self._add(value)
        return rank is not None and rank >= self._quantile

    def below(self, value: float) -> bool:
        """Is the value below the quantile of those before it?  Takes it into account afterwards."""
        rank = self.rank(value)
        same = self._counts.get(self._bucket(value), 0) / self._total if self._total else 0.0
        self._add(value)
        return rank is not None and rank + same <= self._quantile

    def _add(self, value: float) -> None:
        bucket = self._bucket(value)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self._total += 1
        if self._total >= self._forget:
            self._counts = {key: count // 2 for key, count in self._counts.items() if count > 1}
            self._total = sum(self._counts.values())

    @staticmethod
    def _bucket(value: float) -> int:
        return math.ceil(math.log2(value) * 8) if value > 0 else -(1 << 20)


class _Held:
    """The part of a trace that has come and is not decided yet; or what is to be written."""

    __slots__ = ("layers", "logs", "nbytes", "reason", "since", "spans", "tokens")

    def __init__(self, since: float) -> None:
        self.since = since
        self.spans: list[SpanRecord] = []
        self.layers: list[LayerRecord] = []
        self.logs: list[LogRecord] = []
        self.nbytes = 0
        self.tokens = 0
        self.reason = ""


class TailSampler:
    """Holds back traces until their local root ends, and lets go of those that are not kept.

    The unit is what one process records of a trace under one local root.  For one thread.

    Args:
        share: share of the ordinary traces to keep, 0 to 1.
        slow: quantile of the durations of roots of one name above which one is slow.
        costly: quantile of the tokens of a trace above which it is costly.
        margin: quantile of the relative margins of a collection below which one is low.

    Attributes:
        kept: units kept, by reason.
        left_out: units that were not, by ``unit``, ``span``, ``layer`` and ``log``.
    """

    def __init__(
        self, share: float, *, slow: float = 0.95, costly: float = 0.99, margin: float = 0.02
    ) -> None:
        self.share = share
        self.kept: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self._threshold = int(share * (1 << 64))
        self._slow, self._costly, self._low = slow, costly, margin
        self._durations: dict[str, RollingQuantile] = {}
        self._margins: dict[str, RollingQuantile] = {}
        self._tokens = RollingQuantile(costly)
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._bytes = 0
        self._drift = False

    def offer(self, batch: Batch, now: float) -> Batch:
        """Take a batch; returns what is to be written now."""
        for event in batch.events:
            if event.name == DRIFT_EVENT:
                self._drift = bool(event.attributes.get("active"))
        kept = _Held(now)
        for layer in batch.layers:
            if layer.trace_id is None:
                kept.layers.append(layer)  # in no trace: nothing to decide it by
            else:
                self._hold_layer(layer, layer.trace_id, now)
        for log in batch.logs:
            if log.trace_id:
                self._hold(log.trace_id, now, log_bytes(log)).logs.append(log)
            else:
                kept.logs.append(log)
        for span in batch.spans:
            held = self._hold_span(span, now)
            if _is_root(span):
                self._decide(span.trace_id, held, span, kept)
        for trace_id, held in self._overdue(now):
            self._decide(trace_id, held, None, kept)
        return replace(batch, spans=kept.spans, layers=kept.layers, logs=kept.logs)

    def rest(self, batch: Batch) -> Batch:
        """Decide everything that is still held: the process ends."""
        kept = _Held(0.0)
        for trace_id, held in list(self._held.items()):
            self._decide(trace_id, held, None, kept)
        return replace(batch, spans=kept.spans, layers=kept.layers, logs=kept.logs)

    def random(self, trace_id: int) -> bool:
        """Is this trace in the random share?  Independent of what a head sampler makes of the id."""
        digest = blake2b(trace_id.to_bytes(16, "big"), digest_size=8).digest()
        return int.from_bytes(digest, "big") < self._threshold

    def facts(self) -> Attributes:
        """What has been kept and left out so far, for an event record."""
        return {
            "share": self.share,
            **{f"kept.{reason}": n for reason, n in self.kept.items()},
            **{f"left_out.{item}": n for item, n in self.left_out.items()},
        }

    # --- holding -----------------------------------------------------------------------------------
    def _hold(self, trace_id: int, now: float, nbytes: int) -> _Held:
        held = self._held.get(trace_id)
        if held is None:
            held = self._held[trace_id] = _Held(now)
        held.nbytes += nbytes
        self._bytes += nbytes
        return held

    def _hold_layer(self, layer: LayerRecord, trace_id: int, now: float) -> None:
        held = self._hold(trace_id, now, layer.nbytes + _LAYER_BYTES)
        held.layers.append(layer)
        if layer.summary is not None and not layer.summary.finite:
            held.reason = held.reason or "non_finite"

    def _hold_span(self, span: SpanRecord, now: float) -> _Held:
        held = self._hold(span.trace_id, now, span_bytes(span))
        held.spans.append(span)
        attributes = span.attributes
        for key in (names.INPUT_TOKENS, names.OUTPUT_TOKENS):
            tokens = attributes.get(key)
            held.tokens += tokens if isinstance(tokens, int) else 0
        held.reason = held.reason or self._oddity(span)
        return held

    def _overdue(self, now: float) -> Iterator[tuple[int, _Held]]:
        while self._held:
            trace_id, held = next(iter(self._held.items()))
            if now - held.since < ROOT_WAIT_S and self._bytes <= MAX_HELD_BYTES:
                return
            yield trace_id, held

    # --- deciding ----------------------------------------------------------------------------------
    def _oddity(self, span: SpanRecord) -> str:
        """What is out of the ordinary about a span; nothing if it is like the others."""
        attributes = span.attributes
        odd = ""
        if span.status is StatusCode.ERROR or names.ERROR_TYPE in attributes:
            odd = "error"
        elif attributes.get(names.LAYERS_NON_FINITE):
            odd = "non_finite"
        elif attributes.get(names.RETRIEVAL_EMPTY):
            odd = "empty_retrieval"
        margin = attributes.get(names.RETRIEVAL_MARGIN)
        if isinstance(margin, float):
            store = f"{attributes.get(names.DB_SYSTEM)}/{attributes.get(names.DB_COLLECTION)}"
            margins = _of(self._margins, store, self._low)
            if margins is not None and margins.below(margin):
                odd = odd or "low_margin"
        return odd

    def _why(self, trace_id: int, held: _Held, root: SpanRecord | None) -> str:
        """Why a unit is kept; nothing if it is not."""
        reason = held.reason
        if root is not None:
            durations = _of(self._durations, root.name, self._slow)
            duration = root.end_unix_ns - root.start_unix_ns
            if durations is not None and durations.above(duration):
                reason = reason or "slow"
        if held.tokens and self._tokens.above(held.tokens):
            reason = reason or "costly"
        if not reason and self._drift:
            reason = "drift"
        return reason or (RANDOM if self.random(trace_id) else "")

    def _decide(self, trace_id: int, held: _Held, root: SpanRecord | None, kept: _Held) -> None:
        """Add a unit to what is kept, or count it as left out."""
        del self._held[trace_id]
        self._bytes -= held.nbytes
        reason = self._why(trace_id, held, root)
        if not reason:
            self.left_out.update(unit=1, span=len(held.spans), layer=len(held.layers), log=len(held.logs))
            return
        self.kept[reason] += 1
        told: dict[str, Any] = {
            names.SAMPLING_WEIGHT: 1.0 / self.share if reason == RANDOM else 1.0,
            names.SAMPLING_REASON: reason,
        }
        kept.spans.extend(replace(span, attributes={**span.attributes, **told}) for span in held.spans)
        kept.layers.extend(held.layers)
        kept.logs.extend(held.logs)


def _of(quantiles: dict[str, RollingQuantile], key: str, quantile: float) -> RollingQuantile | None:
    found = quantiles.get(key)
    if found is None and len(quantiles) < _MAX_KEYS:
        found = quantiles[key] = RollingQuantile(quantile)
    return found


def _is_root(span: SpanRecord) -> bool:
    return span.parent_span_id is None or span.parent_is_remote


def weight(span: SpanRecord) -> float:
    """How many spans this one of a recording stands for: 1 unless it was sampled."""
    value = span.attributes.get(names.SAMPLING_WEIGHT, 1.0)
    return float(value) if isinstance(value, int | float) else 1.0


def estimate(spans: Sequence[SpanRecord], values: Sequence[float]) -> tuple[float, float]:
    """Total of `values`, one for each span, over everything there was; and half its 95 % interval.

    The variance is Horvitz and Thompson's for independent draws, by trace.
    """
    by_trace: dict[tuple[int, float], float] = {}
    for span, value in zip(spans, values, strict=True):
        key = (span.trace_id, weight(span))
        by_trace[key] = by_trace.get(key, 0.0) + value
    total = sum(w * value for (_, w), value in by_trace.items())
    variance = sum(w * (w - 1.0) * value * value for (_, w), value in by_trace.items())
    return total, 1.96 * math.sqrt(variance)

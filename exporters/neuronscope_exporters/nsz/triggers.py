"""What makes the flight recorder dump: the tail decision, made at the end of a root span."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from opentelemetry.trace import StatusCode

from neuronscope.signals import names
from neuronscope.signals.records import AttributeValue, Batch, LayerRecord, SpanRecord

# A trace whose root does not come is dumped without it after so many seconds.
ROOT_WAIT_S: Final = 5.0
_MAX_WAITING: Final = 1000
_MAX_NAMES: Final = 256


@dataclass(frozen=True, slots=True)
class Trigger:
    """Why a dump was made.

    Attributes:
        reason: error, latency, empty_retrieval, low_margin, nan, drift, or what a request said.
        trace_id: the trace in which it happened, if it was in one.
        detail: what was seen, for people.
    """

    reason: str
    trace_id: int | None = None
    detail: str = ""

    def attributes(self) -> dict[str, AttributeValue]:
        """As attributes of an event."""
        told: dict[str, AttributeValue] = {"reason": self.reason}
        if self.trace_id is not None:
            told["trace_id"] = f"{self.trace_id:032x}"
        if self.detail:
            told["detail"] = self.detail
        return told


class Percentile:
    """A running p99 of durations: counts in buckets of 9 % width, halved now and then to forget.

    The estimate is the upper edge of the bucket that holds the p99, so it errs upwards, by 9 % at most.
    """

    MIN_SAMPLES: Final = 500
    _FORGET: Final = 20_000

    __slots__ = ("_counts", "_total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._total = 0

    def exceeded_by(self, duration_ns: int) -> bool:
        """Is a duration above the p99 of those before it?  Takes it into account afterwards."""
        exceeded = self._total >= self.MIN_SAMPLES and duration_ns > self.value()
        bucket = math.ceil(math.log2(max(duration_ns, 1)) * 8)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self._total += 1
        if self._total >= self._FORGET:
            self._counts = {key: count // 2 for key, count in self._counts.items() if count > 1}
            self._total = sum(self._counts.values())
        return exceeded

    def value(self) -> float:
        """The p99, in nanoseconds."""
        left = self._total // 100
        for bucket in sorted(self._counts, reverse=True):
            left -= self._counts[bucket]
            if left < 0:
                return math.exp2(bucket / 8)
        return math.inf


@dataclass(slots=True)
class Triggers:
    """Looks at every batch.  For one thread.

    Args:
        margin: a retrieval with a smaller relative margin is suspicious; 0 switches this off.
        pause_s: seconds between two dumps for the same reason.
    """

    margin: float
    pause_s: float
    _waiting: OrderedDict[int, tuple[float, Trigger]] = field(
        default_factory=OrderedDict[int, tuple[float, Trigger]]
    )
    _durations: dict[str, Percentile] = field(default_factory=dict[str, Percentile])
    _last: dict[str, float] = field(default_factory=dict[str, float])

    def fired(self, batch: Batch, now: float) -> list[Trigger]:
        """The triggers for which it is time to dump."""
        ready: list[Trigger] = []
        for event in batch.events:
            if event.name == names.DRIFT.name and event.attributes.get("state") == "raised":
                detail = f"{event.attributes.get('kind')}: {event.attributes.get('summary')}"
                self._suspect(Trigger("drift", None, detail), now, ready)
        for layer in batch.layers:
            if _has_nan(layer):
                self._suspect(Trigger("nan", layer.trace_id, layer.layer_id), now, ready)
        for span in batch.spans:
            trigger = self._of(span)
            if trigger is not None:
                self._suspect(trigger, now, ready)
            if _is_root(span) and span.trace_id in self._waiting:
                ready.append(self._waiting.pop(span.trace_id)[1])
        while self._waiting:
            trace_id, (since, trigger) = next(iter(self._waiting.items()))
            if now - since < ROOT_WAIT_S and len(self._waiting) <= _MAX_WAITING:
                break
            del self._waiting[trace_id]
            ready.append(trigger)
        return self._not_too_often(ready, now)

    def waiting(self) -> list[Trigger]:
        """Triggers whose trace has not ended yet."""
        return [trigger for _, trigger in self._waiting.values()]

    def _suspect(self, trigger: Trigger, now: float, ready: list[Trigger]) -> None:
        if trigger.trace_id is None:
            ready.append(trigger)
        else:
            self._waiting.setdefault(trigger.trace_id, (now, trigger))

    def _of(self, span: SpanRecord) -> Trigger | None:
        """What is wrong with a span."""
        attributes = span.attributes
        slow = _is_root(span) and self._is_slow(span)
        if span.status is StatusCode.ERROR or names.ERROR_TYPE in attributes:
            return Trigger("error", span.trace_id, str(attributes.get(names.ERROR_TYPE, span.name)))
        if attributes.get(names.LAYERS_NON_FINITE):
            return Trigger("nan", span.trace_id, span.name)
        if attributes.get(names.RETRIEVAL_EMPTY):
            return Trigger("empty_retrieval", span.trace_id, span.name)
        margin = attributes.get(names.RETRIEVAL_MARGIN)
        if isinstance(margin, float) and margin < self.margin and _several_hits(span):
            return Trigger("low_margin", span.trace_id, f"{span.name}: {margin:.4f}")
        if slow:
            return Trigger("latency", span.trace_id, f"{span.name}: {span.duration_ms:.1f} ms")
        return None

    def _is_slow(self, span: SpanRecord) -> bool:
        durations = self._durations.get(span.name)
        if durations is None:
            if len(self._durations) >= _MAX_NAMES:
                return False
            durations = self._durations[span.name] = Percentile()
        return durations.exceeded_by(span.end_unix_ns - span.start_unix_ns)

    def _not_too_often(self, ready: list[Trigger], now: float) -> list[Trigger]:
        due = [
            trigger
            for trigger in ready
            if trigger.reason not in self._last or now - self._last[trigger.reason] >= self.pause_s
        ]
        for trigger in due:
            self._last[trigger.reason] = now
        return due


def _is_root(span: SpanRecord) -> bool:
    return span.parent_span_id is None or span.parent_is_remote


def _has_nan(layer: LayerRecord) -> bool:
    return layer.summary is not None and not layer.summary.finite


def _several_hits(span: SpanRecord) -> bool:
    """A single hit is its own best and worst: its margin says nothing."""
    returned = span.attributes.get(names.RETRIEVAL_RETURNED)
    return not isinstance(returned, int) or returned > 1

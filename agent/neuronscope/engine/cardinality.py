"""Which values of free-form labels have series of their own: the most frequent ones; the rest are `other`.

A model's name, a route, a collection, a tenant can be anything, and every new one would be a new series for
ever.  Each such label has room for K values.  The first K that come are taken in; further ones are counted in
a sketch, and from time to time one that has been seen clearly more often takes the place of the value seen
least.  Older sightings fade, so that what was frequent yesterday makes room.

A series only ever grows: a value that has lost its place is counted under `other` from then on, its series
stay as they are for `IDLE_S`, so that every scrape has seen their last state, and are then left out.

Not thread-safe: the aggregator's lock is held around every call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from heapq import heapify, heappush, heapreplace
from typing import Final

from neuronscope.signals import names
from neuronscope.signals.names import Metric

Labels = tuple[tuple[str, str], ...]

OTHER: Final = "other"
FREE_FORM: Final = frozenset(
    {
        names.TENANT,
        names.PROVIDER_NAME,
        names.REQUEST_MODEL,
        names.RESPONSE_MODEL,
        names.MODEL_NAME,
        names.HTTP_ROUTE,
        names.DB_COLLECTION,
        names.SERVER_ADDRESS,
        names.SERVER_PORT,
        names.ERROR_TYPE,
    }
)
# Metrics that count each call once: by them values are compared.
COUNTED: Final = frozenset(
    {
        names.OPERATION_DURATION,
        names.HTTP_DURATION,
        names.DB_DURATION,
        names.MODEL_CALLS,
        names.TENANT_CALLS,
    }
)
DEFAULT_VALUES: Final = 40
SKETCH: Final = 4  # values in the sketch for each one with series of its own
HALF_LIFE_S: Final = 600.0
IDLE_S: Final = 600.0
# A newcomer must have been seen this much more often than the value whose place it takes.
FACTOR, EVIDENCE = 2.0, 8.0


class Sketch:
    """The most frequent of any number of values, in bounded memory.

    Space-Saving (Metwally, Agrawal, El Abbadi, 2005): a value that is not counted yet takes the place of the
    least counted one, and starts with that count, which is noted as its possible error.  Of n sightings, a
    value with more than n / capacity is always among those counted.
    """

    __slots__ = ("_capacity", "_counts", "_errors", "_heap")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._counts: dict[str, float] = {}
        self._errors: dict[str, float] = {}
        # One entry a value, with a count that may be too small by now: put right when it comes to the top.
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, value: str) -> None:
        """See a value once more."""
        counts, heap = self._counts, self._heap
        if value in counts:
            counts[value] += 1
        elif len(counts) < self._capacity:
            counts[value], self._errors[value] = 1, 0
            heappush(heap, (1, value))
        elif heap:
            count, least = heap[0]
            while counts[least] != count:
                heapreplace(heap, (counts[least], least))
                count, least = heap[0]
            del counts[least], self._errors[least]
            counts[value], self._errors[value] = count + 1, count
            heapreplace(heap, (count + 1, value))

    def surest(self) -> list[tuple[float, str]]:
        """How often each value was seen at least, most often first."""
        return sorted(((count - self._errors[value], value) for value, count in self._counts.items()))[::-1]

    def fade(self, factor: float) -> None:
        """Let what was seen so far count less."""
        for value in self._counts:
            self._counts[value] *= factor
            self._errors[value] *= factor
        self._heap = [(count, value) for value, count in self._counts.items()]
        heapify(self._heap)

    def remove(self, value: str) -> None:
        """Forget a value."""
        del self._counts[value], self._errors[value]
        self._heap = [(count, value) for value, count in self._counts.items()]
        heapify(self._heap)


class Values:
    """The values of one label.

    Attributes:
        members: those with series of their own, and how often they were seen, faded.
        retired: those that have lost their place, and when; at most as many.
    """

    __slots__ = ("_limit", "_sketch", "members", "retired")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._sketch = Sketch(SKETCH * limit)
        self.members: dict[str, float] = {}
        self.retired: dict[str, int] = {}

    def has_place(self, value: str, *, counted: bool) -> bool:
        """Has the value series of its own?  It gets a place if there is one; else its sighting is noted."""
        if value in self.members or value == OTHER:
            return True
        if len(self.members) < self._limit:
            self.members[value] = 0
            return True
        if counted:
            self._sketch.add(value)
        return False

    def review(self, seen: Mapping[str, float], factor: float, now: int) -> None:
        """Compare all values, and exchange those that have earned it.

        Args:
            seen: sightings of members since the last review.
            factor: what a sighting so far counts from now on.
            now: in ns.
        """
        members = self.members
        for value in members:
            members[value] += seen.get(value, 0)
        for sure, value in self._sketch.surest():
            weakest = min(members, key=members.__getitem__)
            if sure <= FACTOR * members[weakest] + EVIDENCE:
                break
            if value not in self.retired and len(self.retired) >= self._limit:
                continue
            del members[weakest]
            self.retired.pop(value, None)
            self.retired[weakest] = now
            members[value] = sure
            self._sketch.remove(value)
        for value in members:
            members[value] *= factor
        self._sketch.fade(factor)


class Cardinality:
    """Keeps the labels of all metrics within bounds.

    Args:
        limit: values of a free-form label that have series of their own.
        limits: the same by label, where it differs.
    """

    __slots__ = ("_limit", "_limits", "_reviewed", "_values")

    def __init__(self, limit: int = DEFAULT_VALUES, limits: Mapping[str, int] | None = None) -> None:
        self._limit = limit
        self._limits = dict(limits or {})
        self._values: dict[str, Values] = {}
        self._reviewed = 0

    def fold(self, metric: Metric, labels: Labels) -> Labels:
        """The labels, with `other` for each value that has no series of its own; the same object if none."""
        counted, folded = metric in COUNTED, False
        for key, value in labels:
            if key in FREE_FORM and not self._of(key).has_place(value, counted=counted):
                folded = True
        return tuple(self._folded(labels)) if folded else labels

    def _folded(self, labels: Labels) -> Iterator[tuple[str, str]]:
        for key, value in labels:
            own = key not in FREE_FORM or value in self._values[key].members
            yield key, value if own else OTHER

    def _of(self, key: str) -> Values:
        values = self._values.get(key)
        if values is None:
            values = self._values[key] = Values(self._limits.get(key, self._limit))
        return values

    def stands(self, labels: Labels) -> bool:
        """Have all values series of their own?"""
        return all(
            key not in self._values or value == OTHER or value in self._values[key].members
            for key, value in labels
        )

    def review(self, seen: Mapping[str, Mapping[str, float]], now: int) -> bool:
        """Exchange values, by label; True if any lost or got its place.

        Args:
            seen: sightings of values with series of their own since the last review, by label.
            now: in ns.
        """
        since_s = max(0, now - self._reviewed) / 1e9 if self._reviewed else 0.0
        self._reviewed = now
        factor = math.pow(0.5, since_s / HALF_LIFE_S)
        before = {key: set(values.members) for key, values in self._values.items()}
        for key, values in self._values.items():
            for value in [value for value, since in values.retired.items() if now - since >= IDLE_S * 1e9]:
                del values.retired[value]
            values.review(seen.get(key, {}), factor, now)
        return any(before[key] != set(values.members) for key, values in self._values.items())

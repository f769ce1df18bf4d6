"""PromQL over the signal registry: an expression about a metric or label that we do not emit cannot be made.

`Source` knows which services are meant and over which window rates are taken: a dashboard's variables, or a
rule's fixed ones.  Whatever divides leaves out denominators of zero: no traffic is no data, never NaN.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from neuronscope.signals.names import Instrument, Metric, prometheus_label

# Labels that Prometheus adds to every series it scrapes.
JOB: Final = "job"
INSTANCE: Final = "instance"
LE: Final = "le"
_TARGET: Final = frozenset({JOB, INSTANCE})
RATE_INTERVAL: Final = "$__rate_interval"
_UNESCAPED: Final = re.compile(r'(?<!\\)"')

Where = Mapping[str, str]  # label: matcher with its operator, as '="qdrant"'


class NoSuchSeriesError(ValueError):
    """The registry has no such label, or a histogram no such edge."""


@dataclass(frozen=True, slots=True)
class Source:
    """Builds expressions.

    Attributes:
        matchers: what every selector carries.
        window: of rates, unless an expression asks for another.
        keep: labels that every aggregation keeps: rules are by service.
    """

    matchers: tuple[str, ...] = ()
    window: str = RATE_INTERVAL
    keep: tuple[str, ...] = ()

    def over(self, window: str) -> Source:
        """The same over another window."""
        return replace(self, window=window)

    # --- counters ------------------------------------------------------------------------------------
    def rate(self, metric: Metric, *by: str, where: Where | None = None) -> str:
        """Events of a counter (or observations of a histogram) a second."""
        return self._sum(metric, by, f"rate({self._events(metric, where)}[{self.window}])")

    def increase(self, metric: Metric, *by: str, where: Where | None = None, offset: str = "") -> str:
        """Events in the window, which may end earlier."""
        earlier = f" offset {offset}" if offset else ""
        return self._sum(metric, by, f"increase({self._events(metric, where)}[{self.window}]{earlier})")

    def appeared(self, metric: Metric, *by: str, where: Where | None = None) -> str:
        """Events in the window, of a counter that is absent until its first event.

        `increase` sees no increase in a series' first sample.  After a restart all events since then count.
        """
        now = self._events(metric, where)
        return self._sum(metric, by, f"{now} - {now} offset {self.window} >= 0 or {now}")

    def sum_at(self, metric: Metric, offset: str, *by: str) -> str:
        """What a counter had come to, some time ago."""
        return self._sum(metric, by, f"{self._events(metric, None)} offset {offset}")

    # --- histograms ----------------------------------------------------------------------------------
    def quantile(self, q: float, metric: Metric, *by: str, where: Where | None = None) -> str:
        """A quantile, interpolated within its bucket."""
        return f"histogram_quantile({q:g}, {self.buckets(metric, *by, where=where)})"

    def buckets(self, metric: Metric, *by: str, where: Where | None = None) -> str:
        """Rates of all buckets: for quantiles and heat maps."""
        _require(metric, Instrument.HISTOGRAM)
        return self._sum(metric, (LE, *by), f"rate({self._select(metric, '_bucket', where)}[{self.window}])")

    def within(self, metric: Metric, edge: float, *by: str, where: Where | None = None) -> str:
        """Observations a second that were not above an edge of the histogram.

        Raises:
            NoSuchSeriesError: no bucket ends there; the message names those that do.
        """
        _require(metric, Instrument.HISTOGRAM)
        if edge not in metric.buckets:
            edges = ", ".join(f"{bound:g}" for bound in metric.buckets)
            raise NoSuchSeriesError(
                f"{metric.name} has no bucket that ends at {edge:g}; its edges are {edges}"
            )
        matcher = {**(where or {}), LE: f'=~"{edge:g}|{float(edge)!r}"'}  # as Prometheus 3 and 2 write it
        return self._sum(metric, by, f"rate({self._select(metric, '_bucket', matcher)}[{self.window}])")

    def mean(self, metric: Metric, *by: str, where: Where | None = None) -> str:
        """Mean of the window's observations."""
        total = self._sum(metric, by, f"rate({self._select(metric, '_sum', where)}[{self.window}])")
        return ratio(total, self.rate(metric, *by, where=where))

    def total(self, metric: Metric, *by: str, where: Where | None = None) -> str:
        """Sum of a histogram's observations a second: tokens, for example."""
        _require(metric, Instrument.HISTOGRAM)
        return self._sum(metric, by, f"rate({self._select(metric, '_sum', where)}[{self.window}])")

    # --- gauges --------------------------------------------------------------------------------------
    def value(self, metric: Metric, *by: str, how: str = "max", where: Where | None = None) -> str:
        """A gauge, of several processes the largest (or as `how` says)."""
        _require(metric, Instrument.GAUGE)
        return self._aggregate(how, metric, by, self._select(metric, "", where))

    def mean_of(self, metric: Metric, window: str, *by: str, offset: str = "") -> str:
        """A gauge's mean over a window, which may end earlier."""
        _require(metric, Instrument.GAUGE)
        earlier = f" offset {offset}" if offset else ""
        of = f"avg_over_time({self._select(metric, '', None)}[{window}]{earlier})"
        return self._aggregate("avg", metric, by, of)

    def present(self, metric: Metric, *, within: str = "") -> str:
        """1 for each service that has the gauge, or had it within a while."""
        selected = self._select(metric, "", None)
        return self._aggregate(
            "group", metric, (), f"max_over_time({selected}[{within}])" if within else selected
        )

    def absent(self, metric: Metric) -> str:
        """1 if nobody has the metric."""
        return f"absent({self._select(metric, '', None)})"

    def select(self, metric: Metric, where: Where | None = None) -> str:
        """The bare selector of a gauge or counter."""
        return self._select(metric, "", where)

    # -------------------------------------------------------------------------------------------------
    def _events(self, metric: Metric, where: Where | None) -> str:
        if metric.instrument is Instrument.COUNTER:
            return self._select(metric, "", where)
        _require(metric, Instrument.HISTOGRAM)
        if metric.buckets[0] >= 0:
            return self._select(metric, "_count", where)
        return self._select(metric, "_bucket", {**(where or {}), LE: '="+Inf"'})  # these have no _count

    def _select(self, metric: Metric, suffix: str, where: Where | None) -> str:
        found = list(self.matchers)
        for key, matcher in (where or {}).items():
            found.append(f"{_label(metric, key)}{matcher}")
        return f"{metric.prometheus_sample}{suffix}" + (f"{{{','.join(found)}}}" if found else "")

    def _sum(self, metric: Metric, by: tuple[str, ...], of: str) -> str:
        return self._aggregate("sum", metric, by, of)

    def _aggregate(self, how: str, metric: Metric, by: tuple[str, ...], of: str) -> str:
        labels = list(dict.fromkeys((*self.keep, *(_label(metric, key) for key in by))))
        return f"{how} by ({', '.join(labels)}) ({of})" if labels else f"{how}({of})"


def _label(metric: Metric, key: str) -> str:
    if key not in metric.labels and key not in _TARGET and key != LE:
        raise NoSuchSeriesError(f"{metric.name} has no label {key}; it has {', '.join(metric.labels)}")
    return prometheus_label(key)


def _require(metric: Metric, instrument: Instrument) -> None:
    if metric.instrument is not instrument:
        raise NoSuchSeriesError(f"{metric.name} is a {metric.instrument}, not a {instrument}")


def ratio(part: str, whole: str) -> str:
    """A share; no data where the whole is zero."""
    return f"({part}) / ({whole} > 0)"


def share(part: str, whole: str) -> str:
    """A share of events that may never have happened: then it is 0, as long as there is a whole."""
    return f"({part} or ({whole}) * 0) / ({whole} > 0)"


def or_zero(part: str, present: str) -> str:
    """Zero where nothing has been counted yet, and `present` says that something would be.

    If the two are by the same labels, for each of their series; else once, if the part has none at all.
    """
    zero = f"({present}) * 0"
    if _grouping(part) == _grouping(present):
        return f"{part} or {zero}"
    return f"{part} or ({zero} unless on () {part})"


def _grouping(expression: str) -> str:
    found = re.match(r"\w+ by \(([^)]*)\)", expression)
    return found[1] if found else ""


def label_values(metric: Metric, key: str, *, where: str = "") -> str:
    """A Grafana variable's query: the values of a label.  A histogram has no series of its bare name."""
    suffix = "_bucket" if metric.instrument is Instrument.HISTOGRAM else ""
    return f"label_values({metric.prometheus_sample}{suffix}{where}, {_label(metric, key)})"


def equal(value: str) -> str:
    """A matcher: exactly this."""
    return '="' + value.replace("\\", r"\\").replace('"', r"\"") + '"'


def like(pattern: str) -> str:
    """A matcher: this regular expression."""
    assert not _UNESCAPED.search(pattern), pattern
    return f'=~"{pattern}"'


def unlike(pattern: str) -> str:
    """A matcher: not this regular expression."""
    assert not _UNESCAPED.search(pattern), pattern
    return f'!~"{pattern}"'

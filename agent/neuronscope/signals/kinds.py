"""What is known of each signal that NeuronScope emits; `names` gathers them all."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Sensitivity(StrEnum):
    """What the content policy may do with a value.

    `PLAIN` is always recorded; `IDENTIFIER` is recorded, or hashed when the user asks for it;
    `CONTENT` is recorded only when content capture is on.
    """

    PLAIN = "plain"
    IDENTIFIER = "identifier"
    CONTENT = "content"


@dataclass(frozen=True, slots=True)
class Attribute:
    """A span attribute: its key, type, meaning, and how private its value is."""

    key: str
    type: str
    brief: str
    sensitivity: Sensitivity = Sensitivity.PLAIN


@dataclass(frozen=True, slots=True)
class Event:
    """A named log record: its severity as OpenTelemetry's number and word, and its meaning."""

    name: str
    severity: int
    severity_text: str
    brief: str


class Instrument(StrEnum):
    """OpenTelemetry's instrument kinds that we use."""

    HISTOGRAM = "histogram"
    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True, eq=False)  # one object a metric: looked up by identity, for every span
class Metric:
    """A metric: OTel name, instrument, UCUM unit, labels in order, bucket bounds if a histogram."""

    name: str
    instrument: Instrument
    unit: str
    brief: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def prometheus_name(self) -> str:
        """The family name on the Prometheus page, by OTel's translation rules.

        Source: OpenTelemetry specification, "Prometheus and OpenMetrics compatibility".
        """
        name = self.name.replace(".", "_")
        suffix = _PROMETHEUS_UNITS.get(self.unit, "")
        if suffix and not name.endswith(suffix):
            name += suffix
        return name

    @property
    def prometheus_sample(self) -> str:
        """What its samples are called: a counter's end in ``_total``."""
        return self.prometheus_name + ("_total" if self.instrument is Instrument.COUNTER else "")


def prometheus_label(key: str) -> str:
    """An attribute key as a label name: ``db.collection.name`` becomes ``db_collection_name``."""
    name = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in key)
    if name.startswith("__"):  # reserved by Prometheus
        name = "key" + name
    return name if name and not name[0].isdigit() else f"key_{name}"


_PROMETHEUS_UNITS: Final = {
    "s": "_seconds",
    "By": "_bytes",
    "1": "_ratio",
    "%": "_percent",
    "Cel": "_celsius",
    "W": "_watts",
    "J": "_joules",
}

ATTRIBUTES: dict[str, Attribute] = {}
EVENTS: dict[str, Event] = {}
METRICS: dict[str, Metric] = {}


def attribute(key: str, type_: str, brief: str, sensitivity: Sensitivity = Sensitivity.PLAIN) -> str:
    """Register an attribute; returns its key."""
    ATTRIBUTES[key] = Attribute(key, type_, brief, sensitivity)
    return key


def event(name: str, severity: int, severity_text: str, brief: str) -> Event:
    """Register an event."""
    made = EVENTS[name] = Event(name, severity, severity_text, brief)
    return made


def metric(
    name: str,
    instrument: Instrument,
    unit: str,
    brief: str,
    labels: tuple[str, ...] = (),
    buckets: tuple[float, ...] = (),
) -> Metric:
    """Register a metric; labels are keys of attributes, in order."""
    made = METRICS[name] = Metric(name, instrument, unit, brief, labels, buckets)
    return made

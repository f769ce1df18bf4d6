"""What the user promises, and when somebody is told: one TOML file, checked whole."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar, cast, get_type_hints

from neuronscope.dashboards.promql import NoSuchSeriesError
from neuronscope.exceptions import ConfigError
from neuronscope.signals import names

DEFAULT_FILE: Final = Path(__file__).with_name("thresholds.toml")
NAME: Final = "thresholds.toml"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Links:
    """Where things are, and where recordings lie."""

    grafana: str
    jaeger: str
    runbooks: str
    recordings: str


@dataclass(frozen=True, slots=True)
class Objective:
    """A share of good events."""

    objective: float

    def __post_init__(self) -> None:
        _between(self.objective, 0.5, 0.999999, "objective")


@dataclass(frozen=True, slots=True)
class Latency(Objective):
    """A share of events that took no longer than `seconds`, which is an edge of the stages' histogram."""

    seconds: float

    def __post_init__(self) -> None:
        Objective.__post_init__(self)
        if self.seconds not in names.STAGE_SECONDS:
            edges = ", ".join(f"{edge:g}" for edge in names.STAGE_SECONDS)
            raise NoSuchSeriesError(
                f"`seconds` must be an edge of the histogram ({edges}); got {self.seconds:g}"
            )


@dataclass(frozen=True, slots=True)
class Slo:
    """The five objectives."""

    availability: Objective
    first_chunk: Latency
    retrieval: Latency
    non_empty: Objective
    finite: Objective


@dataclass(frozen=True, slots=True)
class LowTraffic:
    """From how many events on a window counts."""

    events: int


@dataclass(frozen=True, slots=True)
class Retrieval:
    """Similarities below which an alert fires."""

    canary_overlap: float
    embedder_cosine: float
    index_cosine: float

    def __post_init__(self) -> None:
        for item in fields(self):
            _between(getattr(self, item.name), 0, 1, item.name)


@dataclass(frozen=True, slots=True)
class Numeric:
    """Of layers."""

    range_used: float
    zeros_rise: float


@dataclass(frozen=True, slots=True)
class Llm:
    """Of calls."""

    error_share: float

    def __post_init__(self) -> None:
        _between(self.error_share, 0, 1, "error_share")


@dataclass(frozen=True, slots=True)
class Cost:
    """In US dollars."""

    usd_per_day: float
    spike: float
    spike_floor_usd: float
    unpriced_share: float


@dataclass(frozen=True, slots=True)
class Agent:
    """Of the agent itself."""

    silent_minutes: int
    drop_share: float
    faults_per_hour: float

    def __post_init__(self) -> None:
        _between(self.silent_minutes, 1, 1440, "silent_minutes")


@dataclass(frozen=True, slots=True)
class Receivers:
    """Webhooks; an empty one tells nobody."""

    page: str
    ticket: str
    repeat_hours: int


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The whole file."""

    links: Links
    slo: Slo
    low_traffic: LowTraffic
    retrieval: Retrieval
    numeric: Numeric
    llm: Llm
    cost: Cost
    agent: Agent
    receivers: Receivers
    source: str = field(default="", compare=False)


@cache
def default() -> Thresholds:
    """What holds if the user says nothing."""
    return _parse({}, DEFAULT_FILE.read_text(encoding="utf-8"))


def load(path: Path | None) -> Thresholds:
    """Read the user's file over the defaults.

    Raises:
        ConfigError: the file is no TOML, or holds an unknown key or a value that makes no sense.
        OSError: it cannot be read.
    """
    if path is None:
        return default()
    text = path.read_text(encoding="utf-8")
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}") from error
    try:
        return _parse(given, DEFAULT_FILE.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def _parse(given: Mapping[str, Any], default_text: str) -> Thresholds:
    return _build(Thresholds, given, tomllib.loads(default_text), "")


def _build(cls: type[_T], given: Mapping[str, Any], default: Mapping[str, Any], at: str) -> _T:
    hints = get_type_hints(cls)
    known = [item.name for item in fields(cast(Any, cls)) if item.name != "source"]
    for key in given:
        if key not in known:
            raise ValueError(
                f"there is no `{at}{key}`; there are {', '.join(f'{at}{name}' for name in known)}"
            )
    values: dict[str, Any] = {}
    for name in known:
        value = given.get(name)
        if is_dataclass(hints[name]):
            if value is not None and not isinstance(value, dict):
                raise ValueError(f"`{at}{name}` must be a table")
            given_there = cast(dict[str, Any], value or {})
            values[name] = _build(hints[name], given_there, default[name], f"{at}{name}.")
        else:
            values[name] = _value(hints[name], default[name] if value is None else value, f"{at}{name}")
    return cls(**values)


def _value(kind: Any, value: Any, at: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not kind or (kind is float and not math.isfinite(value)):
        raise ValueError(f"`{at}` must be a {_WORDS[kind]}; got {value!r}")
    if kind is not str and value < 0:
        raise ValueError(f"`{at}` must not be negative; got {value!r}")
    return value


_WORDS: Final[Mapping[Any, str]] = {str: "string", float: "number", int: "whole number"}


def _between(value: float, low: float, high: float, name: str) -> None:
    if not low <= value <= high:
        raise ValueError(f"`{name}` must be between {low:g} and {high:g}; got {value:g}")

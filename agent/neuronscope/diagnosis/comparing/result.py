"""What a comparison says: two sides, causes with their evidence, what they explain, and what cannot be told.

Frozen values without behaviour beyond reading: the terminal, JSON, HTML and Markdown show the same ones.
Ids of traces are OpenTelemetry's 32 hexadecimal digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec

from neuronscope.diagnosis.kinds import STAGES, Kind, Stage

FORMAT: Final = "neuronscope.comparison/1"


class Verdict(StrEnum):
    """The answer in a word.

    `UNKNOWN`: something changed and nothing in the recordings explains it.  `INSUFFICIENT`: a side is empty,
    or too small for any statistic, and no plain fact changed.
    """

    CHANGED = "changed"
    NO_CHANGE = "no_change"
    UNKNOWN = "unknown"
    INSUFFICIENT = "insufficient"


class Effect(StrEnum):
    """What users or bills notice: what causes are made to explain."""

    ANSWERS = "answers"  # what the model writes: length, endings
    RESULTS = "results"  # which documents are found
    SCORES = "scores"
    EMPTY = "empty"  # nothing, or less than asked for, is found
    PROMPT_SIZE = "prompt_size"
    LATENCY = "latency"
    FIRST_CHUNK = "first_chunk"
    ERRORS = "errors"
    COST = "cost"
    LAYERS = "layers"  # numbers inside the model
    TRAFFIC = "traffic"


class Shape(StrEnum):
    """How a plot's numbers are meant."""

    HISTOGRAM = "histogram"  # shares between `edges`
    BARS = "bars"  # shares or means by label
    LAYERS = "layers"  # one number a layer, in the order of the model


@dataclass(frozen=True, slots=True)
class Plot:
    """Two small curves to draw beside each other.

    Attributes:
        edges: of a histogram: one more than it has shares.
        labels: of bars and layers: one each.
        before, after: heights; NaN where unknown.
        floor: of layers: how far a number differs within one side; empty if unknown.
        unit: of `edges`, or of the heights of bars and layers.
    """

    shape: Shape
    title: str
    before: tuple[float, ...]
    after: tuple[float, ...]
    edges: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()
    floor: tuple[float, ...] = ()
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measured fact.

    Attributes:
        what: in words: ``"input tokens of a call, median"``.
        before, after: text for facts such as a model's name; None: absent, or not recorded.
        effect: how large the difference is; a share, a distance between 0 and 1, or a ratio minus one.
        statistic: what `effect` is: ``fact``, ``share``, ``ks``, ``ratio``, ``overlap``, ``cosine``, …
        unit: of `before` and `after`: ``s``, ``{token}``, ``1``, …; empty for text.
        p: probability of such a difference without any change; None: a plain fact, not a test.
    """

    what: str
    before: str | float | None
    after: str | float | None
    effect: float
    statistic: str = "fact"
    unit: str = ""
    n_before: int = 0
    n_after: int = 0
    p: float | None = None
    plot: Plot | None = None


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that changed.

    Attributes:
        subject: what it is about: a collection, a model, a layer, a setting; may be empty.
        summary: one sentence for people.
        effect: size, 0 to 1 where it is a share.
        confidence: 0 to 1.
        explains: effects that follow from it and were seen.
        because: causes of `Comparison.causes` that this one follows from: then it is a consequence.
    """

    kind: Kind
    subject: str
    summary: str
    effect: float
    confidence: float
    evidence: tuple[Evidence, ...] = ()
    traces_before: tuple[str, ...] = ()
    traces_after: tuple[str, ...] = ()
    explains: tuple[Effect, ...] = ()
    because: tuple[Kind, ...] = ()

    @property
    def stage(self) -> Stage:
        """Where it happened."""
        return STAGES[self.kind]


@dataclass(frozen=True, slots=True)
class Symptom:
    """Something that got different for those who use or pay for the service.

    Attributes:
        explained_by: kinds of the causes that explain it, strongest first; empty: nothing does.
    """

    effect: Effect
    subject: str
    summary: str
    evidence: tuple[Evidence, ...]
    explained_by: tuple[Kind, ...] = ()


@dataclass(frozen=True, slots=True)
class Side:
    """What was read of one side.

    Attributes:
        paths: files and directories, as they were named.
        calls: model calls, searches and so on, by operation.
        start_unix_ns, end_unix_ns: of the spans; 0 without any.
        services: names of the services.
        damage: what the files could not give back, in words.
        layers: layer records; `tensors`: those with the full values.
        content: prompts or answers are in it.
        sampled: traces that the recorder saw, if it kept only some of them, estimated; else None.
        environment: resource attributes that tell software and hardware.
        window: unix nanoseconds from and until which it was read; 0: without such a limit.
    """

    paths: tuple[str, ...]
    traces: int = 0
    spans: int = 0
    calls: Mapping[str, int] = field(default_factory=dict[str, int])
    start_unix_ns: int = 0
    end_unix_ns: int = 0
    services: tuple[str, ...] = ()
    damage: tuple[str, ...] = ()
    layers: int = 0
    tensors: int = 0
    content: bool = False
    sampled: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    window: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Pairing:
    """Which calls of the two sides are the same question asked twice.

    Attributes:
        pairs: by what they were paired: ``canary``, ``query``, ``request``.
        rate: pairs over the calls of the smaller side that could have been paired; 0 to 1.
    """

    pairs: Mapping[str, int] = field(default_factory=dict[str, int])
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Power:
    """What size of change would have been seen, had there been one.

    Attributes:
        what: the feature, in words.
        detectable: the smallest change that nine of ten such comparisons would have reported.
        statistic: what `detectable` is measured in (see `Evidence.statistic`).
    """

    what: str
    detectable: float
    statistic: str
    n_before: int
    n_after: int


@dataclass(frozen=True, slots=True)
class Untold:
    """What these recordings cannot tell, and what would.

    Attributes:
        kind: the cause that could be there unseen.
    """

    kind: Kind
    why: str
    needs: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The whole answer.

    Attributes:
        causes: likeliest first; those that explain others before those.
        consequences: findings that follow from one of `causes`.
        symptoms: what was noticed, and which causes explain it.
        tests: statistical tests made, all features together: what the false discovery rate is over.
        seconds: the comparison took.
    """

    before: Side
    after: Side
    pairing: Pairing
    verdict: Verdict
    causes: tuple[Cause, ...] = ()
    consequences: tuple[Cause, ...] = ()
    symptoms: tuple[Symptom, ...] = ()
    power: tuple[Power, ...] = ()
    untold: tuple[Untold, ...] = ()
    tests: int = 0
    seconds: float = 0.0

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of the causes, likeliest first."""
        return tuple(cause.kind for cause in self.causes)

    def of(self, kind: Kind) -> Cause | None:
        """The cause or consequence of a kind, if found."""
        return next((item for item in (*self.causes, *self.consequences) if item.kind is kind), None)

    def to_dict(self) -> dict[str, Any]:
        """Plain dictionaries, lists, texts and numbers; numbers that are not finite are None."""
        found: dict[str, Any] = msgspec.json.decode(self.to_json())
        return found

    def to_json(self) -> str:
        """JSON text; keys are the fields' names."""
        plain = msgspec.to_builtins(self)
        for name in ("causes", "consequences"):
            for written, cause in zip(plain[name], getattr(self, name), strict=True):
                written["stage"] = cause.stage.value
        return msgspec.json.encode({"format": FORMAT, **plain}).decode()

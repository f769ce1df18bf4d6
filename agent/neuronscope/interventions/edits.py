"""Edits that last: changes of a model that stay in force in production, until they are switched off.

Each has a name and a version, and marks the spans of the calls that it took part in.  A fault of an edit
leaves the output as it was; it is counted by the guard, never raised into the service.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace

from neuronscope import recording as recordings
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope.engine.metrics import Aggregator
from neuronscope.engine.opening import our_span
from neuronscope.interventions.backend import Interventions
from neuronscope.signals import names

_FAILED: Final = object()  # in the place of what a change that failed would have made
_CLOCKED: Final = 32  # every so many runs the clock is read
PROBE: Final = "edits"
"""What the cost of edits is told under."""

Change = Callable[[Any], Any]
"""From a layer's hidden states (the first tensor of its output) to what stands for them."""


# --- changes ready made: they know tensors by their methods alone -----------------------------------------


@dataclass(frozen=True, slots=True)
class Steer:
    """Add a direction to the hidden states.

    Attributes:
        vector: as wide as the last dimension: a tensor, an array or a list.
        scale: how much of it.
    """

    vector: Any
    scale: float = 1.0

    def __call__(self, hidden: Any) -> Any:
        """The hidden states, steered."""
        return hidden + self.scale * like(hidden, self.vector)


@dataclass(frozen=True, slots=True)
class Scale:
    """Multiply the hidden states."""

    factor: float

    def __call__(self, hidden: Any) -> Any:
        """The hidden states, scaled."""
        return hidden * self.factor


@dataclass(frozen=True, slots=True)
class Clamp:
    """Keep every value between two bounds; None: no bound on that side."""

    low: float | None = None
    high: float | None = None

    def __call__(self, hidden: Any) -> Any:
        """The hidden states, clamped."""
        return hidden.clamp(self.low, self.high)


@dataclass(frozen=True, slots=True)
class Ablate:
    """Set units of the last dimension to a constant.

    Attributes:
        units: their numbers; None: all.
        to: the constant: a number or, for mean ablation, a value for each unit.
    """

    units: Sequence[int] | None = None
    to: Any = 0.0

    def __call__(self, hidden: Any) -> Any:
        """The hidden states, ablated."""
        changed = hidden.clone()
        value = self.to if isinstance(self.to, int | float) else like(hidden, self.to)
        if self.units is None:
            changed[...] = value
        else:
            changed[..., list(self.units)] = value
        return changed


@dataclass(frozen=True, slots=True)
class NanGuard:
    """Replace NaN and infinities, so that one bad value does not spoil what follows."""

    nan: float = 0.0
    bound: float | None = None

    def __call__(self, hidden: Any) -> Any:
        """The hidden states, finite."""
        if self.bound is None:
            return hidden.nan_to_num(nan=self.nan)
        return hidden.nan_to_num(nan=self.nan, posinf=self.bound, neginf=-self.bound)


def like(hidden: Any, values: Any) -> Any:
    """Values as a tensor of the kind, dtype and device of another."""
    return values.to(hidden) if hasattr(values, "to") else hidden.new_tensor(values)


# --- what is in force -------------------------------------------------------------------------------------


class Edit:
    """A change in force at some sites of a model.

    Attributes:
        name: by which it is switched; `version`: what of it is in force.
        sites: paths of the modules whose outputs it changes.
        enabled: switch it at run time, from any thread; the next call sees it.
        runs: how many outputs it has changed.
    """

    __slots__ = ("__weakref__", "_change", "_undo", "enabled", "label", "name", "runs", "sites", "version")

    def __init__(self, name: str, version: str, sites: Sequence[str], change: Change) -> None:
        self.name = name
        self.version = version
        self.label = f"{name}@{version}"
        self.sites = tuple(sites)
        self.enabled = True
        self.runs = 0
        self._change = change
        self._undo: list[Callable[[], None]] = []

    def install(self, interventions: Interventions) -> None:
        """Put it in force."""
        self._undo = [interventions.edit(site, self._run) for site in self.sites]

    def remove(self) -> None:
        """Take it out of the model.  Idempotent."""
        if not self._undo:
            return
        while self._undo:
            self._undo.pop()()
        ENGINE.metrics.set(names.EDITS_ACTIVE, 0, (("edit", self.label),))

    @property
    def in_force(self) -> bool:
        """Is it in the model?  It may be switched off nevertheless."""
        return bool(self._undo)

    def describe(self) -> str:
        """A line for `doctor`."""
        state = "removed" if not self._undo else "on" if self.enabled else "off"
        return f"{self.label} ({state}) at {', '.join(self.sites)}: {self.runs} runs"

    def _run(self, hidden: Any) -> Any:
        if not self.enabled:
            return hidden
        clocked = self.runs % _CLOCKED == 0
        started = time.thread_time_ns() if clocked else 0
        changed = GUARD.call(f"edit:{self.name}", self._change, hidden, default=_FAILED)
        ran = changed is not _FAILED
        if ran:
            self.runs += 1
            GUARD.call("edit.mark", _mark, self.label)
        if clocked:
            recording = recordings.CURRENT.get()
            budget = recording.budget if recording is not None else ENGINE.budget
            spent = time.thread_time_ns() - started
            budget.charge(PROBE, spent * _CLOCKED if ran else spent, clip=False)
        return changed if ran else hidden

    def __repr__(self) -> str:
        return f"<edit {self.describe()}>"


def _mark(label: str) -> None:
    """Tell the span that is current that an edit took part."""
    context = otel_context.get_current()
    span = trace.get_current_span(context)
    ours = our_span(context, span)
    if ours is not None:
        labels: tuple[str, ...] = (ours.own or {}).get(names.EDITS, ())
        if label not in labels:
            ours.add_fact(names.EDITS, (*labels, label))
    elif span.is_recording():
        span.set_attribute(f"{names.EDITS}.{label}", True)


_all: Final[weakref.WeakSet[Edit]] = weakref.WeakSet()


def in_force() -> list[Edit]:
    """Every edit of this process that is in a model, for `doctor` and health pages."""
    return sorted((edit for edit in _all if edit.in_force), key=lambda edit: edit.label)


def observe(metrics: Aggregator) -> None:
    """Tell which edits change the answers of this process; called before metrics are collected."""
    for edit in in_force():
        metrics.set(names.EDITS_ACTIVE, float(edit.enabled), (("edit", edit.label),))


class Edits:
    """The lasting edits of one model: ``ns_model.edits``.

    ::

        ns_model.edits.add("calm", "model.layers.12", Steer(direction, 4.0), version="2")
        ns_model.edits["calm"].enabled = False
    """

    def __init__(self, interventions: Callable[[], Interventions]) -> None:
        self._interventions = interventions
        self._edits: dict[str, Edit] = {}

    def add(self, name: str, sites: str | Sequence[str], change: Change, *, version: str = "1") -> Edit:
        """Put an edit in force; one of the same name is replaced.

        Args:
            sites: paths or patterns of modules whose outputs are changed: their first tensor.  A module that
                several of them name, or that has several paths, is changed once in each of its calls.
            change: `Steer`, `Clamp`, `Ablate`, `Scale`, `NanGuard`, or a function of the hidden states.  What
                it returns must have their shape, dtype and device.

        Raises:
            LayerNotFoundError: a path or pattern names no module; nothing is changed then.
            TypeError: the change is nothing that can be called.
            ValueError: no sites were given.
        """
        asked: object = change
        if not callable(asked):
            raise TypeError(f"a change is a function of the hidden states, not a {type(asked).__name__}")
        if not sites and sites != "":
            raise ValueError(f"no sites were given for the edit {name!r}")
        interventions = self._interventions()
        patterns = [sites] if isinstance(sites, str) else sites
        edit = Edit(name, version, interventions.paths(*patterns), change)
        before = self._edits.get(name)
        edit.install(interventions)
        self._edits[name] = edit
        _all.add(edit)
        if before is not None:
            before.remove()
        return edit

    def remove(self, name: str) -> None:
        """Take an edit out of the model.

        Raises:
            KeyError: there is none of this name.
        """
        self._edits.pop(name).remove()

    def clear(self) -> None:
        """Take all edits out of the model."""
        while self._edits:
            self._edits.popitem()[1].remove()

    def __getitem__(self, name: str) -> Edit:
        return self._edits[name]

    def __iter__(self) -> Iterator[Edit]:
        return iter(tuple(self._edits.values()))

    def __len__(self) -> int:
        return len(self._edits)

    def __contains__(self, name: object) -> bool:
        return name in self._edits

    def __repr__(self) -> str:
        return "\n".join(edit.describe() for edit in self) or "no edits"

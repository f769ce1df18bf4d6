"""Plans: interventions as data.

A plan is JSON: which sites are read, and what is done to which.  It holds no code and opens no files but
those in a folder that whoever runs it allows, so it can be kept beside a recording, compared, and taken
from others::

    {
      "neuronscope_plan": 1,
      "name": "calm down",
      "steps": [
        {"site": "model.layers.3", "op": "read"},
        {"site": "model.layers.12", "op": "add", "vector": {"file": "calm.npy"}, "scale": 4.0},
        {"site": "model.layers.20.mlp", "op": "zero", "positions": [0]},
        {"site": "model.layers.21", "op": "patch", "artifact": "good.nsz", "layer": "model.layers.21"}
      ]
    }

=============  ==========================================================================================
``read``       keep the hidden states (the first tensor of the output)
``scale``      multiply by ``factor``
``add``        add ``scale`` (default 1) times ``vector``: a list, or ``{"file": ...}``
``zero``       set to zero
``mean``       set to ``vector``, the mean of a data set: mean ablation
``clamp``      keep between ``low`` and ``high``
``replace``    set to ``value``, of the whole shape: a list, or ``{"file": ...}``
``patch``      set to what the recording ``artifact`` holds for ``layer`` (default: the site), ``step``
(default 0)
=============  ==========================================================================================

Any but ``read`` may be narrowed: ``units`` of the last dimension, ``positions`` of the second, ``rows`` of
the first.  Steps at one site apply in their order; a pattern as site means each module it names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, cast

from opentelemetry import trace

from neuronscope.engine import ENGINE
from neuronscope.engine.span import LightSpan
from neuronscope.exceptions import LayerNotFoundError
from neuronscope.interventions.edits import like
from neuronscope.interventions.errors import PlanError
from neuronscope.signals import names

if TYPE_CHECKING:
    from neuronscope.interventions.handle import Intervening

VERSION: Final = 1
LIBRARY: Final = "neuronscope.interventions"
LARGEST_LIST: Final = 1_000_000  # numbers written out in a plan
# What each operation needs, and may have besides the narrowing.
_NEEDS: Final[dict[str, tuple[frozenset[str], frozenset[str]]]] = {
    "read": (frozenset(), frozenset()),
    "scale": (frozenset({"factor"}), frozenset()),
    "add": (frozenset({"vector"}), frozenset({"scale"})),
    "zero": (frozenset(), frozenset()),
    "mean": (frozenset({"vector"}), frozenset()),
    "clamp": (frozenset(), frozenset({"low", "high"})),
    "replace": (frozenset({"value"}), frozenset()),
    "patch": (frozenset({"artifact"}), frozenset({"layer", "step"})),
}
_NARROWING: Final = frozenset({"units", "positions", "rows"})
_ALWAYS: Final = frozenset({"site", "op"})


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan.

    Attributes:
        site: path or pattern of the module whose hidden states it is about.
        op: what is done; see the module's table.
        details: the operation's own entries.
    """

    site: str
    op: str
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, number: int, told: object) -> Self:
        """Check one step.

        Raises:
            PlanError: the message names the step.
        """
        where = f"step {number}"
        if not isinstance(told, Mapping):
            raise PlanError(f"{where} is not an object but a {type(told).__name__}")
        step = cast(Mapping[str, Any], told)
        site, op = step.get("site"), step.get("op")
        if not isinstance(site, str):
            raise PlanError(f"{where} has no site: a path such as 'model.layers.3'")
        needs = _NEEDS.get(op) if isinstance(op, str) else None
        if needs is None:
            raise PlanError(f"{where}: the operation {op!r} is not one of {', '.join(_NEEDS)}")
        details = {key: value for key, value in step.items() if key not in _ALWAYS}
        missing = needs[0] - details.keys()
        unknown = details.keys() - needs[0] - needs[1] - (frozenset() if op == "read" else _NARROWING)
        if missing or unknown:
            what = f"needs {sorted(missing)}" if missing else f"cannot have {sorted(unknown)}"
            raise PlanError(f"{where} ({op} at {site!r}) {what}")
        _check_details(f"{where} ({op} at {site!r})", details)
        return cls(site, cast(str, op), details)


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked plan.

    Attributes:
        steps: in order.
        name: told in spans and results.
        files: the folder that ``file`` and ``artifact`` are looked up in; without one, they are refused.
    """

    steps: tuple[Step, ...]
    name: str = ""
    files: Path | None = None

    @classmethod
    def of(cls, told: Plan | Mapping[str, Any] | str, files: str | Path | None = None) -> Plan:
        """Check a plan, given as JSON or as what JSON says.

        Raises:
            PlanError: the message names the step and what is wrong with it.
        """
        if isinstance(told, Plan):
            return told
        if isinstance(told, str):
            try:
                told = json.loads(told)
            except ValueError as error:
                raise PlanError(f"this plan is not JSON: {error}") from error
        return cls._checked(told, files)

    @classmethod
    def _checked(cls, said: object, files: str | Path | None) -> Plan:
        told = cast("Mapping[str, Any]", said if isinstance(said, Mapping) else {})
        if told.get("neuronscope_plan") != VERSION:
            raise PlanError(f'a plan is an object with "neuronscope_plan": {VERSION}')
        unknown = told.keys() - {"neuronscope_plan", "name", "steps"}
        steps = told.get("steps")
        if unknown or not isinstance(steps, Sequence) or isinstance(steps, str) or not steps:
            raise PlanError(
                f"a plan has a name and a list of steps{f', not {sorted(unknown)}' if unknown else ''}"
            )
        checked = tuple(Step.of(number, step) for number, step in enumerate(cast(Sequence[object], steps)))
        return cls(checked, str(told.get("name", "")), Path(files) if files is not None else None)

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan from a file; its files are beside it."""
        path = Path(path)
        return cls.of(path.read_text(encoding="utf-8"), path.parent)

    def to_json(self) -> str:
        """The plan as it is written."""
        steps = [{"site": step.site, "op": step.op, **step.details} for step in self.steps]
        return json.dumps({"neuronscope_plan": VERSION, "name": self.name, "steps": steps})


@dataclass(frozen=True, slots=True)
class PlanResult:
    """What running a plan gave.

    Attributes:
        output: what the model returned.
        reads: what ``read`` steps kept, by path: a tensor for each of the module's calls.
    """

    output: Any
    reads: Mapping[str, list[Any]]


def run_plan(model: Intervening, plan: Plan, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> PlanResult:
    """See `Intervening.run_plan`."""
    method = None
    call: dict[str, Any] = dict(kwargs)
    if "method" in call:
        method = call.pop("method")
    reads: dict[str, list[Any]] = {}
    with _told(plan), model.trace(*args, method=method, **call) as t:
        for number, step in enumerate(plan.steps):
            try:
                sites = t.sites(step.site)
            except LayerNotFoundError as error:
                raise PlanError(f"step {number} ({step.op}): {error}") from error
            for site in sites:
                site.edit_first(_named(number, step, _change(step, plan, site.path, reads)))
    return PlanResult(t.result, reads)


class _told:  # noqa: N801  reads as a statement
    """A span for the run of a plan, that carries it: so a recording holds what was done."""

    __slots__ = ("_plan", "_span", "_token")

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._span: LightSpan | None = None

    def __enter__(self) -> None:
        from opentelemetry import context as otel_context

        facts = {names.PLAN: self._plan.to_json()}
        opened = ENGINE.open_span(
            f"plan {self._plan.name}".strip(), trace.SpanKind.INTERNAL, LIBRARY, facts, nested=True
        )
        if opened is not None:
            self._span, context = opened
            self._token = otel_context.attach(context)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        from opentelemetry import context as otel_context

        if self._span is not None:
            if kind is not None:
                self._span.add_fact(names.ERROR_TYPE, kind.__name__)
            otel_context.detach(self._token)
            ENGINE.finish(self._span)


def _named(number: int, step: Step, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The change, whose failure names the step: a unit or position that the hidden states have not."""

    def changed(hidden: Any) -> Any:
        try:
            return change(hidden)
        except (IndexError, RuntimeError) as error:
            if type(error) not in {IndexError, RuntimeError}:  # memory that ran out is no fault of the plan
                raise
            raise PlanError(
                f"step {number} ({step.op} at {step.site!r}), on hidden states of shape "
                f"{tuple(hidden.shape)}: {error}"
            ) from error

    return changed


def _change(step: Step, plan: Plan, path: str, reads: dict[str, list[Any]]) -> Callable[[Any], Any]:
    details = step.details
    if step.op == "read":
        kept = reads.setdefault(path, [])

        def read(hidden: Any) -> Any:
            kept.append(hidden.detach().clone())
            return hidden

        return read
    operation = _operation(step, plan, path)
    if not _NARROWING & details.keys():
        return operation

    def narrowed(hidden: Any) -> Any:
        index = _index(details, len(hidden.shape))
        changed = hidden.clone()
        changed[index] = operation(hidden)[index]
        return changed

    return narrowed


def _operation(step: Step, plan: Plan, path: str) -> Callable[[Any], Any]:
    details = step.details
    match step.op:
        case "scale":
            return lambda hidden: hidden * details["factor"]
        case "add":
            vector = _values(details["vector"], plan)
            return lambda hidden: hidden + details.get("scale", 1.0) * like(hidden, vector)
        case "zero":
            return lambda hidden: hidden.new_zeros(hidden.shape)
        case "mean":
            mean = _values(details["vector"], plan)
            return lambda hidden: like(hidden, mean).expand_as(hidden)
        case "clamp":
            return lambda hidden: hidden.clamp(details.get("low"), details.get("high"))
        case "replace":
            value = _values(details["value"], plan)
        case _:
            value = _patch(details, plan, path)

    def replaced(hidden: Any) -> Any:
        new = like(hidden, value)
        if tuple(new.shape) != tuple(hidden.shape):
            raise PlanError(
                f"{step.op} at {path!r}: a value of shape {tuple(new.shape)} for {tuple(hidden.shape)}"
            )
        return new

    return replaced


def _index(details: Mapping[str, Any], dimensions: int) -> tuple[Any, ...]:
    """Rows, positions and units as an index; each in a dimension of its own, so that they cross."""
    asked: dict[int, list[int]] = {}
    for name, dimension in (("rows", 0), ("positions", 1), ("units", dimensions - 1)):
        if name in details:
            if dimension >= dimensions or (name == "units" and dimension in asked):
                raise PlanError(f"{name} cannot be told apart in a tensor of {dimensions} dimensions")
            asked[dimension] = list(details[name])
    index: list[Any] = [slice(None)] * dimensions
    crossing = sorted(asked)
    for order, dimension in enumerate(crossing):
        numbers: Any = asked[dimension]
        for _ in range(len(crossing) - order - 1):
            numbers = [[number] for number in numbers]
        index[dimension] = numbers
    return tuple(index)


def _values(told: object, plan: Plan) -> Any:
    if isinstance(told, Mapping):
        import numpy as np

        path = _inside(cast(Mapping[str, Any], told).get("file"), plan)
        try:
            return np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise PlanError(f"{path.name} cannot be read as an array (.npy): {error}") from error
    return told


def _patch(details: Mapping[str, Any], plan: Plan, path: str) -> Any:
    from neuronscope.artifact import load

    artifact = load(_inside(details["artifact"], plan))
    layer, step = details.get("layer", path), details.get("step", 0)
    for record in artifact.telemetry.layer_snapshots:
        if record.layer_id == layer and record.step == step and record.tensor is not None:
            return record.tensor.numpy()
    raise PlanError(f"{details['artifact']} holds no full tensor of {layer!r} at step {step}")


def _inside(name: object, plan: Plan) -> Path:
    """A file of the plan's folder; nothing outside of it, by whatever way."""
    if not isinstance(name, str) or not name:
        raise PlanError('a file is given by its name: {"file": "vector.npy"}')
    if plan.files is None:
        raise PlanError(
            f"this plan may not read files ({name!r}): say where they are, Plan.of(plan, files=folder)"
        )
    folder = plan.files.resolve()
    path = (folder / name).resolve()
    if not path.is_relative_to(folder):
        raise PlanError(f"{name!r} is not in the plan's folder")
    if not path.exists():
        raise PlanError(f"there is no {name!r} in the plan's folder")
    return path


def _check_details(where: str, details: Mapping[str, Any]) -> None:
    for name in ("factor", "scale", "low", "high"):
        if name in details and (
            isinstance(details[name], bool) or not isinstance(details[name], int | float)
        ):
            raise PlanError(f"{where}: {name} is a number, not {details[name]!r}")
    for name in _NARROWING & details.keys():
        numbers = details[name]
        if not isinstance(numbers, list) or not _are_whole(numbers):
            raise PlanError(f"{where}: {name} is a list of whole numbers")
    for name in ("vector", "value"):
        if name in details and not isinstance(details[name], Mapping) and not _is_numbers(details[name]):
            raise PlanError(
                f'{where}: {name} is a list of numbers (at most {LARGEST_LIST:,}), or {{"file": …}}'
            )
    for name in ("artifact", "layer"):
        if name in details and not isinstance(details[name], str):
            raise PlanError(f"{where}: {name} is a text")
    if "step" in details and type(details["step"]) is not int:
        raise PlanError(f"{where}: step is a whole number")


def _are_whole(numbers: Any) -> bool:
    return all(type(number) is int for number in numbers)


def _is_numbers(told: object) -> bool:
    pending: list[object] = [told]
    seen = 0
    while pending:
        value = pending.pop()
        seen += 1
        if seen > LARGEST_LIST:
            return False
        if isinstance(value, list):
            pending += cast("list[object]", value)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            return False
    return isinstance(told, list) and bool(cast("list[object]", told))

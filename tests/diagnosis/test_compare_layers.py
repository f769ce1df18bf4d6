"""The first diverging layer: found from summaries alone, and told apart from noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.diagnosis.side import START

import neuronscope as ns
from neuronscope.artifact import Artifact, Telemetry
from neuronscope.diagnosis.comparing.diverging import order
from neuronscope.diagnosis.kinds import Kind
from neuronscope.signals.records import LayerRecord
from neuronscope.signals.tensors import TensorSummary

LAYERS = [f"encoder.layer.{number}" for number in range(12)]
Values: TypeAlias = NDArray[np.float64]
Change: TypeAlias = Callable[[Values], Values]


def recorded(
    seed: int,
    change: Change | None = None,
    first: int = 5,
    dtype: str = "F32",
    runs: int = 40,
    noise: float = 0.0,
) -> Artifact:
    """A model's layers over some runs; from layer `first` on they are changed."""
    random = np.random.default_rng(seed)
    records: list[LayerRecord] = []
    for run in range(runs):
        for place, layer in enumerate(LAYERS):
            values = random.normal(0.05 * place, 1 + 0.1 * place, 400) * random.lognormal(0, 0.02)
            values = np.maximum(values, 0) if layer.endswith("7") else values
            values = values * (1 + noise * random.normal(size=400))
            if change is not None and place >= first:
                values = change(values)
            at = START + run * 10**9 + place
            records.append(
                LayerRecord(
                    "m", layer, 0, at, (400,), dtype, trace_id=run + 1, summary=TensorSummary.of(values)
                )
            )
    return Artifact(Telemetry([], records))


def kinds(before: Artifact, after: Artifact) -> tuple[Kind, ...]:
    """Causes found."""
    return ns.compare(before, after).kinds


def larger(values: Values) -> Values:
    """By a factor."""
    return 1.3 * values


def moved(values: Values) -> Values:
    """Others, of about the same size."""
    return values + 0.5


def clipped(values: Values) -> Values:
    """The largest are cut off."""
    return np.clip(values, -1.0, 1.0)


def spiked(values: Values) -> Values:
    """One is far larger."""
    return np.append(values[:-1], 60.0)


@pytest.mark.parametrize(
    ("change", "how"),
    [(larger, "scale"), (moved, "direction"), (clipped, "saturation"), (spiked, "outliers")],
)
def test_the_first_diverging_layer_is_named_and_how_it_diverges(change: Change, how: str) -> None:
    """Not the largest difference: the first."""
    result = ns.compare(recorded(1), recorded(2, change))
    (cause,) = result.causes
    assert (cause.kind, cause.subject) == (Kind.LAYERS_DIVERGED, f"m: {LAYERS[5]}")
    assert cause.evidence[0].statistic == how
    plot = cause.evidence[0].plot
    assert plot is not None
    assert plot.labels == tuple(LAYERS)
    assert len(plot.floor) == len(plot.after) == len(LAYERS)


@pytest.mark.parametrize("seed", range(2, 8))
def test_other_inputs_are_no_divergence(seed: int) -> None:
    """Medians differ between any two samples: within one side, too."""
    assert kinds(recorded(1), recorded(seed)) == ()


def test_another_element_type_is_told_as_such_and_its_rounding_is_no_divergence() -> None:
    """Half precision rounds; that is no other model."""
    assert kinds(recorded(1), recorded(2, dtype="BF16", noise=2e-3)) == (Kind.PRECISION_CHANGED,)


def test_another_precision_explains_layers_that_differ_more() -> None:
    """Where rounding makes the numbers others, precision is the cause and the layers its consequence."""
    result = ns.compare(recorded(1), recorded(2, np.round, dtype="I8"))
    assert result.kinds == (Kind.PRECISION_CHANGED,)


def test_numbers_that_are_none_are_found_where_they_were_born() -> None:
    """The first layer with NaN, not the last that has inherited them."""
    result = ns.compare(recorded(1), recorded(2, lambda values: np.append(values[:-1], np.nan), first=8))
    assert result.causes[0].kind is Kind.NON_FINITE
    assert result.causes[0].subject == f"m: {LAYERS[8]}"


def test_dead_units_are_found_where_they_begin() -> None:
    """A third of a layer's numbers becomes zero."""
    result = ns.compare(
        recorded(1),
        recorded(2, lambda values: np.where(np.arange(values.size) % 3 == 0, 0.0, values), first=6),
    )
    assert result.causes[0].kind is Kind.DEAD_UNITS
    assert result.causes[0].subject == f"m: {LAYERS[6]}"


def test_a_few_runs_say_nothing() -> None:
    """Too few runs for a median's noise."""
    assert kinds(recorded(1, runs=4), recorded(2, lambda values: 1.5 * values, runs=4)) == ()


def test_layers_sort_as_models_run_them() -> None:
    """Ten comes after nine."""
    shuffled: Sequence[str] = [LAYERS[place] for place in chain(range(11, -1, -2), range(0, 12, 2))]
    assert sorted(shuffled, key=order) == LAYERS

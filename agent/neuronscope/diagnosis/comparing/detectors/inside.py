"""Detectors of models in the process: weights, precision, layers that diverge, numbers that are none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import numpy as np

from neuronscope.diagnosis.comparing.case import FACT, PAIRED, TESTED, Case, cause, fact, groups
from neuronscope.diagnosis.comparing.columns import LayerKey, finite
from neuronscope.diagnosis.comparing.detectors.calling import calls, traces
from neuronscope.diagnosis.comparing.diverging import LayerChange, bad_runs, dead
from neuronscope.diagnosis.comparing.layers import (
    common_layers,
    first_diverged,
    from_tensors,
    layer_changes,
    layer_plot,
    layer_traces,
    places_of,
)
from neuronscope.diagnosis.comparing.result import Cause, Evidence
from neuronscope.diagnosis.kinds import Kind

DEAD: Final = 0.10
_WORDS: Final = {
    "scale": "its numbers are larger or smaller by a factor",
    "direction": "its numbers are others, of about the same size",
    "noise": "its numbers are the same with a little noise",
    "saturation": "its largest numbers are cut off",
    "outliers": "a few of its numbers are far larger",
    "sparser": "more of its numbers are zero",
    "absent": "it does not run any more",
}


def weights_changed(case: Case) -> Iterator[Cause]:
    """Another fingerprint of the weights of a model that is no embedder; other adapters, edits or layers."""
    for (operation, model), *masks in groups(case, calls, ("operation", "watched")):
        if not model or operation in {"embeddings", "rerank"}:
            continue
        pair = (masks[0], masks[1])
        for column, what in (
            ("weights", "fingerprint of the weights"),
            ("adapters", "adapters"),
            ("edits", "lasting edits"),
            ("wrapped", "wrappers"),
        ):
            values = [side.calls.rows(mask, column) for side, mask in zip(case.sides, pair, strict=True)]
            if column == "weights":
                values = [[value for value in each if value] for each in values]
            mixed = case.mix(f"{what} of {model}", *values)
            if mixed is None or mixed.distance < 0.5 or not mixed.switched:
                continue
            yield cause(
                Kind.WEIGHTS_CHANGED,
                model,
                f"The {what} of {model} are others.",
                [fact(what, mixed, _text)],
                FACT,
                traces(case, pair),
            )
            break


def precision_changed(case: Case) -> Iterator[Cause]:
    """Another element type, or another quantisation."""
    found: dict[str, list[Evidence]] = {}
    for (operation, model), *masks in groups(case, calls, ("operation", "watched")):
        if not model:
            continue
        del operation
        for column, what in (
            ("dtype", "element type of the weights"),
            ("stored_as", "quantisation of the weights"),
        ):
            values = [
                side.calls.rows(mask, column)
                for side, mask in zip(case.sides, (masks[0], masks[1]), strict=True)
            ]
            if column == "dtype":
                values = [[value for value in each if value] for each in values]
            mixed = case.mix(f"{what} of {model}", *values)
            if mixed is not None and mixed.distance >= 0.5 and mixed.switched:
                found.setdefault(model, []).append(fact(what, mixed, lambda value: str(value or "none")))
    for (model, layer, run), (before, after) in common_layers(case):
        del run
        if before.dtypes and after.dtypes:
            old, new = (rows.dtypes.most_common(1)[0] for rows in (before, after))
            if old[0] != new[0] and model not in found:
                found[model] = [
                    Evidence(f"element type of {layer}", old[0], new[0], 1.0, "fact", "", old[1], new[1])
                ]
    for model, evidence in found.items():
        first = evidence[0]
        yield cause(
            Kind.PRECISION_CHANGED,
            model,
            f"{model} computes in another precision: {first.what} {first.after}; it was {first.before}.",
            evidence,
            FACT,
        )


def layers_diverged(case: Case) -> Iterator[Cause]:
    """The first layer whose numbers are beyond what they do by themselves."""
    by_model: dict[str, list[LayerChange]] = {}
    for item in layer_changes(case):
        if item.p is not None:
            case.p_values.append(item.p)
        by_model.setdefault(item.model, []).append(item)
    for model, layers in by_model.items():
        first = first_diverged(layers)
        if first is not None:
            yield _diverged(case, model, layers, first)


def _diverged(case: Case, model: str, layers: list[LayerChange], first: LayerChange) -> Cause:
    told, evidence = from_tensors(first)
    run = [item for item in layers if item.run == first.run]
    after = [item for item in run if item.diverged]
    blind = [item for item in run[: run.index(first)] if item.apart is None] if first.apart else []
    summary = (
        f"In {model} the numbers are others from {first.layer} on ({len(after)} of {len(run)} layers): "
        f"{_WORDS[first.how.value]}. They differ by {first.size:.2g} of their size, "
        f"{first.size / max(first.noise, 1e-12):.3g} times the noise.{told}"
    )
    if blind:
        summary += f" Of {len(blind)} layers before it only summaries are known, which see less."
    what = f"size of {first.layer}'s numbers, median"
    return cause(
        Kind.LAYERS_DIVERGED,
        f"{model}: {first.layer}",
        summary,
        [
            Evidence(
                what,
                first.before,
                first.after,
                first.size,
                first.how.value,
                "",
                first.n_before,
                first.n_after,
                first.p,
                layer_plot(model, run),
            ),
            *evidence,
        ],
        PAIRED if first.paired else TESTED,
        layer_traces(case, first),
        effect=min(1.0, first.size),
    )


def non_finite(case: Case) -> Iterator[Cause]:
    """NaN or Inf, and the first layer that makes them."""
    (bad, n), (bad_later, n_later) = _counts(case)
    share = case.share("model calls with numbers that are not finite", (bad, bad_later), (n, n_later))
    if share is None or share.effect == 0 or not bad + bad_later:
        return
    if bad and bad_later:
        if share.effect < 0.02:
            return
    elif max(bad, bad_later) >= 3:
        share = replace(share, p=None, statistic="fact")  # where there was none it is no matter of chance
    place = 1 if bad_later * n > bad * n_later else 0
    model, layer, where_seen = _born(case, place)
    born = f", first in {layer}" if layer else ""
    yield cause(
        Kind.NON_FINITE,
        f"{model}: {layer}" if layer else model,
        f"{share.after:.1%} of the calls of {model or 'a model'} have NaN or Inf{born}; it was "
        f"{share.before:.1%}.",
        [share],
        FACT,
        (where_seen, ()) if place == 0 else ((), where_seen),
        effect=max(share.effect, 0.5),
    )


def _counts(case: Case) -> list[tuple[int, int]]:
    """(calls with such numbers, calls) of each side, by spans; by layer records where spans do not tell."""
    known = [finite(side.calls.number("non_finite")) for side in case.sides]
    if all(map(len, known)):
        return [(int((each > 0).sum()), len(each)) for each in known]
    runs = [[bad_runs(rows) for rows in side.layers.values()] for side in case.sides]
    return [(sum(bad for bad, _, _ in each), sum(n for _, n, _ in each)) for each in runs]


def _born(case: Case, place: int) -> tuple[str, str, Sequence[str]]:
    """(model, the first of its layers with such numbers, traces); no layer where only spans tell."""
    side, places = case.sides[place], places_of(case)
    for key in sorted(side.layers, key=lambda key: (key[0], places[key[:2]], key[2])):
        bad, _, names = bad_runs(side.layers[key])
        if bad:
            return key[0], key[1], names
    table = side.calls
    counts = np.nan_to_num(table.number("non_finite"))
    rows = zip(table.labels("watched"), table.labels("trace"), counts, strict=True)
    found = [(model, trace) for model, trace, n in rows if n > 0]
    return (found[0][0] if found else ""), "", [trace for _, trace in found]


def dead_units(case: Case) -> Iterator[Cause]:
    """More of a layer's numbers are zero."""
    worst: tuple[float, LayerKey, tuple[float, float, int, int]] | None = None
    for key, (before, after) in common_layers(case):
        found = dead(before, after)
        if found is None or abs(found[1] - found[0]) < DEAD:
            continue
        if worst is None:  # the first is where it begins
            worst = abs(found[1] - found[0]), key, found
    if worst is None:
        return
    effect, (model, layer, _), (old, new, m, n) = worst
    first = first_diverged(item for item in layer_changes(case) if item.model == model)
    places = places_of(case)
    if first is not None and places[model, first.layer] < places[model, layer]:
        return  # it began before, in another way
    rows = case.before.layers[worst[1]], case.after.layers[worst[1]]
    zeros = [np.array([row[4] for row in each.values]) for each in rows]
    test = case.shift(f"share of zeros in {layer}", zeros[0], zeros[1], "1")
    yield cause(
        Kind.DEAD_UNITS,
        f"{model}: {layer}",
        f"In {layer} of {model} {new:.0%} of the numbers are zero; it was {old:.0%}.",
        [test or Evidence(f"share of zeros in {layer}, mean", old, new, effect, "share", "1", m, n)],
        TESTED,
        (rows[0].traces, rows[1].traces),
        effect=effect,
    )


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, cast("tuple[object, ...]", value))) or "none"
    return str(value or "none")


DETECTORS = (weights_changed, precision_changed, non_finite, dead_units, layers_diverged)

"""What the two sides say about a model's layers, all put together: summaries, spans, and full tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from neuronscope.diagnosis.comparing.case import Case
from neuronscope.diagnosis.comparing.columns import LayerKey, LayerRows
from neuronscope.diagnosis.comparing.diverging import How, LayerChange, Order, changes, running_order
from neuronscope.diagnosis.comparing.inputs import same_inputs
from neuronscope.diagnosis.comparing.result import Evidence, Plot, Shape
from neuronscope.diagnosis.comparing.snapshots import (
    Apart,
    Detail,
    Twins,
    compare_layer,
    find_twins,
    look_closer,
    machines_differ,
)

_CHANNELS: Final = 8  # told by number


def layer_changes(case: Case) -> list[LayerChange]:
    """All layers in the order of their model: from full tensors, from summaries, and else from spans."""
    known: list[LayerChange] | None = case.memo.get("layers")
    if known is None:
        same, repeated = same_inputs(case)
        places = places_of(case)
        known = changes(case.before.layers, case.after.layers, same, repeated, places)
        models = {item.model for item in known}
        more = changes(case.before.aggregated, case.after.aggregated, {})
        known = [*known, *(item for item in more if item.model not in models)]
        for model in sorted({*case.before.snapshots} & {*case.after.snapshots}):
            inputs = same.get(model, {}), (repeated[0].get(model, {}), repeated[1].get(model, {}))
            twins = find_twins(case.sides, model, *inputs, places)
            if twins is not None:
                known = _sharpened(known, list(_seen(case, twins)), twins, places)
        case.memo["layers"] = known
    return known


def places_of(case: Case) -> Order:
    """The order in which models run their layers."""
    known: Order | None = case.memo.get("places")
    if known is None:
        known = case.memo["places"] = running_order(case.before.layers, case.after.layers)
    return known


def common_layers(case: Case) -> Iterator[tuple[LayerKey, tuple[LayerRows, LayerRows]]]:
    """Layers that both sides know, in the order in which they run."""
    before, after, places = case.before.layers, case.after.layers, places_of(case)
    for key in sorted({*before} & {*after}, key=lambda key: (key[0], places[key[:2]], key[2])):
        yield key, (before[key], after[key])


def first_diverged(layers: Iterable[LayerChange]) -> LayerChange | None:
    """The first layer that is beyond its noise, for certain."""
    return next((item for item in layers if item.diverged and (item.p is None or item.p < 1e-4)), None)


# --- full tensors ------------------------------------------------------------------------------------------
def _seen(case: Case, twins: Twins) -> Iterator[LayerChange]:
    elsewhere = machines_differ(case.sides)
    for layer in twins.layers:
        apart = compare_layer(twins, layer, elsewhere=elsewhere)
        if apart is not None:
            yield LayerChange(
                twins.model,
                layer,
                "first",
                How.NOISE,
                apart.size,
                apart.noise,
                apart.pairs,
                apart.pairs,
                None,
                apart.before,
                apart.after,
                paired=True,
                apart=apart,
            )


def _sharpened(
    known: list[LayerChange], seen: list[LayerChange], twins: Twins, places: Order
) -> list[LayerChange]:
    """All layers, with what tensors say in the place of what summaries say of the same runs."""
    sharper = {item.layer for item in seen}
    others = [item for item in known if item.model != twins.model]
    own = [item for item in known if item.model == twins.model]
    first = [item for item in own if item.run == "first" and item.layer not in sharper]
    first = sorted([*seen, *first], key=lambda item: places.get((item.model, item.layer), 0.0))
    diverged = first_diverged(first)
    if diverged is not None and diverged.apart is not None:
        detail = look_closer(twins, diverged.layer)
        told = replace(diverged, how=_how(diverged.apart, detail), detail=detail)
        first[first.index(diverged)] = told
    return [*others, *first, *(item for item in own if item.run != "first")]


def _how(apart: Apart, detail: Detail) -> How:
    if abs(detail.scale - 1) > detail.left:
        return How.SCALE
    for share, how in (
        (detail.zeroed, How.SPARSER),
        (detail.capped, How.SATURATION),
        (detail.rare, How.OUTLIERS),
    ):
        if share > 0.8:
            return how
    return How.NOISE if apart.cosine > 0.98 else How.DIRECTION


def from_tensors(first: LayerChange) -> tuple[str, list[Evidence]]:
    """What full tensors add to what is said about a diverging layer; nothing where there were none."""
    apart, detail = first.apart, first.detail
    if apart is None or detail is None:
        return "", []
    where = ""
    if detail.few:
        named = ", ".join(map(str, sorted(detail.channels[:_CHANNELS])))
        more = "" if len(detail.channels) <= _CHANNELS else ", …"
        where = (
            f" Nine tenths of the difference are in {len(detail.channels)} of {detail.width} channels: "
            f"{named}{more}."
        )
    noise = f"repeats of {apart.repeats} runs" if apart.repeats else "rounding; no run was repeated"
    alike = "above 0.999999" if apart.cosine > 0.999999 else f"{apart.cosine:.6g}"
    told = (
        f" Seen in full tensors of {apart.pairs} runs with the same input (cosine {alike}; the "
        f"noise is that of {noise}).{where}"
    )
    evidence = Evidence(
        f"relative difference of {first.layer}'s tensors: of repeats, and from before to after",
        apart.noise,
        apart.size,
        apart.size,
        "snapshots",
        "1",
        apart.repeats,
        apart.pairs,
    )
    return told, [evidence]


def layer_plot(model: str, layers: list[LayerChange]) -> Plot:
    """How far each layer's numbers are apart, beside the noise."""
    return Plot(
        Shape.LAYERS,
        f"relative difference of the layers of {model}",
        tuple(item.noise for item in layers),
        tuple(item.size for item in layers),
        labels=tuple(item.layer for item in layers),
        floor=tuple(4 * item.noise for item in layers),
        unit="1",
    )


def layer_traces(case: Case, item: LayerChange) -> tuple[list[str], list[str]]:
    """Traces of both sides in which a layer was recorded."""
    key = (item.model, item.layer, item.run)
    rows = [side.layers.get(key) or side.aggregated.get(key) for side in case.sides]
    return (rows[0].traces if rows[0] else []), (rows[1].traces if rows[1] else [])

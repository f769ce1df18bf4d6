"""What the two sides say about a model's layers, all put together: summaries, spans, and full tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from neuronscope.diagnosis.comparing.case import Case
from neuronscope.diagnosis.comparing.columns import LayerKey, LayerRows
from neuronscope.diagnosis.comparing.diverging import (
    How,
    LayerChange,
    Order,
    Parting,
    changes,
    running_order,
)
from neuronscope.diagnosis.comparing.inputs import same_inputs
from neuronscope.diagnosis.comparing.result import Evidence, Plot, Shape
from neuronscope.diagnosis.comparing.snapshots import (
    Apart,
    Detail,
    Setting,
    compare_layer,
    look_closer,
    setting_of,
)
from neuronscope.diagnosis.comparing.twins import Twins, find_twins

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
                known = _sharpened(known, case, twins, places)
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
def _seen(twins: Twins, setting: Setting, step: int = 0) -> list[LayerChange]:
    """What tensors say of a step."""
    found: list[LayerChange] = []
    for layer in twins.layers:
        apart = compare_layer(twins, layer, setting, step)
        if apart is not None:
            found.append(
                LayerChange(
                    twins.model,
                    layer,
                    "later" if step else "first",
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
            )
    return found


def _sharpened(known: list[LayerChange], case: Case, twins: Twins, places: Order) -> list[LayerChange]:
    """All layers, with what tensors say in the place of what summaries say of the same runs."""
    setting = setting_of(case.sides, twins.model)
    others = [item for item in known if item.model != twins.model]
    own = [item for item in known if item.model == twins.model]
    first = _in_place(own, _seen(twins, setting), "first", places)
    later = [item for item in own if item.run != "first"]
    if first_diverged(first) is None:
        later = _in_place(own, _first_step(twins, setting), "later", places)
    return [*others, *_detailed(first, twins), *_detailed(later, twins)]


def _in_place(own: list[LayerChange], seen: list[LayerChange], run: str, places: Order) -> list[LayerChange]:
    sharper = {item.layer for item in seen}
    rest = [item for item in own if item.run == run and item.layer not in sharper]
    return sorted([*seen, *rest], key=lambda item: places.get((item.model, item.layer), 0.0))


def _first_step(twins: Twins, setting: Setting) -> list[LayerChange]:
    """The first step of generations in which a layer differs, and still does in the next; else the last."""
    earlier: list[LayerChange] = []
    for step in range(1, twins.steps):
        seen = _seen(twins, setting, step)
        apart = {item.layer for item in seen if item.diverged}
        if any(item.diverged and item.layer in apart for item in earlier):
            return earlier
        earlier = seen
    return earlier


def _detailed(layers: list[LayerChange], twins: Twins) -> list[LayerChange]:
    diverged = first_diverged(layers)
    if diverged is None or diverged.apart is None:
        return layers
    detail = look_closer(twins, diverged.layer, diverged.apart.step)
    told = replace(diverged, how=_how(diverged.apart, detail), detail=detail, parting=_parting(twins))
    return [told if item is diverged else item for item in layers]


def _parting(twins: Twins) -> Parting | None:
    """Where generations part that began alike; None where no further step is known of any."""
    known = [walk for walk in twins.walks if len(walk.runs) > 1 or walk.parted is not None]
    parted = sorted(walk.parted for walk in known if walk.parted is not None)
    return Parting(len(known), tuple(parted), max(len(walk.runs) for walk in known)) if known else None


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
        f"noise is that of {noise}).{where}{_ways(first)}"
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


def _ways(first: LayerChange) -> str:
    """From which step on the numbers differ, and from which on other tokens are written."""
    parting, step = first.parting, first.apart.step if first.apart else 0
    if parting is None:
        return ""
    told = f" The first {step} steps of generations are as before; this is the next one." if step else ""
    of = f"{parting.generations} generation" + ("s" if parting.generations > 1 else "")
    if not parting.parted:
        return f"{told} Of {of} that began alike all {parting.longest} known steps read the same tokens."
    first_other = f"token {parting.parted[0]} of the answer"
    return (
        f"{told} Of {of} that began alike, {len(parting.parted)} write another one as {first_other} or later."
    )


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

"""Detectors of what is around: traffic, libraries and hardware, and the agent itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from neuronscope.diagnosis.comparing.case import FACT, TESTED, Case, cause, fact, groups, one_minus, ratio
from neuronscope.diagnosis.comparing.columns import Columns, finite
from neuronscope.diagnosis.comparing.detectors.calling import calls, numbers, traces
from neuronscope.diagnosis.comparing.result import Cause, Evidence
from neuronscope.diagnosis.kinds import Kind

RATE: Final = 3.0
LONG_S: Final = 5.0
# A new version of the service, or of the agent, is what a comparison is usually made about.
_EXPECTED: Final = frozenset({"service", "NeuronScope"})


def traffic_changed(case: Case) -> Iterator[Cause]:
    """Other routes are asked for, more or less often, or in other batches."""
    for told in (_routes(case), _pace(case), _batches(case)):
        if told is not None:
            yield told


def _routes(case: Case) -> Cause | None:
    routes = [side.requests.labels("route") for side in case.sides]
    mixed = case.mix("routes", *routes) if min(map(len, routes)) >= 20 else None
    if mixed is None or mixed.distance < 0.15:
        return None
    old, new = mixed.before, mixed.after
    most = max((*old, *new), key=lambda label: abs(new.get(label, 0.0) - old.get(label, 0.0)))
    return cause(
        Kind.TRAFFIC_CHANGED,
        most,
        f"{new.get(most, 0):.0%} of the requests are to {most}; it was {old.get(most, 0):.0%}.",
        [fact("routes", mixed)],
        TESTED,
        (case.before.requests.labels("trace"), case.after.requests.labels("trace")),
    )


def _pace(case: Case) -> Cause | None:
    before, after = (_rate(side) for side in case.sides)
    times, n = ratio(before, after), (case.before.traces, case.after.traces)
    if min(before, after) <= 0 or times < RATE or min(n) < 50:
        return None
    return cause(
        Kind.TRAFFIC_CHANGED,
        "rate",
        f"There are {after:.3g} requests a second; it was {before:.3g}.",
        [Evidence("requests a second", before, after, one_minus(times), "ratio", "1/s", *n)],
        TESTED,
    )


def _batches(case: Case) -> Cause | None:
    for (operation, model), before, after in groups(case, calls, ("operation", "model"), 10):
        if operation == "rerank":
            continue
        for column, what in (("batch", "rows of a model call"), ("inputs", "inputs of a call")):
            sizes = [finite(each) for each in numbers(case, (before, after), column)]
            if min(map(len, sizes)) < 10:
                continue
            mixed = case.mix(what, *(map(int, each) for each in sizes))
            means = [float(each.mean()) for each in sizes]
            if mixed is not None and mixed.distance >= 0.3 and ratio(*means) >= 1.5:
                return cause(
                    Kind.TRAFFIC_CHANGED,
                    f"batches of {model or operation}",
                    f"Batches have another size: {what} {means[1]:.3g} on average; it was {means[0]:.3g}.",
                    [fact(what, mixed)],
                    TESTED,
                    traces(case, (before, after)),
                )
    return None


def _rate(side: Columns) -> float:
    """Traces a second, by the middle of their times: pauses at the ends do not count."""
    starts = np.sort(side.requests.number("start"))
    if starts.size < 50:
        return 0.0
    low, high = starts[starts.size // 10], starts[-1 - starts.size // 10]
    stands_for = side.weight / starts.size if side.sampled else 1.0
    return float(0.8 * starts.size * stands_for / (high - low)) if high - low >= LONG_S else 0.0


def environment_changed(case: Case) -> Iterator[Cause]:
    """Libraries, drivers, processors; kernels of models in the process."""
    before, after = case.before.environment, case.after.environment
    evidence: list[Evidence] = []
    for name in sorted({*before, *after}) if before and after else ():
        if name in _EXPECTED:
            continue
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            if not _told_packages(case):
                continue
            evidence.append(Evidence(name, _versions(old), _versions(new), 1.0))
        elif set(old) != set(new):
            evidence.append(Evidence(name, _versions(old), _versions(new), 1.0))
    evidence += _kernels(case)
    if not evidence:
        return
    told = "; ".join(
        f"{item.what} {item.after or 'gone'} (it was {item.before or 'absent'})" for item in evidence[:4]
    )
    more = f"; and {len(evidence) - 4} more" if len(evidence) > 4 else ""
    yield cause(
        Kind.ENVIRONMENT_CHANGED,
        ", ".join(item.what for item in evidence[:4]),
        f"The service runs on something else: {told}{more}.",
        evidence,
        FACT,
    )


def _kernels(case: Case) -> Iterator[Evidence]:
    """What a model's products and attention are computed by, where all of its calls tell another one."""
    seen: set[str] = set()
    for (operation, model), before, after in groups(case, calls, ("operation", "watched")):
        del operation
        told = [
            Counter(each for each in side.calls.rows(mask, "kernels") if each)
            for side, mask in zip(case.sides, (before, after), strict=True)
        ]
        if not model or model in seen or not all(told) or {*told[0]} & {*told[1]}:
            continue
        seen.add(model)
        old, new = (_by_name(each.most_common(1)[0][0]) for each in told)
        n = [each.total() for each in told]
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                yield Evidence(
                    f"{name} of {model}", old.get(name), new.get(name), 1.0, "fact", "", n[0], n[1]
                )


def _by_name(kernels: Iterable[str]) -> dict[str, str]:
    """``"attention sdpa"`` as a name and what it is."""
    return {name: value for name, _, value in (str(each).partition(" ") for each in kernels)}


def _versions(counter: Counter[str] | None) -> str | None:
    return None if counter is None else ", ".join(sorted(counter))


def _told_packages(case: Case) -> bool:
    """Do both recordings tell of libraries at all?"""
    return all("Python" in side.environment for side in case.sides)


def fidelity_changed(case: Case) -> Iterator[Cause]:
    """The agent records more, or less, than it did."""
    for (operation, model), before, after in groups(case, lambda side: side.calls, ("operation", "model"), 5):
        masks = list(zip(case.sides, (before, after), strict=True))
        if not any(any(side.calls.rows(mask, "watched")) for side, mask in masks):
            continue  # no model in the process
        values = [side.calls.rows(mask, "fidelity") for side, mask in masks]
        mixed = case.mix("fidelity of the agent", *([value or "off" for value in side] for side in values))
        # The budget takes from some calls on every busy day; a setting takes from all.
        if mixed is not None and mixed.distance >= 0.9 and mixed.switched:
            first, second = mixed.usual
            yield cause(
                Kind.FIDELITY_CHANGED,
                model,
                f"The agent records {model} with fidelity {second}; it was {first}.",
                [fact("fidelity of the agent", mixed)],
                FACT,
            )
            return
        records = [
            np.nan_to_num(side.calls.number("layer_records")[mask])
            for side, mask in zip(case.sides, (before, after), strict=True)
        ]
        means = [float(each.mean()) for each in records]
        if max(means) >= 1 and ratio(*means) > 10:
            test = case.shift("layer records of a call", records[0], records[1])
            if test is not None and test.effect > 0.5:
                yield cause(
                    Kind.FIDELITY_CHANGED,
                    model,
                    f"The agent takes {means[1]:.2g} layer records a call of {model}; it was {means[0]:.2g}.",
                    [test],
                    TESTED,
                )
                return
        del operation
    content = [side.content for side in case.sides]
    if content[0] != content[1] and min(len(side.calls) for side in case.sides) >= 5:
        yield cause(
            Kind.FIDELITY_CHANGED,
            "content",
            f"Prompts and answers are {'now' if content[1] else 'no longer'} recorded.",
            [Evidence("content recorded", str(content[0]), str(content[1]), 1.0)],
            FACT,
        )


DETECTORS = (traffic_changed, environment_changed, fidelity_changed)

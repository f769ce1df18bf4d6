"""Detectors of the model asked: which one, with which parameters, how its answers end, what they cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from neuronscope.diagnosis.comparing.case import FACT, PAIRED, TESTED, Case, cause, fact, ratio
from neuronscope.diagnosis.comparing.columns import Columns, Floats, Mask, finite
from neuronscope.diagnosis.comparing.detectors.prompts import both, written
from neuronscope.diagnosis.comparing.result import Cause, Evidence
from neuronscope.diagnosis.kinds import Kind

_MODELS: Final = (
    ("provider", "provider"),
    ("model", "model asked for"),
    ("answered_by", "model that answered"),
    ("address", "host that answered"),
)
_CUT: Final = frozenset({"length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_length"})


def model_changed(case: Case) -> Iterator[Cause]:
    """Another model, version or provider."""
    for route, *masks in written(case):
        pair = (masks[0], masks[1])
        found: list[Evidence] = []
        for column, what in _MODELS:
            values = both(case, pair, column)
            mixed = case.mix(what, *([value for value in side if value] for side in values))
            if (
                mixed is not None
                and mixed.distance >= 0.2
                and (mixed.switched or _new(mixed.before, mixed.after))
            ):
                found.append(fact(what, mixed))
        if found and found[0].what == "host that answered":
            continue  # another host alone may be another load balancer
        if not found:
            found.extend(_backend(case, pair))
        if found:
            first = found[0]
            yield cause(
                Kind.MODEL_CHANGED,
                str(first.after or ""),
                f"The {first.what}{_at(route)} is {first.after}; it was {first.before}.",
                found,
                FACT if first.p is None else TESTED,
                both(case, pair, "trace"),
            )


def _new(before: dict[Any, float], after: dict[Any, float]) -> bool:
    """Does a label make up a fifth of one side and none of the other?"""
    return any(
        share >= 0.2 and not other.get(label)
        for side, other in ((before, after), (after, before))
        for label, share in side.items()
    )


def _backend(case: Case, pair: tuple[Mask, Mask]) -> Iterator[Evidence]:
    """The provider's own name of what answered: it differs between its machines, so all must be others."""
    values = [[value for value in side if value] for side in both(case, pair, "backend")]
    if min(map(len, values)) >= 10 and not set(values[0]) & set(values[1]):
        mixed = case.mix("the provider's fingerprint of the model", *values)
        if mixed is not None:
            yield fact("version by the provider's own fingerprint", mixed)


def sampling_changed(case: Case) -> Iterator[Cause]:
    """Other parameters: temperature, limits, penalties."""
    for route, *masks in written(case):
        pair = (masks[0], masks[1])
        mixed = case.mix("sampling parameters", *both(case, pair, "parameters"))
        if mixed is None or mixed.distance < 0.3 or not mixed.switched:
            continue
        first, second = (dict(each) for each in mixed.usual)
        changed = [name for name in {**first, **second} if first.get(name) != second.get(name)]
        told = ", ".join(f"{name} {_said(second, name)} (it was {_said(first, name)})" for name in changed)
        yield cause(
            Kind.SAMPLING_CHANGED,
            ", ".join(changed),
            f"The model is called{_at(route)} with {told}.",
            [fact("sampling parameters", mixed, _parameters)],
            FACT,
            both(case, pair, "trace"),
        )


def output_cut(case: Case) -> Iterator[Cause]:
    """Answers that end because of a limit, or of a filter, not because they are over."""
    for route, *masks in written(case):
        pair = (masks[0], masks[1])
        ends = [[each for each in side if each] for side in both(case, pair, "finish")]
        cut = [sum(any(reason in _CUT for reason in each) for each in side) for side in ends]
        share = case.share("answers that a limit ended", (cut[0], cut[1]), (len(ends[0]), len(ends[1])))
        if share is not None and share.effect >= 0.08:
            yield cause(
                Kind.OUTPUT_CUT,
                route,
                f"{share.after:.0%} of the answers{_at(route)} are cut at a limit of tokens; it "
                f"was {share.before:.0%}.",
                [
                    share,
                    case.shift("output tokens of a call", *numbers(case, pair, "output_tokens"), "{token}"),
                ],
                TESTED,
                (_cut_traces(case.before, pair[0]), _cut_traces(case.after, pair[1])),
            )


def tokenizer_changed(case: Case) -> Iterator[Cause]:
    """The same text has another number of tokens."""
    told = False
    if len(case.pairs.calls) >= 10:
        tokens = case.before.calls.number("input_tokens"), case.after.calls.number("input_tokens")
        system = case.before.calls.labels("system"), case.after.calls.labels("system")
        tools = case.before.calls.labels("tools"), case.after.calls.labels("tools")
        rows = [
            (tokens[0][row], tokens[1][later])
            for row, later in case.pairs.calls
            if system[0][row] == system[1][later] and tools[0][row] == tools[1][later]
        ]
        rows = [(a, b) for a, b in rows if math.isfinite(a + b)]
        if len(rows) >= 10:
            told = True
            n, differ = len(rows), sum(a != b for a, b in rows)
            what = "same prompts with another number of tokens"
            share = case.pairs_that(what, n, differ, 0.05 * n)
            if share is not None and differ > 0.5 * n:
                middle = float(np.median([b / a for a, b in rows if a]))
                yield cause(
                    Kind.TOKENIZER_CHANGED,
                    "",
                    f"The same prompts have {middle:.3g} times as many tokens as before ({differ} of {n}).",
                    [share],
                    PAIRED,
                    (case.before.calls.labels("trace"), case.after.calls.labels("trace")),
                    effect=min(1.0, abs(middle - 1)),
                )
    if told:
        return
    for route, *masks in written(case):
        pair = (masks[0], masks[1])
        rates = [_per_character(side, mask) for side, mask in zip(case.sides, pair, strict=True)]
        shift = case.shift("input tokens per character", rates[0], rates[1])
        if (
            shift is not None
            and shift.effect >= 0.5
            and ratio(float(shift.before or 0), float(shift.after or 0)) >= 1.04
        ):
            yield cause(
                Kind.TOKENIZER_CHANGED,
                route,
                f"A character of the prompts{_at(route)} costs {shift.after:.3g} tokens; it was "
                f"{shift.before:.3g}.",
                [shift],
                TESTED,
                both(case, pair, "trace"),
            )


def cache_lost(case: Case) -> Iterator[Cause]:
    """The provider's cache of prompts serves less, or more."""
    for route, *masks in written(case, 5):
        pair = (masks[0], masks[1])
        parts: list[Floats] = []
        for cached, tokens in zip(
            numbers(case, pair, "cached"), numbers(case, pair, "input_tokens"), strict=True
        ):
            known = tokens > 0
            parts.append(np.where(np.isfinite(cached[known]), cached[known], 0.0) / tokens[known])
        if min(map(len, parts)) < 5 or not any(part.any() for part in parts):
            continue
        share = case.share_of("calls that the provider's cache serves", parts[0] > 0, parts[1] > 0)
        means = [float(part.mean()) for part in parts]
        if (
            share is not None
            and abs(means[1] - means[0]) >= 0.1
            and (share.effect >= 0.1 or _tested(case, parts))
        ):
            less = "less" if means[1] < means[0] else "more"
            test = (
                share
                if share.effect >= 0.1
                else case.shift("cached share of a prompt", parts[0], parts[1], "1")
            )
            yield cause(
                Kind.CACHE_LOST,
                route,
                f"The provider's cache serves {less}: {means[1]:.0%} of the input "
                f"tokens{_at(route)}; it was {means[0]:.0%}.",
                [test],
                TESTED,
                both(case, pair, "trace"),
                effect=abs(means[1] - means[0]),
            )


def _tested(case: Case, parts: list[Floats]) -> bool:
    shift = case.shift("cached share of a prompt", parts[0], parts[1], "1")
    return shift is not None and shift.effect >= 0.2


def numbers(case: Case, masks: tuple[Mask, Mask], column: str) -> tuple[Floats, Floats]:
    """A column of numbers of both sides."""
    return case.before.calls.number(column)[masks[0]], case.after.calls.number(column)[masks[1]]


def _per_character(side: Columns, mask: Mask) -> Floats:
    table = side.calls
    characters = table.number("characters")[mask]
    system = table.number("system_characters")[mask]
    length = characters + np.where(np.isfinite(system), system, 0.0)
    return finite(table.number("input_tokens")[mask] / np.where(length > 20, length, np.nan))


def _cut_traces(side: Any, mask: Mask) -> list[str]:
    rows = zip(side.calls.rows(mask, "finish"), side.calls.rows(mask, "trace"), strict=True)
    return [trace for ends, trace in rows if any(end in _CUT for end in ends)]


def _parameters(value: Any) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in value) or "defaults"


def _said(parameters: dict[str, Any], name: str) -> Any:
    return parameters.get(name, "unset")


def _at(route: str) -> str:
    return f" of {route}" if route else ""


DETECTORS = (model_changed, sampling_changed, output_cut, tokenizer_changed, cache_lost)

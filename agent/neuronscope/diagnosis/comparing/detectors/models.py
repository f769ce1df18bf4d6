"""Detectors of the model asked: which one, with which parameters, how its answers end, what they cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from neuronscope.diagnosis.comparing.case import FACT, PAIRED, TESTED, Case, Mixed, cause, fact, ratio
from neuronscope.diagnosis.comparing.columns import Columns, Floats, Mask, finite
from neuronscope.diagnosis.comparing.detectors.calling import (
    Masks,
    at_route,
    both,
    known,
    numbers,
    traces,
    written,
)
from neuronscope.diagnosis.comparing.result import Cause, Evidence
from neuronscope.diagnosis.kinds import Kind

_MODELS: Final = (
    ("provider", "provider"),
    ("model", "model asked for"),
    ("answered_by", "model that answered"),
    ("address", "host that answered"),
)
MIXED: Final = 0.25  # distance of the proportions in which known models are asked
_CUT: Final = frozenset({"length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "model_length"})


def model_changed(case: Case) -> Iterator[Cause]:
    """Another model, version or provider."""
    for route, pair in written(case):
        found: list[Evidence] = []
        for column, what in _MODELS:
            mixed = case.mix(what, *known(case, pair, column))
            if (
                mixed is not None
                and mixed.distance >= 0.2
                and (mixed.switched or _new(mixed.before, mixed.after))
            ):
                found.append(fact(what, mixed))
            elif mixed is not None and column == "model" and mixed.distance >= MIXED:
                yield _asked_more(case, route, pair, mixed)
        if found and found[0].what == "host that answered":
            continue  # another host alone may be another load balancer
        if not found:
            found.extend(_backend(case, pair))
        if found:
            first = found[0]
            yield cause(
                Kind.MODEL_CHANGED,
                str(first.after or ""),
                f"The {first.what}{at_route(route)} is {first.after}; it was {first.before}.",
                found,
                FACT if first.p is None else TESTED,
                traces(case, pair),
            )


def _asked_more(case: Case, route: str, pair: Masks, mixed: Mixed) -> Cause:
    """Known models, asked in another proportion: a router, or what users choose."""
    most = max(mixed.after, key=lambda name: mixed.after[name] - mixed.before.get(name, 0.0))
    return cause(
        Kind.MODEL_CHANGED,
        str(most),
        f"{mixed.after[most]:.0%} of the calls{at_route(route)} ask {most}; it was "
        f"{mixed.before.get(most, 0.0):.0%}.",
        [fact("models asked for", mixed)],
        TESTED,
        traces(case, pair),
    )


def _new(before: dict[Any, float], after: dict[Any, float]) -> bool:
    """Does a label make up a fifth of one side and none of the other?"""
    return any(
        share >= 0.2 and not other.get(label)
        for side, other in ((before, after), (after, before))
        for label, share in side.items()
    )


def _backend(case: Case, pair: Masks) -> Iterator[Evidence]:
    """The provider's own name of what answered: it differs between its machines, so all must be others."""
    values = known(case, pair, "backend")
    if min(map(len, values)) >= 10 and not set(values[0]) & set(values[1]):
        mixed = case.mix("the provider's fingerprint of the model", *values)
        if mixed is not None:
            yield fact("version by the provider's own fingerprint", mixed)


def sampling_changed(case: Case) -> Iterator[Cause]:
    """Other parameters: temperature, limits, penalties."""
    for route, pair in written(case):
        mixed = case.mix("sampling parameters", *both(case, pair, "parameters"))
        if mixed is None or mixed.distance < 0.3 or not mixed.switched:
            continue
        first, second = (dict(each) for each in mixed.usual)
        changed = [name for name in {**first, **second} if first.get(name) != second.get(name)]
        told = ", ".join(f"{name} {_said(second, name)} (it was {_said(first, name)})" for name in changed)
        yield cause(
            Kind.SAMPLING_CHANGED,
            ", ".join(changed),
            f"The model is called{at_route(route)} with {told}.",
            [fact("sampling parameters", mixed, _parameters)],
            FACT,
            traces(case, pair),
        )


def output_cut(case: Case) -> Iterator[Cause]:
    """Answers that end because of a limit, or of a filter, not because they are over."""
    for route, pair in written(case):
        ends = known(case, pair, "finish")
        cut = [sum(any(reason in _CUT for reason in each) for each in side) for side in ends]
        share = case.share("answers that a limit ended", (cut[0], cut[1]), (len(ends[0]), len(ends[1])))
        if share is not None and share.effect >= 0.08:
            yield cause(
                Kind.OUTPUT_CUT,
                route,
                f"{share.after:.0%} of the answers{at_route(route)} are cut at a limit of tokens; it "
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
    counts = _tokens_of_pairs(case)
    if len(counts) >= 10:
        yield from _other_counts(case, counts)
        return
    for route, pair in written(case):
        rates = [_per_character(side, mask) for side, mask in zip(case.sides, pair, strict=True)]
        shift = case.shift("input tokens per character", rates[0], rates[1])
        if shift is None or shift.effect < 0.5:
            continue
        if ratio(float(shift.before or 0), float(shift.after or 0)) < 1.04:
            continue
        yield cause(
            Kind.TOKENIZER_CHANGED,
            route,
            f"A character of the prompts{at_route(route)} costs {shift.after:.3g} tokens; it was "
            f"{shift.before:.3g}.",
            [shift],
            TESTED,
            traces(case, pair),
        )


def _tokens_of_pairs(case: Case) -> list[tuple[float, float]]:
    """Input tokens of the same prompts, with the same system prompt and tools."""
    before, after = (
        list(
            zip(
                side.calls.number("input_tokens"),
                side.calls.labels("system"),
                side.calls.labels("tools"),
                strict=True,
            )
        )
        for side in case.sides
    )
    pairs = [(before[row], after[later]) for row, later in case.pairs.calls]
    counts = [(float(a[0]), float(b[0])) for a, b in pairs if a[1:] == b[1:]]
    return [(a, b) for a, b in counts if math.isfinite(a + b)]


def _other_counts(case: Case, counts: list[tuple[float, float]]) -> Iterator[Cause]:
    n, differ = len(counts), sum(a != b for a, b in counts)
    share = case.pairs_that("same prompts with another number of tokens", n, differ, 0.05 * n)
    if share is None or differ <= 0.5 * n:
        return
    middle = float(np.median([b / a for a, b in counts if a]))
    yield cause(
        Kind.TOKENIZER_CHANGED,
        "",
        f"The same prompts have {middle:.3g} times as many tokens as before ({differ} of {n}).",
        [share],
        PAIRED,
        (case.before.calls.labels("trace"), case.after.calls.labels("trace")),
        effect=min(1.0, abs(middle - 1)),
    )


def cache_lost(case: Case) -> Iterator[Cause]:
    """The provider's cache of prompts serves less, or more."""
    for route, pair in written(case, 5):
        before, after = (
            _cached(cached, tokens)
            for cached, tokens in zip(
                numbers(case, pair, "cached"), numbers(case, pair, "input_tokens"), strict=True
            )
        )
        if min(before.size, after.size) < 5 or not (before.any() or after.any()):
            continue
        share = case.share_of("calls that the provider's cache serves", before > 0, after > 0)
        means = float(before.mean()), float(after.mean())
        if share is None or abs(means[1] - means[0]) < 0.1:
            continue
        test: Evidence | None = share
        if share.effect < 0.1:  # as many calls, but less of each
            test = case.shift("cached share of a prompt", before, after, "1")
            if test is None or test.effect < 0.2:
                continue
        yield cause(
            Kind.CACHE_LOST,
            route,
            f"The provider's cache serves {'less' if means[1] < means[0] else 'more'}: {means[1]:.0%} of the "
            f"input tokens{at_route(route)}; it was {means[0]:.0%}.",
            [test],
            TESTED,
            traces(case, pair),
            effect=abs(means[1] - means[0]),
        )


def _cached(cached: Floats, tokens: Floats) -> Floats:
    """Share of each prompt that came out of the cache."""
    given = tokens > 0
    found: Floats = np.where(np.isfinite(cached[given]), cached[given], 0.0) / tokens[given]
    return found


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


DETECTORS = (model_changed, sampling_changed, output_cut, tokenizer_changed, cache_lost)

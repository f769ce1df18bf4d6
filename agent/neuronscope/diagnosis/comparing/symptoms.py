"""What users and bills notice, and what these recordings cannot tell."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from neuronscope.diagnosis.comparing.case import Case, groups, ratio
from neuronscope.diagnosis.comparing.columns import Columns, Mask, finite
from neuronscope.diagnosis.comparing.detectors.calling import WRITERS, at_route, numbers, written
from neuronscope.diagnosis.comparing.detectors.searching import OVERLAP_FLOOR, paired
from neuronscope.diagnosis.comparing.machine import pace_of
from neuronscope.diagnosis.comparing.result import Effect, Evidence, Symptom, Untold
from neuronscope.diagnosis.kinds import Kind

SLOWER: Final = 1.5
# Effects that ask for an explanation; answers and times differ for many reasons, and ask only if they
# differ much.
CLEAR: Final = frozenset(
    {Effect.RESULTS, Effect.SCORES, Effect.EMPTY, Effect.ERRORS, Effect.PROMPT_SIZE, Effect.COST}
)
MUCH: Final = 0.5


def symptoms(case: Case) -> Iterator[Symptom]:
    """What got different; a symptom is believed as a cause is."""
    yield from _of_searches(case)
    yield from _of_calls(case)
    yield from _of_requests(case)


def asks(symptom: Symptom) -> bool:
    """Does it need an explanation?"""
    return symptom.effect in CLEAR or symptom.evidence[0].effect >= MUCH


def _of_searches(case: Case) -> Iterator[Symptom]:
    found = paired(case)
    if found is not None and found.moved >= OVERLAP_FLOOR:
        n = found.n
        share = case.share(
            "equal query vectors with other hits", (round((1 - found.alone) * n), len(found.changed)), (n, n)
        )
        if share is not None:
            yield Symptom(
                Effect.RESULTS,
                "",
                f"The same query vectors find {found.overlap:.0%} of what they found.",
                (
                    Evidence(
                        "overlap of hits",
                        found.alone,
                        found.overlap,
                        found.moved,
                        "overlap",
                        "1",
                        n,
                        n,
                        share.p,
                    ),
                ),
            )
    for (store, collection), before, after in groups(
        case, lambda side: side.searches, ("store", "collection")
    ):
        name = collection or store
        values = case.before.searches.number("top")[before], case.after.searches.number("top")[after]
        test = case.shift(f"best score of a search in {name}", *values)
        if test is not None and test.effect >= 0.15:
            yield _symptom(Effect.SCORES, name, f"Best scores in {name}", test)
        returned = [
            case.before.searches.number("returned")[before],
            case.after.searches.number("returned")[after],
        ]
        empty = case.share_of("searches that find nothing", *(finite(each) == 0 for each in returned))
        if empty is not None and empty.effect >= 0.03:
            yield _symptom(Effect.EMPTY, name, f"Searches in {name} that find nothing", empty)


def _of_calls(case: Case) -> Iterator[Symptom]:
    for route, pair in written(case):
        for column, effect, what, floor in (
            ("input_tokens", Effect.PROMPT_SIZE, "Input tokens", 0.25),
            ("output_tokens", Effect.ANSWERS, "Output tokens", 0.25),
            ("cost", Effect.COST, "Cost", 0.3),
        ):
            test = case.shift(
                f"{what.lower()} of a call",
                *numbers(case, pair, column),
                "{token}" if "tokens" in what else "USD",
            )
            if (
                test is not None
                and test.effect >= floor
                and ratio(float(test.before or 0), float(test.after or 0)) >= 1.05
            ):
                yield _symptom(effect, route, f"{what} of a call{at_route(route)}", test)
        first = case.shift("time to the first chunk", *numbers(case, pair, "first_chunk"), "s")
        if first is not None and _slower(case, first):
            yield _symptom(Effect.FIRST_CHUNK, route, f"Time to the first chunk{at_route(route)}", first)


def _of_requests(case: Case) -> Iterator[Symptom]:
    for (route,), before, after in groups(case, lambda side: side.requests, ("route",)):
        test = case.shift(
            f"duration of {route}",
            case.before.requests.number("duration")[before],
            case.after.requests.number("duration")[after],
            "s",
        )
        if test is not None and _slower(case, test):
            yield _symptom(Effect.LATENCY, route, f"Duration of {route}", test)
        failed = [_failed(side, mask) for side, mask in zip(case.sides, (before, after), strict=True)]
        share = case.share_of(f"requests to {route} that fail", *failed)
        if share is not None and share.effect >= 0.03:
            yield _symptom(Effect.ERRORS, route, f"Requests to {route} that fail", share)


def _slower(case: Case, test: Evidence) -> bool:
    before, after = float(test.before or 0), float(test.after or 0)
    if test.effect < 0.35 or min(before, after) <= 0 or abs(after - before) < 0.02:
        return False
    return min(ratio(before, after), pace_of(case).beyond(before, after)) >= SLOWER


def _failed(side: Columns, mask: Mask) -> Mask:
    table = side.requests
    rows = np.flatnonzero(mask)
    errors = table.labels("error")
    failed: Mask = np.array([bool(errors[row]) for row in rows], bool)
    failed |= table.number("status")[rows] >= 500
    return failed


def _symptom(effect: Effect, subject: str, what: str, test: Evidence) -> Symptom:
    before, after = (_said(value, test.unit) for value in (test.before, test.after))
    return Symptom(effect, subject, f"{what}: {after}; it was {before}.", (test,))


def _said(value: str | float | None, unit: str) -> str:
    if not isinstance(value, float):
        return str(value)
    if unit == "s":
        return f"{value:.2f} s" if value >= 1 else f"{1000 * value:.3g} ms"
    return f"{value:.1%}" if unit == "1" else f"{value:.4g}"


# --- what cannot be told -----------------------------------------------------------------------------------
def untold(case: Case) -> Iterator[Untold]:
    """Kinds of causes for which one of the recordings lacks the facts."""
    if any(side.hashed for side in case.sides):
        yield Untold(
            Kind.INDEX_LOST,
            "names of collections and documents are hashed with keys that differ",
            "the same NEURONSCOPE_HASH_KEY on both sides",
        )
    if any(side.keys_differ for side in case.sides):
        for kind in (Kind.PROMPT_CHANGED, Kind.SYSTEM_PROMPT_CHANGED, Kind.TOOLS_CHANGED):
            yield Untold(
                kind,
                "checksums of prompts have keys that differ, and are not compared",
                "the same NEURONSCOPE_HASH_KEY on both sides",
            )
    searched = all(len(side.searches) for side in case.sides)
    if searched and not any(any(side.searches.labels("ids")) for side in case.sides):
        yield Untold(Kind.INDEX_LOST, "the store's client does not tell document ids")
    if searched and not case.pairs.vectors:
        yield Untold(
            Kind.SEARCH_CHANGED,
            "no query vector came on both sides, so that index and search cannot be told apart",
            "traffic with questions in common, or replayed canary queries",
        )
    if searched and not case.pairs.texts and not _knows_embedder(case):
        yield Untold(
            Kind.EMBEDDER_CHANGED,
            "neither a fingerprint of the embedder nor the same text on both sides is recorded",
            "an embedder that NeuronScope instruments, or NEURONSCOPE_EMBEDDER_PROBES",
        )
    if any(_writes(side) and not _known(side, "characters") for side in case.sides):
        for kind in (
            Kind.PROMPT_CHANGED,
            Kind.SYSTEM_PROMPT_CHANGED,
            Kind.CONTEXT_DROPPED,
            Kind.TOKENIZER_CHANGED,
        ):
            yield Untold(
                kind,
                "a recording has no structure of prompts",
                "NEURONSCOPE_STRUCTURE (on by default)",
            )
    if not all(side.layers or side.aggregated for side in case.sides):
        yield Untold(
            Kind.LAYERS_DIVERGED,
            "no layers are recorded on both sides",
            "a model in the process; NEURONSCOPE_PROBES",
        )
    if not all(any(side.calls.labels("weights")) for side in case.sides):
        yield Untold(
            Kind.WEIGHTS_CHANGED, "no fingerprint of weights on both sides", "a PyTorch model in the process"
        )
    if not all("Python" in side.environment for side in case.sides):
        yield Untold(
            Kind.ENVIRONMENT_CHANGED,
            "a recording does not tell libraries and hardware",
            "a recording of this version",
        )
    if any(_writes(side) and not _known(side, "consumer") for side in case.sides):
        yield Untold(
            Kind.CONSUMER_STALLING,
            "how long the service kept chunks is not recorded",
            "streams, on both sides",
        )


def _writes(side: Columns) -> bool:
    return not WRITERS.isdisjoint(side.calls.labels("operation"))


def _known(side: Columns, column: str) -> bool:
    """Does any call to a model that writes tell this?"""
    rows = zip(side.calls.labels("operation"), side.calls.number(column), strict=True)
    return any(operation in WRITERS and math.isfinite(value) for operation, value in rows)


def _knows_embedder(case: Case) -> bool:
    tables = [side.searches.labels("embedder") for side in case.sides]
    weights = [side.calls.labels("weights") for side in case.sides]
    return all(map(any, tables)) or all(map(any, weights))

"""Detectors of what models are given: templates, system prompts, tools, retrieved documents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from neuronscope.diagnosis.comparing.case import FACT, TESTED, Case, Mixed, cause, fact
from neuronscope.diagnosis.comparing.columns import Floats
from neuronscope.diagnosis.comparing.detectors.calling import (
    Masks,
    at_route,
    both,
    known,
    numbers,
    traces,
    written,
)
from neuronscope.diagnosis.comparing.ranking import LENGTH
from neuronscope.diagnosis.comparing.result import Cause, Evidence
from neuronscope.diagnosis.kinds import Kind

ALWAYS: Final = 0.9  # share of the prompts that hold a piece of their template
SELDOM: Final = 0.2
MIN_CALLS: Final = 8
DROPPED: Final = 0.08  # of the retrieved documents
LONGER: Final = 0.2  # distance of the prompts' lengths that is worth a word
DATED: Final = 2  # characters that another date may be longer
DATE: Final = 0.7  # confidence that it is more than that


# --- the template --------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class _Template:
    """The lines and labels that (nearly) all prompts of a route hold.

    Attributes:
        before, after: how many there are; `total`: on either side.
        gone, new: of them, those of one side only; `moved`: they are the same in another order.
    """

    before: int
    after: int
    total: int
    gone: int
    new: int
    moved: bool

    @property
    def changed(self) -> bool:
        """Is it another template?"""
        return bool(self.gone or self.new or self.moved)

    @property
    def effect(self) -> float:
        """Share of all pieces that changed."""
        return 0.5 if self.moved else (self.gone + self.new) / max(1, self.total)

    @property
    def words(self) -> str:
        """What happened to the pieces."""
        if self.moved:
            return "the order is another"
        verb = "is" if (self.gone or self.new) == 1 else "are"
        if self.gone and self.new:
            return f"{self.gone} {verb} gone and {self.new} new"
        return f"{self.gone} {verb} gone" if self.gone else f"{self.new} {verb} new"


def prompt_changed(case: Case) -> Iterator[Cause]:
    """Other constant pieces: lines and labels that (nearly) all prompts of a route hold."""
    for route, masks in written(case, MIN_CALLS):
        pieces = known(case, masks, "pieces")
        if min(map(len, pieces)) < MIN_CALLS:
            continue
        template = _template(*pieces)
        messages = case.mix("messages of a call", *(map(str, side) for side in both(case, masks, "messages")))
        if not template.changed:
            continue
        longer = case.shift(LENGTH, *numbers(case, masks, "characters"))
        yield cause(
            Kind.PROMPT_CHANGED,
            route,
            f"The prompt's template{at_route(route)} is another: of the lines and labels that all "
            f"prompts hold, {template.words}.",
            [
                Evidence(
                    "constant lines and labels of the prompt",
                    float(template.before),
                    float(template.after),
                    template.effect,
                    n_before=len(pieces[0]),
                    n_after=len(pieces[1]),
                ),
                longer if longer is not None and longer.effect >= LONGER else None,
                fact("messages of a call", messages) if messages and _another(messages, 0.8) else None,
            ],
            FACT,
            traces(case, masks),
            effect=template.effect,
        )


def _template(before: list[tuple[int, ...]], after: list[tuple[int, ...]]) -> _Template:
    shares = _piece_shares(before), _piece_shares(after)
    constant = [{piece for piece, share in side.items() if share >= ALWAYS} for side in shares]
    gone = {piece for piece in constant[0] if shares[1].get(piece, 0.0) <= SELDOM}
    new = {piece for piece in constant[1] if shares[0].get(piece, 0.0) <= SELDOM}
    either = constant[0] | constant[1]
    moved = not gone and not new and _order(before, either) != _order(after, either)
    return _Template(len(constant[0]), len(constant[1]), len(either), len(gone), len(new), moved)


def _piece_shares(prompts: list[tuple[int, ...]]) -> dict[int, float]:
    counts = Counter(piece for each in prompts for piece in set(each))
    return {piece: count / len(prompts) for piece, count in counts.items()}


def _order(prompts: list[tuple[int, ...]], constant: set[int]) -> tuple[int, ...]:
    """The constant pieces in their usual order."""
    orders = Counter(tuple(dict.fromkeys(piece for piece in each if piece in constant)) for each in prompts)
    return orders.most_common(1)[0][0]


# --- system prompt, tools ------------------------------------------------------------------------------
def system_prompt_changed(case: Case) -> Iterator[Cause]:
    """Another system prompt, by its fingerprint; by its length where it is never twice the same."""
    for route, masks in written(case):
        systems = both(case, masks, "system")
        if not any(systems[0]) and not any(systems[1]):
            continue
        mixed = case.mix("system prompt", *systems)
        if mixed is None:
            continue
        usual = min(max(side.values()) for side in (mixed.before, mixed.after))
        if usual < 0.3:  # a date or a name in it
            yield from _system_by_length(case, route, masks)
        elif _another(mixed, 0.3):
            yield _system_by_name(case, route, masks, mixed)


def _system_by_name(case: Case, route: str, masks: Masks, mixed: Mixed) -> Cause:
    first, second = (name or "none" for name in mixed.usual)
    lengths = numbers(case, masks, "system_characters")
    before, after = (float(np.nanmedian(each)) if np.isfinite(each).any() else 0.0 for each in lengths)
    length = Evidence(
        "characters of the system prompt, median",
        before,
        after,
        abs(after - before) / max(1.0, before, after),
        "ratio",
        n_before=mixed.n_before,
        n_after=mixed.n_after,
    )
    found = cause(
        Kind.SYSTEM_PROMPT_CHANGED,
        route,
        f"The system prompt{at_route(route)} is another: {after:.0f} characters, {before:.0f} before "
        f"(fingerprint {second}; it was {first}).",
        [fact("system prompt", mixed), length],
        FACT,
        traces(case, masks),
    )
    if abs(after - before) > DATED or not min(before, after):
        return found
    hint = " It is as long as it was: a date or a version in it changes it as well."
    return replace(found, summary=found.summary + hint, confidence=DATE)


def _system_by_length(case: Case, route: str, masks: Masks) -> Iterator[Cause]:
    shift = case.shift("characters of the system prompt", *numbers(case, masks, "system_characters"))
    if shift is not None and shift.effect >= 0.5:
        yield cause(
            Kind.SYSTEM_PROMPT_CHANGED,
            route,
            f"The system prompt{at_route(route)} has {shift.after:.0f} characters; it had "
            f"{shift.before:.0f}.",
            [shift],
            TESTED,
            traces(case, masks),
        )


def tools_changed(case: Case) -> Iterator[Cause]:
    """Other tools are offered."""
    for route, masks in written(case):
        tools = both(case, masks, "tools")
        if not any(tools[0]) and not any(tools[1]):
            continue
        mixed = case.mix("definitions of tools", *tools)
        if mixed is not None and _another(mixed, 0.5):
            yield cause(
                Kind.TOOLS_CHANGED,
                route,
                f"The definitions of the tools{at_route(route)} are others.",
                [fact("definitions of tools", mixed)],
                FACT,
                traces(case, masks),
            )


def _another(mixed: Mixed, distance: float) -> bool:
    """Is the usual label another one, and are the two sides so far apart?"""
    return mixed.distance >= distance and mixed.switched


# --- documents -----------------------------------------------------------------------------------------
def context_dropped(case: Case) -> Iterator[Cause]:
    """Documents that were retrieved and are not in the prompt, or not whole."""
    for route, masks in written(case, MIN_CALLS):
        retrieved = numbers(case, masks, "documents")
        some = retrieved[0] > 0, retrieved[1] > 0
        if min(int(each.sum()) for each in some) < MIN_CALLS:
            continue
        of = retrieved[0][some[0]], retrieved[1][some[1]]
        whole, cut = (
            tuple(each[mask] for each, mask in zip(numbers(case, masks, name), some, strict=True))
            for name in ("documents_whole", "documents_cut")
        )
        kept = whole[0] / of[0], whole[1] / of[1]
        before, after = (float(np.mean(each)) for each in kept)
        test = _kept(case, kept, (whole[0], whole[1]), of) if abs(after - before) >= DROPPED else None
        if test is None:
            continue
        cuts = float(np.mean(cut[0] / of[0])), float(np.mean(cut[1] / of[1]))
        in_part = Evidence(
            "retrieved documents that the prompt holds in part, mean",
            *cuts,
            abs(cuts[1] - cuts[0]),
            "share",
            "1",
            len(kept[0]),
            len(kept[1]),
        )
        also = f", {cuts[1]:.0%} only in part (it was {cuts[0]:.0%})" if max(cuts) > 0.02 else ""
        yield cause(
            Kind.CONTEXT_DROPPED,
            route,
            f"Of the documents that were retrieved, prompts{at_route(route)} hold {after:.0%} whole; "
            f"it was {before:.0%}{also}.",
            [test, in_part],
            TESTED,
            traces(case, masks),
            effect=abs(after - before),
        )


def _kept(
    case: Case, kept: tuple[Floats, Floats], whole: tuple[Floats, Floats], of: tuple[Floats, Floats]
) -> Evidence | None:
    """Shares of each prompt; where there are too few prompts for that, of all documents."""
    shift = case.shift("share of the retrieved documents that the prompt holds whole", *kept, "1")
    if shift is not None:
        return shift
    return case.share(
        "retrieved documents that the prompt holds whole",
        (int(whole[0].sum()), int(whole[1].sum())),
        (int(of[0].sum()), int(of[1].sum())),
    )


DETECTORS = (prompt_changed, system_prompt_changed, tools_changed, context_dropped)

"""Detectors of what models are given: templates, system prompts, tools, documents, reranked or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from neuronscope.diagnosis.comparing.case import FACT, TESTED, Case, cause, fact, groups
from neuronscope.diagnosis.comparing.columns import Columns, Floats, Mask, Table
from neuronscope.diagnosis.comparing.result import Cause, Evidence
from neuronscope.diagnosis.kinds import Kind

WRITERS: Final = frozenset({"chat", "text_completion", "generate_content"})
ALWAYS: Final = 0.9  # share of the prompts that hold a piece of their template
SELDOM: Final = 0.2
MIN_CALLS: Final = 8


def calls(side: Columns) -> Table:
    """The table of model calls."""
    return side.calls


def written(case: Case, least: int = 3) -> Iterator[tuple[str, Mask, Mask]]:
    """Calls to models that write, by route."""
    for (operation, route), before, after in groups(case, calls, ("operation", "route"), least):
        if operation in WRITERS:
            yield route, before, after


def both(case: Case, masks: tuple[Mask, Mask], column: str) -> tuple[list[Any], list[Any]]:
    """A column of labels of both sides."""
    return case.before.calls.rows(masks[0], column), case.after.calls.rows(masks[1], column)


def prompt_changed(case: Case) -> Iterator[Cause]:
    """Other constant pieces: lines and labels that (nearly) all prompts of a route hold."""
    for route, *masks in written(case, MIN_CALLS):
        pieces = both(case, (masks[0], masks[1]), "pieces")
        known = [[each for each in side if each] for side in pieces]
        if min(map(len, known)) < MIN_CALLS:
            continue
        shares = [_piece_shares(side) for side in known]
        gone = [
            piece
            for piece, share in shares[0].items()
            if share >= ALWAYS and shares[1].get(piece, 0.0) <= SELDOM
        ]
        new = [
            piece
            for piece, share in shares[1].items()
            if share >= ALWAYS and shares[0].get(piece, 0.0) <= SELDOM
        ]
        constant = {piece for side in shares for piece, share in side.items() if share >= ALWAYS}
        orders = [_order(side, constant) for side in known]
        moved = not gone and not new and orders[0] != orders[1]
        messages = case.mix(
            "messages of a call", *(map(str, side) for side in both(case, (masks[0], masks[1]), "messages"))
        )
        count = messages is not None and messages.distance > 0.8 and messages.switched
        if not gone and not new and not moved:
            continue
        effect = (len(gone) + len(new)) / max(1, len(constant)) if not moved else 0.5
        words = (
            "their order is another"
            if moved
            else f"{len(gone)} of them are gone and {len(new)} are new"
            if gone and new
            else f"{len(gone)} of them are gone"
            if gone
            else f"{len(new)} are new"
        )
        yield cause(
            Kind.PROMPT_CHANGED,
            route,
            f"The prompt's template{_at(route)} is another: of the lines and labels that all "
            f"prompts hold {words}.",
            [
                Evidence(
                    "constant lines and labels of the prompt",
                    float(len([p for p in shares[0].values() if p >= ALWAYS])),
                    float(len([p for p in shares[1].values() if p >= ALWAYS])),
                    effect,
                    "fact",
                    "",
                    len(known[0]),
                    len(known[1]),
                ),
                case.shift("characters of a prompt", *_numbers(case, (masks[0], masks[1]), "characters")),
                fact("messages of a call", messages) if count and messages is not None else None,
            ],
            FACT,
            both(case, (masks[0], masks[1]), "trace"),
            effect=effect,
        )


def system_prompt_changed(case: Case) -> Iterator[Cause]:
    """Another system prompt, by its fingerprint; by its length where it is never twice the same."""
    for route, *masks in written(case):
        pair = (masks[0], masks[1])
        systems = both(case, pair, "system")
        if not any(systems[0]) and not any(systems[1]):
            continue
        mixed = case.mix("system prompt", *systems)
        if mixed is None:
            continue
        most = [max(side.values()) for side in (mixed.before, mixed.after)]
        if min(most) >= 0.3:
            if mixed.distance < 0.3 or not mixed.switched:
                continue
            first, second = (name or "none" for name in mixed.usual)
            lengths = _numbers(case, pair, "system_characters")
            sizes = [float(np.nanmedian(each)) if np.isfinite(each).any() else 0.0 for each in lengths]
            yield cause(
                Kind.SYSTEM_PROMPT_CHANGED,
                route,
                f"The system prompt{_at(route)} is another: {sizes[1]:.0f} characters, {sizes[0]:.0f} before "
                f"(fingerprint {second}; it was {first}).",
                [
                    fact("system prompt", mixed),
                    Evidence(
                        "characters of the system prompt, median",
                        sizes[0],
                        sizes[1],
                        abs(sizes[1] - sizes[0]) / max(1.0, *sizes),
                        "ratio",
                        "",
                        len(systems[0]),
                        len(systems[1]),
                    ),
                ],
                FACT,
                both(case, pair, "trace"),
            )
        else:  # a date or a name in it
            shift = case.shift("characters of the system prompt", *_numbers(case, pair, "system_characters"))
            if shift is not None and shift.effect >= 0.5:
                yield cause(
                    Kind.SYSTEM_PROMPT_CHANGED,
                    route,
                    f"The system prompt{_at(route)} has {shift.after:.0f} characters; it had "
                    f"{shift.before:.0f}.",
                    [shift],
                    TESTED,
                    both(case, pair, "trace"),
                )


def tools_changed(case: Case) -> Iterator[Cause]:
    """Other tools are offered."""
    for route, *masks in written(case):
        tools = both(case, (masks[0], masks[1]), "tools")
        if not any(tools[0]) and not any(tools[1]):
            continue
        mixed = case.mix("definitions of tools", *tools)
        if mixed is not None and mixed.distance >= 0.5 and mixed.switched:
            yield cause(
                Kind.TOOLS_CHANGED,
                route,
                f"The definitions of the tools{_at(route)} are others.",
                [fact("definitions of tools", mixed)],
                FACT,
                both(case, (masks[0], masks[1]), "trace"),
            )


def context_dropped(case: Case) -> Iterator[Cause]:
    """Documents that were retrieved and are not in the prompt, or not whole."""
    for route, *masks in written(case, MIN_CALLS):
        pair = (masks[0], masks[1])
        retrieved, whole, cut = (
            _numbers(case, pair, name) for name in ("documents", "documents_whole", "documents_cut")
        )
        known = [each > 0 for each in retrieved]
        if min(int(each.sum()) for each in known) < MIN_CALLS:
            continue
        kept = [w[mask] / r[mask] for w, r, mask in zip(whole, retrieved, known, strict=True)]
        halved = [c[mask] / r[mask] for c, r, mask in zip(cut, retrieved, known, strict=True)]
        means = [float(np.mean(each)) for each in kept]
        cuts = [float(np.mean(each)) for each in halved]
        if abs(means[1] - means[0]) < 0.08:
            continue
        test = case.shift(
            "share of the retrieved documents that the prompt holds whole", kept[0], kept[1], "1"
        )
        if test is None:
            totals = [int(r[mask].sum()) for r, mask in zip(retrieved, known, strict=True)]
            holds = [int(w[mask].sum()) for w, mask in zip(whole, known, strict=True)]
            test = case.share(
                "retrieved documents that the prompt holds whole",
                (holds[0], holds[1]),
                (totals[0], totals[1]),
            )
        if test is None:
            continue
        also = f", {cuts[1]:.0%} only in part (it was {cuts[0]:.0%})" if max(cuts) > 0.02 else ""
        yield cause(
            Kind.CONTEXT_DROPPED,
            route,
            f"Of the documents that were retrieved, prompts{_at(route)} hold {means[1]:.0%} whole; "
            f"it was {means[0]:.0%}{also}.",
            [
                test,
                Evidence(
                    "retrieved documents that the prompt holds in part, mean",
                    cuts[0],
                    cuts[1],
                    abs(cuts[1] - cuts[0]),
                    "share",
                    "1",
                    len(kept[0]),
                    len(kept[1]),
                ),
            ],
            TESTED,
            both(case, pair, "trace"),
            effect=abs(means[1] - means[0]),
        )


def reranker_changed(case: Case) -> Iterator[Cause]:
    """Another reranker, none any more, or one that orders otherwise."""
    present = [_reranked(side) for side in case.sides]
    if all(total for _, total in present):
        share = case.share(
            "traces with a search that are reranked",
            (present[0][0], present[1][0]),
            (present[0][1], present[1][1]),
        )
        if share is not None and share.effect >= 0.3 and max(present[0][0], present[1][0]) >= 3:
            yield cause(
                Kind.RERANKER_CHANGED,
                "",
                f"What searches find is reranked in {share.after:.0%} of the traces; it was "
                f"{share.before:.0%}.",
                [share],
                FACT,
                (case.before.searches.labels("trace"), case.after.searches.labels("trace")),
            )
            return
    for (operation, route), *masks in groups(case, calls, ("operation", "route")):
        if operation != "rerank":
            continue
        pair = (masks[0], masks[1])
        for column in ("weights", "model", "answered_by", "provider"):
            values = both(case, pair, column)
            known = [[value for value in side if value] for side in values]
            if not all(known):
                continue
            mixed = case.mix("reranking model", *known)
            if mixed is not None and mixed.distance >= 0.3 and mixed.switched:
                first, second = mixed.usual
                yield cause(
                    Kind.RERANKER_CHANGED,
                    str(second),
                    f"The reranker{_at(route)} is another ({column}): {second}; it was {first}.",
                    [fact("reranking model", mixed)],
                    FACT,
                    both(case, pair, "trace"),
                )
                return
        for column, what in (
            ("returned", "documents that the reranker hands on"),
            ("top", "best score of a reranking"),
            ("rerank_shift", "ranks that reranking moves a document, mean"),
        ):
            shift = case.shift(what, *_numbers(case, pair, column))
            if shift is not None and shift.effect >= 0.25:
                yield cause(
                    Kind.RERANKER_CHANGED,
                    "",
                    f"The reranker{_at(route)} works otherwise: {what} {shift.after:.3g}; it was "
                    f"{shift.before:.3g}.",
                    [shift],
                    TESTED,
                    both(case, pair, "trace"),
                )
                return


def _piece_shares(prompts: list[tuple[int, ...]]) -> dict[int, float]:
    counts = Counter(piece for each in prompts for piece in set(each))
    return {piece: count / len(prompts) for piece, count in counts.items()}


def _order(prompts: list[tuple[int, ...]], constant: set[int]) -> tuple[int, ...]:
    """The constant pieces in their usual order."""
    orders = Counter(tuple(dict.fromkeys(piece for piece in each if piece in constant)) for each in prompts)
    return orders.most_common(1)[0][0]


def _numbers(case: Case, masks: tuple[Mask, Mask], column: str) -> tuple[Floats, Floats]:
    return case.before.calls.number(column)[masks[0]], case.after.calls.number(column)[masks[1]]


def _reranked(side: Columns) -> tuple[int, int]:
    searched = set(side.searches.labels("trace"))
    table = side.calls
    ranked = {
        trace
        for trace, op in zip(table.labels("trace"), table.labels("operation"), strict=True)
        if op == "rerank"
    }
    return len(searched & ranked), len(searched)


def _at(route: str) -> str:
    return f" of {route}" if route else ""


DETECTORS = (reranker_changed, prompt_changed, system_prompt_changed, tools_changed, context_dropped)

"""The story of a comparison as Markdown, for an incident's ticket."""

from __future__ import annotations

import re
from typing import Final

from neuronscope.diagnosis.comparing.result import Cause, Comparison, Evidence, Side, Verdict
from neuronscope.diagnosis.stories import words
from neuronscope.diagnosis.stories.steps import STEPS, opening
from neuronscope.viewer.safe import visible

# Markup within a line, mentions, references of issues, and links made of bare text.
_MARKUP: Final = re.compile(r"([\\`*_\[\]<>#|~@&]|(?<=\w):(?=//)|(?<=www)\.)")
_BLANK: Final = re.compile(r"\s+")
_CAUSES: Final = 5
_FACTS: Final = 6
_TRACES: Final = 3


def markdown(found: Comparison) -> str:
    """A comparison as a ticket: the story, the causes with their evidence, and what was compared."""
    lines = [f"## {_safe(words.headline(found), 400)}", ""]
    lines += _story(found)
    for cause in found.causes[:_CAUSES]:
        lines += _cause(found, cause)
    if len(found.causes) > _CAUSES:
        lines += [f"… and {len(found.causes) - _CAUSES} more causes.", ""]
    if found.consequences:
        kinds = ", ".join(words.title(item.kind) for item in found.consequences)
        lines += [f"**Follows from that:** {_safe(kinds)}", ""]
    if found.untold:
        lines += ["**Cannot be told from these recordings:**", ""]
        lines += [f"- {words.title(item.kind)}: {_safe(item.why)}" for item in found.untold[:_CAUSES]] + [""]
    lines += ["| | Before | After |", "| --- | --- | --- |"]
    lines.append(f"| Recorded | {_side(found.before)} | {_side(found.after)} |")
    lines.append(f"| Time | {words.window(found.before)} | {words.window(found.after)} |")
    damage = [*found.before.damage, *found.after.damage]
    if damage:
        lines += ["", *(f"- Damaged: {_safe(item)}" for item in damage[:_CAUSES])]
    again = words.command(found.before, found.after)
    lines += ["", _safe(words.pairing(found)), "", f"Again: {_code(again)}", ""]
    return "\n".join(lines)


def _story(found: Comparison) -> list[str]:
    if found.verdict is Verdict.CHANGED and found.causes:
        first = found.causes[0]
        about = f" ({_safe(first.subject)})" if first.subject else ""
        lines = [
            f"- **What:** {_safe(words.sentence(first.summary), 600)}",
            f"- **Where:** in {words.PLACES[first.stage]}{about}",
            f"- **How sure:** {words.sureness(first)}",
            f"- **Look first:** {_safe(STEPS[first.kind], 400)}",
        ]
        if explained := words.explained(found, first):
            lines.append(f"- **It explains:** {_safe(explained, 600)}")
        return [*lines, ""]
    if found.verdict is Verdict.NO_CHANGE:
        return [
            *(
                f"- Would have been seen: {_safe(words.power(item))}"
                for item in words.telling(found.power)[:5]
            ),
            "",
        ]
    return [*(f"- Noticed: {_safe(item.summary)}" for item in found.symptoms[:5]), ""]


def _cause(found: Comparison, cause: Cause) -> list[str]:
    place = found.causes.index(cause) + 1
    lines = [
        f"### {place}. {words.title(cause.kind)}",
        "",
        f"{_safe(words.sentence(cause.summary), 600)} {words.sureness(cause).capitalize()}.",
        "",
    ]
    if cause.evidence:
        lines += ["| Measured | Before | After | Difference | p |", "| --- | --- | --- | --- | --- |"]
        lines += [_row(item) for item in cause.evidence[:_FACTS]]
        lines.append("")
    for name, side, ids in (
        ("before", found.before, cause.traces_before),
        ("after", found.after, cause.traces_after),
    ):
        if ids:
            lines += [f"Traces {name}: {', '.join(map(_code, ids[:_TRACES]))}", ""]
        if command := opening(side.paths, ids):
            lines += [f"Open one: {_code(command)}", ""]
    return lines


def _row(item: Evidence) -> str:
    statistic = "share" if item.statistic == "share" and item.unit in {"", "1"} else ""
    cells = (
        _safe(item.what),
        _safe(words.quantity(item.before, item.unit, statistic=statistic)),
        _safe(words.quantity(item.after, item.unit, statistic=statistic)),
        _safe(words.difference(item)),
        _safe(words.chance(item)),
    )
    return f"| {' | '.join(cells)} |"


def _side(side: Side) -> str:
    paths = ", ".join(map(_code, side.paths[:3])) + (" …" if len(side.paths) > 3 else "")
    return f"{words.size(side)}; {paths}"


def _safe(text: str, limit: int = 200) -> str:
    """Text of a recording that no renderer takes for markup."""
    return _MARKUP.sub(r"\\\1", _BLANK.sub(" ", visible(text, limit)))


def _code(text: str) -> str:
    """Text of a recording as code."""
    return f"`{_BLANK.sub(' ', visible(text, 200)).replace('`', chr(39)).replace('|', chr(92) + '|')}`"

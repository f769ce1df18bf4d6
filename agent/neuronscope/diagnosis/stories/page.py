"""The story of a comparison as one self-contained HTML page: no network, no markup from recordings.

Everything is in the page's own text, so that it reads without scripts; the script adds keys and the choice
of light and dark.  Like the viewer's page it admits one stylesheet and one script, by their hashes.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from neuronscope.diagnosis.comparing.result import (
    Cause,
    Comparison,
    Evidence,
    Plot,
    Shape,
    Side,
    Symptom,
    Verdict,
)
from neuronscope.diagnosis.kinds import Stage
from neuronscope.diagnosis.stories import words
from neuronscope.diagnosis.stories.plots import drawing, safe
from neuronscope.diagnosis.stories.steps import STEPS, opening
from neuronscope.viewer.page import policy
from neuronscope.viewer.page import source as viewer_source

# The path of a request, as a person would draw it.
_PATH: Final = (
    (Stage.TRAFFIC, "traffic"),
    (Stage.QUERIES, "questions"),
    (Stage.EMBED, "embedder"),
    (Stage.INDEX, "index"),
    (Stage.SEARCH, "search"),
    (Stage.RERANK, "reranker"),
    (Stage.PROMPT, "prompt"),
    (Stage.MODEL, "model"),
    (Stage.INSIDE, "layers"),
    (Stage.PROVIDER, "provider"),
    (Stage.SERVICE, "service"),
    (Stage.ENVIRONMENT, "environment"),
    (Stage.AGENT, "recording"),
)
_TRACES: Final = 6


def html(found: Comparison) -> str:
    """A comparison as one self-contained page."""
    # The viewer's palettes, then our own rules.
    style = viewer_source("style.css").partition("* { box-sizing")[0] + _source("story.css")
    script = _source("story.js")
    return "".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy(style, script)}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="referrer" content="no-referrer">\n<meta name="color-scheme" content="light dark">\n',
            f"<title>{safe(_title(found))} – NeuronScope</title>\n",
            f'<link rel="icon" href="{_ICON}">\n<style>{style}</style>\n</head>\n<body>\n',
            _head(found),
            '<main id="story">\n',
            *_sections(found),
            "</main>\n",
            _foot(found),
            f'<script type="module">{script}</script>\n</body>\n</html>\n',
        )
    )


_ICON: Final = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Crect width='16' "
    "height='16' rx='4' fill='%234338ca'/%3E%3Cpath d='M3 8h10M8 3v10' stroke='white' stroke-width='1.5'/%3E"
    "%3Ccircle cx='8' cy='8' r='3' fill='none' stroke='white' stroke-width='1.5'/%3E%3C/svg%3E"
)


@cache
def _source(name: str) -> str:
    return (files("neuronscope.diagnosis.stories") / "html" / name).read_text("utf-8")


def _title(found: Comparison) -> str:
    return words.title(found.causes[0].kind) if found.causes else words.headline(found)


def _head(found: Comparison) -> str:
    tone = {"changed": "bad", "unknown": "warn", "insufficient": "warn"}.get(found.verdict.value, "good")
    return (
        '<a class="skip" href="#story">Skip to the story</a>\n<header class="top">'
        '<svg class="logo" viewBox="0 0 16 16" aria-hidden="true"><rect width="16" height="16" rx="4"/>'
        '<path d="M3 8h10M8 3v10"/><circle cx="8" cy="8" r="3"/></svg><b>NeuronScope</b>'
        f'<span class="verdict {tone}">{safe(found.verdict.value.replace("_", " "))}</span>'
        '<span class="space"></span>'
        '<span class="keys wide-only"><kbd>j</kbd> <kbd>k</kbd> causes · <kbd>e</kbd> evidence · '
        "<kbd>t</kbd> theme</span>"
        '<button id="theme" type="button" title="Light, dark, or as the system (t)">Theme</button></header>\n'
    )


def _sections(found: Comparison) -> list[str]:
    parts = [_story(found)]
    if found.symptoms:
        parts.append(_symptoms(found))
    if found.causes:
        cards = "".join(_cause(found, cause, n) for n, cause in enumerate(found.causes, 1))
        parts.append(
            f'<section aria-labelledby="causes"><h2 id="causes">What changed</h2>{cards}{_follows(found)}'
            "</section>"
        )
    parts.append(_limits(found))
    parts.append(_sides(found))
    return parts


def _follows(found: Comparison) -> str:
    if not found.consequences:
        return ""
    cards = "".join(_cause(found, cause, None) for cause in found.consequences)
    opened = " open" if len(found.consequences) <= 2 else ""
    return (
        f'<details class="fold"{opened}><summary>What follows from that ({len(found.consequences)})</summary>'
        f"{cards}</details>"
    )


# --- the story --------------------------------------------------------------------------------------------
def _story(found: Comparison) -> str:
    rows: list[tuple[str, str]] = []
    if found.verdict is Verdict.CHANGED and found.causes:
        first = found.causes[0]
        about = f" – <bdi>{safe(first.subject)}</bdi>" if first.subject else ""
        rows.append(("Where", f"in {words.PLACES[first.stage]}{about}"))
        rows.append(("How sure", safe(words.sureness(first), None)))
        explained = words.explained(found, first)
        rows.append(("Look first", safe(STEPS[first.kind], None)))
        rows.append(
            ("It explains", f"<bdi>{safe(explained, 600)}</bdi>" if explained else "nothing else seen")
        )
        others = [f"<bdi>{safe(words.title(cause.kind))}</bdi>" for cause in found.causes[1:4]]
        if others:
            rows.append(("Also", ", ".join(others)))
    elif found.verdict is Verdict.NO_CHANGE and found.power:
        rows += [("Would have been seen", safe(words.power(item))) for item in words.telling(found.power)[:3]]
    elif found.verdict is Verdict.UNKNOWN:
        rows += [("Noticed", f"<bdi>{safe(item.summary)}</bdi>") for item in found.symptoms[:3]]
    table = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in rows)
    lead = ""
    if found.verdict is Verdict.CHANGED and found.causes:
        lead = f'<p class="lead"><bdi>{safe(words.sentence(found.causes[0].summary), 600)}</bdi></p>'
    return (
        f'<section class="story"><h1><bdi>{safe(words.headline(found), 400)}</bdi></h1>{lead}{_route(found)}'
        f"<dl>{table}</dl></section>"
    )


def _route(found: Comparison) -> str:
    """The path of a request, with the places that changed."""
    changed = {cause.stage for cause in found.causes}
    followed = {cause.stage for cause in found.consequences} - changed
    items = "".join(
        f'<li class="{"changed" if stage in changed else "followed" if stage in followed else ""}">{name}'
        f"{_said(stage in changed, stage in followed)}</li>"
        for stage, name in _PATH
    )
    return f'<ol class="route" aria-label="The path of a request: where something changed">{items}</ol>'


def _said(changed: bool, followed: bool) -> str:
    word = "changed" if changed else "follows" if followed else ""
    return f'<span class="hidden">: {word}</span>' if word else ""


def _symptoms(found: Comparison) -> str:
    rows = "".join(map(_symptom, found.symptoms))
    return (
        f'<section><h2>What is different for users and bills</h2><ul class="symptoms">{rows}</ul></section>'
    )


def _symptom(item: Symptom) -> str:
    by = ", ".join(words.title(kind) for kind in item.explained_by)
    why = (
        f'<span class="dim">explained by {safe(by)}</span>'
        if by
        else '<span class="warn">not explained</span>'
    )
    plots = "".join(_plot(fact) for fact in item.evidence if fact.plot is not None)
    return f"<li><p><bdi>{safe(words.sentence(item.summary), 400)}</bdi> {why}</p>{plots}</li>"


# --- causes and their evidence ----------------------------------------------------------------------------
def _legend(plot: Plot) -> str:
    if plot.shape is Shape.LAYERS:
        names = {"before": "noise", "after": "difference", "floor": "below four times the noise: no change"}
    else:
        names = {"before": "before", "after": "after", "floor": "as one side differs from itself"}
    if not any(plot.floor):
        del names["floor"]
    keys = " ".join(f'<span class="key {key}"></span>{name}' for key, name in names.items())
    return f'<p class="legend dim">{keys}</p>'


def _cause(found: Comparison, cause: Cause, place: int | None) -> str:
    number = f'<span class="place">{place}</span>' if place is not None else ""
    because = ", ".join(words.title(kind) for kind in cause.because)
    follows = f"<dt>Follows from</dt><dd>{safe(because)}</dd>" if because else ""
    explained = words.explained(found, cause)
    explains = f"<dt>Explains</dt><dd><bdi>{safe(explained, 600)}</bdi></dd>" if explained else ""
    subject = f'<code class="subject"><bdi>{safe(cause.subject)}</bdi></code>' if cause.subject else ""
    step = f"<dt>Look first</dt><dd>{safe(STEPS[cause.kind], None)}</dd>" if place not in {None, 1} else ""
    plots = "".join(_plot(item) for item in cause.evidence if item.plot is not None)
    return (
        f'<article class="card cause" tabindex="-1">'
        f"<h3>{number}{safe(words.title(cause.kind))}{subject}"
        f'<span class="badge">{safe(cause.stage.value)}</span></h3>'
        f"<p><bdi>{safe(words.sentence(cause.summary), 600)}</bdi></p>"
        f'<div class="sure"><meter min="0" max="1" value="{min(1.0, max(0.0, cause.confidence)):.3f}" '
        f'aria-label="confidence"></meter><span>{safe(words.sureness(cause), None)}</span></div>'
        f"<dl>{step}{explains}{follows}</dl>{plots}{_evidence(cause)}"
        f"{_traces('before', found.before, cause.traces_before)}"
        f"{_traces('after', found.after, cause.traces_after)}"
        "</article>"
    )


def _plot(item: Evidence) -> str:
    drawn = drawing(item.plot) if item.plot is not None else ""
    if not drawn or item.plot is None:
        return ""
    caption = f"<bdi>{safe(item.plot.title)}</bdi>{_legend(item.plot)}"
    return f"<figure><figcaption>{caption}</figcaption>{drawn}</figure>"


def _evidence(cause: Cause) -> str:
    if not cause.evidence:
        return ""
    rows = "".join(
        f"<tr><td><bdi>{safe(item.what)}</bdi></td>"
        f"{_measured(item, item.before)}{_measured(item, item.after)}"
        f'<td>{safe(words.difference(item))}</td><td class="num">{_counts(item)}</td>'
        f'<td class="num">{safe(words.chance(item))}</td></tr>'
        for item in cause.evidence
    )
    return (
        f'<details class="evidence"><summary>Evidence ({len(cause.evidence)})</summary>'
        '<div class="scroll"><table>'
        "<thead><tr><th>Measured</th><th>Before</th><th>After</th><th>Difference</th>"
        '<th class="num">Samples</th><th class="num" title="probability of such a difference without any '
        'change">p</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )


def _measured(item: Evidence, value: str | float | None) -> str:
    return f"<td><bdi>{safe(words.quantity(value, item.unit, statistic=_of(item)))}</bdi></td>"


def _of(item: Evidence) -> str:
    # A share's two sides are shares too; those of a ratio or a distance are in their own unit.
    return "share" if item.statistic == "share" and item.unit in {"", "1"} else ""


def _counts(item: Evidence) -> str:
    return f"{item.n_before:,} / {item.n_after:,}" if item.n_before or item.n_after else "–"


def _traces(name: str, side: Side, ids: tuple[str, ...]) -> str:
    if not ids:
        return ""
    command = opening(side.paths, ids)
    code = f'<code class="id">{safe(command, 400)}</code>'
    first = f'<p class="traces"><span class="dim">Open one:</span> {code}</p>' if command else ""
    shown = " ".join(f'<code class="id">{safe(trace)}</code>' for trace in ids[:_TRACES])
    return f'<p class="traces"><span class="dim">Traces {name}:</span> {shown}</p>{first}'


# --- limits and sides -------------------------------------------------------------------------------------
def _limits(found: Comparison) -> str:
    parts: list[str] = []
    if found.power:
        rows = "".join(
            f"<li><bdi>{safe(words.power(item))}</bdi></li>" for item in words.telling(found.power)
        )
        parts.append(
            '<details class="fold"><summary>How small a change would have been seen '
            f"({len(found.power)})</summary><ul>{rows}</ul></details>"
        )
    if found.untold:
        rows = "".join(
            f"<li><b>{safe(words.title(item.kind))}</b>: <bdi>{safe(item.why)}</bdi>"
            + (f" <span class='dim'>It takes: <bdi>{safe(item.needs)}</bdi></span>" if item.needs else "")
            + "</li>"
            for item in found.untold
        )
        parts.append(
            '<details class="fold"><summary>What these recordings cannot tell '
            f"({len(found.untold)})</summary><ul>{rows}</ul></details>"
        )
    return f"<section>{''.join(parts)}</section>" if parts else ""


def _sides(found: Comparison) -> str:
    cards = _side("Before", "before", found.before) + _side("After", "after", found.after)
    return (
        f'<section><h2>What was compared</h2><div class="cards">{cards}</div>'
        f'<p class="dim">{safe(words.pairing(found), None)}</p></section>'
    )


def _side(name: str, key: str, side: Side) -> str:
    paths = "".join(f"<li><code><bdi>{safe(path)}</bdi></code></li>" for path in side.paths[:8])
    more = f"<li class='dim'>and {len(side.paths) - 8} more</li>" if len(side.paths) > 8 else ""
    damage = "".join(f'<p class="warn">Damaged: <bdi>{safe(item)}</bdi></p>' for item in side.damage[:5])
    services = ", ".join(side.services)
    named = f"<p><bdi>{safe(services)}</bdi></p>" if services else ""
    facts = "".join(
        f"<dt><bdi>{safe(fact)}</bdi></dt><dd><bdi>{safe(value)}</bdi></dd>"
        for fact, value in sorted(side.environment.items())
    )
    environment = f"<details><summary>Environment</summary><dl>{facts}</dl></details>" if facts else ""
    return (
        f'<div class="card"><h3><span class="key {key}"></span>{name}</h3>{named}'
        f"<p>{safe(words.size(side))}</p>"
        f'<p class="dim">{safe(words.window(side))}</p><ul class="paths">{paths}{more}</ul>{damage}'
        f"{environment}</div>"
    )


def _foot(found: Comparison) -> str:
    again = words.command(found.before, found.after)
    return (
        f'<footer class="dim"><code class="id">{safe(again, 400)}</code><span>{found.tests:,} statistical '
        f"tests, false discoveries controlled over all of them; {safe(words.seconds(found.seconds))}</span>"
        "</footer>\n"
    )

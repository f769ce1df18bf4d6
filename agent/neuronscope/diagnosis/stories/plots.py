"""Evidence as inline SVG: two distributions, bars by label, one number a layer, and where the time goes.

Colours are classes of the page's stylesheet, never attributes, so that light and dark both read well.  Every
text goes through `safe`; every drawing has a name for those who do not see it.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import Final

from neuronscope.diagnosis.comparing.result import Plot, Shape
from neuronscope.diagnosis.stories import words
from neuronscope.viewer.safe import visible

WIDTH: Final = 640
LEFT: Final = 8
RIGHT: Final = 8
LABELS: Final = 190  # of bars and waterfalls, on the left
_LONGEST: Final = 200  # characters of a label


def safe(text: str, limit: int | None = _LONGEST) -> str:
    """Text from a recording, fit for markup."""
    return html.escape(visible(text, limit), quote=True)


def drawing(plot: Plot) -> str:
    """A plot as SVG; empty if there is nothing to draw."""
    if not any(math.isfinite(value) for value in (*plot.before, *plot.after)):
        return ""
    match plot.shape:
        case Shape.HISTOGRAM:
            return _histogram(plot)
        case Shape.LAYERS:
            return _layers(plot) if len(plot.labels) > 1 else ""  # a point is no curve
        case _:
            return _waterfall(plot) if plot.unit == "s" and len(plot.labels) > 1 else _bars(plot)


def _svg(height: float, label: str, *parts: str) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{safe(label)}">'
        + "".join(parts)
        + "</svg>"
    )


def _text(x: float, y: float, text: str, classes: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{classes}">{safe(text)}</text>'


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if math.isfinite(value)]


def _histogram(plot: Plot) -> str:
    """Two outlines over the same edges: before as a grey area, after as a line."""
    top, bottom = 10, 110
    count = min(len(plot.edges) - 1, max(len(plot.before), len(plot.after)))
    highest = max([*_finite(plot.before), *_finite(plot.after), 1e-12])
    if count < 1:
        return ""
    # Bins may differ in width (quantiles do): drawn side by side, the edges told below.
    step = (WIDTH - LEFT - RIGHT) / count

    def outline(shares: Sequence[float]) -> list[tuple[float, float]]:
        points: list[tuple[float, float]] = []
        for at in range(count):
            share = shares[at] if at < len(shares) and math.isfinite(shares[at]) else 0.0
            y = bottom - (bottom - top) * share / highest
            points += [(LEFT + at * step, y), (LEFT + (at + 1) * step, y)]
        return points

    def path(points: Sequence[tuple[float, float]], *, closed: bool) -> str:
        line = " ".join(f"{'L' if at else 'M'}{x:.1f} {y:.1f}" for at, (x, y) in enumerate(points))
        return f"{line} L{WIDTH - RIGHT} {bottom} L{LEFT} {bottom} Z" if closed else line

    parts = [f'<line x1="{LEFT}" y1="{bottom}" x2="{WIDTH - RIGHT}" y2="{bottom}" class="axis-line"/>']
    if any(plot.before):
        parts.append(f'<path d="{path(outline(plot.before), closed=True)}" class="area before"/>')
    if any(plot.after):
        after = outline(plot.after)
        parts.append(f'<path d="{path(after, closed=True)}" class="area after"/>')
        parts.append(f'<path d="{path(after, closed=False)}" class="line after"/>')
    for at in sorted({0, count // 4, count // 2, 3 * count // 4, count}):
        anchor = "start" if at == 0 else "end" if at == count else "middle"
        edge = words.quantity(plot.edges[at], plot.unit)
        parts.append(_text(LEFT + at * step, bottom + 15, edge, "tick", anchor))
    return _svg(bottom + 20, f"{plot.title}: distributions before and after", *parts)


def _bars(plot: Plot) -> str:
    """Two bars a label."""
    highest = max([abs(value) for value in _finite((*plot.before, *plot.after))] or [1.0]) or 1.0
    room = WIDTH - LABELS - 90
    parts: list[str] = []
    y = 4.0
    for at, label in enumerate(plot.labels):
        parts.append(_text(LABELS - 8, y + 17, _short(label, 28), "label", "end"))
        for side, values in (("before", plot.before), ("after", plot.after)):
            value = values[at] if at < len(values) else math.nan
            told = words.quantity(value, plot.unit) if math.isfinite(value) else "not recorded"
            width = room * abs(value) / highest if math.isfinite(value) else 0.0
            title = f"<title>{safe(label)}, {side}: {safe(told)}</title>"
            parts.append(
                f'<rect x="{LABELS}" y="{y:.1f}" width="{max(width, 1):.1f}" height="11" rx="2" '
                f'class="bar {side}">{title}</rect>'
            )
            parts.append(_text(LABELS + max(width, 1) + 6, y + 9.5, told, "tick"))
            y += 13
        y += 7
    return _svg(y, f"{plot.title}: bars before and after", *parts)


def _waterfall(plot: Plot) -> str:
    """Stages one after the other, each beginning where the one before it ended: a row for each side."""
    total = max(sum(_finite(plot.before)), sum(_finite(plot.after))) or 1.0
    room = WIDTH - LABELS - 80
    parts: list[str] = []
    at_before = at_after = y = 0.0
    for at, label in enumerate(plot.labels):
        parts.append(_text(LABELS - 8, y + 17, _short(label, 28), "label", "end"))
        for side, values, begun in (("before", plot.before, at_before), ("after", plot.after, at_after)):
            value = values[at] if at < len(values) and math.isfinite(values[at]) else 0.0
            x, width = LABELS + room * begun / total, max(1.0, room * value / total)
            told = words.seconds(value)
            parts.append(
                f'<rect x="{x:.1f}" y="{y + 2:.1f}" width="{width:.1f}" height="11" rx="2" '
                f'class="bar {side}">'
                f"<title>{safe(label)}, {side}: {told}</title></rect>"
            )
            parts.append(_text(x + width + 6, y + 11.5, told, "tick"))
            if side == "before":
                at_before += value
            else:
                at_after += value
            y += 13
        y += 7
    return _svg(y, f"{plot.title}: where the time went before and after", *parts)


def _layers(plot: Plot) -> str:
    """One number a layer: both sides as lines over the band in which a side differs from itself."""
    top, bottom = 12, 150
    n = len(plot.labels) or max(len(plot.before), len(plot.after))
    values = _finite((*plot.before, *plot.after, *plot.floor))
    low, high = min([0.0, *values]), max([*values, 1e-12])
    step = (WIDTH - LEFT - RIGHT - 44) / max(1, n - 1)

    def place(at: int, value: float) -> tuple[float, float]:
        return LEFT + 44 + at * step, bottom - (bottom - top) * (value - low) / (high - low or 1.0)

    parts = [f'<line x1="{LEFT + 44}" y1="{bottom}" x2="{WIDTH - RIGHT}" y2="{bottom}" class="axis-line"/>']
    parts += [
        _text(LEFT + 38, place(0, value)[1] + 4, words.figure(value), "tick", "end")
        for value in (high, (high + low) / 2, low)
    ]
    if plot.floor:
        band = [place(at, value) for at, value in enumerate(plot.floor) if math.isfinite(value)]
        if len(band) > 1:
            line = " ".join(f"{'L' if at else 'M'}{x:.1f} {y:.1f}" for at, (x, y) in enumerate(band))
            parts.append(
                f'<path d="{line} L{band[-1][0]:.1f} {bottom} L{band[0][0]:.1f} {bottom} Z" class="floor"/>'
            )
    for side, series in (("before", plot.before), ("after", plot.after)):
        points = [(at, *place(at, value)) for at, value in enumerate(series) if math.isfinite(value)]
        line = " ".join(f"{'L' if at else 'M'}{x:.1f} {y:.1f}" for at, (_, x, y) in enumerate(points))
        if line:
            parts.append(f'<path d="{line}" class="line {side}"/>')
        for at, x, y in points:
            name = plot.labels[at] if at < len(plot.labels) else str(at)
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{3 if n <= 60 else 1.5}" class="dot {side}">'
                f"<title>{safe(name)}, {side}: {words.quantity(series[at], plot.unit)}</title></circle>"
            )
    for at in sorted({0, n // 2, n - 1}):
        name = plot.labels[at] if at < len(plot.labels) else str(at)
        anchor = "start" if at == 0 else "end" if at == n - 1 else "middle"
        parts.append(_text(place(at, low)[0], bottom + 16, _short(name, 34), "tick", anchor))
    return _svg(bottom + 22, f"{plot.title}: layer by layer", *parts)


def _short(text: str, limit: int) -> str:
    """Cut in the middle: ends of layers' and models' names tell most."""
    return text if len(text) <= limit else f"{text[: limit // 2 - 1]}…{text[-(limit // 2 - 1) :]}"

"""``neuronscope diff BEFORE AFTER``: what changed between two recordings, and a gate for releases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from neuronscope.cli.bar import bar
from neuronscope.cli.paths import Written
from neuronscope.cli.printing import print_json_text
from neuronscope.cli.times import unix_ns
from neuronscope.diagnosis.comparing.face import compare
from neuronscope.diagnosis.comparing.reading import Window
from neuronscope.diagnosis.comparing.result import Cause, Comparison, Evidence, Side, Verdict
from neuronscope.diagnosis.kinds import Kind
from neuronscope.diagnosis.stories.steps import STEPS, opening
from neuronscope.diagnosis.stories.words import telling
from neuronscope.viewer.safe import visible

_FAILED: Final = 1
_TOO_LITTLE: Final = 3
_TELLING: Final = 16
_ANY: Final = "any"
_STYLES: Final = {
    Verdict.CHANGED: ("bold red", "changed"),
    Verdict.NO_CHANGE: ("bold green", "no change"),
    Verdict.UNKNOWN: ("bold yellow", "different, and nothing in the recordings explains it"),
    Verdict.INSUFFICIENT: ("bold yellow", "too little to compare"),
}


@dataclass(frozen=True, slots=True)
class FailOn:
    """A kind of finding that fails a gate, from an effect on; None: any kind."""

    kind: Kind | None
    effect: float

    def matches(self, cause: Cause) -> bool:
        """Does this finding fail it?"""
        return (self.kind is None or cause.kind is self.kind) and cause.effect >= self.effect


def _fail_on(
    _context: click.Context, _parameter: click.Parameter, texts: Sequence[str]
) -> tuple[FailOn, ...]:
    found: list[FailOn] = []
    for text in texts:
        name, _, effect = text.partition(":")
        try:
            kind = None if name == _ANY else Kind(name)
            least = float(effect) if effect else 0.0
            if not 0 <= least < math.inf:  # nothing is at least NaN or infinite: all would pass the gate
                raise ValueError(effect)
            found.append(FailOn(kind, least))
        except ValueError:
            kinds = ", ".join([_ANY, *Kind])
            raise click.BadParameter(f"{text!r} is no KIND[:EFFECT]. Kinds: {kinds}") from None
    return tuple(found)


def _window(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Window | None:
    if text is None:
        return None
    first, dots, last = text.partition("..")
    if not dots:
        raise click.BadParameter(f"{text!r} is no stretch of time; write FROM..TO")
    whole = Window()
    window = Window(
        unix_ns(first.strip()) if first.strip() else whole.start,
        unix_ns(last.strip()) if last.strip() else whole.end,
    )
    if window.start >= window.end:
        raise click.BadParameter(f"{text!r} is empty: it ends before it begins")
    return window


@click.command()
@click.argument("paths", metavar="BEFORE [AFTER]", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option(
    "--before", "window_before", metavar="FROM..TO", callback=_window, help="Time window of the first side."
)
@click.option(
    "--after", "window_after", metavar="FROM..TO", callback=_window, help="Time window of the second side."
)
@click.option(
    "--fail-on",
    metavar="KIND[:EFFECT]",
    multiple=True,
    callback=_fail_on,
    help="Exit with 1 if this was found, with at least this effect; `any` for whatever was. Repeatable.",
)
@click.option("--html", type=Written(), help="Write one self-contained page.")
@click.option("--markdown", type=Written(), help="Write a text for a ticket.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def diff(
    paths: tuple[Path, ...],
    window_before: Window | None,
    window_after: Window | None,
    fail_on: tuple[FailOn, ...],
    html: Path | None,
    markdown: Path | None,
    format_: str,
) -> None:
    """Say what changed from BEFORE to AFTER: files, directories of segments or ranks.

    With one recording and two windows of time, its two windows are compared.

    Exit codes: 0 nothing of --fail-on was found; 1 something was; 2 wrong usage; 3 there was too little to
    compare, and --fail-on could find nothing.
    """
    if len(paths) not in (1, 2):
        raise click.UsageError("give a recording BEFORE and one AFTER, or one and two windows of time")
    if len(paths) == 1 and (window_before is None or window_after is None):
        raise click.UsageError("one recording needs --before FROM..TO and --after FROM..TO")
    result = compare(paths[0], paths[-1], window_before=window_before, window_after=window_after, step=bar)
    for path, maker in ((html, "html"), (markdown, "markdown")):
        if path is not None:
            path.write_text(
                getattr(import_module("neuronscope.diagnosis.stories"), maker)(result), encoding="utf-8"
            )
    if format_ == "json":
        print_json_text(result.to_json())
    else:
        show(Console(), result)
    failing = [cause for cause in result.causes if any(rule.matches(cause) for rule in fail_on)]
    if failing:
        click.echo(f"neuronscope: found {', '.join(cause.kind.value for cause in failing)}", err=True)
        raise click.exceptions.Exit(_FAILED)
    if fail_on and result.verdict is Verdict.INSUFFICIENT:
        traces = f"{result.before.traces:,} and {result.after.traces:,} traces"
        click.echo(f"neuronscope: nothing could be decided: too little to compare ({traces})", err=True)
        raise click.exceptions.Exit(_TOO_LITTLE)


# --- the story on a terminal -----------------------------------------------------------------------------
def show(console: Console, result: Comparison) -> None:
    """Tell what was compared, the verdict, causes with their evidence, what follows, what cannot be told."""
    _show_sides(console, result)
    style, words = _STYLES[result.verdict]
    console.print(Text(words[0].upper() + words[1:], style))
    for place, cause in enumerate(result.causes, 1):
        _show_cause(console, place, cause)
    for side, traces in _shown(result):
        if command := opening(side.paths, traces):
            _line(console, f"\nan example of the first: {command}", "dim")
            break
    if result.consequences:
        _heading(console, "What follows from it")
        for item in result.consequences:
            because = ", ".join(kind.value for kind in item.because)
            _line(console, f"· {item.summary}  ← {because}")
    if result.symptoms:
        _heading(console, "What is noticed")
        for symptom in result.symptoms:
            why = ", ".join(kind.value for kind in symptom.explained_by) or "unexplained"
            _line(console, f"· {symptom.summary}  ← {why}")
    if result.verdict is Verdict.NO_CHANGE and result.power:
        _heading(console, "What would have been seen")
        _show_power(console, result)
    if result.untold:
        _heading(console, "What these recordings cannot tell")
        for lacking in result.untold:
            needs = f" (needs: {lacking.needs})" if lacking.needs else ""
            _line(console, f"· {lacking.kind.value}: {lacking.why}{needs}")


def _shown(result: Comparison) -> list[tuple[Side, Sequence[str]]]:
    """Where an example of the first cause is: of the later side, or of the earlier one."""
    first = result.causes[:1]
    return [
        (side, traces)
        for cause in first
        for side, traces in ((result.after, cause.traces_after), (result.before, cause.traces_before))
    ]


def _show_sides(console: Console, result: Comparison) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("", "recording", "from", "traces", "spans", "layer records"):
        table.add_column(title, style="dim" if not title else "", overflow="fold")
    for name, side in (("before", result.before), ("after", result.after)):
        table.add_row(name, *map(Text, _side(side)))  # as text: a path with brackets is no markup
    console.print(table)
    for name, side in (("before", result.before), ("after", result.after)):
        for text in side.damage:
            console.print(Text(f"{name}: {visible(text)}", "yellow"))
        if side.sampled is not None:
            _line(console, f"{name}: a sample of about {side.sampled:,.0f} traces")
    pairing = result.pairing
    pairs = ", ".join(f"{count:,} by the same {what}" for what, count in pairing.pairs.items())
    paired = f"paired: {pairs} ({pairing.rate:.0%})" if pairs else "nothing could be paired: distributions"
    _line(console, f"{paired}; {result.tests} tests; {result.seconds:.1f} s")
    console.print()


def _side(side: Side) -> list[str]:
    begun = datetime.fromtimestamp(side.start_unix_ns / 1e9).astimezone().isoformat(" ", "seconds")
    paths = ", ".join(visible(path) for path in side.paths)
    return [paths, begun if side.spans else "", f"{side.traces:,}", f"{side.spans:,}", f"{side.layers:,}"]


def _show_cause(console: Console, place: int, cause: Cause) -> None:
    title = Text.assemble((f"\n{place}. ", "bold"), (visible(cause.summary), "bold"))
    title.append(
        f"\n   {cause.kind.value}, stage {cause.stage.value}; confidence {cause.confidence:.0%}", "dim"
    )
    if cause.explains:
        title.append(f"; explains {', '.join(effect.value for effect in cause.explains)}", "dim")
    console.print(title)
    for item in cause.evidence[:6]:
        _line(console, f"   · {_evidence(item)}")
    for name, traces in (("before", cause.traces_before), ("after", cause.traces_after)):
        if traces:
            _line(console, f"   {name}, for example: {', '.join(traces[:2])}", "dim")
    _line(console, f"   look first: {STEPS[cause.kind]}", "dim")


def _evidence(item: Evidence) -> str:
    sizes = f", n = {item.n_before:,} and {item.n_after:,}" if item.n_after else ""
    chance = "" if item.p is None else f", p = {item.p:.1g}"
    measured = "" if item.statistic == "fact" else f" ({item.statistic} {item.effect:.3g}{chance}{sizes})"
    return f"{item.what}: {_value(item.before, item.unit)} → {_value(item.after, item.unit)}{measured}"


def _value(value: str | float | None, unit: str) -> str:
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if unit == "1":
        return f"{value:.1%}"
    return f"{value:.4g}{' ' + unit.strip('{}') if unit else ''}"


def _show_power(console: Console, result: Comparison) -> None:
    """The features that people ask about first; those with the same limit in one line."""
    found: dict[tuple[str, str, int, int], list[str]] = {}
    for item in telling(result.power)[:_TELLING]:
        limit = (f"{item.detectable:.2g}", item.statistic, item.n_before, item.n_after)
        found.setdefault(limit, []).append(visible(item.what))
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("a change from", "measured as", "of", "values"):
        table.add_column(title, overflow="fold")
    for (detectable, statistic, before, after), names in found.items():
        table.add_row(detectable, statistic, Text("; ".join(names)), f"{before:,} and {after:,}")
    console.print(Padding(table, (0, 0, 0, 2)))


def _heading(console: Console, text: str) -> None:
    console.print(Text(f"\n{text}", "bold"))


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(Text(visible(text), style), soft_wrap=True)

"""``neuronscope view FILE|DIR``: the traces of a recording."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.markup import escape

from neuronscope.artifact import Artifact, load
from neuronscope.cli.paths import RECORDING, Written
from neuronscope.cli.printing import print_json
from neuronscope.cli.values import Count
from neuronscope.replacing import replacement
from neuronscope.viewer.coverage import not_captured
from neuronscope.viewer.document import document
from neuronscope.viewer.safe import visible
from neuronscope.viewer.terminal import print_traces
from neuronscope.viewer.tree import Trace, traces

MOST: Final = 1_000  # traces: more than a terminal can be scrolled back through


def _hexadecimal(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    if text is not None and not re.fullmatch("[0-9a-fA-F]{1,32}", text):
        raise click.BadParameter(f"{text!r} is no beginning of a hexadecimal id")
    return text


@click.command()
@RECORDING
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "--html",
    "page",
    metavar="OUT",
    type=Written(),
    help="Write one HTML page.",
)
@click.option("--follow", is_flag=True, help="Go on, and show new traces as they end.  Ctrl-C stops.")
@click.option("--last", metavar="N", type=Count(1), help="Only the last N traces.")
@click.option(
    "--trace",
    "trace_id",
    metavar="ID",
    callback=_hexadecimal,
    help="Only the trace whose id begins so (hex).",
)
@click.option(
    "--all", "every", is_flag=True, help=f"Every trace; a terminal is given the newest {MOST:,} otherwise."
)
@click.option("--all-layers", is_flag=True, help="Show every layer of a model call.")
def view(
    path: Path,
    format_: str,
    page: Path | None,
    follow: bool,
    last: int | None,
    trace_id: str | None,
    every: bool,
    all_layers: bool,
) -> None:
    """Show the traces in a `.nsz` file, or in a directory of them.

    Exit code 1: no trace begins as --trace says.
    """
    if follow and (page is not None or format_ == "json"):
        raise click.UsageError("--follow writes to the terminal, without --html and --format json")
    if every and last is not None:
        raise click.UsageError("--all and --last contradict each other")
    if follow:
        from neuronscope.viewer.follow import follow as show_new

        show_new(Console(), path, last=last or 0, trace_id=trace_id, all_layers=all_layers)
        return
    artifact = load(path)
    if page is None and format_ == "text":
        most = MOST if sys.stdout.isatty() and not every and last is None else None
        if not show(Console(), artifact, last=last, most=most, trace_id=trace_id, all_layers=all_layers):
            raise click.exceptions.Exit(1)
        return
    artifact = _part(artifact, last, trace_id)
    if page is not None:
        click.echo(write_page(artifact, page))
        return
    print_json(document(artifact))


def _part(artifact: Artifact, last: int | None, trace_id: str | None) -> Artifact:
    from neuronscope.viewer.page_data import narrowed

    if last is None and trace_id is None:
        return artifact
    part = narrowed(artifact, last, trace_id)
    if trace_id is not None and not part.telemetry.spans:
        raise click.ClickException(f"no trace begins with {trace_id}")
    return part


def write_page(artifact: Artifact, path: Path) -> str:
    """Write an artifact as one HTML page, complete or not at all; what was written, in words.

    Raises:
        OSError: it cannot be written; the path is as it was.
    """
    from neuronscope.viewer.page import page as page_of
    from neuronscope.viewer.page_data import Limits

    text = page_of(artifact).encode("utf-8")
    with replacement(path) as new:
        new.write_bytes(text)
    spans, layers = len(artifact.telemetry.spans), len(artifact.telemetry.layer_snapshots)
    most = Limits().spans
    held = f" (the page has the newest, at most {most:,})" if spans > most else ""
    return (
        f"{path}: {spans:,} spans{held} and {layers:,} layer records in {len(text) / 1e6:.1f} MB. "
        "Open it in a browser."
    )


def show(
    console: Console,
    artifact: Artifact,
    *,
    last: int | None = None,
    most: int | None = None,
    trace_id: str | None = None,
    all_layers: bool = False,
) -> bool:
    """Print an artifact's traces as trees; False if the one asked for is not there.

    Args:
        last: only so many of the newest were asked for.
        most: if there are more, only so many of the newest are shown, and a line says so.
    """
    records = artifact.telemetry
    found = traces(records.spans, records.layer_snapshots, artifact.services, artifact.logs)
    if trace_id is not None:
        found = [trace for trace in found if f"{trace.trace_id:032x}".startswith(trace_id.lower())]
    shown = found[-(last or most or len(found)) :]
    print_traces(console, shown, all_layers=all_layers)
    if most is not None and len(shown) < len(found):
        console.print(
            f"[yellow]not shown:[/] {len(found) - len(shown):,} earlier traces; "
            "--all shows them, --trace ID one of them",
            highlight=False,
        )
    if not found:
        console.print("no traces" if trace_id is None else f"no trace begins with {escape(trace_id)}")
    for line in map(escape, map(visible, not_captured(artifact))):
        console.print(f"[yellow]not captured:[/] {line}", highlight=False)
    _print_damage(console, artifact, found)
    return bool(found) or trace_id is None


def _print_damage(console: Console, artifact: Artifact, found: list[Trace]) -> None:
    for line in map(escape, map(visible, artifact.damage)):
        console.print(f"[yellow]damaged:[/] {line}" if found else f"[red]damaged:[/] {line}", highlight=False)

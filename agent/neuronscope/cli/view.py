"""``neuronscope view FILE|DIR``: the traces of a recording."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console

from neuronscope.artifact import Artifact, load
from neuronscope.viewer.document import document
from neuronscope.viewer.terminal import print_trace
from neuronscope.viewer.tree import Trace, traces


@click.command()
@click.argument("path", metavar="FILE|DIR", type=click.Path(path_type=Path))
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--last", metavar="N", type=click.IntRange(1), help="Only the last N traces.")
@click.option("--trace", "trace_id", metavar="ID", help="Only the trace whose id begins so (hex).")
@click.option("--all-layers", is_flag=True, help="Show every layer of a model call.")
def view(path: Path, format_: str, last: int | None, trace_id: str | None, all_layers: bool) -> None:
    """Show the traces in a `.nsz` file, or in a directory of them."""
    artifact = load(path)
    if format_ == "json":
        json.dump(document(artifact), sys.stdout, ensure_ascii=False, allow_nan=False)
        sys.stdout.write("\n")
        return
    show(Console(), artifact, last=last, trace_id=trace_id, all_layers=all_layers)


def show(
    console: Console,
    artifact: Artifact,
    *,
    last: int | None = None,
    trace_id: str | None = None,
    all_layers: bool = False,
) -> None:
    """Print an artifact's traces as trees."""
    found = traces(artifact.telemetry.spans, artifact.telemetry.layer_snapshots, artifact.services)
    if trace_id is not None:
        found = [trace for trace in found if f"{trace.trace_id:032x}".startswith(trace_id.lower())]
    for trace in found[-last:] if last else found:
        print_trace(console, trace, all_layers=all_layers)
    if not found:
        console.print("no traces" if trace_id is None else f"no trace begins with {trace_id}")
    _print_damage(console, artifact, found)


def _print_damage(console: Console, artifact: Artifact, found: list[Trace]) -> None:
    for line in artifact.damage:
        console.print(f"[yellow]damaged:[/] {line}" if found else f"[red]damaged:[/] {line}", highlight=False)

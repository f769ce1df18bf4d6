"""``neuronscope baseline make | show``: what retrieval was like when it was good."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from neuronscope.artifact import load
from neuronscope.cli.paths import Written
from neuronscope.cli.printing import print_json
from neuronscope.diagnosis.baseline import Baseline
from neuronscope.diagnosis.drift import MIN_REFERENCE
from neuronscope.diagnosis.samples import Queries
from neuronscope.viewer.safe import visible

ENOUGH = 1_000  # queries of a series from which on all thresholds are as documented


@click.group()
def baseline() -> None:
    """Make a baseline of retrieval from recordings, and show what one holds."""


@baseline.command()
@click.argument(
    "paths", metavar="FILE|DIR…", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True)
)
@click.option(
    "-o",
    "--out",
    type=Written(),
    default=Path("retrieval.baseline.json"),
    show_default=True,
    help="File to write.",
)
@click.option(
    "--keep",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Take embedders' fingerprints and canaries from this baseline: recordings hold neither.",
)
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def make(paths: tuple[Path, ...], out: Path, keep: Path | None, format_: str) -> None:
    """Make the baseline of recordings: `.nsz` files, or directories of them.

    A running service makes one itself when NEURONSCOPE_BASELINE names a file that is not there yet.

    Exit code 1: no series has the 200 queries that a comparison needs; the file is written all the same.
    """
    made = Baseline.of(load(paths), ", ".join(map(str, paths)))
    if keep is not None:
        known = Baseline.read(keep)
        made = Baseline(made.series, known.embedders, known.canaries, made.source, made.created_unix_ns)
    made.save(out)
    _tell(made, out, format_)
    if not any(queries.n >= MIN_REFERENCE for queries in made.series.values()):
        raise click.exceptions.Exit(1)


@baseline.command()
@click.argument("path", metavar="FILE|DIR", type=click.Path(path_type=Path, exists=True))
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def show(path: Path, format_: str) -> None:
    """Show a baseline, or what the baseline of a recording would be."""
    _tell(Baseline.read(path), path, format_)


def _tell(made: Baseline, path: Path, format_: str) -> None:
    if format_ == "json":
        print_json(_document(made, path), indent=1)
        return
    # A line a row: for grep, and a narrow terminal wraps it and leaves out nothing.
    console = Console(width=1000)
    when = datetime.fromtimestamp(made.created_unix_ns / 1e9, UTC).isoformat(" ", "seconds")[:19]
    console.print(
        visible(f"{path}: made {when} UTC from {made.source or 'unknown'}"), markup=False, highlight=False
    )
    if made.series:
        console.print(_table(made))
    else:
        console.print("  no search of a vector store was recorded", markup=False)
    for queries in made.series.values():
        note = _note(queries)
        if note:
            series = queries.series
            console.print(f"  {visible(series.collection)}, k = {series.k}: {note}", markup=False)
    for embedder in made.embedders.values():
        console.print(
            f"  embedder {visible(embedder.name)}: {embedder.hash}, {embedder.dimension} numbers, "
            f"length {embedder.norm:.3g}",
            markup=False,
            highlight=False,
        )
    for run in made.canaries.values():
        console.print(
            f"  canaries {visible(run.name)}: {len(run.found)} queries, k = {run.k}, "
            f"overlap of two replays {run.noise:.3f}",
            markup=False,
            highlight=False,
        )


def _table(made: Baseline) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in ("store", "collection", "metric"):
        table.add_column(column, overflow="fold")
    for column in ("k", "queries", "distinct kept", "empty", "filtered", "top score", "margin"):
        table.add_column(column, justify="right")
    for queries in made.series.values():
        series = queries.series
        table.add_row(
            *(Text(visible(text)) for text in (series.store, series.collection, series.metric)),
            *(str(series.k), f"{queries.seen:,}", f"{queries.n:,}"),
            *(_percent(count, queries.n) for count in (queries.empty, queries.filtered)),
            *(_middle(queries, feature) for feature in ("top_score", "margin")),
        )
    return table


def _percent(count: int, whole: int) -> str:
    return f"{count / whole:.1%}" if whole else ""


def _middle(queries: Queries, feature: str) -> str:
    """The median, and the tenth and ninetieth percentile."""
    values = queries.values.get(feature)
    if values is None or not values.size:
        return ""
    low, middle, high = (values[int(share * (values.size - 1))] for share in (0.1, 0.5, 0.9))
    return f"{middle:.3g} ({low:.3g}–{high:.3g})"


def _note(queries: Queries) -> str:
    if queries.n < MIN_REFERENCE:
        return f"{queries.n} distinct queries; {MIN_REFERENCE} are needed to compare anything"
    if queries.n < ENOUGH:
        return f"{queries.n} distinct queries; with {ENOUGH:,} smaller changes would be seen"
    return ""


def _document(made: Baseline, path: Path) -> dict[str, Any]:
    return {
        "path": str(path),
        "source": made.source,
        "created_unix_nano": str(made.created_unix_ns),
        "series": [
            {
                **queries.series._asdict(),
                "queries": queries.seen,
                "distinct_kept": queries.n,
                "empty": queries.empty,
                "filtered": queries.filtered,
                "embedders": dict(queries.embedders),
                "median": {
                    feature: float(values[values.size // 2]) for feature, values in queries.values.items()
                },
                "usable": queries.n >= MIN_REFERENCE,
            }
            for queries in made.series.values()
        ],
        "embedders": [
            {"name": item.name, "fingerprint": item.hash, "dimension": item.dimension, "norm": item.norm}
            for item in made.embedders.values()
        ],
        "canaries": [
            {"name": run.name, "queries": len(run.found), "k": run.k, "overlap_of_two_replays": run.noise}
            for run in made.canaries.values()
        ],
    }

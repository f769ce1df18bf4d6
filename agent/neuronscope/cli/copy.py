"""``neuronscope merge`` and ``neuronscope cut``: recordings into one file, or a part of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from neuronscope.artifact import in_words
from neuronscope.cli.bar import bar
from neuronscope.cli.paths import RECORDINGS, Target
from neuronscope.cli.times import unix_ns
from neuronscope.cli.values import SPAN_ID, TRACE_ID
from neuronscope.exporters import registry

_OUT = click.option("--out", "-o", required=True, metavar="FILE", type=Target())
_FORCE = click.option("--force", is_flag=True, help="Replace the file if it exists.")


@click.command()
@RECORDINGS
@_OUT
@_FORCE
def merge(paths: tuple[Path, ...], out: Path, force: bool) -> None:
    """Copy recordings into one finished file, tensors included.

    What several of them have, as a file and a part of it do, is copied once.
    What is damaged is left out, and told; the exit code is then 0 all the same.
    """
    _refuse(out, force)
    with bar(f"merging into {out.name}") as progress:
        damage = registry.nsz("merge")(paths, out, progress)
    _tell(out, damage)


def _time(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int | None:
    return None if text is None else unix_ns(text)


@click.command()
@RECORDINGS
@_OUT
@click.option("--from", "start", metavar="TIME", callback=_time, help="Spans that end at or after this time.")
@click.option("--to", "end", metavar="TIME", callback=_time, help="Spans that begin before it.")
@click.option("--span", "span_id", metavar="ID", type=SPAN_ID, help="This span and what is below it.")
@click.option("--trace", "trace_id", metavar="ID", type=TRACE_ID, help="This trace.")
@_FORCE
def cut(
    paths: tuple[Path, ...],
    out: Path,
    start: int | None,
    end: int | None,
    span_id: int | None,
    trace_id: int | None,
    force: bool,
) -> None:
    """Copy a part of recordings: a time, a trace, or a span with everything below it.

    What is damaged is left out, and told; the exit code is then 0 all the same.
    """
    if start is not None and end is not None and start >= end:
        raise click.UsageError("--to is not after --from")
    _refuse(out, force)
    part = registry.nsz("Part")(
        start=start or 0, end=2**64 if end is None else end, span_id=span_id, trace_id=trace_id
    )
    with bar(f"cutting {out.name}") as progress:
        damage = registry.nsz("cut")(paths, out, part, progress)
    _tell(out, damage)


def _refuse(out: Path, force: bool) -> None:
    if out.exists() and not force:
        raise click.UsageError(f"{out} exists; --force replaces it")


def _tell(out: Path, damage: Any) -> None:
    for line in in_words(damage):
        click.echo(f"damaged: {line}", err=True)
    for line in damage.left_out:
        click.echo(f"left out, since this version does not know it: {line}", err=True)
    for line in damage.repeated:
        click.echo(f"copied once: {line}", err=True)
    click.echo(out)

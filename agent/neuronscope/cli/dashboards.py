"""``neuronscope dashboards build | check``: dashboards, rules and alerts from one file to edit."""

from __future__ import annotations

import json
from pathlib import Path

import click

from neuronscope.dashboards import build as building
from neuronscope.dashboards import runbooks as pages
from neuronscope.dashboards import thresholds as limits
from neuronscope.dashboards.thresholds import Thresholds

_THRESHOLDS = click.option(
    "--thresholds",
    "path",
    metavar="FILE",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help=f"Objectives and limits; {limits.NAME} in the folder if there is one, else the defaults.",
)
_OUT = click.option(
    "--out", metavar="DIR", type=click.Path(path_type=Path, file_okay=False), default=Path("dashboards"),
    show_default=True, help="The folder of dashboards, rules and configurations.",
)  # fmt: skip
_FORMAT = click.option(
    "--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True
)


@click.group()
def dashboards() -> None:
    """Dashboards, rules and alerts for what this version emits."""


@dashboards.command()
@_THRESHOLDS
@_OUT
@click.option(
    "--runbooks",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Also renew the heads of runbook pages, and make those that are missing.",
)
@_FORMAT
def build(path: Path | None, out: Path, runbooks: Path | None, format_: str) -> None:
    """Write dashboards, rules, alerts and the configuration of a stack around them.

    Edit thresholds.toml and build again: nothing else needs an edit, and what is edited elsewhere is
    overwritten, except the targets of scrapes.
    """
    thresholds = _load(path, out)
    written = [str(out / name) for name in building.write(thresholds, out)]
    if runbooks is not None:
        written += [str(runbooks / name) for name in pages.write(thresholds, runbooks)]
    if format_ == "json":
        click.echo(json.dumps({"folder": str(out), "written": written}))
        return
    for name in written:
        click.echo(f"wrote {name}")
    click.echo(f"{out}: {len(written)} files written" if written else f"{out} is up to date")


@dashboards.command()
@_THRESHOLDS
@_OUT
@_FORMAT
def check(path: Path | None, out: Path, format_: str) -> None:
    """Say which generated files are missing or differ from what this version would write.

    Exit code 1 if there are any: for CI.
    """
    differing = building.outdated(_load(path, out), out)
    if format_ == "json":
        click.echo(json.dumps({"folder": str(out), "outdated": differing}))
    else:
        for name in differing:
            click.echo(f"not up to date: {out / name}")
    if differing:
        raise click.exceptions.Exit(1)
    if format_ == "text":
        click.echo(f"{out} is up to date")


def _load(path: Path | None, out: Path) -> Thresholds:
    if path is None and (out / limits.NAME).exists():
        path = out / limits.NAME
    return limits.load(path)

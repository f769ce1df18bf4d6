"""Recordings named on the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from neuronscope.exceptions import NszError
from neuronscope.exporters import registry

_PATH: Final = click.Path(path_type=Path, exists=True)
RECORDING: Final = click.argument("path", metavar="FILE|DIR", type=_PATH)
RECORDINGS: Final = click.argument("paths", metavar="FILE|DIR…", nargs=-1, required=True, type=_PATH)


class Target(click.Path):
    """A file to write, or a directory; `-` is neither."""

    def __init__(self, *, directory: bool = False) -> None:
        super().__init__(path_type=Path, dir_okay=directory)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        """As `click.Path` does; wrong usage for what other programs take for their output."""
        if os.fspath(value) == "-":
            self.fail(
                "nothing is written to the standard output here; name a file (./- if it is called so)",
                param,
                ctx,
            )
        return Path(os.fsdecode(super().convert(value, param, ctx)))


class Written(Target):
    """A page or a text to write, not over a recording: in a hurry, the one that was to be read."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> Path:
        """As `click.Path` does; wrong usage where a recording is."""
        path = super().convert(value, param, ctx)
        if path.name.endswith((".nsz", ".nsz.open")) and path.is_file():
            self.fail(f"{path} is named as a recording is, which is not what is written there", param, ctx)
        return path


def found_in(path: Path) -> list[Path]:
    """A recording's files: itself, or those of the directory.

    Raises:
        NszError: a directory without any.
    """
    if not path.is_dir():
        return [path]
    found: list[Path] = registry.nsz("recordings")(path)
    if not found:
        raise NszError(f"the directory {path} holds no .nsz file")
    return found

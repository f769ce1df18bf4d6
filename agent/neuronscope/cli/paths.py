"""Recordings named on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from neuronscope.exceptions import NszError
from neuronscope.exporters import registry

_PATH: Final = click.Path(path_type=Path, exists=True)
RECORDING: Final = click.argument("path", metavar="FILE|DIR", type=_PATH)
RECORDINGS: Final = click.argument("paths", metavar="FILE|DIR…", nargs=-1, required=True, type=_PATH)


def no_recording(_context: click.Context, _parameter: click.Parameter, path: Path | None) -> Path | None:
    """Holds a page or a text off a recording: in a hurry, the one that was to be read."""
    if path is not None and path.name.endswith((".nsz", ".nsz.open")) and path.is_file():
        raise click.BadParameter(f"{path} is named as a recording is, which is not what is written there")
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

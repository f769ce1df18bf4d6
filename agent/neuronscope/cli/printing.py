"""What commands print, whatever the output can show."""

from __future__ import annotations

import codecs
import io
import json
import os
import sys
from typing import Any

import click


def prepare() -> None:
    """Let no command end by an output that is closed, or that cannot show every character: it gets a `?`."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the process was started with it closed
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - it stays
        elif isinstance(stream, io.TextIOWrapper) and _may_refuse(stream.errors, stream.encoding):
            stream.reconfigure(errors="replace")


def _may_refuse(errors: str | None, encoding: str) -> bool:
    """In the C locale a stream lets strange bytes of file names through, and still refuses an arrow."""
    return errors == "strict" or (errors == "surrogateescape" and codecs.lookup(encoding).name != "utf-8")


def abandon_output() -> None:
    """Nobody reads it any more: what is left of it goes nowhere, and is no error when the process ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def print_json(value: Any, *, indent: int | None = None) -> None:
    """One JSON text and a line's end, in UTF-8 whatever the terminal's encoding: nothing in it is replaced.

    Raises:
        ValueError: a number that JSON does not have.
    """
    print_json_text(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent))


def print_json_text(text: str) -> None:
    """What is JSON already."""
    click.echo(text.encode("utf-8", "backslashreplace"))  # half a character is \udXXX, in JSON too

"""``neuronscope ls FILE|DIR …``: what recordings hold, without reading their tensors."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from neuronscope.cli.paths import RECORDINGS, found_in
from neuronscope.cli.printing import print_json
from neuronscope.exceptions import NszError
from neuronscope.exporters import registry
from neuronscope.viewer.safe import visible

_NEVER: Final = 2**64


@click.command("ls")
@RECORDINGS
@click.option("--spans", "each", is_flag=True, help="List every span.")
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def list_recordings(paths: tuple[Path, ...], each: bool, format_: str) -> None:
    """List recordings: spans, traces, time, service, and whether they were finished.

    Exit code 1: one of them cannot be read.
    """
    rows = [row for path in paths for row in _rows(path, each)]
    if format_ == "json":
        for row in rows:
            print_json(row)
    elif rows:
        _print(rows)
    if any("error" in row and "file" in row for row in rows):
        raise click.exceptions.Exit(1)


def _rows(path: Path, each: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for item in found_in(path):
        try:
            file = registry.nsz("NszFile")(item)
        except (NszError, OSError) as error:
            rows.append({"file": str(item), "error": str(error)})
            continue
        rows += _spans(file) if each else [_summary(file)]
        file.close()
    return rows


def _summary(file: Any) -> dict[str, Any]:
    spans, errors, traces = 0, 0, set[str]()
    first, last = _NEVER, -1
    for head in file.each_span_head():
        spans += 1
        errors += head.status is not None and head.status.code == 2
        traces.add(head.trace_id)
        first = min(first, int(head.start_time_unix_nano))
        last = max(last, int(head.end_time_unix_nano))
    services = [str(each.get("service.name", "")) for each in file.resources]
    return {
        "file": str(file.path),
        "bytes": file.size,
        "finished": file.finished,
        "service": ", ".join(dict.fromkeys(filter(None, services))),
        "spans": spans,
        "traces": len(traces),
        "errors": errors,
        "start_unix_nano": str(first) if spans else None,
        "end_unix_nano": str(last) if spans else None,
    }


def _spans(file: Any) -> list[dict[str, Any]]:
    return [
        {
            "trace": head.trace_id,
            "span": head.span_id,
            "parent": head.parent_span_id,
            "name": head.name,
            "start_unix_nano": head.start_time_unix_nano,
            "ms": (int(head.end_time_unix_nano) - int(head.start_time_unix_nano)) / 1e6,
            "error": head.status is not None and head.status.code == 2,
        }
        for head in sorted(file.each_span_head(), key=lambda head: int(head.start_time_unix_nano))
    ]


def _print(rows: list[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in columns:
        right = column in {"bytes", "spans", "traces", "errors", "ms"}
        table.add_column(
            column.removesuffix("_unix_nano"),
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=column not in {"file", "name", "error"},
        )
    for row in rows:
        table.add_row(*[Text(_text(column, row.get(column))) for column in columns])
    # A line a row, for grep.  A narrow terminal wraps it; a table of its width would leave columns out.
    Console(width=1000).print(table)


def _text(column: str, value: object) -> str:
    if value is None:
        return ""
    if column.endswith("_unix_nano"):
        try:
            moment = datetime.fromtimestamp(int(str(value)) / 1e9, UTC)
        except (ValueError, OverflowError, OSError):
            return str(value)
        return moment.isoformat(" ", "milliseconds")[:23]
    if column == "file":
        return visible(os.path.relpath(str(value)))
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, float):
        return f"{value:,.2f}"
    return f"{value:,}" if isinstance(value, int) else visible(str(value))

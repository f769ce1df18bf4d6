"""``neuronscope check FILE|DIR …``: verify recordings, and repair them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from neuronscope.cli.bar import bar
from neuronscope.cli.paths import RECORDINGS, found_in
from neuronscope.cli.printing import print_json
from neuronscope.exceptions import NszError
from neuronscope.exporters import registry


@click.command()
@RECORDINGS
@click.option(
    "--repair", "mend", is_flag=True, help="Finish unfinished files; salvage damaged ones, originals kept."
)
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def check(paths: tuple[Path, ...], mend: bool, format_: str) -> None:
    """Verify every checksum of `.nsz` files, and say what is missing.

    Exit code 0: all that was written is there (a file may be unfinished); 1: something is not.
    """
    console = Console()
    results = [_check(path, mend) for item in paths for path in found_in(item)]
    if format_ == "json":
        print_json(results, indent=1)
    else:
        for result in results:
            _print(console, result)
    if not all(result["sound"] for result in results):
        raise click.exceptions.Exit(1)


def _check(path: Path, mend: bool) -> dict[str, Any]:
    try:
        with bar(path.name) as progress:
            report = registry.nsz("check")(path, progress)
        result = _result(report)
        if mend and not (report.finished and report.sound and path.suffix == ".nsz"):
            done = registry.nsz("repair")(path)
            result["repair"] = {
                "action": done.action,
                "path": str(done.path),
                "original": None if done.original is None else str(done.original),
                "left_out": list(done.damage.left_out),
            }
    except (NszError, OSError) as error:
        return {"path": str(path), "sound": False, "error": str(error)}
    return result


def _result(report: Any) -> dict[str, Any]:
    damage = report.damage
    return {
        "path": report.path,
        "sound": report.sound,
        "finished": report.finished,
        "version": report.version,
        "bytes": report.bytes,
        "chunks": report.chunks,
        "spans": report.spans,
        "layers": report.layers,
        "tensors": report.tensors,
        "logs": report.logs,
        "events": report.events,
        "damaged_bytes": damage.bytes,
        "damaged_stretches": damage.stretches,
        "lost_chunks": damage.lost_chunks,
        "damaged_records": damage.records,
        "torn_bytes": damage.truncated_bytes,
        "reasons": list(damage.reasons),
        "missing": [
            {
                "offset": item.offset,
                "bytes": item.length,
                "kind": item.kind,
                "first_time_unix_nano": str(item.first_time),
                "last_time_unix_nano": str(item.last_time),
                "topics": list(item.topics),
            }
            for item in report.missing
        ],
        "damaged_tensors": list(report.bad_tensors),
        "not_written": [
            {"item": item, "reason": reason, "count": count}
            for (item, reason), count in sorted(report.recorded_losses.items())
        ],
    }


def _print(console: Console, result: dict[str, Any]) -> None:
    state = "[green]sound[/]" if result["sound"] else "[red]damaged[/]"
    console.print(f"{state}  ", end="")
    console.print(result["path"], markup=False, highlight=False, soft_wrap=True)
    lines: list[str] = []
    if "error" in result:
        lines.append(result["error"])
    else:
        unfinished = "" if result["finished"] else "; unfinished"
        lines.append(
            f"version {result['version'] or '?'}, {result['bytes']:,} bytes, {result['chunks']} chunks: "
            f"{result['spans']} spans, {result['layers']} layer records, {result['tensors']} full tensors, "
            f"{result['logs']} log records, {result['events']} events{unfinished}"
        )
        lines += result["reasons"]
        if result["lost_chunks"]:
            lines.append(f"{result['lost_chunks']} chunks are missing, by the gaps in their numbers")
        lines += [
            f"missing: {item['bytes']} bytes at {item['offset']}, {item['kind']}: {', '.join(item['topics'])}"
            for item in result["missing"]
        ]
        lines += [f"damaged tensor: {text}" for text in result["damaged_tensors"]]
        lines += [
            f"never written: {item['count']} × {item['item']} ({item['reason']})"
            for item in result["not_written"]
        ]
        if "repair" in result:
            lines.append(f"{result['repair']['action']}: {result['repair']['path']}")
            if result["repair"]["original"]:
                lines.append(f"the original is {result['repair']['original']}")
            lines += [
                f"left out, since this version does not know it: {text}"
                for text in result["repair"]["left_out"]
            ]
    for line in lines:
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)

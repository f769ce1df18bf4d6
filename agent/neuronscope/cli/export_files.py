"""The file formats of ``neuronscope export``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import click

from neuronscope.artifact import in_words
from neuronscope.cli.bar import bar
from neuronscope.exporters import registry

_PACKAGE: Final = "neuronscope_exporters.nsz.export"
# Format -> (function, what it counts, default name of the output).
FORMATS: Final = {
    "otlp-json": ("otlp_json:to_otlp_json", "records", "records.jsonl"),
    "perfetto": ("perfetto:to_perfetto", "events", "trace.json"),
    "parquet": ("parquet:to_parquet", "rows", "parquet"),
    "safetensors": ("tensors_dir:to_safetensors", "tensors", "tensors"),
}


def write_files(paths: Sequence[Path], target: str, out: Path | None, *, force: bool, format_: str) -> None:
    """Write recordings in a format, whole or not at all.

    Raises:
        UsageError: the output exists.
        MissingDependencyError: the format needs a package that is not installed.
    """
    function, unit, name = FORMATS[target]
    path = out or Path(name)
    if path.exists() and not force:
        raise click.UsageError(f"{path} exists; --force replaces it, --out chooses another")
    recording = registry.nsz("read")(paths)
    try:
        write: Callable[..., int] = registry.resolve(f"{_PACKAGE}.{function}", "zstandard")
        with bar(f"writing {path.name}") as progress:
            count = write(recording.segments, path, progress)
        damage = recording.damage_so_far
    finally:
        recording.close()
    for line in in_words(damage):
        click.echo(f"damaged: {line}", err=True)
    click.echo(
        json.dumps({"path": str(path), unit: count}) if format_ == "json" else f"{path}: {count} {unit}"
    )

"""``neuronscope export --to FORMAT FILE|DIR …``: recordings for other tools and for collectors."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
from msgspec.structs import replace
from rich.console import Console
from rich.progress import track

from neuronscope.artifact import in_words
from neuronscope.cli.export_files import FORMATS, write_files
from neuronscope.cli.paths import RECORDINGS, Target
from neuronscope.cli.values import SOME_SECONDS
from neuronscope.exceptions import ConfigError
from neuronscope.exporters import BUILT_IN, Exporter, ExporterContext, registry
from neuronscope.settings import Settings
from neuronscope.signals.records import Attributes, Batch, LogRecord, MetricsSnapshot, SpanRecord

# What is handed over before we wait for it to arrive: the exporter's own queue is bounded.
CHUNK: Final = 2_000


@dataclass(slots=True)
class Tally:
    """What became of spans and log records: by item, the losses by reason."""

    exported: Counter[str] = field(default_factory=Counter[str])
    lost: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])

    def count_exported(self, item: str, n: int) -> None:
        """For the exporter."""
        self.exported[item] += n

    def count_lost(self, item: str, reason: str, n: int) -> None:
        """For the exporter."""
        self.lost.setdefault(item, Counter())[reason] += n


@click.command()
@RECORDINGS
@click.option("--to", "target", type=click.Choice(["otlp", *FORMATS]), required=True, help="Format.")
@click.option("--out", "-o", metavar="PATH", type=Target(directory=True), help="File or directory.")
@click.option("--force", is_flag=True, help="Replace what exists.")
@click.option("--otlp-endpoint", metavar="URL", help="Collector.  [env: OTEL_EXPORTER_OTLP_ENDPOINT]")
@click.option("--include-foreign", is_flag=True, help="Also spans that the service's own pipeline has sent.")
@click.option(
    "--timeout", metavar="SECONDS", type=SOME_SECONDS, default=60.0, show_default=True, help="For a chunk."
)
@click.option("--format", "format_", type=click.Choice(["text", "json"]), default="text", show_default=True)
def export(
    paths: Sequence[Path],
    target: str,
    out: Path | None,
    force: bool,
    otlp_endpoint: str | None,
    include_foreign: bool,
    timeout: float,
    format_: str,
) -> None:
    """Write recordings in another format, or send them to a collector.

    otlp-json: lines for the Collector's otlpjsonfile receiver; perfetto: a trace for ui.perfetto.dev;
    parquet: tables for SQL; safetensors: the full tensors; otlp: spans and log records with their own times,
    ids, resources.

    Spans that were not sampled stay where they are.  Sending a recording twice gives a collector the same
    spans twice, under the same ids.  The exit code is 1 if something did not arrive.
    """
    if target != "otlp":
        write_files(paths, target, out, force=force, format_=format_)
        return
    recording = registry.nsz("read")([str(path) for path in paths])
    settings = Settings.load(
        otlp_endpoint=otlp_endpoint, otlp_foreign_spans=include_foreign or None, metrics_exporter="none"
    )
    tally = Tally()
    spans = _wanted(recording.spans, include_foreign)
    chunks = [
        *_chunks("spans", [(span, recording.resource_of(span)) for span in spans]),
        *_chunks("logs", recording.logs_with_resource),
    ]
    console = Console(stderr=True)
    shown = track(chunks, "sending", console=console, disable=not console.is_terminal or format_ == "json")
    for batch in shown:
        _send(settings, batch, timeout, tally)
    _tell(tally, recording, format_)
    if tally.lost:
        sys.exit(1)


def _wanted(spans: Sequence[SpanRecord], include_foreign: bool) -> list[SpanRecord]:
    return [span for span in spans if span.trace_flags & 1 and (include_foreign or not span.foreign)]


def _chunks(
    kind: str, records: Iterable[tuple[SpanRecord, Attributes]] | Iterable[tuple[LogRecord, Attributes]]
) -> Iterator[Batch]:
    """Records by the process that made them, a few at a time."""
    groups: dict[str, tuple[Attributes, list[Any]]] = {}
    for record, resource in records:
        key = json.dumps(dict(resource), sort_keys=True, default=str)
        groups.setdefault(key, (resource, []))[1].append(record)
    for resource, group in groups.values():
        for start in range(0, len(group), CHUNK):
            yield replace(Batch(resource), **{kind: tuple(group[start : start + CHUNK])})


def _send(settings: Settings, batch: Batch, timeout_s: float, tally: Tally) -> None:
    exporter = _exporter(settings, batch.resource, tally)
    exporter.export(batch)
    exporter.flush(timeout_s)
    exporter.shutdown(1.0)


def _exporter(settings: Settings, resource: Attributes, tally: Tally) -> Exporter:
    make = registry.resolve(*BUILT_IN["otlp"])
    context = ExporterContext(
        settings, resource, lambda: MetricsSnapshot((), 0, 0), tally.count_lost, tally.count_exported
    )
    exporter: Exporter | None = make(context)
    if exporter is None:
        raise ConfigError(
            "no collector is named: say --otlp-endpoint URL, or set OTEL_EXPORTER_OTLP_ENDPOINT."
        )
    return exporter


def _tell(tally: Tally, recording: Any, format_: str) -> None:
    if format_ == "json":
        told = {
            item: {"exported": tally.exported[item], "lost": dict(tally.lost.get(item, Counter()))}
            for item in ("span", "log")
        }
        click.echo(json.dumps({**told["span"], "logs": told["log"]}))
        return
    click.echo(f"{tally.exported['span']} spans sent")
    if recording.logs:
        click.echo(f"{tally.exported['log']} of {len(recording.logs)} log records sent")
    for item, reasons in sorted(tally.lost.items()):
        for reason, count in sorted(reasons.items()):
            click.echo(f"{count} × {item} lost: {reason}", err=True)
    for line in in_words(recording.damage):
        click.echo(f"damaged: {line}", err=True)

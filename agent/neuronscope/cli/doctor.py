"""``neuronscope doctor [LIBRARY…]``: what is observed, where it goes, whether it arrives."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final

import click
import msgspec

from neuronscope import compiled
from neuronscope._version import __version__
from neuronscope.cli.bar import bar
from neuronscope.cli.values import SECONDS, URL
from neuronscope.doctor import LibraryReport, examine_apart, examine_exports, examine_library, library_names
from neuronscope.doctor.exports import first_calls
from neuronscope.exporters import Examination
from neuronscope.instrumentation import registry
from neuronscope.settings import Settings
from neuronscope.summaries import kernel

MARKS = {True: "ok  ", False: "FAIL"}
SHOWN = 6
_PREFIX: Final = "NEURONSCOPE_"
# What we read that is no setting of the agent's.
_OTHERS: Final = frozenset({"NEURONSCOPE_CONFIG", "NEURONSCOPE_CACHE", compiled.SWITCH})


@click.command()
@click.argument("libraries", nargs=-1)
@click.option("--no-exports", is_flag=True, help="Send and write nothing.")
@click.option(
    "--traces-at",
    metavar="URL",
    type=URL,
    default="",
    help="Look for the probe span in this Jaeger or Tempo.",
)
@click.option(
    "--metrics-at", metavar="URL", type=URL, default="", help="Look for our metrics in this Prometheus."
)
@click.option(
    "--wait", "wait_s", metavar="SECONDS", type=SECONDS, default=30.0, show_default=True, help="For both."
)
@click.option("--all", "everything", is_flag=True, help="Also what is not installed, and all methods.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def doctor(
    libraries: tuple[str, ...],
    no_exports: bool,
    traces_at: str,
    metrics_at: str,
    wait_s: float,
    everything: bool,
    form: str,
) -> None:
    """Tell which libraries are observed here, how far, and whether observations arrive.

    Every installed library that has an adapter is imported and looked at, several at a time, which takes
    seconds where there are many: name those that matter.  Every exporter that the environment configures is
    tried with a probe, which is then looked for in the back ends that are named.  Exit code 1 if something
    does not work.
    """
    settings = Settings.load()
    unknown = sorted(set(libraries) - set(library_names()))
    if unknown:
        raise click.UsageError(
            f"no adapter for {', '.join(unknown)}. There are: {', '.join(library_names())}"
        )
    seen = first_calls(settings.nsz)
    reports = _examine(libraries, registry.members(settings.disable), seen)
    exports = [] if no_exports else list(examine_exports(settings, traces_at, metrics_at, wait_s))
    if form == "json":
        told = {
            "version": __version__,
            "engine_code": compiled.describe(),
            "tensor_summaries": kernel.describe(),
            "libraries": [asdict(report) for report in reports],
            "exports": [asdict(examination) for examination in exports],
            "unknown_variables": list(_unknown(os.environ)),
        }
        click.echo(msgspec.json.encode(told))
    else:
        for line in _lines(settings, reports, exports, everything=everything):
            click.echo(line)
    bad = any(report.state in ("partly", "broken") or not report.fits for report in reports)
    if bad or not all(examination.ok for examination in exports):
        sys.exit(1)


def _examine(
    libraries: Sequence[str], disabled: Sequence[str], seen: Mapping[str, float]
) -> list[LibraryReport]:
    """Those that are named, one after the other, or all, side by side; a terminal is told how far it is."""
    if libraries:
        return [examine_library(name, disabled=disabled, seen=seen.get(name)) for name in libraries]
    names, told = library_names(), list[str]()
    with bar("libraries") as progress:

        def done(name: str) -> None:
            told.append(name)
            progress(len(told), len(names))

        return examine_apart(names, disabled=disabled, seen=seen, done=done)


def _lines(
    settings: Settings, reports: Sequence[LibraryReport], exports: Iterable[Examination], *, everything: bool
) -> Iterator[str]:
    yield f"neuronscope {__version__}, Python {sys.version.split()[0]}"
    yield f"engine code: {compiled.describe()}; tensor summaries: {kernel.describe()}"
    if not settings.enabled:
        yield "FAIL  NEURONSCOPE_ENABLED is false: nothing is observed."
    content = settings.capture_content
    yield f"      content: {content}; budget: {settings.max_overhead_pct:g} %, {settings.overhead_action}"
    for name, near in _unknown(os.environ).items():
        yield f"      {name} is no setting, and does nothing{f': did you mean {near}?' if near else '.'}"
    yield ""
    yield "Libraries"
    missing: list[str] = []
    for report in reports:
        if report.state == "not installed" and not everything:
            missing.append(report.name)
            continue
        yield from _library(report, everything=everything)
    if missing:
        yield f"  --    not installed: {', '.join(missing)}"
    exports = list(exports)
    if exports:
        yield ""
        yield "Exports"
    for examination in exports:
        yield f"  {MARKS[examination.ok]}  {examination.what} → {examination.target}: {examination.detail}"
        if examination.advice:
            yield f"        {examination.advice}"


def _unknown(env: Mapping[str, str]) -> dict[str, str]:
    """Variables that are named as ours and are none, each with the one that is spelled most like it."""
    known = {variable for item in fields(Settings) for variable in item.metadata["env"]} | _OTHERS
    ours = [name for name in env if name.startswith(_PREFIX) and name not in known]
    spelled = {variable.removeprefix(_PREFIX): variable for variable in known}
    near = {name: get_close_matches(name.removeprefix(_PREFIX), spelled, 1, 0.8) for name in sorted(ours)}
    return {name: spelled[found[0]] if found else "" for name, found in near.items()}


def _library(report: LibraryReport, *, everything: bool) -> Iterator[str]:
    mark = {"observed": "ok  ", "partly": "FAIL", "broken": "FAIL"}.get(report.state, "--  ")
    told: list[str] = [report.state]
    if report.wrapped:
        what = "private functions" if report.kind == "model runtime" else "methods"
        told.append(f"{len(report.wrapped)} {what}")
    if report.seen is not None:
        told.append(f"first call {datetime.fromtimestamp(report.seen, UTC):%Y-%m-%d %H:%M:%S}Z")
    yield f"  {mark}  {report.name}: {report.distribution} {report.version} {', '.join(told)}".rstrip()
    if report.problem:
        yield f"        {report.problem}"
    if not report.fits:
        yield f"        made for {report.requires}: update the library, or expect methods to be missing"
    if report.absent:
        yield f"        known, but absent in this version: {_some(report.absent, everything)}"
    if report.unknown:
        yield f"        public, and unknown to the adapter: {_some(report.unknown, everything)}"
    for why in dict.fromkeys(why for _, why in report.gaps):
        methods = [_short(target) for target, reason in report.gaps if reason == why]
        yield f"        not observed, {why}: {_some(methods, everything)}"
    if everything and report.wrapped:
        yield f"        observed: {', '.join(report.wrapped)}"


def _short(target: str) -> str:
    """`package.resources.videos:Videos.create` as `Videos.create`."""
    return target.partition(":")[2] or target


def _some(items: Sequence[str], everything: bool) -> str:
    if everything or len(items) <= SHOWN:
        return ", ".join(items)
    return f"{', '.join(items[:SHOWN])} and {len(items) - SHOWN} more (--all)"

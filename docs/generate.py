"""Writes the reference pages that follow from the code: settings, signals, commands, adapters, errors.

``python docs/generate.py`` renews them (`make docs` does); ``--check`` only tells which are not up to
date, and then ends with 1.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, Final, cast

import click

from error_pages import error_pages
from made_pages import REFERENCE, page, row
from neuronscope.cli import cli
from neuronscope.instrumentation.registry import BACKENDS, CLIENTS, Entry, client
from neuronscope.settings import Settings
from neuronscope.signals import names

# Settings are in the order of their fields; a heading stands before each of these.
SECTIONS: Final = {
    "enabled": "What is observed",
    "max_overhead_pct": "The budget",
    "capture_content": "Content, identifiers, cost",
    "logs": "Logs",
    "nsz": "Recordings",
    "flight_s": "The flight recorder",
    "baseline": "Quality of retrieval",
    "prometheus": "Metrics",
    "probes": "Models in the process",
    "propagate_to": "Traces across processes and threads",
    "deferred": "The worker and its queue",
    "otlp_endpoint": "OTLP",
}
# The commands' own words are their help; what they end with is said here.
EXIT_CODES: Final = {
    "run": "the program's own; 127 if there is no such program, 2 if a setting cannot be used",
    "diff": "1 if something of `--fail-on` was found; with `--fail-on`, 3 if there was too little to compare",
    "check": "1 if something that was written is not there",
    "ls": "1 if one of them cannot be read",
    "view": "1 if no trace begins as `--trace` says",
    "doctor": "1 if something does not work",
    "export": "1 if something did not arrive",
    "prices": "1 if the model has no entry",
    "baseline make": "1 if no series has enough queries",
    "dashboards check": "1 if a file is missing or differs",
}


def pages() -> dict[str, str]:
    """Every generated page by its path below ``docs/reference``, as it should be."""
    return {
        "settings.md": settings(),
        "metrics.md": metrics(),
        "attributes.md": attributes(),
        "cli.md": commands(),
        "adapters.md": adapters(),
        **error_pages(),
    }


# --- settings ----------------------------------------------------------------------------------------


def settings() -> str:
    """Arguments, variables, defaults, what they may be, what they mean."""
    lines = page(
        "Settings",
        """\
A setting is an argument of `ns.Platform` and of `ns.Settings.load`, a key of `neuronscope.toml` (in
the working directory, or where `NEURONSCOPE_CONFIG` says) of the same name, and an environment
variable. The argument wins over the variable, the variable over the file, the file over the
default. A value that cannot be used is an error at the start: [ConfigError](errors/ConfigError.md).

`NEURONSCOPE_NATIVE=false` is no setting: it is read when the engine is imported, and leaves its
compiled code out.
""",
    )
    for item in fields(Settings):
        if item.name in SECTIONS:
            lines += ["", f"## {SECTIONS[item.name]}", ""]
            lines += ["| argument, key | variable | default | may be | meaning |", "|---|---|---|---|---|"]
        lines.append(_setting(item))
    return "\n".join(lines) + "\n"


def _setting(item: Field[Any]) -> str:
    variables = ", ".join(f"`{name}`" for name in item.metadata["env"])
    kind = inspect.getdoc(item.metadata["parse"]) or ""
    return row(f"`{item.name}`", variables, _default(item.default), kind, item.metadata["help"])


def _default(value: object) -> str:
    if value in ("", (), None):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{','.join(map(str, cast(tuple[object, ...], value)))}`"
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"`{value}` ({value >> 20} MiB)"
    return f"`{value:g}`" if isinstance(value, float) and value < 1e6 else f"`{value}`"


# --- signals -----------------------------------------------------------------------------------------


def metrics() -> str:
    """Every metric: names, unit, labels, buckets."""
    lines = page(
        "Metrics",
        """\
Every metric that NeuronScope emits, over OTLP by OpenTelemetry's name, on the [/metrics
page](../how-to/serve-metrics.md) by Prometheus'. Labels are attribute keys, on the page with `_`
for `.`; free-form ones have room for a limited number of values. A series is there from its first
value on.
""",
    )
    for kind, title in (
        (names.Instrument.HISTOGRAM, "Histograms"),
        (names.Instrument.COUNTER, "Counters"),
        (names.Instrument.GAUGE, "Gauges"),
    ):
        lines += ["", f"## {title}", ""]
        lines += ["| OpenTelemetry | Prometheus | unit | labels | meaning |", "|---|---|---|---|---|"]
        for metric in names.METRICS.values():
            if metric.instrument is kind:
                labels = ", ".join(f"`{label}`" for label in metric.labels)
                lines.append(
                    row(
                        f"`{metric.name}`", f"`{metric.prometheus_sample}`", metric.unit, labels, metric.brief
                    )
                )
    lines += ["", "## Buckets", "", "Upper bounds; `+Inf` is always there.", ""]
    lines += ["| histograms | bounds |", "|---|---|"]
    shared: dict[tuple[float, ...], list[str]] = {}
    for metric in names.METRICS.values():
        if metric.buckets:
            shared.setdefault(metric.buckets, []).append(f"`{metric.name}`")
    for bounds, of in shared.items():
        lines.append(row(", ".join(of), ", ".join(f"{bound:g}" for bound in bounds)))
    return "\n".join(lines) + "\n"


def attributes() -> str:
    """Every attribute and event, with how private it is."""
    lines = page(
        "Attributes and events",
        """\
Every attribute that a span of ours may have. *content* is recorded only where it is asked for, an
*identifier* always, and hashed with `NEURONSCOPE_HASH_IDENTIFIERS`; everything else is plain
([privacy](../explanation/privacy.md)).
""",
    )
    lines += ["", "| attribute | type | private | meaning |", "|---|---|---|---|"]
    for one in names.ATTRIBUTES.values():
        private = "" if one.sensitivity is names.Sensitivity.PLAIN else one.sensitivity.value
        lines.append(row(f"`{one.key}`", one.type, private, one.brief))
    lines += ["", "## Events", "", "Sent as [log records](logs.md), where they are asked for.", ""]
    lines += ["| event | severity | meaning |", "|---|---|---|"]
    for event in names.EVENTS.values():
        lines.append(row(f"`{event.name}`", f"{event.severity_text} ({event.severity})", event.brief))
    return "\n".join(lines) + "\n"


# --- commands ----------------------------------------------------------------------------------------


def commands() -> str:
    """The help of every command."""
    lines = page(
        "Commands",
        """\
`neuronscope COMMAND`, or `python -m neuronscope COMMAND`. Where a command takes a recording, that
is a `.nsz` file or a directory of them.

Exit codes: 0 done; 1 the command failed, and the message says why; 2 wrong usage, or a setting that
cannot be used; 127 no such program; 130 interrupted; 141 nobody reads the output any
more. Where a command means more by one, it is said below.
""",
    )
    for path, command in _walk("neuronscope", cli):
        if isinstance(command, click.Group):
            continue
        context = click.Context(
            command, info_name=path, terminal_width=96, help_option_names=["-h", "--help"]
        )
        name = path.removeprefix("neuronscope ")
        lines += ["", f"## {name}", "", "```text", command.get_help(context).replace("\b", ""), "```"]
        if name in EXIT_CODES:
            lines += ["", f"Exit code: {EXIT_CODES[name]}."]
    return "\n".join(lines) + "\n"


def _walk(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None:
                yield from _walk(f"{path} {name}", below)


# --- adapters ----------------------------------------------------------------------------------------


def adapters() -> str:
    """What can be observed, what installs it, and which methods are wrapped."""
    lines = page(
        "Adapters",
        """\
`neuronscope run` and `ns.instrument()` observe all of them that are installed;
`NEURONSCOPE_INSTRUMENT` chooses by name, `NEURONSCOPE_DISABLE` leaves out; both also take `llm_api`
(clients of language models), `vector_store` and `hf_transformers` (with its tokenizers), each for
several. An extra installs the library: `pip install 'neuronscope[NAME]'`. An adapter needs nothing
but the library, so a service that has it needs no extra.
""",
    )
    lines += [
        "",
        "## Libraries",
        "",
        "| adapter | observes | library and versions | extra |",
        "|---|---|---|---|",
    ]
    for name, entry in CLIENTS.items():
        found = client(name)
        asked = " (only where it is named)" if entry.on_request else ""
        kind = found.kind.value.replace("_", " ")
        lines.append(row(f"[`{name}`](#{_anchor(name)}){asked}", kind, f"`{found.requires}`", _extra(entry)))
    lines += ["", "## Models in the process", "", "In order of precedence.", ""]
    lines += ["| adapter | library | extra |", "|---|---|---|"]
    for name, entry in BACKENDS.items():
        lines.append(row(f"`{name}`", f"`{entry.distribution}`", _extra(entry)))
    lines += [
        "",
        "Then `llm_api` and `vector_store`: clients of the libraries above; their calls are observed.",
        "",
        "Your own: `ns.registry.register_adapter`, or the entry point group `neuronscope.adapters`.",
    ]
    lines += ["", "## What is wrapped", ""]
    lines.append("Everything else of a library runs untouched. A version that lacks a method is no fault.")
    for name in CLIENTS:
        lines += _methods(name)
    return "\n".join(lines) + "\n"


def _extra(entry: Entry) -> str:
    return f"`{entry.extra}`" if entry.extra else ""


def _anchor(name: str) -> str:
    return f"wrapped-{name.replace('_', '-')}"


def _methods(name: str) -> Iterator[str]:
    found = client(name)
    yield from ("", f"### {name} {{ #{_anchor(name)} }}", "")
    classes: dict[str, list[str]] = {}
    for method in found.methods:
        module, _, path = method.target.partition(":")
        owner, _, last = path.rpartition(".")
        classes.setdefault(f"{module}.{owner}" if owner else module, []).append(last)
    if not classes:
        yield "It uses the library's own hooks; no method is wrapped by name."
    for owner, methods in classes.items():
        yield f"- `{owner}`: {', '.join(f'`{method}`' for method in dict.fromkeys(methods))}"
    if found.gaps:
        yield from ("", "Known not to be observed:", "")
        reasons: dict[str, list[str]] = {}
        for gap in found.gaps:
            reasons.setdefault(gap.why, []).append(f"`{gap.target.partition(':')[2]}`")
        for why, targets in reasons.items():
            yield f"- {', '.join(dict.fromkeys(targets))}: {why}"


# --- writing -----------------------------------------------------------------------------------------


def stale() -> list[str]:
    """Names of the pages that are missing, not up to date, or of an error that is gone."""
    wanted = pages()
    found = [name for name, text in wanted.items() if not _is(REFERENCE / name, text)]
    there = {f"errors/{path.name}" for path in (REFERENCE / "errors").glob("*.md")}
    return found + sorted(there - set(wanted))


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text(encoding="utf-8") == text


def main(arguments: Sequence[str]) -> int:
    """Write, or check."""
    names_of_stale = stale()
    if "--check" in arguments:
        for name in names_of_stale:
            sys.stderr.write(f"docs/reference/{name} is not up to date: make docs\n")
        return 1 if names_of_stale else 0
    (REFERENCE / "errors").mkdir(exist_ok=True)
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

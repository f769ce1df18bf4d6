"""The heads of runbook pages: what the rules say of an alert.  The rest of a page is written by hand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from neuronscope.dashboards.alerts import Alert, all_alerts
from neuronscope.dashboards.thresholds import Thresholds

BEGIN: Final = "<!-- made by `neuronscope dashboards build --runbooks`: edit below -->"
END: Final = "<!-- end of what is made -->"
_TODO: Final = "\n\n## What it means\n\n## Find the cause\n\n## Repair\n\n## If it was no fault\n"
_TEMPLATE: Final = re.compile(r"\{\{ \$labels\.(\w+) \}\}|\{\{ [^}]*\$value[^}]*\}\}")


def pages(thresholds: Thresholds) -> dict[str, tuple[Alert, ...]]:
    """The alerts of each page, by its file's name; and the index without any."""
    found: dict[str, tuple[Alert, ...]] = {}
    for alerts in all_alerts(thresholds).values():
        for alert in alerts:
            name = f"{alert.slug}.md"
            found[name] = (*found.get(name, ()), alert)
    return found


def write(thresholds: Thresholds, folder: Path) -> list[str]:
    """Renew the heads, make pages that are missing; names of the files that were changed."""
    folder.mkdir(parents=True, exist_ok=True)
    changed: list[str] = []
    for name, text in texts(thresholds, folder).items():
        path = folder / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            changed.append(name)
    return changed


def texts(thresholds: Thresholds, folder: Path) -> dict[str, str]:
    """The pages as they should be, with what is written by hand in those that are there."""
    found: dict[str, str] = {}
    for name, alerts in pages(thresholds).items():
        found[name] = renewed(folder / name, f"# {alerts[0].name}\n\n{BEGIN}\n\n{_head(alerts)}", _TODO)
    found["README.md"] = _index(thresholds)
    return found


def renewed(path: Path, head: str, todo: str) -> str:
    """A page with a new head above what is written by hand, or above what is to be written."""
    rest = todo
    if path.exists():
        _, mark, below = path.read_text(encoding="utf-8").partition(END)
        rest = below if mark else todo
    return f"{head}\n\n{END}{rest}"


def _head(alerts: Sequence[Alert]) -> str:
    lines = [*_rules(alerts), "", "First checks:", ""]
    lines += [f"{n}. {check}" for n, check in enumerate(alerts[0].checks, 1)]
    lines += [
        "",
        f"Dashboard: `neuronscope-{alerts[0].board}`. The alert's annotation `diff_command` compares the "
        "window of the alert with the same time a day before.",
    ]
    return "\n".join(lines)


def _rules(alerts: Sequence[Alert]) -> Iterator[str]:
    for n, alert in enumerate(alerts):
        labels = "".join(f", {key} {value}" for key, value in alert.labels.items())
        if n:
            yield ""
        yield f"**{alert.severity}{labels}**: {_plain(alert.summary)}"
        yield ""
        yield "```promql"
        yield alert.expr
        yield "```"
        yield ""
        yield f"for {alert.hold}" if alert.hold != "0s" else "at once"


def _plain(summary: str) -> str:
    """A summary without templates: labels in capitals, values as N."""
    return _TEMPLATE.sub(lambda found: f"*{found[1]}*" if found[1] else "*N*", summary)


def _index(thresholds: Thresholds) -> str:
    lines = [
        "# Runbooks",
        "",
        "One page for each alert: what it means, how to find the cause, how to repair it. A page wakes",
        "somebody, a ticket waits for office hours, info is only shown.",
        "",
        "| alert | severity | about |",
        "|---|---|---|",
    ]
    for name, alerts in pages(thresholds).items():
        severities = ", ".join(dict.fromkeys(alert.severity for alert in alerts))
        lines.append(f"| [{alerts[0].name}]({name}) | {severities} | {_plain(alerts[0].summary)} |")
    return "\n".join(lines) + "\n"

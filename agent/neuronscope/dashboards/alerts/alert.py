"""An alert: when it fires, and everything that whoever it wakes needs first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from neuronscope.dashboards.promql import JOB
from neuronscope.dashboards.thresholds import Links
from neuronscope.signals.names import prometheus_label

Severity = Literal["page", "ticket", "info"]
Board = Literal["service", "retrieval", "llm", "model", "agent"]
UID: Final = "neuronscope-{}"
MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
_UTC: Final = "2006-01-02T15:04Z"  # Go's way to write a format


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule that alerts.

    Attributes:
        name: CamelCase, begins with ``Neuronscope``; several rules may share it.
        severity: page: somebody gets up; ticket: within days; info: nobody is told.
        expr: fires while it has a result.
        hold: how long it must have had one.
        summary: one sentence, with the labels and the value filled in.
        checks: what to look at first.
        board: the dashboard to open.
        span_s: how far back to look, and the window that `neuronscope diff` compares with an earlier one.
        labels: more labels of the alert, such as which objective.
        variables: of the dashboard's link: variable name by label.
    """

    name: str
    severity: Severity
    expr: str
    hold: str
    summary: str
    checks: tuple[str, str, str]
    board: Board
    span_s: int = HOUR
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def slug(self) -> str:
        """Name of its runbook's file: ``availability-burn``."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", self.name.removeprefix("Neuronscope")).lower()

    def rule(self, links: Links) -> Mapping[str, Any]:
        """The rule as Prometheus reads it."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.hold,
            "labels": {"severity": self.severity, **self.labels},
            "annotations": {
                "summary": self.summary,
                "first_checks": "\n".join(f"{n}. {check}" for n, check in enumerate(self.checks, 1)),
                "runbook_url": f"{links.runbooks.rstrip('/')}/{self.slug}.md",
                "dashboard_url": self._dashboard(links),
                "diff_command": self._diff(links),
            },
        }

    def _dashboard(self, links: Links) -> str:
        variables = {JOB: "service", **self.variables}
        chosen = "".join(
            f"&var-{variable}={{{{ $labels.{prometheus_label(label)} | urlquery }}}}"
            for label, variable in variables.items()
        )
        start, end = _milliseconds(f"(time() - {self.span_s})"), _milliseconds("time()")
        return f"{links.grafana.rstrip('/')}/d/{UID.format(self.board)}?from={start}&to={end}{chosen}"

    def _diff(self, links: Links) -> str:
        """This window and the same one a day earlier, or right before it if it is longer."""
        back = max(DAY, self.span_s)
        before = f"{_at(back + self.span_s)}..{_at(back)}"
        return f"neuronscope diff {links.recordings} --before {before} --after {_at(self.span_s)}..{_at(0)}"


def _milliseconds(time: str) -> str:
    """A template: a time as Grafana's links have it."""
    return f'{{{{ with query "{time} * 1000" }}}}{{{{ . | first | value | printf "%.0f" }}}}{{{{ end }}}}'


def _at(seconds_ago: int) -> str:
    """A template: the time so long before the alert is evaluated, to the minute, in UTC."""
    return (
        f'{{{{ with query "time() - {seconds_ago}" }}}}'
        f'{{{{ (. | first | value | toTime).UTC.Format "{_UTC}" }}}}{{{{ end }}}}'
    )


def percent(expression: str = "$value") -> str:
    """A template: a share as per cent."""
    return f"{{{{ {expression} | humanizePercentage }}}}"


def label(key: str) -> str:
    """A template: a label's value."""
    return f"{{{{ $labels.{prometheus_label(key)} }}}}"


SERVICE: Final = label(JOB)

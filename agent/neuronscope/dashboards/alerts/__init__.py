"""Every alert: objectives, retrieval, models, calls, and the agent itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuronscope.dashboards.alerts import agent, burn, inside, llm, retrieval
from neuronscope.dashboards.alerts.alert import Alert
from neuronscope.dashboards.thresholds import Thresholds

__all__ = ["Alert", "all_alerts", "groups"]
_GROUPS = {"slo": burn, "retrieval": retrieval, "models": inside, "calls": llm, "agent": agent}


def all_alerts(thresholds: Thresholds) -> dict[str, tuple[Alert, ...]]:
    """The alerts by group."""
    return {name: tuple(module.alerts(thresholds)) for name, module in _GROUPS.items()}


def groups(thresholds: Thresholds) -> list[Mapping[str, Any]]:
    """The groups of alerting rules."""
    return [
        {
            "name": f"neuronscope-{name}-alerts",
            "rules": [alert.rule(thresholds.links) for alert in alerts],
        }
        for name, alerts in all_alerts(thresholds).items()
    ]

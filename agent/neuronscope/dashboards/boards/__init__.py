"""The five dashboards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from neuronscope.dashboards.boards import agent, inside, llm, retrieval, service
from neuronscope.dashboards.thresholds import Thresholds

BOARDS: Final[Mapping[str, Callable[[Thresholds], str]]] = {
    "service": service.build,
    "retrieval": retrieval.build,
    "llm": llm.build,
    "model": inside.build,
    "agent": agent.build,
}

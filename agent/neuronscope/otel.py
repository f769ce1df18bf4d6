"""``opentelemetry-instrument``: OpenTelemetry's own launcher finds the agent by this entry point.

The launcher may have set up an OpenTelemetry SDK before; then its pipeline is the service's own, and spans
are its spans.  `OTEL_PYTHON_DISABLED_INSTRUMENTATIONS` leaves out ``neuronscope``, or adapters by name.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from neuronscope import auto, platform

DISABLED = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"


class NeuronscopeInstrumentor:
    """The part of OpenTelemetry's ``BaseInstrumentor`` that launchers use; that package is not needed."""

    def instrumentation_dependencies(self) -> Collection[str]:
        """None: each library is observed if it is there."""
        return ()

    def instrument(self, **_: Any) -> None:
        """Start the agent from the environment, and observe everything.  Never raises."""
        auto.start(disable=tuple(filter(None, map(str.strip, os.environ.get(DISABLED, "").split(",")))))

    def uninstrument(self, **_: Any) -> None:
        """Leave all libraries as they were."""
        platform.uninstrument()

"""Zero code: what ``neuronscope run`` starts inside the program."""

from __future__ import annotations

import sys

from neuronscope.engine.guard import GUARD
from neuronscope.exceptions import NeuronscopeError


def start() -> None:
    """Start the platform from the environment and instrument everything.  Never raises."""
    GUARD.call("auto.start", _start)


def _start() -> None:
    from neuronscope import platform

    try:
        if platform.Platform().settings.enabled:
            platform.instrument()
    except NeuronscopeError as error:
        # The program matters more than its observation: it runs on, and is told once.
        sys.stderr.write(f"neuronscope: not observed: {error}\n")

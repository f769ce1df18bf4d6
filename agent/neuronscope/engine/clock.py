"""The clocks that spans are told by, looked up here at each reading: `ns.testing.fixed` replaces them.

What observation costs is measured by the real ones whatever these say.
"""

from __future__ import annotations

import time
from collections.abc import Callable

wall_ns: Callable[[], int] = time.time_ns  # unix nanoseconds
elapsed_ns: Callable[[], int] = time.perf_counter_ns  # for distances: nobody sets it


def now_ns() -> int:
    """The time by the wall clock of the moment."""
    return wall_ns()


def started_at(real_ns: int) -> int:
    """When a call began that the real clock saw begin at `real_ns`."""
    return real_ns if elapsed_ns is time.perf_counter_ns else elapsed_ns()

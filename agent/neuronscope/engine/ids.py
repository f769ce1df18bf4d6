"""Trace and span ids from a generator of our own.

OpenTelemetry's default draws from the global `random` module, which would change the service's own
random sequence; ours does not touch it.  Reseeded in a forked child.
"""

from __future__ import annotations

import os
import random
from typing import Final

from opentelemetry.sdk.trace.id_generator import IdGenerator

_SPAN_ID: Final = (1 << 64) - 1


class PrivateIdGenerator(IdGenerator):
    """Random ids, independent of the global random state."""

    def __init__(self) -> None:
        self._bits = random.Random(os.urandom(16)).getrandbits
        os.register_at_fork(after_in_child=self._reseed)

    def _reseed(self) -> None:
        self._bits = random.Random(os.urandom(16)).getrandbits

    def generate_span_id(self) -> int:
        """A non-zero 64-bit id."""
        return self._bits(64) or 1

    def generate_trace_id(self) -> int:
        """A non-zero 128-bit id."""
        return self._bits(128) or 1

    def generate_both(self) -> tuple[int, int]:
        """A trace id and a span id, in half the time."""
        bits = self._bits(192)
        return bits >> 64 or 1, bits & _SPAN_ID or 1

"""Trace and span ids from a generator of our own.

OpenTelemetry's default draws from the global `random` module, which would change the service's own
random sequence; ours does not touch it.  Reseeded in a forked child.
"""

from __future__ import annotations

import os
import random

from opentelemetry.sdk.trace.id_generator import IdGenerator


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

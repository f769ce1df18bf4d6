"""Trace and span ids from a generator of our own.

OpenTelemetry's default draws from the global `random` module, which would change the service's own
random sequence; ours does not touch it.  Reseeded in a forked child.
"""

from __future__ import annotations

import os
import random
import weakref
from collections.abc import Callable
from typing import Final

from opentelemetry.sdk.trace.id_generator import IdGenerator

from neuronscope import compiled

Bits = Callable[[int], int]  # so many random bits, as a number
_SPAN_ID: Final = (1 << 64) - 1
_BOTH: Final = 192  # bits of a trace id and a span id


def split_ids_in_python(bits: int) -> tuple[int, int]:
    """A trace id and a span id, none of them zero, out of so many random bits."""
    return bits >> 64 or 1, bits & _SPAN_ID or 1


_split_ids: Final = compiled.choose("split_ids", split_ids_in_python)


class PrivateIdGenerator(IdGenerator):
    """Random ids, independent of the global random state."""

    def __init__(self) -> None:
        self._bits: Bits
        self.draw_from(_source)
        _GENERATORS.add(self)

    def draw_from(self, bits: Bits | None) -> None:
        """Take ids from there; None: from the operating system's randomness, as ever."""
        self._bits = random.Random(os.urandom(16)).getrandbits if bits is None else bits

    def generate_span_id(self) -> int:
        """A non-zero 64-bit id."""
        return self._bits(64) or 1

    def generate_trace_id(self) -> int:
        """A non-zero 128-bit id."""
        return self._bits(128) or 1

    def generate_both(self) -> tuple[int, int]:
        """A trace id and a span id, in half the time."""
        return _split_ids(self._bits(_BOTH))


_GENERATORS: Final[weakref.WeakSet[PrivateIdGenerator]] = weakref.WeakSet()
_source: Bits | None = None


def draw_from(bits: Bits | None) -> None:
    """Have all ids of this process come from there, for tests; None: random again."""
    global _source  # noqa: PLW0603 - generators made later follow it
    _source = bits
    for generator in tuple(_GENERATORS):
        generator.draw_from(bits)


os.register_at_fork(after_in_child=lambda: draw_from(_source))

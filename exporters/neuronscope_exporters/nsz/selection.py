"""Which records a search wants: told from their heads, before they are built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from neuronscope_exporters.nsz.layout import LAST_TIME

FOREVER: Final = LAST_TIME + 1


class Head(Protocol):
    """The ids of a record, in hexadecimal as in the file."""

    @property
    def trace_id(self) -> str | None:
        """Of the trace."""
        ...

    @property
    def span_id(self) -> str | None:
        """Of the span."""
        ...


@dataclass(frozen=True, slots=True)
class Selection:
    """Ids, where they matter, and a time: [start, end)."""

    trace_id: str | None
    span_id: str | None
    start: int
    end: int

    @classmethod
    def of(cls, trace_id: int | None, span_id: int | None, start: int, end: int) -> Selection:
        """From ids as records have them."""
        return cls(
            None if trace_id is None else f"{trace_id:032x}",
            None if span_id is None else f"{span_id:016x}",
            start,
            end,
        )

    def has(self, head: Head) -> bool:
        """Do the ids fit?"""
        return self.trace_id in (None, head.trace_id) and self.span_id in (None, head.span_id)

    def at(self, when: int) -> bool:
        """Is it within the time?"""
        return self.start <= when < self.end

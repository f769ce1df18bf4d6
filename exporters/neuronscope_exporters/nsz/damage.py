"""What a file may ask of its reader, and what the reader could not give back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from neuronscope.exceptions import NszLimitError
from neuronscope_exporters.nsz.layout import MAX_RATIO

_MAX_REASONS: Final = 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What a file may ask of its reader.  Beyond the first four the file is refused.

    Attributes:
        chunks: chunks in the file.
        damaged: damaged stretches in the file.
        inflated_bytes: bytes that all chunks of small records together unpack to.
        summary_bytes: size of the summary section.
        small_chunk_bytes: unpacked size of a chunk of small records; a larger one is skipped.
        tensor_chunk_bytes: size of a tensor's chunk; a larger one is not read.
        ratio: unpacked bytes for a byte of a compressed chunk.
    """

    chunks: int = 1_000_000
    damaged: int = 100_000
    inflated_bytes: int = 1 << 30
    summary_bytes: int = 256 << 20
    small_chunk_bytes: int = 16 << 20
    tensor_chunk_bytes: int = 1 << 30
    ratio: int = MAX_RATIO


@dataclass(frozen=True, slots=True)
class Damage:
    """What could not be read.  False when everything could.

    A file that was not finished is not damaged by that alone.

    Attributes:
        stretches: damaged parts of the file that were skipped.
        bytes: their size.
        lost_chunks: chunks that are known to be missing, by the gaps in their numbers.
        records: single records that made no sense although their checksum was right.
        truncated_bytes: size of the torn record at the end.
        reasons: the first reasons, for people.
        files: files of a directory that could not be opened at all, and why.
        left_out: what a copy lacks because a later version of the format wrote it: no damage.
        repeated: what was there more than once, and is read once, in words: no damage.
    """

    stretches: int = 0
    bytes: int = 0
    lost_chunks: int = 0
    records: int = 0
    truncated_bytes: int = 0
    reasons: tuple[str, ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Everything that was skipped, as one number."""
        torn = 1 if self.truncated_bytes else 0
        return self.stretches + self.records + torn + len(self.files)

    def __bool__(self) -> bool:
        return self.count > 0 or self.lost_chunks > 0

    def __add__(self, other: Damage) -> Damage:
        return Damage(
            self.stretches + other.stretches,
            self.bytes + other.bytes,
            self.lost_chunks + other.lost_chunks,
            self.records + other.records,
            self.truncated_bytes + other.truncated_bytes,
            (self.reasons + other.reasons)[:_MAX_REASONS],
            self.files + other.files,
            (*self.left_out, *(text for text in other.left_out if text not in self.left_out)),
            (*self.repeated, *(text for text in other.repeated if text not in self.repeated)),
        )


@dataclass(slots=True)
class DamageLog:
    """Gathers damage; the same stretch, met twice, counts once."""

    limits: Limits
    stretches: dict[int, int] = field(default_factory=dict[int, int])
    lost_chunks: int = 0
    records: int = 0
    truncated_bytes: int = 0
    reasons: list[str] = field(default_factory=list[str])
    torn_reason: str = ""

    def stretch(self, offset: int, length: int, reason: str) -> None:
        """`length` bytes at `offset` are skipped."""
        if offset in self.stretches:
            return
        self.stretches[offset] = length
        self._say(f"{length} bytes at {offset}: {reason}")
        if len(self.stretches) > self.limits.damaged:
            raise NszLimitError(f"more than {self.limits.damaged} damaged stretches")

    def record(self, reason: str) -> None:
        """A record is skipped."""
        self.records += 1
        self._say(reason)

    def torn(self, offset: int, length: int) -> None:
        """The file ends within a record."""
        self.truncated_bytes = length
        self.torn_reason = f"{length} bytes at {offset}: the file ends within a record" if length else ""

    def _say(self, reason: str) -> None:
        if len(self.reasons) < _MAX_REASONS:
            self.reasons.append(reason)

    def report(self) -> Damage:
        """What was gathered so far."""
        return Damage(
            stretches=len(self.stretches),
            bytes=sum(self.stretches.values()),
            lost_chunks=self.lost_chunks,
            records=self.records,
            truncated_bytes=self.truncated_bytes,
            reasons=tuple([*self.reasons, self.torn_reason] if self.torn_reason else self.reasons),
        )

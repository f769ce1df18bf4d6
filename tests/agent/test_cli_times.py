"""Times as people write them on the command line."""

from __future__ import annotations

import click
import pytest

from neuronscope.cli.times import unix_ns


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0", 0),
        ("1764504000", 1_764_504_000_000_000_000),
        ("1764504000.5", 1_764_504_000_500_000_000),
        ("1764504000.100000001", 1_764_504_000_100_000_001),
        ("2025-11-30T12:00:00.123457", 1_764_504_000_123_457_000),
        ("1764504000000000001", 1_764_504_000_000_000_001),
        ("1970-01-01T00:00:01", 1_000_000_000),
        ("1970-01-01T01:00:01+01:00", 1_000_000_000),
    ],
)
def test_seconds_nanoseconds_and_iso_8601_are_read(text: str, found: int) -> None:
    """UTC where no zone is given; nanoseconds keep all their digits."""
    assert unix_ns(text) == found


@pytest.mark.parametrize("text", ["", "now", "nan", "inf", "-1", "1e300", "9" * 20, "1969-12-31"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """With the forms that are taken."""
    with pytest.raises(click.BadParameter, match="is no time; write 2026-11-30T12:00:00"):
        unix_ns(text)

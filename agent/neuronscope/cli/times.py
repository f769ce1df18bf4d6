"""Times as people write them on the command line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import click

_LAST: Final = 2**63  # ns since 1970
_MOST_SECONDS: Final = 1e12  # a larger whole number counts nanoseconds


def unix_ns(text: str) -> int:
    """Unix seconds or nanoseconds, or ISO 8601 (UTC where no zone is given), as nanoseconds since 1970.

    Raises:
        click.BadParameter: it is no time.
    """
    try:
        number = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise _no_time(text) from None
        number = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    exact = number > _MOST_SECONDS and text.isdecimal()
    found = number if exact else number * 1e9
    if not 0 <= found < _LAST:  # also what is no number
        raise _no_time(text)
    return int(text) if exact else int(found)


def _no_time(text: str) -> click.BadParameter:
    return click.BadParameter(f"{text!r} is no time; write 2026-11-30T12:00:00, or seconds since 1970")

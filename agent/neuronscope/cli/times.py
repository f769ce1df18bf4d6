"""Times as people write them on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final

import click

_LAST: Final = 2**63  # ns since 1970
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_SECONDS: Final = 10**12  # a larger whole number counts nanoseconds


def unix_ns(text: str) -> int:
    """Unix seconds or nanoseconds, or ISO 8601 (UTC where no zone is given), as nanoseconds since 1970.

    Raises:
        click.BadParameter: it is no time.
    """
    try:
        number = Decimal(text)
    except InvalidOperation:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise _no_time(text) from None
        since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH
        found = since // timedelta(microseconds=1) * 1000  # exact, as a float is not
    else:
        if not (number.is_finite() and 0 <= number < _LAST):
            raise _no_time(text)
        found = int(number if number > _MOST_SECONDS and number == int(number) else number * 10**9)
    if not 0 <= found < _LAST:
        raise _no_time(text)
    return found


def _no_time(text: str) -> click.BadParameter:
    return click.BadParameter(f"{text!r} is no time; write 2026-11-30T12:00:00, or seconds since 1970")

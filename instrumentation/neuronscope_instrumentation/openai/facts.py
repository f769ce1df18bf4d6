"""Small readings that several of OpenAI's APIs share."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

from neuronscope.signals import names
from neuronscope_instrumentation.common.fields import SOME, fields, pick
from neuronscope_instrumentation.common.headers import header_reader

# OpenAI's own, which most compatible providers use too; then Azure's.
read_headers: Final = header_reader(
    "x-ratelimit-{bound}-{unit}", ("x-request-id", "apim-request-id", "request-id")
)


def known(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts without those that are unknown."""
    return {key: value for key, value in facts.items() if value is not None}


def generated(
    sent: int | None, received: int | None, total: int | None, cached: int | None, reasoning: int | None
) -> int | None:
    """All tokens of output: with those of reasoning that the count of output leaves out and the total has.

    xAI tells how many these were, Gemini does not; for either they are output, and billed as such.  A surplus
    that may be something else stays out.
    """
    if sent is None or received is None or total is None or total <= sent + received:
        return received
    known = total == sent + received + reasoning if reasoning else not cached
    return total - sent if known else received


def modalities(sent: Any, received: Any) -> dict[str, int]:
    """Token counts by modality, as far as the provider tells them apart."""
    counts: dict[str, int] = pick(fields(sent), SENT)
    counts.update(pick(fields(received), RECEIVED))
    return counts


def _keys(direction: str) -> tuple[str | int, ...]:
    """What a provider calls the tokens of each modality, and the attribute they go into, as a table."""
    pairs = ((each, f"gen_ai.usage.{each}.{direction}_tokens") for each in ("text", "image", "audio"))
    rows = ((f"{each}_tokens", key, SOME) for each, key in pairs if key in names.ATTRIBUTES)
    return tuple(chain.from_iterable(rows))


SENT: Final = _keys("input")
RECEIVED: Final = _keys("output")

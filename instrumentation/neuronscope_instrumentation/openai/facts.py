"""Small readings that several of OpenAI's APIs share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final

from neuronscope.signals import names
from neuronscope_instrumentation.common.fields import SOME, field, fields, pick, text
from neuronscope_instrumentation.common.headers import header_reader

# OpenAI's own, which most compatible providers use too; then Azure's.
read_headers: Final = header_reader(
    "x-ratelimit-{bound}-{unit}", ("x-request-id", "apim-request-id", "request-id")
)


def known(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts without those that are unknown."""
    return {key: value for key, value in facts.items() if value is not None}


def output_format(wanted: Any) -> str | None:
    """`gen_ai.output.type` of a format: anything that is JSON is ``json``."""
    kind = text(field(wanted, "type"))
    return "json" if kind is not None and kind.startswith("json") else kind


def tool_definitions(tools: Iterable[Any]) -> list[Mapping[str, Any]]:
    """The definitions of tools: type and name, as the semantic conventions want by default."""
    return [known({"type": _kind(tool), "name": _name(tool)}) for tool in tools]


def tool_names(tools: Iterable[Any]) -> list[str] | None:
    """Names of the tools offered; the provider's own go by their type."""
    return [_name(tool) or _kind(tool) for tool in tools] or None


def _kind(tool: Any) -> str:
    return text(field(tool, "type")) or "function"


def _name(tool: Any) -> str | None:
    """The Responses API keeps it at the top, chat completions below the tool's type."""
    name = text(field(tool, "name"))
    return name if name is not None else text(field(field(tool, _kind(tool)), "name"))


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

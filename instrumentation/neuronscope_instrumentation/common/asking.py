"""What clients ask of a model: their words for its parameters as tables, and what they all say alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from neuronscope.instrumentation import Message, Request
from neuronscope.signals import names
from neuronscope_instrumentation.common.fields import COUNT, NUMBER, TEXT, field, items, pick, text
from neuronscope_instrumentation.common.parts import Part, without_none

Table = tuple[str | int, ...]
_KINDS: Final = {
    "model": TEXT,
    "temperature": NUMBER,
    "top_p": NUMBER,
    "top_k": COUNT,
    "max_tokens": COUNT,
    "seed": COUNT,
    "frequency_penalty": NUMBER,
    "presence_penalty": NUMBER,
    "choice_count": COUNT,
    "dimensions": COUNT,
    "input_count": COUNT,
    "message_count": COUNT,
    "output_type": TEXT,
    "service_tier": TEXT,
}


def parameters(*alike: str, **theirs: str) -> Table:
    """A table for `pick`: fields of a `Request`, and what a client calls them.

    Args:
        alike: those that it calls as we do.
    """
    called = {**{name: name for name in alike}, **theirs}
    return tuple(cell for ours, name in called.items() for cell in (name, ours, _KINDS[ours]))


SAMPLING: Final = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")


def asked(
    told: Mapping[str, Any],
    table: Table,
    *,
    tools: Iterable[Any] = (),
    effort: Any = None,
    content: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    **more: Any,
) -> Request:
    """A request in our words.

    Args:
        told: its parameters, in the client's words, which `table` has.
        tools: definitions of those that it offers.
        effort: how hard the model is to think.
        content: what `spoken` makes of its texts, where they may be read.
        extra: what else is an attribute of the registry.
        more: fields of the request that no table tells; unknown ones are None.
    """
    facts = pick(told, table)
    if told.get("stream") is True:
        facts["stream"] = True
    offered = {names.TOOLS_OFFERED: tool_names(tools), names.REASONING_LEVEL: text(effort)}
    found = without_none({**offered, **(extra or {})})
    if found:
        facts["extra"] = found
    return Request(**facts, **without_none(more), **(content or {}))


def spoken(
    messages: Sequence[Message], system: Sequence[Part], tools: Iterable[Any], stops: Any
) -> dict[str, Any]:
    """The content of a request; what is empty is unknown."""
    return {
        "messages": messages or None,
        "system": system or None,
        "tools": tool_definitions(tools) or None,
        "stop_sequences": texts(stops) or None,
    }


def texts(value: Any) -> list[str]:
    """A text, or the texts in a list."""
    return [value] if isinstance(value, str) else [each for each in items(value) if isinstance(each, str)]


def output_format(wanted: Any) -> str | None:
    """`gen_ai.output.type` of a format: anything that is JSON is ``json``."""
    kind = text(field(wanted, "type"))
    return "json" if kind is not None and kind.startswith("json") else kind


# --- tools -------------------------------------------------------------------------------------------
def tool_definitions(tools: Iterable[Any]) -> list[Mapping[str, Any]]:
    """The definitions of tools: type and name, as the semantic conventions want by default."""
    return [without_none({"type": _kind(tool), "name": _name(tool)}) for tool in tools]


def tool_names(tools: Iterable[Any]) -> list[str] | None:
    """Names of the tools offered; the provider's own go by their type."""
    return [_name(tool) or _kind(tool) for tool in tools] or None


def _kind(tool: Any) -> str:
    return text(field(tool, "type")) or "function"


def _name(tool: Any) -> str | None:
    """Most have it at the top, or below the tool's type."""
    name = text(field(tool, "name"))
    return name if name is not None else text(field(field(tool, _kind(tool)), "name"))


def tools_called(names_told: Iterable[Any]) -> dict[str, Any]:
    """Which tools the model has called, for a response's `extra`; nothing if none."""
    called = [name for each in names_told if (name := text(each)) is not None]
    return {names.TOOLS_CALLED: called} if called else {}


# --- embeddings ----------------------------------------------------------------------------------------
def _read_embeddings(table: Table, told: Mapping[str, Any], content: bool) -> Request:
    return Request(**pick(told, table))


def embeddings_reader(table: Table) -> Callable[[Mapping[str, Any], bool], Request]:
    """A reader of requests for embeddings, whose texts are never told."""
    return partial(_read_embeddings, table)

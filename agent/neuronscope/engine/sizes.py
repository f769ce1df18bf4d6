"""How much finished records weigh: batches are bounded by bytes as well as by count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from msgspec.structs import replace

from neuronscope import compiled
from neuronscope.signals import names
from neuronscope.signals.records import Attributes, LogRecord, LogValue, SpanRecord

_SPAN: Final = 256
_ATTRIBUTE: Final = 24
_PAIR: Final = _ATTRIBUTE + 24  # with its key
_ITEM: Final = 12
_SAMPLE: Final = 4
_SEQUENCES: Final = (list, tuple)
_SHORT: Final = 1024
_TOLD: Final = 64  # names of removed attributes that are listed
# A collector takes 4 MiB in one gRPC message; characters may be 3 bytes.
MAX_SPAN_BYTES: Final = 1 << 20


def held_bytes_in_python(value: Any, depth: int = 4) -> int:
    """About how much plain values hold: texts by their length, long lists by a sample of their items."""
    kind = value.__class__
    if kind is str or kind is bytes:
        return len(value)
    if kind is int or kind is float or kind is bool or value is None or depth == 0:
        return 0
    size = 0
    if kind is dict or issubclass(kind, Mapping):
        for item in value.values():
            size += len(item) if item.__class__ is str else held_bytes_in_python(item, depth - 1)
    elif issubclass(kind, _SEQUENCES):
        whole = len(value)
        if whole > _SAMPLE:
            value = (value[0], *value[1 - _SAMPLE :])
        for item in value:
            size += held_bytes_in_python(item, depth - 1)
        if whole > _SAMPLE:
            size = size * whole // _SAMPLE
    elif issubclass(kind, (str, bytes)):
        size = len(value)
    return size


_make_held_bytes: Final = compiled.find("make_held_bytes")
held_bytes: Final[Callable[[Any], int]] = (
    held_bytes_in_python if _make_held_bytes is None else _make_held_bytes(held_bytes_in_python)
)


def span_bytes(record: SpanRecord) -> int:
    """About how many bytes a span takes when encoded."""
    size: int = _SPAN + attributes_bytes(record.attributes)
    if record.events:
        for event in record.events:
            size += _ATTRIBUTE + len(event.name) + attributes_bytes(event.attributes)
    if record.links:
        for link in record.links:
            size += 64 + attributes_bytes(link.attributes)
    return size


def log_bytes(record: LogRecord) -> int:
    """About how many bytes a log record takes when encoded."""
    names = len(record.event_name) + len(record.library)
    return _SPAN + names + _nested_bytes(record.body) + _nested_bytes(record.attributes)


def _nested_bytes(value: LogValue) -> int:
    if isinstance(value, str | bytes):
        return _ATTRIBUTE + len(value)
    if isinstance(value, Mapping):
        return sum(_ITEM + len(key) + _nested_bytes(item) for key, item in value.items())
    if isinstance(value, Sequence):
        return _ATTRIBUTE + sum(map(_nested_bytes, value))
    return _ATTRIBUTE


def attributes_bytes_in_python(attributes: Attributes) -> int:
    """About how many bytes attributes take when encoded."""
    size = _PAIR * len(attributes)
    value: Any  # a cast is a call
    for value in attributes.values():
        kind = value.__class__
        if kind is str:
            size += len(value)
        elif kind is not int and kind is not float:
            size += value_bytes(value) - _ATTRIBUTE
    return size


attributes_bytes: Final = compiled.choose("attributes_bytes", attributes_bytes_in_python)


def value_bytes(value: object) -> int:
    """About how many bytes an attribute's value takes when encoded."""
    if isinstance(value, str):
        return _ATTRIBUTE + len(value)
    if isinstance(value, list | tuple):
        size = _ATTRIBUTE
        for item in cast(Sequence[object], value):
            size += _ITEM + (len(item) if isinstance(item, str) else 0)
        return size
    return _ATTRIBUTE


def lighten(record: SpanRecord, limit: int) -> tuple[SpanRecord, int]:
    """The span without its heaviest parts, so that it has at most `limit` bytes, and its size.

    First what events and links carry goes, then the largest attributes; what the registry knows and is no
    content (model, tokens, finish reasons, errors, scores) goes last; numbers and short texts never do.
    """
    attributes = dict(record.attributes)
    gone: list[str] = []
    size = span_bytes(record)
    events, links = record.events, record.links
    if size - attributes_bytes(attributes) > limit // 2:
        events = [replace(event, attributes={}) for event in events]
        links = [replace(link, attributes={}) for link in links]
        gone += ["events"] * bool(events) + ["links"] * bool(links)
        size = span_bytes(replace(record, events=events, links=links))
    for key in sorted(attributes, key=lambda key: (_is_core(key), -value_bytes(attributes[key]))):
        weight = value_bytes(attributes[key])
        if size <= limit or (weight <= _SHORT and _is_core(key)):
            break
        del attributes[key]
        gone.append(key)
        size -= _PAIR - _ATTRIBUTE + weight
    told = attributes.get(names.TRUNCATED)
    known = cast("list[str]", told) if isinstance(told, list) else []
    attributes[names.TRUNCATED] = [*known, *gone[:_TOLD]]
    dropped = record.dropped_attributes + len(gone)
    return replace(
        record, attributes=attributes, events=events, links=links, dropped_attributes=dropped
    ), size


def _is_core(key: str) -> bool:
    known = names.ATTRIBUTES.get(key)
    return known is not None and known.sensitivity is not names.Sensitivity.CONTENT

"""How much finished records weigh: batches are bounded by bytes as well as by count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

from neuronscope.signals.records import Attributes, LogRecord, LogValue, SpanRecord

_SPAN: Final = 256
_ATTRIBUTE: Final = 24
_ITEM: Final = 12


def span_bytes(record: SpanRecord) -> int:
    """About how many bytes a span takes when encoded."""
    size = _SPAN + attributes_bytes(record.attributes)
    for event in record.events:
        size += _ATTRIBUTE + len(event.name) + attributes_bytes(event.attributes)
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


def attributes_bytes(attributes: Attributes) -> int:
    """About how many bytes attributes take when encoded."""
    return sum(len(key) + value_bytes(value) for key, value in attributes.items())


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

"""Puts attributes on a span of the SDK's, without the SDK's second look at values that are clean already.

The SDK looks at each value to copy it into a form that cannot change; for fifteen attributes that takes as
long as the rest of the span.  Ours have passed the content policy: plain, short and ours alone.
"""

from __future__ import annotations

from _thread import LockType
from typing import Any, Final

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk import trace as sdk

from neuronscope import compiled

# The SDK's own ways to set attributes; a class of somebody's that does it differently is asked as ever.
_SPANS: Final[frozenset[type]] = frozenset(
    kind
    for kind in (getattr(sdk, "_Span", None), getattr(sdk, "Span", None))
    if isinstance(kind, type) and kind.__module__ == sdk.__name__
)
_PLAIN: Final = frozenset({str, int, float, bool})
_NOTHING: Final[dict[str, Any]] = {}


def set_attributes_in_python(span: Any, attributes: dict[str, Any], told: dict[str, Any] = _NOTHING) -> None:
    """Set attributes that the content policy has let through, but those that the span was `told` already."""
    values = _room_in(span, len(attributes))
    # A sampler decides which attributes a span starts with: the service's own may have dropped ours.
    holds: Any = (getattr(span, "attributes", None) or ()) if values is None else values._dict
    if len(holds) < len(told):
        told = _NOTHING
    kept = None if values is None else _keep(attributes, told)
    if values is None or kept is None:
        span.set_attributes({key: value for key, value in attributes.items() if told.get(key) is not value})
        return
    with span._lock, values._lock:
        if span._end_time is None:
            values._dict.update(kept)


def _keep(attributes: dict[str, Any], told: dict[str, Any]) -> dict[str, Any] | None:
    """Those that `told` does not hold yet, as the SDK keeps them; None if one is for the SDK to look at."""
    kept: dict[str, Any] = {}
    for key, value in attributes.items():
        if key.__class__ is not str or not key:
            return None
        if key in told and told[key] is value:
            continue
        kind = value.__class__
        if kind in _PLAIN:
            kept[key] = value
        elif kind is list and _is_uniform(value):
            kept[key] = tuple(value)
        else:
            return None
    return kept


def _is_uniform(items: list[Any]) -> bool:
    """Are these plain values of one type?  Releases of the SDK differ in what they do with others."""
    kinds = {item.__class__ for item in items}
    return len(kinds) <= 1 and kinds <= _PLAIN


def _room_in(span: Any, count: int) -> Any | None:
    """Where the span keeps its attributes, if we know that way, there is room, and none is to be cut."""
    if type(span) not in _SPANS:
        return None
    try:
        values: Any = span._attributes
        taken, room, cut, _ = values._dict, values.maxlen, values.max_value_len, values._lock
    except AttributeError:
        return None
    if type(values) is not BoundedAttributes or not isinstance(taken, dict) or cut is not None:
        return None
    held = len(taken)  # pyright: ignore[reportUnknownArgumentType]  # of anything
    return values if room is None or held + count <= room else None


# What the compiled way knows: anything else is the twin's.
KNOWN: Final = (_SPANS, BoundedAttributes, LockType)
_make: Final = compiled.find("make_set_attributes")
set_attributes: Final = (
    set_attributes_in_python if _make is None else _make((set_attributes_in_python, *KNOWN))
)

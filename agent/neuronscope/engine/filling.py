"""Puts attributes on a span of the SDK's, without the SDK's second look at values that are clean already.

The SDK looks at each value to copy it into a form that cannot change; for fifteen attributes that takes as
long as the rest of the span.  Ours have passed the content policy: plain, short and ours alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk import trace as sdk

# The SDK's own ways to set attributes; a class of somebody's that does it differently is asked as ever.
_SPANS: Final[frozenset[type]] = frozenset(
    kind
    for kind in (getattr(sdk, "_Span", None), getattr(sdk, "Span", None))
    if isinstance(kind, type) and kind.__module__ == sdk.__name__
)
_PLAIN: Final = frozenset({str, int, float, bool})
_KEPT: Final = frozenset({"_dict", "_lock", "maxlen", "max_value_len"})


def set_attributes(span: Any, attributes: Mapping[str, Any]) -> None:
    """Set attributes that the content policy has let through."""
    held = _room_in(span, len(attributes))
    if held is None:
        span.set_attributes(attributes)
        return
    clean: dict[str, Any] = {}
    for key, value in attributes.items():
        kind = value.__class__
        if kind in _PLAIN:
            clean[key] = value
        elif kind is list and _is_uniform(value):
            clean[key] = tuple(value)
        else:
            clean[""] = value
    if "" in clean:  # an empty key, or a value that the SDK may know what to do with
        span.set_attributes(attributes)
        return
    with span._lock, held["_lock"]:
        if span._end_time is None:
            held["_dict"].update(clean)


def _is_uniform(items: list[Any]) -> bool:
    """Are these plain values of one type?  Releases of the SDK differ in what they do with others."""
    kinds = {item.__class__ for item in items}
    return len(kinds) <= 1 and kinds <= _PLAIN


def _room_in(span: Any, count: int) -> dict[str, Any] | None:
    """How the span keeps its attributes, if we know that way, there is room, and none is to be cut."""
    values: Any = getattr(span, "_attributes", None)
    if type(span) not in _SPANS or type(values) is not BoundedAttributes:
        return None
    held: dict[str, Any] = values.__dict__
    if not held.keys() >= _KEPT or not isinstance(held["_dict"], dict) or held["max_value_len"] is not None:
        return None
    room = cast("int | None", held["maxlen"])
    taken = len(cast("dict[str, Any]", held["_dict"]))
    return held if room is None or taken + count <= room else None

"""Puts attributes on a span of the SDK's, without the SDK's second look at values that are clean already.

The SDK looks at each value to copy it into a form that cannot change; for fifteen attributes that takes as
long as the rest of the span.  Ours have passed the content policy: plain, short and ours alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk import trace as sdk

# The SDK's own ways to set attributes; a class of somebody's that does it differently is asked as ever.
_SPANS: Final[frozenset[type]] = frozenset(
    kind
    for kind in (getattr(sdk, "_Span", None), getattr(sdk, "Span", None))
    if isinstance(kind, type) and kind.__module__ == sdk.__name__
)
_PLAIN: Final = frozenset({str, int, float, bool})


def set_attributes(span: Any, attributes: Mapping[str, Any]) -> None:
    """Set attributes that the content policy has let through."""
    values = getattr(span, "_attributes", None)
    if type(span) not in _SPANS or type(values) is not BoundedAttributes or not _fit(values, attributes):
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
    with span._lock, values._lock:
        if span._end_time is None:
            values._dict.update(clean)


def _is_uniform(items: list[Any]) -> bool:
    """Are these plain values of one type?  Releases of the SDK differ in what they do with others."""
    kinds = {item.__class__ for item in items}
    return len(kinds) <= 1 and kinds <= _PLAIN


def _fit(values: Any, attributes: Mapping[str, Any]) -> bool:
    """Is there room for all, and is none to be cut?  As far as this release keeps limits where we know."""
    own: dict[str, Any] = vars(values)
    if "max_value_len" not in own or "maxlen" not in own or not isinstance(own.get("_dict"), dict):
        return False
    room = own["maxlen"]
    return own["max_value_len"] is None and (room is None or len(own["_dict"]) + len(attributes) <= room)

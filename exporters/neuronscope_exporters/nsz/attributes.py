"""Attribute values to OTLP's AnyValue and back, exactly.

What JSON or OTLP cannot hold is replaced, never refused: integers beyond 64 bits by their decimal
text, unknown objects by `str`, values nested too deeply by an ellipsis.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final, cast

from neuronscope.exceptions import NszError
from neuronscope.signals.records import Attributes, AttributeValue
from neuronscope_exporters.nsz.documents import AnyValue, ArrayValue, KeyValue, KeyValueList

# Values within values: deeper ones are cut when written, refused when read (a level of values is up to
# four levels of JSON).
WRITTEN_DEPTH: Final = 12
READ_DEPTH: Final = 16
_I64_MIN, _I64_MAX = -(2**63), 2**63 - 1
_NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _to_any(value: object, depth: int = 0) -> AnyValue:
    kind = type(value)
    if kind is str:
        return AnyValue(cast(str, value))
    if kind is int:
        whole = cast(int, value)
        if _I64_MIN <= whole <= _I64_MAX:
            return AnyValue(None, str(whole))
        return AnyValue(_decimal(whole))
    if kind is float:
        return AnyValue(None, None, finite(cast(float, value)))
    if kind is bool:
        return AnyValue(bool_value=cast(bool, value))
    if kind is tuple or kind is list:
        if depth >= WRITTEN_DEPTH:
            return AnyValue("…")
        items = cast(Sequence[object], value)
        return AnyValue(array_value=ArrayValue([_to_any(item, depth + 1) for item in items]))
    return _to_any_slowly(value, depth)


def _to_any_slowly(value: object, depth: int) -> AnyValue:
    """Subclasses, numpy values, mappings: turned into plain Python first."""
    if value is None:
        return AnyValue()
    if isinstance(value, str):
        return AnyValue(str(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return AnyValue(bytes_value=base64.b64encode(cast(bytes, value)).decode())
    if isinstance(value, bool | int):
        return _to_any(int(value), depth)
    if isinstance(value, float):
        return AnyValue(None, None, finite(float(value)))
    if isinstance(value, Mapping):
        if depth >= WRITTEN_DEPTH:
            return AnyValue("…")
        return AnyValue(kvlist_value=KeyValueList(to_pairs(cast(Attributes, value), depth + 1)))
    if isinstance(value, Sequence | Set):
        return _to_any(list(cast(Sequence[object], value)), depth)
    plain = getattr(value, "tolist", None)  # numpy scalars and arrays
    if callable(plain):
        converted = plain()
        if type(converted) is not type(value):
            return _to_any(converted, depth)
    try:
        return AnyValue(None, None, finite(float(cast(Any, value))))  # numpy.longdouble
    except (TypeError, ValueError, OverflowError):
        return AnyValue(str(value))


def _decimal(number: int) -> str:
    """Decimal text; Python refuses it beyond 4,300 digits, where hexadecimal has to do."""
    try:
        return str(number)
    except ValueError:
        return hex(number)


def finite(number: float) -> float | str:
    """A number for JSON, which has none that is not finite."""
    if math.isfinite(number):
        return number
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def to_pairs(attributes: Mapping[str, object], depth: int = 0) -> list[KeyValue]:
    """Attributes as OTLP's list."""
    pairs: list[KeyValue] = []
    for key, value in attributes.items():
        if type(key) is not str:
            key = str(key)  # noqa: PLW2901 - foreign mappings only
        kind = type(value)
        if kind is str:  # the two common types, without a call
            pairs.append(KeyValue(key, AnyValue(cast(str, value))))
        elif kind is int and _I64_MIN <= cast(int, value) <= _I64_MAX:
            pairs.append(KeyValue(key, AnyValue(None, str(value))))
        else:
            pairs.append(KeyValue(key, _to_any(value, depth)))
    return pairs


def to_value(value: object) -> AnyValue | None:
    """One value; None for none."""
    return None if value is None else _to_any(value)


def from_value(value: AnyValue | None) -> Any:
    """What `to_value` was given; sequences come back as tuples.

    Raises:
        NszError: a value that makes no sense.
    """
    return None if value is None else _from_any(value)


def number(value: float | str) -> float:
    """What `finite` was given.

    Raises:
        NszError: another text.
    """
    if isinstance(value, float | int):
        return float(value)
    try:
        return _NON_FINITE[value]
    except KeyError:
        raise NszError("not a number") from None


def _from_any(value: AnyValue, depth: int = 0) -> Any:
    if value.string_value is not None:
        return value.string_value
    if value.int_value is not None:
        return integer(value.int_value)
    if value.double_value is not None:
        return number(value.double_value)
    if value.bool_value is not None:
        return value.bool_value
    if depth > READ_DEPTH:
        raise NszError("attribute is nested too deeply")
    if value.array_value is not None:
        return tuple([_from_any(item, depth + 1) for item in value.array_value.values])
    if value.kvlist_value is not None:
        return {item.key: _from_any(item.value, depth + 1) for item in value.kvlist_value.values}
    if value.bytes_value is not None:
        try:
            return base64.b64decode(value.bytes_value, validate=True)
        except binascii.Error:
            raise NszError("attribute bytes are not base64") from None
    return None


def from_pairs(pairs: list[KeyValue]) -> dict[str, AttributeValue]:
    """What `to_pairs` was given; sequences come back as tuples.

    Raises:
        NszError: a value that makes no sense.
    """
    found: dict[str, AttributeValue] = {}
    for pair in pairs:
        value = pair.value
        text = value.string_value
        found[pair.key] = text if text is not None else _from_any(value)
    return found


def integer(text: str | int) -> int:
    """A 64-bit integer, which OTLP/JSON writes as text.

    Raises:
        NszError: not one.
    """
    if isinstance(text, int):
        return text
    try:
        return int(text if len(text) <= 32 else "too long")
    except ValueError:
        raise NszError(f"not an integer: {text[:40]!r}") from None


def identifier(text: str, digits: int) -> int:
    """A trace's or span's id from its hexadecimal digits.

    Raises:
        NszError: not that many digits.
    """
    if len(text) != digits:
        raise NszError(f"an id must have {digits} hexadecimal digits; got {text[:40]!r}")
    try:
        return int.from_bytes(bytes.fromhex(text))
    except ValueError:
        raise NszError(f"an id must be hexadecimal; got {text!r}") from None

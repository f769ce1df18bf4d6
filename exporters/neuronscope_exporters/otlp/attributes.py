"""OTLP `KeyValue`s from attributes: the part of encoding where the time goes.

A span of a model call has some fifteen attributes, and most of their keys and values repeat from span to
span.  So each key remembers the bytes that precede its numbers, and the whole `KeyValue` of its texts.  A
key with many different values (ids, counts) soon stops remembering them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from neuronscope import compiled
from neuronscope_exporters.otlp.wire import (
    KNOWN,
    VARINTS,
    delimited,
    double,
    string,
    utf8,
    varint,
)

_MAX_KEYS: Final = 512
_MAX_KEY_LENGTH: Final = 256
_MAX_VALUES: Final = 64  # of one key; beyond it the key has high cardinality
_MAX_SEQUENCE: Final = 8  # hashing longer ones costs as much as encoding them
_MAX_DEPTH: Final = 32
_ONE_BYTE: Final = 128  # integers below it are varints of one byte, others in the table of two
_MAX_DECIMAL_BITS: Final = 4096  # Python refuses to write longer integers in decimal

_INT64: Final = range(-(1 << 63), 1 << 63)
_TRUE: Final = b"\x10\x01"
_FALSE: Final = b"\x10\x00"


class UnencodableError(ValueError):
    """The attribute has no form in OTLP: its key is no string, or its value no type that OTLP knows."""


def any_value(value: object, depth: int = 0) -> bytes:
    """The body of an OTLP `AnyValue`; None is the empty one.

    Integers beyond 64 bits become decimal strings.  Source: OpenTelemetry specification, "Mapping
    Arbitrary Data to OTLP AnyValue".
    """
    if value is None:
        return b""
    if isinstance(value, bool):  # before int: True is an int to Python
        return _TRUE if value else _FALSE
    if isinstance(value, str):
        return b"\x0a" + string(value)  # string_value = 1
    if isinstance(value, int):
        return _integer(value)
    if isinstance(value, float):
        return b"\x21" + double(value)  # double_value = 4
    if isinstance(value, bytes):
        return b"\x3a" + delimited(value)  # bytes_value = 7
    if depth >= _MAX_DEPTH:
        raise UnencodableError("nested too deeply")
    if isinstance(value, Sequence):
        items = cast(Sequence[object], value)
        return b"\x2a" + delimited(_repeated(b"\x0a", [any_value(item, depth + 1) for item in items]))
    if isinstance(value, Mapping):
        pairs = cast(Mapping[object, object], value).items()
        return b"\x32" + delimited(
            _repeated(b"\x0a", [_pair(str(key), any_value(item, depth + 1)) for key, item in pairs])
        )
    raise UnencodableError(f"no OTLP value: {type(value).__name__}")


# What the compiled encoder asks Python for.
TWINS: Final = (any_value, utf8, UnencodableError)
_compiled: Final = compiled.find("encode_attributes")


def _integer(value: int) -> bytes:
    if value in _INT64:
        return b"\x18" + varint(value)  # int_value = 3
    return b"\x0a" + string(str(value) if value.bit_length() <= _MAX_DECIMAL_BITS else hex(value))


def _pair(key: str, value: bytes) -> bytes:
    return b"\x0a" + string(key) + b"\x12" + delimited(value)  # key = 1, value = 2


def _repeated(tag: bytes, bodies: list[bytes]) -> bytes:
    return b"".join([tag + delimited(body) for body in bodies])


# What stands between a `KeyValue`'s key and a short text: value = 2 and string_value = 1, with lengths.
_SHORT: Final = 126
_TEXT_HEADS: Final = tuple(b"\x12" + VARINTS[size + 2] + b"\x0a" + VARINTS[size] for size in range(_SHORT))


class _Key:
    """What is known of a key: the bytes in front of its numbers, and its texts in full.

    All bytes are length-delimited `KeyValue`s, or their beginnings; the tag in front of them depends on
    the message they go into.
    """

    __slots__ = ("_field", "_full", "double", "false", "integers", "long", "short", "true", "values")

    def __init__(self, key: str) -> None:
        self._field = b"\x0a" + string(key)  # KeyValue.key = 1
        self.double = self._begin(9) + b"\x21"
        # Indexed by the length of the varint that follows.
        self.integers = [self._begin(1 + size) + b"\x18" for size in range(11)]
        self.short: bytes = self.integers[1]  # the commonest
        self.long: bytes = self.integers[2]
        self.true = self._begin(2) + _TRUE
        self.false = self._begin(2) + _FALSE
        # Texts, and tuples of texts only: no two of those are equal and yet encoded differently, as True
        # and 1 or 0.0 and -0.0 are.
        self.values: dict[object, bytes] = {}
        self._full = False

    def _begin(self, size: int) -> bytes:
        value = b"\x12" + varint(size)  # KeyValue.value = 2
        return varint(len(self._field) + len(value) + size) + self._field + value

    def text(self, value: str) -> bytes:
        """The pair with a text, remembered if it is short."""
        encoded = utf8(value)
        size = len(encoded)
        if size >= _SHORT:
            body = b"\x0a" + delimited(encoded)
            return self._begin(len(body)) + body
        pair = delimited(self._field + _TEXT_HEADS[size] + encoded)
        if not self._full:
            self._remember(value, pair)
        return pair

    def integer(self, value: int) -> bytes:
        """The pair with any integer."""
        if value not in _INT64:
            return self.other(value)
        number = varint(value)
        return self.integers[len(number)] + number

    def items(self, value: tuple[object, ...]) -> bytes:
        """The pair with a sequence, remembered if it is a short one of texts."""
        if len(value) > _MAX_SEQUENCE:
            return self.other(value)
        try:
            known = self.values.get(value)
        except TypeError:  # it holds something that can't be hashed
            known = None
        if known is None:
            known = self.other(value)
            short = len(known) < _SHORT + len(self._field)
            if short and not self._full and value and all(item.__class__ is str for item in value):
                self._remember(value, known)
        return known

    def other(self, value: object) -> bytes:
        """The pair with anything that OTLP has a form for."""
        body = any_value(value)
        return self._begin(len(body)) + body

    def _remember(self, value: object, pair: bytes) -> None:
        if len(self.values) < _MAX_VALUES:
            self.values[value] = pair
        else:
            self._full = True
            self.values = {}


class AttributeEncoder:
    """Encodes attributes, and remembers what it has encoded within fixed bounds.

    Safe to use from several threads: every change to its tables is one atomic step, and two threads that
    meet write the same bytes.
    """

    def __init__(self) -> None:
        self._keys: dict[str, _Key] = {}

    def encode(self, attributes: Mapping[str, Any], tag: bytes) -> tuple[bytes, int]:
        """The attributes as repeated `KeyValue` fields with this tag, and how many could not be encoded."""
        if _compiled is not None:
            encoded: tuple[bytes, int] = _compiled(attributes, tag[0], TWINS)
            return encoded
        return self.encode_in_python(attributes, tag)

    def encode_in_python(self, attributes: Mapping[str, Any], tag: bytes) -> tuple[bytes, int]:
        """The twin of the compiled function, which remembers; that one is faster than to remember."""
        if not attributes:
            return b"", 0
        pairs: list[bytes] = []
        add = pairs.append
        find = self._keys.get
        for key, value in attributes.items():
            known = find(key)
            if known is None:
                known = self._admit(key)
                if known is None:
                    continue
            kind = value.__class__
            if kind is str:
                encoded: bytes | None = known.values.get(value)
                add(encoded or known.text(value))
            elif kind is int:
                whole: int = value
                if 0 <= whole < KNOWN:
                    add((known.short if whole < _ONE_BYTE else known.long) + VARINTS[whole])
                else:
                    add(known.integer(whole))
            elif kind is float:
                add(known.double + double(value))
            else:
                pair = _unusual(known, value)
                if pair is not None:
                    add(pair)
        return tag + tag.join(pairs) if pairs else b"", len(attributes) - len(pairs)

    def _admit(self, key: str) -> _Key | None:
        if key.__class__ is not str:
            return None
        known = _Key(key)
        if len(self._keys) < _MAX_KEYS and len(key) <= _MAX_KEY_LENGTH:
            self._keys[key] = known
        return known


def _unusual(known: _Key, value: object) -> bytes | None:
    """A pair that the fast path leaves alone; None when it has no form in OTLP."""
    if value is True:
        return known.true
    if value is False:
        return known.false
    try:
        if value.__class__ is tuple or value.__class__ is list:
            return known.items(tuple(cast("Sequence[object]", value)))
        return known.other(value)
    except UnencodableError:
        return None

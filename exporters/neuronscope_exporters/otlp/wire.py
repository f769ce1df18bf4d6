"""Protobuf's wire format, as far as OTLP needs it: building blocks of messages, and a small reader.

Source: protobuf.dev, "Encoding".  A field is a tag byte (number << 3 | wire type) followed by a varint,
8 or 4 little-endian bytes, or a length and that many bytes.  The encoders write tags as byte literals;
the comment beside each names the field.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}

double: Final[Callable[[float], bytes]] = struct.Struct("<d").pack
fixed64: Final[Callable[[int], bytes]] = struct.Struct("<Q").pack
fixed32: Final[Callable[[int], bytes]] = struct.Struct("<I").pack


def varint(number: int) -> bytes:
    """The varint of an integer; negative ones take ten bytes, as protobuf's `int64` does."""
    if number < 0:
        number += 1 << 64
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


# Lengths and counts are nearly always below this: a tuple index costs a tenth of `varint`.
VARINTS: Final = tuple(varint(number) for number in range(4096))
KNOWN: Final = len(VARINTS)


def delimited(body: bytes) -> bytes:
    """The body preceded by its length, as strings, bytes and messages are written."""
    size = len(body)
    return (VARINTS[size] if size < KNOWN else varint(size)) + body


def utf8(text: str) -> bytes:
    """UTF-8 of any Python string; lone surrogates become U+FFFD, which OTLP's strings require."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def string(text: str) -> bytes:
    """A length-delimited string."""
    return delimited(utf8(text))


def read_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message from outside: (number, value); fixed ones as bytes.

    Raises:
        ValueError: the bytes are no protobuf message.
    """
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == _VARINT:
            value, at = _read_varint(message, at)
            yield number, value
            continue
        if wire_type == _BYTES:
            size, at = _read_varint(message, at)
        elif wire_type in _SIZES:
            size = _SIZES[wire_type]
        else:
            raise ValueError(f"no protobuf: wire type {wire_type}")
        if at + size > len(message):
            raise ValueError("no protobuf: a field is longer than its message")
        yield number, message[at : at + size]
        at += size


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("no protobuf: a varint is cut off")
        byte = message[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise ValueError("no protobuf: a varint is too long")


def signed(number: int) -> int:
    """An `int64` from its varint."""
    return number - (1 << 64) if number >= 1 << 63 else number

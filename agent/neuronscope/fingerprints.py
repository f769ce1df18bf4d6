"""Fingerprints: a short, stable name for bytes, arrays and trees of them.

A fingerprint is the same in every process, on every device and for every order of a mapping's keys.
It tells things apart; it is no signature: 128 bits of SHA-256, shown as hexadecimal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol, cast, runtime_checkable

SCHEME: Final = "ns1"  # goes up whenever equal input would give another fingerprint
_HEX_DIGITS: Final = 32


class _Digest(Protocol):
    def update(self, data: bytes | bytearray | memoryview, /) -> None: ...


@runtime_checkable
class _ArrayLike(Protocol):
    """What numpy arrays, and everything shaped like them, offer."""

    @property
    def shape(self) -> Any: ...
    @property
    def dtype(self) -> Any: ...
    def tobytes(self) -> bytes: ...


def fingerprint(data: object) -> str:
    """Name `data` by its content: ``"ns1:"`` and 32 hexadecimal digits.

    Args:
        data: bytes or anything with the buffer protocol; text; numbers; None; a numpy array (its
            element type and shape count too); a mapping with text keys, in any order; or an iterable
            of these, in its own order.  An iterator is consumed once, piece by piece, so a model's
            weights need never be in memory together.  How an iterable is cut into pieces is part of
            its content: ``[b"ab"]`` is not ``[b"a", b"b"]``.

    Raises:
        TypeError: something in `data` has no stable bytes, such as an arbitrary object or a set.
    """
    digest = hashlib.sha256()
    _feed(digest, data)
    return f"{SCHEME}:{digest.hexdigest()[:_HEX_DIGITS]}"


def _feed(digest: _Digest, value: object) -> None:
    """Feed one value in an encoding without ambiguity: a tag, a length, the content."""
    match value:
        case None | bool() | int() | float():
            _feed_bytes(digest, b"n", repr(value).encode())
        case str():
            _feed_bytes(digest, b"s", value.encode("utf-8", "surrogatepass"))
        case bytes() | bytearray():
            _feed_bytes(digest, b"b", value)
        case memoryview():
            view = cast("memoryview[int]", value)
            _feed_bytes(digest, b"b", view if view.contiguous else view.tobytes())
        case _ArrayLike():
            digest.update(b"a")
            _feed(digest, str(value.dtype))
            _feed(digest, [int(size) for size in value.shape])
            _feed_bytes(digest, b"b", value.tobytes())
        case Mapping():
            _feed_mapping(digest, cast(Mapping[object, object], value))
        case _:
            _feed_pieces(digest, value)


def _feed_mapping(digest: _Digest, value: Mapping[object, object]) -> None:
    names = list(value)
    if not all(isinstance(name, str) for name in names):
        raise TypeError("a mapping to fingerprint needs text keys: others have no stable order")
    digest.update(b"{")
    for name in sorted(cast(list[str], names)):
        _feed(digest, name)
        _feed(digest, value[name])
    digest.update(b"}")


def _feed_pieces(digest: _Digest, value: Any) -> None:
    """Other buffers count as bytes; other iterables by their items, in order."""
    try:
        view = memoryview(value)
    except TypeError:
        if not isinstance(value, Iterable) or isinstance(value, set | frozenset):
            kind = cast(object, value).__class__.__qualname__
            raise TypeError(
                f"cannot fingerprint a {kind}: give bytes, text, numbers, arrays, "
                "mappings or sequences of them"
            ) from None
        digest.update(b"[")
        for item in cast(Iterable[object], value):
            _feed(digest, item)
        digest.update(b"]")
    else:
        _feed(digest, view)


def _feed_bytes(digest: _Digest, tag: bytes, content: bytes | bytearray | memoryview) -> None:
    size = content.nbytes if isinstance(content, memoryview) else len(content)
    digest.update(tag + size.to_bytes(8, "little"))
    digest.update(content)

"""Fingerprints name content, and only content."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from neuronscope.fingerprints import fingerprint


def test_it_is_the_same_in_every_process_and_version() -> None:
    """Golden values: changing them needs another scheme prefix."""
    assert fingerprint(b"") == "ns1:899b80c8dc11d5c2a65d67a4c3b6f3be"
    assert fingerprint({"w": b"abc", "b": [1, 2.5, None, "x"]}) == "ns1:2fe7cfce85d6e4759993924c229eec55"
    code = "from neuronscope.fingerprints import fingerprint; print(fingerprint({'a': b'1', 'b': b'2'}))"
    paths = [path for path in sys.path if path]
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}\n{code}"],
        check=True,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert run.stdout.strip() == fingerprint({"b": b"2", "a": b"1"})


def test_content_counts_however_it_is_held() -> None:
    """bytes, bytearray, memoryview and other buffers of equal content are equal."""
    import array

    names = {
        fingerprint(held)
        for held in (b"abcd", bytearray(b"abcd"), memoryview(b"abcd"), array.array("b", b"abcd"))
    }
    assert len(names) == 1
    assert fingerprint(memoryview(b"a.b.c.")[::2]) == fingerprint(b"abc")


def test_arrays_count_with_type_and_shape_not_with_strides() -> None:
    """Transposing twice changes nothing; reshaping does."""
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert fingerprint(values) == fingerprint(np.asfortranarray(values))
    others = [values.reshape(3, 2), values.astype(np.float64), values + 1, values.tobytes()]
    assert len({fingerprint(other) for other in (values, *others)}) == 5


def test_structure_is_part_of_the_content() -> None:
    """Pieces, order, nesting and kinds of values cannot be confused."""
    different: list[object] = [
        [b"ab"],
        [b"a", b"b"],
        [b"b", b"a"],
        [[b"ab"]],
        b"ab",
        "ab",
        {"a": b"b"},
        ["a", b"b"],
        {},
        [],
        None,
        1,
        True,
        1.0,
    ]
    assert len({fingerprint(value) for value in different}) == len(different)


def test_iterators_are_read_piece_by_piece() -> None:
    """A generator of weights names them as a list does."""

    def weights() -> Iterator[bytes]:
        yield b"one"
        yield b"two"

    assert fingerprint(weights()) == fingerprint([b"one", b"two"])


def test_what_has_no_stable_bytes_is_refused() -> None:
    """Objects, sets and mappings without text keys."""
    for value in (object(), {1, 2}, {"a": object()}, {1: b"x"}):
        with pytest.raises(TypeError, match="fingerprint"):
            fingerprint(value)

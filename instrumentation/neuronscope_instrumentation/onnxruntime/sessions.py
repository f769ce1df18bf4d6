"""What a session is: its model's name and fingerprint; and what goes in and comes out: shapes and types."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from neuronscope.fingerprints import fingerprint
from neuronscope.modelnames import name_from_path
from neuronscope.signals.tensors import DTYPE_NAMES

_WHOLE: Final = 1 << 26  # bytes; of larger models evenly spread samples enter the fingerprint, and the size
_SAMPLES: Final = 64
_SAMPLE: Final = 1 << 20
_names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_fingerprints: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def name_of(session: Any) -> str:
    """The file's name, else the graph's."""
    name = _names.get(session)
    if name is None:
        path = getattr(session, "_model_path", None)
        if isinstance(path, str) and path:
            name = name_from_path(path).removesuffix(".onnx").removesuffix(".ort")
        else:
            name = str(session.get_modelmeta().graph_name or type(session).__name__)
        _names[session] = name
    return name


def fingerprint_of(session: Any) -> str | None:
    """A fingerprint of the bytes that the session was made from; None if they are gone."""
    found = _fingerprints.get(session)
    if found is None:
        path, content = getattr(session, "_model_path", None), getattr(session, "_model_bytes", None)
        if isinstance(path, str) and path:
            pieces = _of_file(Path(path))
        elif isinstance(content, bytes):
            pieces = _of_bytes(content)
        else:
            return None
        try:
            found = _fingerprints[session] = fingerprint(pieces)
        except OSError:
            return None
    return found


def _of_file(path: Path) -> Iterator[object]:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        yield size
        for start, length in _ranges(size):
            file.seek(start)
            yield file.read(length)


def _of_bytes(content: bytes) -> Iterator[object]:
    yield len(content)
    for start, length in _ranges(len(content)):
        yield content[start : start + length]


def _ranges(size: int) -> Iterator[tuple[int, int]]:
    if size <= _WHOLE:
        yield from ((start, _SAMPLE) for start in range(0, size, _SAMPLE))
    else:
        yield from (((size - _SAMPLE) * sample // (_SAMPLES - 1), _SAMPLE) for sample in range(_SAMPLES))


# --- values -----------------------------------------------------------------------------------------------
Described = tuple[str, str, tuple[int, ...]]  # name, element type, shape


def describe_inputs(feed: object) -> tuple[Described, ...]:
    """Types and shapes of a run's inputs, by name; no value is read."""
    if not isinstance(feed, Mapping):
        return ()
    values: Any = cast(Any, feed)
    return tuple([(str(name), *_describe(value)) for name, value in values.items()])


def describe_outputs(values: Sequence[Any], output_names: Sequence[str]) -> tuple[Described, ...]:
    """Types and shapes of a run's outputs."""
    return tuple([(name, *_describe(value)) for name, value in zip(output_names, values, strict=False)])


def output_names(session: Any, asked: object) -> list[str]:
    """The outputs that a run returns: those asked for, in that order, else all."""
    if asked:
        return [str(name) for name in cast("Sequence[Any]", asked)]
    return [str(output.name) for output in session.get_outputs()]


def _describe(value: Any) -> tuple[str, tuple[int, ...]]:
    dtype: Any = getattr(value, "dtype", None)
    shape: Any = getattr(value, "shape", None)
    if dtype is not None and isinstance(shape, tuple):
        return DTYPE_NAMES.get(str(dtype.name), str(dtype.name)), cast("tuple[int, ...]", shape)
    if callable(shape) and hasattr(value, "data_type"):  # an OrtValue: "tensor(float)"
        return str(value.data_type()), tuple(cast("Sequence[int]", shape()))
    return type(value).__name__, (len(value),) if hasattr(value, "__len__") else ()


def texts(described: Sequence[Described]) -> list[str]:
    """As an attribute: ``"input_ids: I64[1,16]"``."""
    return [f"{name}: {dtype}[{','.join(map(str, shape))}]" for name, dtype, shape in described]

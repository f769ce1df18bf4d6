"""Full tensors as safetensors documents: written without a copy, read as views of the file.

One message holds one document with one tensor called ``tensor``.  A tensor larger than a part is cut
into flat parts; `__metadata__` then tells which part it is and the whole shape.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from neuronscope.exceptions import NszError, NszLimitError
from neuronscope.signals.tensors import DTYPE_NAMES, TensorSnapshot, TensorSummary
from neuronscope_exporters.nsz.layout import ALIGNMENT

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_HEADER: Final = 1 << 20
_LENGTH: Final = struct.Struct("<Q")
_NUMPY_NAMES: Final = {name: dtype for dtype, name in DTYPE_NAMES.items()}
# Element types that numpy has but safetensors does not: stored as bytes, their name beside them.
_AS_BYTES: Final = frozenset({"complex128"})
_SIZES: Final[Mapping[str, int]] = {
    "BOOL": 1, "U8": 1, "U16": 2, "U32": 4, "U64": 8, "I8": 1, "I16": 2, "I32": 4, "I64": 8, "F16": 2,
    "BF16": 2, "F32": 4, "F64": 8, "C64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "complex128": 16,
}  # fmt: skip
# Element types whose bytes are split into planes before compression; others gain nothing by it.
IN_PLANES: Final = frozenset({"F16", "BF16", "F32", "F64"})
# What stands in for an element type when ml_dtypes is not installed.
_RAW: Final = {"bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


class TensorInfo(msgspec.Struct):
    """safetensors' description of a tensor."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class DocumentHeader(msgspec.Struct):
    """The JSON header of our safetensors documents."""

    tensor: TensorInfo
    metadata: dict[str, str] = msgspec.field(name="__metadata__", default_factory=dict[str, str])


_encode = msgspec.json.Encoder().encode
_header_decoder = msgspec.json.Decoder(DocumentHeader)


class Payload(msgspec.Struct, frozen=True, gc=False):
    """A tensor ready to be written: its element type's name, shape, and little-endian bytes."""

    dtype: str
    shape: tuple[int, ...]
    itemsize: int
    data: memoryview


def payload(tensor: TensorSnapshot) -> Payload:
    """The bytes of a snapshot, without a copy where it is contiguous and little-endian.

    Raises:
        TypeError: elements of this type cannot be written.
        ValueError: the snapshot holds no values.
    """
    import numpy as np

    array = tensor.numpy()
    order = array.dtype.byteorder
    if order == ">" or (order == "=" and sys.byteorder == "big"):
        array = array.astype(array.dtype.newbyteorder("<"))
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array).reshape(array.shape)
    name = _stored_name(tensor.dtype, array.dtype)
    data = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
    return Payload(name, array.shape, array.itemsize, data)


@lru_cache(256)  # numpy makes the name of a type anew each time it is asked
def _stored_name(declared: str, dtype: np.dtype[Any]) -> str:
    """The snapshot's own name where its array is the raw form of it, else the array's."""
    if dtype.name == _RAW.get(_NUMPY_NAMES.get(declared, "")):
        return declared
    name = DTYPE_NAMES.get(dtype.name, dtype.name)
    if name not in _NUMPY_NAMES and name not in _AS_BYTES:
        raise TypeError(f"tensors of dtype {dtype} cannot be stored")
    return name


def document_header(dtype: str, shape: Sequence[int], nbytes: int, metadata: dict[str, str]) -> bytes:
    """Length and JSON header of a document, padded with spaces so that the data starts aligned."""
    if dtype in _AS_BYTES:
        metadata = {**metadata, "nsz.dtype": dtype}
        dtype, shape = "U8", [*shape, nbytes // max(math.prod(shape), 1)]
    document = DocumentHeader(TensorInfo(dtype, list(shape), (0, nbytes)), metadata)
    try:
        header = _encode(document)
    except UnicodeEncodeError:  # a lone surrogate in a name
        document.metadata = {key: text.encode(errors="replace").decode() for key, text in metadata.items()}
        header = _encode(document)
    header += b" " * (-(len(header) + _LENGTH.size) % ALIGNMENT)
    return _LENGTH.pack(len(header)) + header


def parse_document(data: memoryview) -> tuple[DocumentHeader, memoryview]:
    """(header, tensor bytes) of a document.

    Raises:
        NszError: it is not a document of ours, or its numbers contradict each other.
        NszLimitError: its header is too long.
    """
    if len(data) < _LENGTH.size:
        raise NszError("safetensors document is cut off")
    size: int = _LENGTH.unpack_from(data)[0]
    if size > MAX_HEADER:
        raise NszLimitError(f"safetensors header of {size} bytes; at most {MAX_HEADER} are allowed")
    start = _LENGTH.size + size
    if start > len(data):
        raise NszError("safetensors header is cut off")
    try:
        header = _header_decoder.decode(data[_LENGTH.size : start])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NszError(f"safetensors header: {error}") from None
    values = data[start:]
    info = header.tensor
    expected = element_size(info.dtype) * shape_size(info.shape)
    if info.data_offsets != (0, len(values)) or expected != len(values):
        raise NszError("safetensors header does not fit its data")
    return header, values


def shape_size(shape: Sequence[int]) -> int:
    """Number of elements, in Python integers.

    Raises:
        NszError: more than 64 dimensions, or a negative one.
    """
    if len(shape) > 64 or min(shape, default=0) < 0:
        raise NszError("tensor has an impossible shape")
    return math.prod(shape)


def element_size(dtype: str) -> int:
    """Bytes of an element of the type with this stored name.

    Raises:
        NszError: the name is unknown.
    """
    size = _SIZES.get(dtype)
    return numpy_dtype(dtype).itemsize if size is None else size


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy type for a stored name: ml_dtypes' for bfloat16 and float8, or raw integers without it.

    Raises:
        NszError: the name is unknown.
    """
    import numpy as np

    known = name if name in _AS_BYTES else _NUMPY_NAMES.get(name)
    if known is None:
        raise NszError(f"unknown element type {name[:40]!r}")
    if known not in _RAW:
        return _little_endian(known)
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype(_RAW[known]).newbyteorder("<")
    special: np.dtype[Any] = np.dtype(getattr(ml_dtypes, known))
    return special


@cache
def _little_endian(name: str) -> np.dtype[Any]:
    import numpy as np

    return np.dtype(name).newbyteorder("<")


def split_planes(data: memoryview, itemsize: int) -> memoryview:
    """First the first bytes of all elements, then the second ones and so on: floats compress better so."""
    import numpy as np

    elements = np.frombuffer(data, np.dtype(f"<u{itemsize}"))
    planes = np.empty((itemsize, elements.size), np.uint8)
    for number in range(itemsize):  # shifts are several times as fast as a transposition of bytes
        np.right_shift(elements, 8 * number, out=planes[number], casting="unsafe")
    return planes.reshape(-1).data


def join_planes(data: memoryview, itemsize: int) -> memoryview:
    """What `split_planes` was given.

    Raises:
        NszError: not a whole number of elements.
    """
    import numpy as np

    if len(data) % itemsize:
        raise NszError("planes of a tensor do not add up")
    elements = np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(itemsize, -1).T)
    return elements.reshape(-1).data


def summarize(values: NDArray[Any], dtype: str) -> TensorSummary:
    """Statistics of values as `numpy_dtype` types them, right also for raw bfloat16.

    Raises:
        NszError: raw float8, which needs ml_dtypes.
    """
    import numpy as np

    if values.dtype.name != _RAW.get(_NUMPY_NAMES.get(dtype, "")):
        return TensorSummary.of(values)
    if dtype != "BF16":
        raise NszError(f"statistics of {dtype} need the package ml_dtypes")
    # A bfloat16 is the upper half of a float32.
    return TensorSummary.of((values.astype(np.uint32) << 16).view(np.float32))

"""Tensors as the platform sees them: a portable snapshot, and its statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from neuronscope.signals.records import AttributeValue
    from neuronscope.summaries.details import Details

# safetensors' names for element types, by numpy's; the `.nsz` file uses them too.
DTYPE_NAMES: dict[str, str] = {
    "bool": "BOOL",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}


class TensorSummary(Struct, frozen=True, gc=False):  # made for every layer's run: see `records`
    """Statistics of one tensor.

    `mean`, `std` (population), `l2`, `min`, `max` and `abs_max` are over the *finite* elements;
    they are NaN when there is none.  `nan_count`, `inf_count` and `zero_count` are exact.

    Attributes:
        count: number of elements.
        sampled_fraction: 1.0, or the fraction of whole rows from which `mean`, `std` and `l2` (of the whole)
            were estimated.
        histogram: on request, finite elements by magnitude (see `neuronscope.summaries.details`).
        sketch: on request, 64 numbers whose angles and distances are those of the tensors, roughly.
    """

    count: int
    mean: float
    std: float
    l2: float
    min: float
    max: float
    abs_max: float
    zero_count: int
    nan_count: int
    inf_count: int
    sampled_fraction: float = 1.0
    histogram: tuple[int, ...] | None = None
    sketch: tuple[float, ...] | None = None

    @property
    def finite(self) -> bool:
        """True when the tensor holds neither NaN nor Inf."""
        return self.nan_count == 0 and self.inf_count == 0

    @classmethod
    def of(cls, array: NDArray[Any]) -> TensorSummary:
        """Summarise a numpy array of any numeric or bool type (complex: by modulus)."""
        from neuronscope.summaries import arrays

        return arrays.summarize(array)


class TensorSnapshot:
    """A tensor freed from its framework: shape, element type, and a way to the values.

    A snapshot made by `from_numpy` owns a copy.  One that an adapter hands to an observer may be
    *lazy*: it is valid only during the callback, and `numpy()` or `summarize()` pays for exactly
    what is asked.  Both return data that shares no memory and no graph with the framework.

    Attributes:
        shape: the tensor's shape.
        dtype: the element type under its safetensors name (``"F32"``, ``"BF16"``, …).
    """

    __slots__ = ("_array", "dtype", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: str, array: NDArray[Any] | None = None) -> None:
        self.shape = shape
        self.dtype = dtype
        self._array = array

    @classmethod
    def from_numpy(cls, array: NDArray[Any]) -> TensorSnapshot:
        """Copy a numpy array into a snapshot.

        Raises:
            TypeError: the array holds Python objects, or is not an array.
        """
        import numpy as np

        values: NDArray[Any] = np.array(array, copy=True, order="C")
        if values.dtype.hasobject:
            raise TypeError(f"a tensor snapshot needs numbers; got an array of dtype {values.dtype}")
        return cls(tuple(values.shape), DTYPE_NAMES.get(values.dtype.name, values.dtype.name), values)

    @property
    def nbytes(self) -> int:
        """Bytes that the full array takes on the host."""
        return self.numpy().nbytes

    def numpy(self) -> NDArray[Any]:
        """The values as a host array that the caller may keep (do not write to it)."""
        if self._array is None:
            raise ValueError("this snapshot holds no values")
        return self._array

    def summarize(self) -> TensorSummary:
        """The statistics of the values."""
        return TensorSummary.of(self.numpy())

    def details(self) -> Details:
        """Histogram and sketch of the values (see `neuronscope.summaries.details`); costs several passes."""
        from neuronscope.summaries import arrays

        return arrays.details(self.numpy())

    def active_units(self) -> NDArray[Any]:
        """Which positions of the last dimension are not zero in some row: an array of bools."""
        values = self.numpy()
        return (values.reshape(-1, values.shape[-1]) != 0).any(axis=0)  # type: ignore[no-any-return]

    def summarize_later(self) -> Callable[[], TensorSummary] | None:
        """Start computing the statistics on the tensor's device; the function returned waits for them.

        None where `summarize` gives them at once.

        Raises:
            UnsupportedTensorError: as `summarize`.
        """
        return None

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """What the adapter has to tell about this run of the layer."""
        return {}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype!r})"


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer that a probe can watch.

    Attributes:
        id: the runtime's own dotted path, stable across processes (``"model.layers.3.mlp"``).
        name: what kind of layer it is, for people (``"LlamaMLP"``).
        shape: output shape where it is known before running, else None; -1: a size known only then.
        parameters: number of parameters the layer itself holds, else None.
        signature: shapes and types of all inputs and outputs, where a runtime tells them
            (``"F32[-1,4], F32[4,8] -> F32[-1,8]"``).
        flops: operations of one run, where they are known before running, else None.
    """

    id: str
    name: str = ""
    shape: tuple[int, ...] | None = None
    parameters: int | None = None
    signature: str = ""
    flops: int | None = None

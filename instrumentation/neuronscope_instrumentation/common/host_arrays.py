"""Tensors on loan to an observer: what all have, and those in host memory (of Keras, of ONNX Runtime)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from neuronscope.exceptions import UnsupportedTensorError
from neuronscope.signals.records import Attributes
from neuronscope.signals.tensors import DTYPE_NAMES, TensorSnapshot, TensorSummary

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from neuronscope.summaries.details import Details

_BITS: Final = {1: "uint8", 2: "uint16"}  # of types that numpy lacks, by their size
_NUMPYS_OWN: Final = frozenset(
    {
        "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
        "float16", "float32", "float64", "complex64", "complex128",
    }
)  # fmt: skip
NOTHING: Final[Attributes] = {}


def loan_is_over() -> ValueError:
    """What to raise where values are asked for too late."""
    return ValueError(
        "this snapshot was valid only while the observer's callback ran; "
        "call numpy() or summarize() there, and keep what they return"
    )


class LentSnapshot(TensorSnapshot):
    """What is known of a lent tensor at once: shape, type, bytes and what the adapter has to tell."""

    __slots__ = ("_more", "_nbytes", "_summary")

    def __init__(self, shape: tuple[int, ...], dtype: str, nbytes: int, attributes: Attributes) -> None:
        super().__init__(shape, dtype)
        self._nbytes = nbytes
        self._more = attributes
        self._summary: TensorSummary | None = None  # several observers of one layer share it

    @property
    def nbytes(self) -> int:
        """Bytes that the full array takes on the host (0 if it cannot be read); nothing is copied to tell."""
        return self._nbytes

    @property
    def attributes(self) -> Attributes:
        """What the adapter has to tell about this run: where weights are from, under which transformation."""
        return self._more


class ArraySnapshot(LentSnapshot):
    """Shape and type at once; values and statistics while the observer's callback runs.

    Args:
        view: gives the values in host memory, without a copy where the framework has them there.

    Raises:
        UnsupportedTensorError: from the reading methods, for values that are no numbers.
    """

    __slots__ = ("_array_view", "_read")

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: str,
        nbytes: int,
        view: Callable[[], Any],
        attributes: Attributes = NOTHING,
    ) -> None:
        super().__init__(shape, DTYPE_NAMES.get(dtype, dtype), nbytes, attributes)
        self._read: Callable[[], Any] | None = view
        self._array_view: NDArray[Any] | None = None

    def numpy(self) -> NDArray[Any]:
        """A host copy, bit for bit; types that numpy lacks come as their bits (BF16 as uint16)."""
        view = self._view()
        if view.dtype.kind == "V" or view.dtype.name not in _NUMPYS_OWN:
            bits = _BITS.get(view.dtype.itemsize)
            if bits is None:
                raise UnsupportedTensorError(f"dtype:{self.dtype}")
            view = view.view(bits)
        copied: NDArray[Any] = view.copy()
        return copied

    def summarize(self) -> TensorSummary:
        """The statistics, computed now."""
        if self._summary is None:
            self._summary = TensorSummary.of(self._view())
        return self._summary

    def details(self) -> Details:
        """Histogram and sketch of the values (see `neuronscope.summaries.details`); costs several passes."""
        from neuronscope.summaries import arrays

        return arrays.details(self._view())

    def active_units(self) -> NDArray[Any]:
        """Which positions of the last dimension are not zero in some row: an array of bools."""
        values = self._view()
        return (values.reshape(-1, values.shape[-1]) != 0).any(axis=0)  # type: ignore[no-any-return]

    def of_heads(self, heads: Sequence[int]) -> ArraySnapshot:
        """Of attention weights, (batch, head, query, key), those of some heads only."""
        view = self._view()
        total = view.shape[1]
        part = view[:, [head for head in heads if -total <= head < total]]
        return of_array(part, {**self._more, "heads": tuple(heads)})

    def close(self) -> None:
        """End the loan: values can no longer be read."""
        self._read = self._array_view = None

    def _view(self) -> NDArray[Any]:
        if self._read is None:
            raise loan_is_over()
        if self._array_view is None:
            view = self._read()
            if view.dtype.hasobject or view.dtype.kind in "SUMm":
                raise UnsupportedTensorError(f"dtype:{self.dtype}")
            self._array_view = view
        return cast("NDArray[Any]", self._array_view)


def of_array(array: NDArray[Any], attributes: Attributes = NOTHING) -> ArraySnapshot:
    """A snapshot of an array that is the framework's, and is read before the callback returns."""
    return ArraySnapshot(array.shape, array.dtype.name, array.nbytes, lambda: array, attributes)


def refusing(reason: str) -> ArraySnapshot:
    """Stands for a tensor that cannot be had: reading it raises, with the reason."""

    def refuse() -> Any:
        raise UnsupportedTensorError(reason)

    return ArraySnapshot((), "", 0, refuse)

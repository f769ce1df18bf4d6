"""A JAX array on loan to an observer: a live one of eager code, or what compiled code sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import jax
import numpy as np

from neuronscope.exceptions import UnsupportedTensorError
from neuronscope.signals.records import Attributes
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary
from neuronscope.summaries import arrays
from neuronscope_instrumentation.common.host_arrays import NOTHING, LentSnapshot, loan_is_over
from neuronscope_instrumentation.jax import statistics
from neuronscope_instrumentation.jax.dtypes import dtype_name, host_copy, host_nbytes, is_numeric, widened
from neuronscope_instrumentation.jax.untyped import jit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from neuronscope.summaries.details import Details

STAYED: Final = "only statistics left the compiled program"


class _Snapshot(LentSnapshot):
    """What the two kinds have in common; attributes tell of compiled code, `vmap` and shards."""

    __slots__ = ()

    def __init__(self, shape: tuple[int, ...], dtype: Any, attributes: Attributes) -> None:
        super().__init__(shape, dtype_name(dtype), host_nbytes(shape, dtype), attributes)

    def close(self) -> None:
        """End the loan, if this is one."""

    def _values(self) -> NDArray[Any]:
        """The values on the host, to be read only now."""
        raise NotImplementedError

    def numpy(self) -> NDArray[Any]:
        """A host copy, bit for bit; types that numpy lacks come as their bits (BF16 as uint16).

        Raises:
            UnsupportedTensorError: there are no values to read.
        """
        return host_copy(self._values())

    def summarize(self) -> TensorSummary:
        """The statistics.

        Raises:
            UnsupportedTensorError: there are no values to read.
        """
        if self._summary is None:
            self._summary = arrays.summarize(widened(self._values()))
        return self._summary

    def details(self) -> Details:
        """Histogram and sketch of the values; costs several passes.

        Raises:
            UnsupportedTensorError: there are no values to read.
        """
        return arrays.details(widened(self._values()))

    def active_units(self) -> NDArray[Any]:
        """Which positions of the last dimension are not zero in some row: an array of bools.

        Raises:
            UnsupportedTensorError: there are no values to read.
        """
        values = widened(self._values())
        found: NDArray[Any] = (values.reshape(-1, values.shape[-1]) != 0).any(axis=0)
        return found


def of_heads(snapshot: TensorSnapshot, heads: Sequence[int]) -> TensorSnapshot:
    """The attention weights, (…, head, query, key), of some heads only.

    Raises:
        UnsupportedTensorError: there are no values to read.
    """
    assert isinstance(snapshot, _Snapshot)
    values = snapshot._values()  # pyright: ignore[reportPrivateUsage] - of this module
    total = values.shape[-3]
    part = values[..., [head for head in heads if -total <= head < total], :, :]
    told = {**snapshot.attributes, "heads": tuple(heads)}
    return SentSnapshot(part.shape, part.dtype, told, whole=part)


class ArraySnapshot(_Snapshot):
    """An array of eager code, valid while the observer's callback runs.

    Reading it waits for the device; on an accelerator statistics are computed there.
    """

    __slots__ = ("_source",)

    def __init__(self, array: Any, attributes: Attributes = NOTHING) -> None:
        super().__init__(tuple(array.shape), array.dtype, attributes)
        self._source: Any = array

    def summarize(self) -> TensorSummary:
        """The statistics, where the array is.

        Raises:
            UnsupportedTensorError: there are no values to read.
        """
        if self._summary is None and (later := self.summarize_later()) is not None:
            self._summary = later()
        return super().summarize()

    def summarize_later(self) -> Callable[[], TensorSummary] | None:
        """On an accelerator: start there, and wait elsewhere; None on the CPU.

        Raises:
            UnsupportedTensorError: there are no values to read.
        """
        array = self._live()
        if not isinstance(array, jax.Array) or not array.size or _on_host(array):
            return None
        count = array.size
        parts: Any = _measure(array)
        return lambda: statistics.read(count, *(np.asarray(part) for part in parts))

    def close(self) -> None:
        """End the loan."""
        self._source = None

    def _values(self) -> NDArray[Any]:
        return np.asarray(self._live())

    def _live(self) -> Any:
        array = self._source
        if array is None:
            raise loan_is_over()
        if not is_numeric(array.dtype):
            raise UnsupportedTensorError(f"dtype:{dtype_name(array.dtype)}")
        if isinstance(array, jax.Array):
            if array.is_deleted():
                raise UnsupportedTensorError("donated")
            if not array.is_fully_addressable:
                raise UnsupportedTensorError("on other hosts")
        return array


class SentSnapshot(_Snapshot):
    """What a compiled program sent: statistics, or the whole array, or only word that the layer ran."""

    __slots__ = ("_whole", "_why_not")

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        attributes: Attributes,
        *,
        whole: NDArray[Any] | None = None,
        summary: TensorSummary | None = None,
        why_not: str = STAYED,
    ) -> None:
        super().__init__(shape, dtype, attributes)
        self._whole = whole
        self._summary = summary
        self._why_not = why_not

    def _values(self) -> NDArray[Any]:
        if self._whole is None:
            raise UnsupportedTensorError(self._why_not)
        return self._whole


_measure: Final = jit(statistics.measure)


def _on_host(array: jax.Array) -> bool:
    return all(device.platform == "cpu" for device in array.devices())

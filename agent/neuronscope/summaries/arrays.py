"""Statistics of numpy arrays: by the kernel where there is one, else by numpy in float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from neuronscope.signals.tensors import DTYPE_NAMES, TensorSummary
from neuronscope.summaries import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from neuronscope.summaries.details import Details


def summarize(array: NDArray[Any]) -> TensorSummary:
    """Summarise an array of any numeric or bool type and layout (complex: by modulus)."""
    import numpy as np

    values = np.asarray(array)
    compiled, _ = kernel.load()
    place = _place(values) if compiled is not None else None
    if compiled is None or place is None:
        return by_numpy(values)
    return kernel.summary(compiled.strided(*place))


def details(array: NDArray[Any]) -> Details:
    """Histogram and sketch of an array; see `neuronscope.summaries.details`."""
    import numpy as np

    from neuronscope.summaries import details as by_array

    values = np.asarray(array)
    compiled, _ = kernel.load()
    place = _place(values) if compiled is not None else None
    return by_array.by_numpy(values) if compiled is None or place is None else compiled.details(*place)


def _place(values: NDArray[Any]) -> tuple[int, int, tuple[int, ...], list[int]] | None:
    """Address, kind, sizes and strides for the kernel; None for an array that it cannot read."""
    import numpy as np

    name = "C128" if values.dtype == np.complex128 else DTYPE_NAMES.get(values.dtype.name, "")
    kind = kernel.KINDS.get(name)
    # Not numpy's own subclasses: a masked array's memory holds more than its values.
    fit = type(values) is np.ndarray and values.dtype.isnative and values.flags.aligned
    if kind is None or not fit or values.ndim > kernel.MAX_DIMS:
        return None
    size = values.itemsize
    if any(stride % size for stride in values.strides):
        return None
    return values.ctypes.data, kind, values.shape, [stride // size for stride in values.strides]


def by_numpy(values: NDArray[Any]) -> TensorSummary:
    """The same in float64, without the kernel."""
    import numpy as np

    if np.iscomplexobj(values):
        values = np.abs(values.astype(np.complex128))
    flat: NDArray[np.float64] = values.astype(np.float64, copy=False).ravel()
    count = int(flat.size)
    nan_count = int(np.isnan(flat).sum())
    inf_count = int(np.isinf(flat).sum())
    zero_count = count - int(np.count_nonzero(flat))
    finite = flat[np.isfinite(flat)] if nan_count or inf_count else flat
    if finite.size == 0:
        nan = math.nan
        return TensorSummary(count, nan, nan, nan, nan, nan, nan, zero_count, nan_count, inf_count)
    low, high = float(finite.min()), float(finite.max())
    return TensorSummary(
        count=count,
        mean=float(finite.mean()),
        std=float(finite.std()),
        l2=float(np.sqrt(np.dot(finite, finite))),
        min=low,
        max=high,
        abs_max=max(abs(low), abs(high)),
        zero_count=zero_count,
        nan_count=nan_count,
        inf_count=inf_count,
    )

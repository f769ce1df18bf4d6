"""Statistics of numpy arrays: by the kernel where there is one, else by numpy in float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from neuronscope.signals.tensors import DTYPE_NAMES, TensorSummary
from neuronscope.summaries import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray


def summarize(array: NDArray[Any]) -> TensorSummary:
    """Summarise an array of any numeric or bool type and layout (complex: by modulus)."""
    import numpy as np

    values = np.asarray(array)
    compiled, _ = kernel.load()
    name = "C128" if values.dtype == np.complex128 else DTYPE_NAMES.get(values.dtype.name, "")
    kind = kernel.KINDS.get(name)
    # Not numpy's own subclasses: a masked array's memory holds more than its values.
    fit = type(values) is np.ndarray and values.dtype.isnative and values.flags.aligned
    if compiled is not None and kind is not None and fit and values.ndim <= kernel.MAX_DIMS:
        size = values.itemsize
        if all(stride % size == 0 for stride in values.strides):
            strides = [stride // size for stride in values.strides]
            return kernel.summary(compiled.strided(values.ctypes.data, kind, values.shape, strides))
    return by_numpy(values)


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

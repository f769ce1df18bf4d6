"""Statistics of an array inside a traced program: a dozen scalars leave the device, not the array.

Sums are taken in two levels, of values scaled by a power of two, around a first estimate of the mean: so
float32 neither overflows nor cancels.  The host finishes in float64.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from neuronscope.signals.tensors import TensorSummary
from neuronscope_instrumentation.jax.dtypes import is_integral
from neuronscope_instrumentation.jax.untyped import barrier, read_config

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROW: Final = 512  # elements of a long vector that are summed before their sums are


def measure(x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Statistics of a traced array of at least one element, for `read`: floats, counts, extremes.

    The barrier keeps what is computed here out of the loops that compute the model.
    """
    x = barrier(x)
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        x = jnp.abs(x)
    integral = is_integral(x.dtype)
    wide = x.dtype.itemsize >= 8 or (integral and read_config("jax_enable_x64"))
    real = x.astype(jnp.float64 if wide else jnp.float32)
    finite = jnp.ones(x.shape, bool) if integral else jnp.isfinite(real)
    counted = jnp.uint32
    zeros = jnp.sum(real == 0, dtype=counted)
    nans = jnp.sum(jnp.isnan(real), dtype=counted)
    infinities = jnp.sum(jnp.isinf(real), dtype=counted)
    values = jnp.where(finite, real, 0)
    number = jnp.maximum(x.size - (nans + infinities).astype(real.dtype), 1)
    scale = _power_of_two(jnp.max(jnp.abs(values)))
    scaled = values / scale
    about = _sum(scaled) / number
    rest = jnp.where(finite, scaled - about, 0)
    off = _sum(rest) / number
    variance = _sum(rest * rest) / number
    if integral:
        native = x.astype(jnp.int32) if x.dtype.itemsize < 4 or x.dtype == bool else x
        extremes = jnp.stack([jnp.min(native), jnp.max(native)])
    else:
        low = jnp.min(jnp.where(finite, real, jnp.inf))
        extremes = jnp.stack([low, jnp.max(jnp.where(finite, real, -jnp.inf))])
    return (jnp.stack([scale, about, off, variance]), jnp.stack([zeros, nans, infinities]), extremes)


def read(count: int, floats: NDArray[Any], counts: NDArray[Any], extremes: NDArray[Any]) -> TensorSummary:
    """What `measure` gave for `count` elements, as a summary."""
    scale, about, off, variance = (float(value) for value in floats)
    zeros, nans, infinities = (int(value) for value in counts)
    finite = count - nans - infinities
    if not finite:
        nan = math.nan
        return TensorSummary(count, nan, nan, nan, nan, nan, nan, zeros, nans, infinities)
    mean = about + off
    variance = max(variance - off * off, 0.0)
    low, high = float(extremes[0]), float(extremes[1])
    return TensorSummary(
        count=count,
        mean=mean * scale,
        std=math.sqrt(variance) * scale,
        l2=math.sqrt(finite * (variance + mean * mean)) * scale,
        min=low,
        max=high,
        abs_max=max(abs(low), abs(high)),
        zero_count=zeros,
        nan_count=nans,
        inf_count=infinities,
    )


def _sum(x: jax.Array) -> jax.Array:
    if x.ndim == 1 and x.size > _ROW:
        x = jnp.pad(x, (0, -x.size % _ROW)).reshape(-1, _ROW)
    if x.ndim < 2:
        return jnp.sum(x)
    # Without the barrier XLA makes one long sum of the two.
    return jnp.sum(barrier(jnp.sum(x, axis=-1)))


def _power_of_two(x: jax.Array) -> jax.Array:
    """The largest power of two that is not above `x`; at least the smallest normal number."""
    _, exponent = jnp.frexp(x)
    power = jnp.ldexp(jnp.ones_like(x), exponent - 1)
    return jnp.where(x > 0, jnp.maximum(power, np.finfo(x.dtype).tiny), 1)

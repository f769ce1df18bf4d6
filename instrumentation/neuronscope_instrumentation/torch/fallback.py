"""Statistics of a tensor with torch's own operations: on accelerators, and where no kernel was compiled.

The tensor is cut into pieces that stay in the cache.  Each piece gives its `Moments`; those merge
exactly, so pieces, steps and ranks add up alike.  A healthy float piece takes the fast route: float32
sums of short rows.  Where that could be wrong (a non-finite value, a mean that dwarfs the deviation,
squares that overflow or vanish) and for every other type, the piece is read again in float64.

Accuracy against float64: `std` and `l2` within 1e-5 relative; `mean` within 1e-5 relative or 1e-6 of
the root mean square, whichever is larger; extremes and counts exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final, cast

import numpy as np
import torch

from neuronscope.signals.tensors import TensorSummary
from neuronscope.summaries import Moments

PIECE: Final = 1 << 18  # elements: 1 MiB of float32
_DEVICE_PIECE: Final = 1 << 24
_ROW: Final = 1024  # elements per row whose squares float32 adds up: within 2e-6 on constant data
_DOT: Final = 16_384  # elements that BLAS may add up at once: within 1e-5 on constant data
_SQUARES_FIT: Final = (1e-15, 1e15)  # |x| whose squares neither vanish nor overflow in float32
# Σ(x − mean)² / Σx² below which Σx² − mean·Σx has lost too many digits.
_MIN_SHARE_FLOAT32: Final = 1e-2
_MIN_SHARE_FLOAT64: Final = 1e-6
_AS_FLOAT32: Final = frozenset(
    dtype
    for name in (
        "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
        "float8_e5m2fnuz", "float8_e8m0fnu",
    )
    if isinstance(dtype := getattr(torch, name, None), torch.dtype)
)  # fmt: skip


def cpu_moments(plain: torch.Tensor) -> Moments:
    """Read a CPU tensor piece by piece."""
    total = None
    for piece in pieces(plain, PIECE):
        values = piece.abs() if piece.dtype.is_complex else piece.resolve_neg()
        moments = _fast(values.to(torch.float32)) if values.dtype in _AS_FLOAT32 else None
        if moments is None:
            moments = _careful(values.to(torch.float64))
        total = moments if total is None else total.merge(moments)
    return total or Moments()


def sampled_summary(plain: torch.Tensor, fraction: float) -> TensorSummary | None:
    """A CPU tensor's statistics, with mean, deviation and norm from a share of its rows.

    Whole rows: a stride within rows would meet the same channels each time, and be wrong by half on
    activations with a few large ones.  None where rows cannot be told apart or a value is not finite.
    """
    if plain.dim() < 2 or not plain.is_contiguous() or not plain.is_floating_point():
        return None
    rows = plain.view(-1, plain.shape[-1])
    step = max(1, round(1 / fraction))
    while step > 1 and math.gcd(step, plain.shape[-2]) > 1:  # else the same positions of every sequence
        step += 1
    sample = rows[::step]
    if step == 1 or rows.shape[0] < 2 * step:
        return None
    bounds = [torch.aminmax(piece.to(torch.float32)) for piece in pieces(plain, PIECE)]
    low = min(float(low.item()) for low, _ in bounds)
    high = max(float(high.item()) for _, high in bounds)
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    part = cpu_moments(sample)
    zeros = sum(_zeros(piece.to(torch.float32), low, high) for piece in pieces(plain, PIECE))
    count = plain.numel()
    return TensorSummary(
        count=count,
        mean=part.mean,
        std=math.sqrt(part.squares / part.finite),
        l2=math.sqrt(part.energy * count / part.count),
        min=low,
        max=high,
        abs_max=max(-low, high),
        zero_count=zeros,
        nan_count=0,
        inf_count=0,
        sampled_fraction=part.count / count,
    )


def pieces(tensor: torch.Tensor, size: int) -> Iterator[torch.Tensor]:
    """The elements in any order, as flat tensors of at most `size`; copies only where strides have gaps.

    Order does not matter to statistics, so dimensions are first put in the order of memory: a
    transposed tensor is then contiguous, without a copy.
    """
    count = tensor.numel()
    if count == 0:
        return
    if not tensor.is_contiguous():
        tensor = tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    if tensor.is_contiguous():
        flat = tensor.view(-1)
        for start in range(0, count, size):
            yield flat[start : start + size] if count > size else flat
    elif count <= size:
        yield tensor.reshape(-1)
    else:
        rows = tensor.shape[0]
        step = max(1, size * rows // count)
        for start in range(0, rows, step):
            yield from pieces(tensor[start : start + step] if step > 1 else tensor[start], size)


def _fast(values: torch.Tensor) -> Moments | None:
    """Moments of a flat float32 piece, or None when float32 may have been too coarse for it."""
    count = values.numel()
    total = values.sum().item()
    if not math.isfinite(total):
        return None
    low, high = (bound.item() for bound in torch.aminmax(values))
    peak = max(abs(low), abs(high))
    if peak and not _SQUARES_FIT[0] < peak < _SQUARES_FIT[1]:
        return None
    energy = _energy(values, count)
    mean = total / count
    squares = energy - mean * total
    if squares < energy * _MIN_SHARE_FLOAT32:
        return None
    return Moments(count, count, mean, squares, energy, low, high, _zeros(values, low, high))


def _zeros(values: torch.Tensor, low: float, high: float) -> int:
    # numpy's comparison is five times faster than torch.count_nonzero here.
    return int(np.count_nonzero(values.numpy() == 0)) if low <= 0 <= high else 0


def _energy(values: torch.Tensor, count: int) -> float:
    """Sum of squares; BLAS's `dot` alone strays by 1e-4 on a long constant vector."""
    if count <= _DOT:
        return float(torch.dot(values, values).item())
    whole = count - count % _ROW
    norms = cast(torch.Tensor, torch.linalg.vector_norm(values[:whole].view(-1, _ROW), dim=1))
    rest = values[whole:]
    tail = float(torch.dot(rest, rest).item()) if whole < count else 0.0
    return float(torch.dot(norms, norms).item()) + tail


def _careful(values: torch.Tensor) -> Moments:
    """Moments of a flat float64 piece, whatever is in it."""
    count = values.numel()
    nans = infs = 0
    total = values.sum().item()
    if not math.isfinite(total):
        nans = int(torch.isnan(values).sum().item())
        infs = int(torch.isinf(values).sum().item())
        values = values[torch.isfinite(values)]
        total = values.sum().item()
    finite = values.numel()
    if finite == 0:
        return Moments(count=count, nans=nans, infs=infs)
    mean = total / finite
    low, high = (bound.item() for bound in torch.aminmax(values))
    energy = torch.dot(values, values).item()
    squares = energy - mean * total
    if squares < energy * _MIN_SHARE_FLOAT64:
        centred = values.sub(mean)
        squares = torch.dot(centred, centred).item()
    return Moments(count, finite, mean, squares, energy, low, high, _zeros(values, low, high), nans, infs)


def device_moments(plain: torch.Tensor) -> Moments:
    """The same on an accelerator: no value is looked at before one transfer of all of them."""
    return read_rows(device_rows(plain))


def device_rows(plain: torch.Tensor) -> torch.Tensor | None:
    """Moments of the pieces as a tensor on their device, without waiting for it; None for no elements."""
    wide = torch.float32 if plain.device.type == "mps" else torch.float64
    rows = [_device_row(piece, wide) for piece in pieces(plain, _DEVICE_PIECE)]
    return torch.stack(rows) if rows else None


def read_rows(rows: torch.Tensor | None) -> Moments:
    """Wait for the rows, and merge them."""
    total = Moments()
    table = cast(list[list[float]], rows.tolist()) if rows is not None else []
    for row in table:
        count, finite, mean, squares, energy, low, high, zeros, nans = row
        total.merge(
            Moments(
                int(count), int(finite), mean, squares, energy, low, high, int(zeros), int(nans),
                int(count - finite - nans),
            )
        )  # fmt: skip
    return total


def _device_row(piece: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    values = (piece.abs() if piece.dtype.is_complex else piece).to(wide)
    finite = torch.isfinite(values)
    number = finite.sum()
    kept = torch.where(finite, values, 0)
    mean = kept.sum() / number.clamp(min=1)
    centred = torch.where(finite, values - mean, 0)
    scalars: list[Any] = [
        torch.full_like(number, values.numel()),
        number,
        mean,
        torch.dot(centred, centred),
        torch.dot(kept, kept),
        torch.where(finite, values, math.inf).min(),
        torch.where(finite, values, -math.inf).max(),
        (values == 0).sum(),
        torch.isnan(values).sum(),
    ]
    return torch.stack([scalar.to(wide) for scalar in scalars])

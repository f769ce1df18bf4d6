"""Attention weights: where Flax and Equinox compute them; of JAX's own kernel, again from queries and keys.

The functions stand in the libraries' modules under the names below; while somebody watches attention, ours
stand there, call them as they were called, and show what they gave to the layers that are running.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from neuronscope.engine.guard import GUARD
from neuronscope.probes import ATTENTION
from neuronscope_instrumentation.common.observing import MODEL, NO_ATTENTION, RECOMPUTED
from neuronscope_instrumentation.jax import emission, frames, models
from neuronscope_instrumentation.jax.frames import Frame
from neuronscope_instrumentation.jax.structure import EQUINOX, LINEN, NNX

WINDOWED: Final = "attention within windows or lengths"
_WEIGHTS: Final = "dot_product_attention_weights"
_KERNEL: Final = "dot_product_attention"
_SEAMS: Final = (
    ("flax.linen.attention", _WEIGHTS), ("flax.nnx.nn.attention", _WEIGHTS),
    ("equinox.nn._attention", _WEIGHTS), ("jax.nn", _KERNEL),
)  # fmt: skip


class _Seam(NamedTuple):
    """A function of a library's that ours stands for."""

    module: Any
    name: str
    original: Any
    ours: Any


_seams: Final[list[_Seam]] = []


def refresh() -> None:
    """Stand in the libraries' modules while somebody watches attention."""
    watched = any(
        observer.role == ATTENTION
        for handle in models.watched((LINEN, NNX, EQUINOX))
        for observer in tuple(handle.observers)
    )
    if watched and not _seams:
        for name, function in _SEAMS:
            module = sys.modules.get(name)
            original = getattr(module, function, None)
            if original is not None:
                ours = (_kernel if function == _KERNEL else _weights)(original)
                setattr(module, function, ours)
                _seams.append(_Seam(module, function, original, ours))
    elif not watched:
        while _seams:
            module, function, original, ours = _seams.pop()
            if getattr(module, function) is ours:  # else somebody has wrapped it after us: theirs stays
                setattr(module, function, original)


def tell_if_none(frame: Frame, output: Any) -> None:
    """A layer has returned whose attention is watched, and had none."""
    handle = frame.handle
    if handle is None or frame.attended:
        return
    if any(observer.wants(frame.path, ATTENTION) for observer in tuple(handle.observers)):
        emission.show(handle, frame.path, output, ATTENTION, NO_ATTENTION)


# --- what stands in the libraries' modules ----------------------------------------------------------------
def _weights(original: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def weights(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        if (watching := _watching()) is not None:
            GUARD.call("jax.attention", _show, watching, found, MODEL)
        return found

    return weights


def _kernel(original: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        if (watching := _watching()) is not None:
            GUARD.call("jax.attention", _show_again, watching, output, args, kwargs)
        return output

    return kernel


def _watching() -> list[Frame] | None:
    """The layers running now whose attention is watched: the innermost, and those around it."""
    found: dict[tuple[int, str], Frame] = {}
    for frame in frames.stack():
        handle = frame.handle
        if handle is None:
            continue
        if any(observer.wants(frame.path, ATTENTION) for observer in tuple(handle.observers)):
            frame.attended = True
            found[handle.token, frame.path] = frame
    return list(found.values()) or None


def _show(watching: list[Frame], weights: Any, source: str, why: str = "") -> None:
    for frame in watching:
        assert frame.handle is not None
        emission.show(frame.handle, frame.path, weights, ATTENTION, why, source)


def _show_again(watching: list[Frame], output: Any, args: Any, kwargs: Any) -> None:
    weights = _again(*args, **kwargs)
    if weights is None:
        _show(watching, output, "", WINDOWED)
    else:
        _show(watching, weights, RECOMPUTED)


def _again(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths: Any = None,
    key_value_seq_lengths: Any = None,
    local_window_size: Any = None,
    **_: Any,
) -> Any:
    """The kernel's weights, in float32: (…, head, query, key); None where it looks at a part only."""
    if any(part is not None for part in (query_seq_lengths, key_value_seq_lengths, local_window_size)):
        return None
    query, key = (jnp.asarray(jax.lax.stop_gradient(part), jnp.float32) for part in (query, key))
    key = jnp.repeat(key, query.shape[-2] // key.shape[-2], axis=-2)  # grouped queries share keys
    scores = jnp.einsum("...qhd,...khd->...hqk", query, key)
    scores = scores * (query.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + jax.lax.stop_gradient(bias)
    if is_causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    return jnp.nan_to_num(jax.nn.softmax(scores), nan=0.0)  # a query that may see no key

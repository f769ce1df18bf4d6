"""Watching layers: what `JaxAdapter` does once JAX is there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from neuronscope.exceptions import UnsupportedProbeError
from neuronscope.instrumentation import LayerCallback
from neuronscope.probes import ATTENTION, GRADIENT, OUTPUT
from neuronscope.signals.records import Fidelity
from neuronscope_instrumentation.common.observing import OfHeads
from neuronscope_instrumentation.jax import attention, checkpoints, jit, linen, models, modules, sessions
from neuronscope_instrumentation.jax.snapshot import of_heads
from neuronscope_instrumentation.jax.structure import FUNCTION

for _step in (linen.refresh, modules.refresh, checkpoints.refresh, attention.refresh, jit.refresh):
    sessions.on_change(_step)


def observe_layer(model: Any, layer_id: str, callback: LayerCallback) -> Callable[[], None]:
    """See `JaxAdapter.observe_layer`."""
    return _observe(model, layer_id, callback, OUTPUT)


def observe_gradient(model: Any, layer_id: str, callback: LayerCallback) -> Callable[[], None]:
    """See `JaxAdapter.observe_gradient`."""
    return _observe(model, layer_id, callback, GRADIENT)


def observe_attention(
    model: Any, layer_id: str, callback: LayerCallback, heads: Sequence[int] | None
) -> Callable[[], None]:
    """See `JaxAdapter.observe_attention`."""
    if models.handle(model).kind == FUNCTION:
        raise UnsupportedProbeError(
            "a plain function has no layers that attend: name its weights with "
            "jax.ad_checkpoint.checkpoint_name, and watch these with ns.probes.LayerActivations"
        )
    if heads is not None:
        callback = OfHeads(callback, heads, of_heads)
    return _observe(model, layer_id, callback, ATTENTION)


def observe_pattern(
    model: Any, pattern: str, make: Callable[[str], LayerCallback], needs: Fidelity
) -> Callable[[], None]:
    """See `JaxAdapter.observe_pattern`."""
    named = models.BLOCKS if pattern == "blocks" else pattern
    return sessions.observe(models.handle(model), named, make, sessions.NEEDS[needs])


def _observe(model: Any, layer_id: str, callback: LayerCallback, role: str) -> Callable[[], None]:
    found = models.handle(model)
    if layer_id not in found.paths() and not found.learns:
        raise found.not_found(layer_id)
    needs = getattr(callback, "needs", Fidelity.FULL)
    return sessions.observe(found, layer_id, lambda _: callback, sessions.NEEDS[needs], role)


def why_not_visited(model: Any, layer_ids: Iterable[str], seen: Collection[str]) -> dict[str, str]:
    """See `JaxAdapter.not_visited`."""
    found = models.known(model)
    why = ", ".join(found.told) if found is not None and found.told else ""
    reason = f"not run, or where it is not observed: {why}" if why else "not run"
    return {path: reason for path in layer_ids if path not in seen}

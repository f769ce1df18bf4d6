"""Watching layers: what `JaxAdapter` does once JAX is there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from neuronscope.instrumentation import LayerCallback
from neuronscope.signals.records import Fidelity
from neuronscope_instrumentation.jax import checkpoints, jit, linen, models, modules, sessions

for _step in (linen.refresh, modules.refresh, checkpoints.refresh, jit.refresh):
    sessions.on_change(_step)


def observe_layer(model: Any, layer_id: str, callback: LayerCallback) -> Callable[[], None]:
    """See `JaxAdapter.observe_layer`."""
    found = models.handle(model)
    if layer_id not in found.paths() and not found.learns:
        raise found.not_found(layer_id)
    needs = getattr(callback, "needs", Fidelity.FULL)
    return sessions.observe(found, layer_id, lambda _: callback, sessions.NEEDS[needs])


def observe_pattern(
    model: Any, pattern: str, make: Callable[[str], LayerCallback], needs: Fidelity
) -> Callable[[], None]:
    """See `JaxAdapter.observe_pattern`."""
    named = models.BLOCKS if pattern == "blocks" else pattern
    return sessions.observe(models.handle(model), named, make, sessions.NEEDS[needs])


def why_not_visited(model: Any, layer_ids: Iterable[str], seen: Collection[str]) -> dict[str, str]:
    """See `JaxAdapter.not_visited`."""
    found = models.known(model)
    why = ", ".join(found.told) if found is not None and found.told else ""
    reason = f"not run, or where it is not observed: {why}" if why else "not run"
    return {path: reason for path in layer_ids if path not in seen}

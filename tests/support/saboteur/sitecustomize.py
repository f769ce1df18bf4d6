"""Makes every adapter function raise, in a program under `neuronscope run` (the hook runs this first)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from neuronscope.engine import ENGINE, guard
from neuronscope.instrumentation import ClientIntegration, Snapshot, WrappedMethod, registry


def broken(*_: Any, **__: Any) -> Any:
    """What every reader becomes."""
    raise RuntimeError("sabotage")


def half_broken(method: WrappedMethod, number: int) -> WrappedMethod:
    """Every other method fails at once; the rest fail after the call, in its readers."""
    if number % 2:
        return replace(method, snapshot=broken)
    working = method.snapshot

    def snapshot(instance: Any, arguments: dict[str, Any], content: bool) -> Snapshot | None:
        kept = working(instance, arguments, content)
        if kept is None:
            return None
        endpoint = replace(
            kept.endpoint,
            read_request=broken,
            read_response=broken,
            fold_chunk=broken,
            is_content=broken,
            read_error=broken,
        )
        return msgspec.structs.replace(kept, endpoint=endpoint)

    changes: dict[str, Any] = {"snapshot": snapshot}
    for name in ("unwrap", "body", "inject_headers", "model"):
        if getattr(method, name) is not None:
            changes[name] = broken
    if method.stream is not None:
        changes["stream"] = replace(method.stream, is_stream=broken)
    return replace(method, **changes)


def sabotage(integration: ClientIntegration) -> ClientIntegration:
    """The same integration, every function of it raising."""
    methods = tuple(half_broken(method, number) for number, method in enumerate(integration.methods))
    return replace(integration, methods=methods)


for name in registry.CLIENTS:
    registry.register_adapter(sabotage(registry.client(name)))
# What the server adapter calls.
for name in ("open_span", "finish"):
    setattr(ENGINE, name, broken)
# A site is switched off after many faults; here it has to go on failing.
guard.MAX_FAULTS = 10**9

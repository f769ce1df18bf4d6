"""What happens when a layer of a watched model returns: its output, gradient and attention are shown."""

from __future__ import annotations

from typing import Any

from neuronscope_instrumentation.jax import attention, emission, gradients
from neuronscope_instrumentation.jax.frames import Frame


def show(frame: Frame, output: Any) -> Any:
    """Show what a layer returned; gives it back, for whoever runs on with it."""
    assert frame.handle is not None
    emission.show(frame.handle, frame.path, output)
    attention.tell_if_none(frame, output)
    return gradients.through(frame.handle, frame.path, output)

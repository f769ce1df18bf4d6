"""Which watched model is running, in each thread: what tells a module inside compiled code its path."""

from __future__ import annotations

import threading
from typing import Any, Final

from neuronscope_instrumentation.jax.models import Handle


class Frame:
    """A layer that is running.

    Attributes:
        handle: whose layer it is; None if nobody's that is watched.
        path: where it is in that model.
        module: the object that runs.
        inside: paths of the modules below, by identity, where they are other objects than the model's own.
        covered: has the same layer been shown from inside, by a module that a transformation made of it?
        attended: have its attention weights been shown?
    """

    __slots__ = ("attended", "covered", "handle", "inside", "module", "path")

    def __init__(
        self, module: Any, handle: Handle | None = None, path: str = "", inside: dict[int, str] | None = None
    ) -> None:
        self.module = module
        self.handle = handle
        self.path = path
        self.inside = inside or {}
        self.covered = False
        self.attended = False


class _Here(threading.local):
    def __init__(self) -> None:
        self.stack: list[Frame] = []


_here: Final = _Here()


def stack() -> list[Frame]:
    """The layers running in this thread, outermost first."""
    return _here.stack

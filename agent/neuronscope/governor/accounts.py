"""Who spent what: nanoseconds and bytes by probe and adapter."""

from __future__ import annotations

from typing import Final

# Work on the caller's thread is timed by the wall clock, which is cheap but also counts waiting for the
# GIL; a reading beyond this multiple of what is typical counts as that multiple.
CLIP: Final = 8.0
MOST_FOLLOWS: Final = 0.05  # how fast that follows what is typical
_FIRST_NS: Final = 12_500.0


class Account:
    """What one probe or adapter has cost.  Not thread-safe: `Budget` locks.

    Attributes:
        hot_ns: in the service's threads.
        worker_ns: in the worker.
        nbytes: of full tensors copied.
        most: what a wall-clock reading can be.
    """

    __slots__ = ("hot_ns", "most", "nbytes", "worker_ns")

    def __init__(self) -> None:
        self.hot_ns = 0.0
        self.worker_ns = 0.0
        self.nbytes = 0
        self.most = CLIP * _FIRST_NS

    @property
    def spent_ns(self) -> float:
        """Both."""
        return self.hot_ns + self.worker_ns

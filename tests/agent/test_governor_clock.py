"""The clock of the accounts: a full collection of garbage is nobody's capture."""

from __future__ import annotations

import gc
import time

from neuronscope.governor.clock import Collections


def test_a_full_collection_is_left_out_and_work_is_not() -> None:
    """Walking a heap of objects takes a while, of which the clock shows nothing; a loop it shows in full."""
    heap = [[n] for n in range(400_000)]
    clock = Collections()
    clock.watch()
    clock.watch()  # again does nothing
    try:
        start, own = time.thread_time_ns(), clock.cpu_ns()
        gc.collect()
        total, seen = time.thread_time_ns() - start, clock.cpu_ns() - own
        assert total > 4_000_000
        assert seen < total / 4

        start, own = time.thread_time_ns(), clock.cpu_ns()
        assert sum(range(500_000)) > 0
        total, seen = time.thread_time_ns() - start, clock.cpu_ns() - own
        assert abs(total - seen) < total / 4
    finally:
        ours = [callback for callback in gc.callbacks if getattr(callback, "__self__", None) is clock]
        for callback in ours:
            gc.callbacks.remove(callback)
    assert len(ours) == 1
    assert len(heap) == 400_000

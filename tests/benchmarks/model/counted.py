"""Instructions of a forward, counted by callgrind: what a loaded machine cannot disturb.

    python -m tests.benchmarks.model.counted

Instructions say less than time about observing: what runs between layers finds the caches full of weights.
But they repeat to 0.15 %, and where there are none more, nothing can cost time.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any, Final

import torch
from tests.benchmarks.callgrind import MAIN_THREAD, Counter, count
from tests.benchmarks.children import ChildError
from tests.benchmarks.figures import Figure, Goal, Run, at_most
from tests.benchmarks.model import child, network
from tests.benchmarks.venvs import UnavailableError

BARE: Final = "bare"
ONCE: Final = "once"  # watched for one forward
SMALL: Final = "small"  # the small model, bare
LIMIT_S: Final = 600  # takes 300 s of CPU
FORWARDS: Final = 4
IDLE: Final = at_most(0.15)  # per cent: as exactly as callgrind repeats
SAMPLED: Final = at_most(0.5)


def figures(run: Run) -> Iterator[Figure]:
    """Instructions more for each run of a module, and for whole forwards, in per cent."""
    try:
        found = count(sys.executable, "tests.benchmarks.model.counted", (), timeout_s=LIMIT_S)
    except (UnavailableError, ChildError) as error:
        run.facts.append(f"Instructions: {error}.")
        return
    tiny = {way: threads[MAIN_THREAD] for way, threads in found.items()}
    small = tiny[SMALL]
    modules = len(child.computing(network.make("tiny")[0]))
    bare = tiny[BARE]
    idle = 100 * (tiny["idle"] / bare - 1)
    yield _figure(
        "idle", idle, "% of a forward", IDLE, f"after everybody who watched has gone; of {bare:,.0f}"
    )
    for way, what in (("adapter", "summarised, kept in a list"), ("platform", "noted, through a scope")):
        note = f"a run of a module, {what}; the caller's thread; 64 channels, 16 tokens"
        yield _figure(way, (tiny[way] - bare) / modules, "instructions", None, note)
    more = (tiny[ONCE] - bare) / child.SAMPLED
    note = (
        f"of {small:,.0f} of the small model's forward; all {modules} modules watched in one forward of "
        f"{child.SAMPLED}, and left again"
    )
    yield _figure("sampled", 100 * more / small, "% of a forward", SAMPLED, note)


def _figure(way: str, value: float, unit: str, goal: Goal | None, note: str) -> Figure:
    return Figure(f"model.{way}_instructions", value, unit, goal, note=note)


def main() -> None:
    """Count, under callgrind; ends the process."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    model, ids = network.make("tiny")
    small, small_ids = network.make("small")
    counter = Counter()

    def forward() -> Any:
        return model(ids)

    with torch.no_grad():
        counter.count(BARE, forward, FORWARDS)
        for way in ("idle", "adapter", "platform"):
            with child.WAYS[way](model, forward) as watched:
                counter.count(way, watched, FORWARDS)
        counter.count(ONCE, lambda: child.watch_once(model, forward), FORWARDS)
        counter.count(SMALL, lambda: small(small_ids), 1)
    os._exit(0)


if __name__ == "__main__":
    main()

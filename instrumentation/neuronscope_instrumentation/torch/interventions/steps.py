"""The steps of a repeated run: tokens of a generation, steps of a diffusion, passes of a loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from neuronscope.interventions.errors import InterventionError

if TYPE_CHECKING:
    from neuronscope_instrumentation.torch.interventions.sites import Site


class Steps:
    """Goes from one call of a module to its next, until the model has finished.

    At the beginning of each step the model waits right before the call.  Sites asked for within the step are
    those of this call: one that has passed already raises `OutOfOrderError`, and never means the next step.
    The loop ends when the model does, and what follows it runs.  ``t.steps[2:5]`` lets the others pass.
    """

    __slots__ = ("_first", "_site", "_stop")

    def __init__(self, site: Site, first: int = 0, stop: int | None = None) -> None:
        self._site = site
        self._first = first
        self._stop = stop

    def __getitem__(self, steps: slice | int) -> Steps:
        """Only some of the steps, by a slice, counted from 0.

        Raises:
            TypeError: one was asked for by its number.
        """
        if not isinstance(steps, slice):
            raise TypeError("steps are gone through, not picked: for step in t.steps[2:3]")
        first, stop = steps.start or 0, steps.stop
        if steps.step not in {None, 1} or first < 0 or (stop is not None and stop < 0):
            raise ValueError("steps are counted from 0 and come one after the other: t.steps[2:5]")
        return Steps(self._site, first, stop)

    def __iter__(self) -> Iterator[int]:
        site, run = self._site, self._site.run
        if run.boundary is not None:
            raise InterventionError("one loop over steps at a time")
        run.boundary = site
        site.keep_at_input(True)
        number = -1
        try:
            while self._next(fresh=number < 0):
                number += 1
                if self._stop is not None and number >= self._stop:
                    return
                if number >= self._first:
                    yield number
        finally:
            run.boundary = None
            site.keep_at_input(False)

    def _next(self, *, fresh: bool) -> bool:
        """Let the model come to the next call; False if there is none."""
        site, run = self._site, self._site.run
        if run.at_in is site and (fresh or run.step_overrun):
            run.step_overrun = False
            return True
        while not run.finished:
            run.advance()
            if run.at_in is site:
                return True
        return False

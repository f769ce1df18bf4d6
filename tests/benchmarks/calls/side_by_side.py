"""The child's side of a comparison: calls with and without one instrumentation, in one process."""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from tests.benchmarks.calls.patches import Patches
from tests.benchmarks.calls.peers import Counter
from tests.benchmarks.children import serve
from tests.benchmarks.measure import Call, Switch, compare

OURS = "neuronscope"


@dataclass(frozen=True, slots=True)
class SideBySide:
    """One instrumentation, switched on, and the calls that it observes.

    Attributes:
        patches: made before it was switched on.
        counter: counts the spans it makes.
        call: ``(name, hot)`` gives the call; hot: only the function that it wraps, answering at once.
        counted: how many of each call callgrind counts; the names of all calls.
    """

    patches: Patches
    counter: Counter
    call: Callable[[str, bool], Call]
    counted: Mapping[str, int]

    def run(self, *, instructions: bool) -> NoReturn:
        """Answer the parent's commands, or count instructions under callgrind; ends the process."""
        self.patches.found()
        gc.collect()
        gc.freeze()
        if instructions:
            self._count()
            os._exit(0)  # the clean-up of some peers takes many seconds

        def answer(command: str, **arguments: Any) -> Any:
            return self._verify() if command == "verify" else self._round(**arguments)

        serve(answer)

    def _verify(self) -> dict[str, dict[str, int]]:
        """Spans and attributes of one call each: what makes no span is not measured."""
        told: dict[str, dict[str, int]] = {}
        for name in self.counted:
            for hot in (False, True):
                self.counter.flush()
                before = self.counter.spans
                self.call(name, hot)()
                self.counter.flush()
                told[f"{name}_{'hot' if hot else 'situ'}"] = {
                    "spans": self.counter.spans - before,
                    "attributes": self.counter.attributes,
                }
        return told

    def _round(self, name: str, hot: bool, n: int, turn: int) -> tuple[float, float]:
        switch = Switch(self.patches.on, self.patches.off)
        times = compare(switch, self.call(name, hot), n, turn, hot=hot)
        self.patches.on()
        self.counter.flush()
        return times

    def _count(self) -> None:
        from tests.benchmarks.callgrind import Counter as Instructions

        instructions = Instructions()
        for name, n in self.counted.items():
            for side, put in (("off", self.patches.off), ("on", self.patches.on)):
                put()
                instructions.count(f"{name}.{side}", self.call(name, False), n)
            self.counter.flush()


def quiet() -> None:
    """No warnings and no logging: they are not what is measured."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)

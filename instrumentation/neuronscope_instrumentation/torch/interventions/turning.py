"""Turns between a traced model and its body: the hot half of `Run` and `Site`, compiled, and its twin.

A visited module takes two turns, and before each torch is asked ten times about the state of the thread: a
third of what a visit costs in Python.  `neuronscope._native` asks in one go (docs/decisions/0011).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from greenlet import getcurrent

from neuronscope import compiled
from neuronscope_instrumentation.torch.interventions.threadstate import (
    autocasting,
    differs,
    dispatch_modes,
    function_modes,
    functions_enabled,
    grad_enabled,
    in_engine,
    in_transform,
    inference_enabled,
    nest_autocast,
    saved_hooks,
)


class PlainRunTurns:
    """What sites need of a run; `Run` says what it is."""

    __slots__ = (
        "at_in", "at_out", "body", "dynamo", "finished", "grad", "greenlet", "inference", "inputs",
        "resume", "to_body", "value",
    )  # fmt: skip

    at_in: Any
    at_out: Any
    body: Any
    dynamo: bool
    finished: bool
    grad: bool | None
    greenlet: Any
    inference: Any
    inputs: Any
    resume: Any
    to_body: Any
    value: Any

    def apart(self) -> bool:
        """Must the thread's state be looked at more closely before a turn?"""
        return bool(differs(self.grad, self.inference) or in_transform() or (self.grad and in_engine() != -1))


class PlainSiteTurns:
    """A module's calls in a run, and its output; `Site` says what it is."""

    __slots__ = ("call", "observers", "run", "slot", "visits", "want_in", "want_out")

    call: Any
    observers: tuple[Any, ...]
    run: Any
    slot: Any
    visits: int
    want_in: bool
    want_out: bool

    if TYPE_CHECKING:

        def _before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...
        def _assign(self, old: Any, value: Any) -> None: ...
        def _not_reached(self) -> Exception: ...

    @property
    def output(self) -> Any:
        """What the module returned."""
        run = self.run
        if run.at_out is not self:
            self.want_out = True
            if getcurrent() is not run.body:
                run.change_body()
            if run.finished or run.apart():
                run.advance()
            else:
                run.resume()
            if run.at_out is not self:
                raise self._not_reached()
        return run.value

    @output.setter
    def output(self, value: Any) -> None:
        run = self.run
        old = run.value if run.at_out is self else self.output
        if value is not old:
            self._assign(old, value)

    def visit(self, *args: Any, **kwargs: Any) -> Any:
        """Make one of the module's calls, and wait before and after it as far as the body wants to be there.

        Where nobody else watches the module, this is in the place of its slot.
        """
        if getcurrent() is not self.run.greenlet:
            return self.slot(*args, **kwargs)
        if self.want_in:
            args, kwargs, skipped = self._before(args, kwargs)
            output = self.call(*args, **kwargs) if skipped is None else skipped[0]
        else:
            output = self.call(*args, **kwargs)
        self.visits += 1
        if self.observers:
            for observer in self.observers:
                output = observer.output(self, args, kwargs, output)
        if self.want_out:
            self.want_out = False
            run = self.run
            run.at_out = self
            run.inputs = (args, kwargs)
            run.value = output
            if run.dynamo or run.apart():
                run.pause()
            else:
                run.to_body()
            run.at_out = None
            output = run.value
            run.value = run.inputs = None
        return output


if TYPE_CHECKING:
    RunTurns = PlainRunTurns
    SiteTurns = PlainSiteTurns
else:
    RunTurns = compiled.find("RunTurns") or PlainRunTurns
    SiteTurns = compiled.find("SiteTurns") or PlainSiteTurns
    if (bind := compiled.find("bind_turns")) is not None:
        bind(
            getcurrent, grad_enabled, inference_enabled, function_modes, dispatch_modes, nest_autocast,
            autocasting, functions_enabled, saved_hooks, in_transform, in_engine,
        )  # fmt: skip

COMPILED: Final = RunTurns is not PlainRunTurns

"""Sites: a module's place in a trace, where its calls can be read and changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MethodType
from typing import TYPE_CHECKING, Any, Final, Protocol

import torch
from greenlet import GreenletExit, getcurrent
from torch import nn

from neuronscope.interventions.errors import OutOfOrderError, TraceClosedError, WrongValueError
from neuronscope_instrumentation.torch import slots
from neuronscope_instrumentation.torch.internals import calls_forward, class_of
from neuronscope_instrumentation.torch.interventions import values
from neuronscope_instrumentation.torch.interventions.turning import (
    COMPILED,
    PlainSiteTurns,
    RunTurns,
    SiteTurns,
)
from neuronscope_instrumentation.torch.interventions.unreached import not_reached
from neuronscope_instrumentation.torch.slot import Slot

if TYPE_CHECKING:
    from neuronscope_instrumentation.torch.interventions.ops import Ops
    from neuronscope_instrumentation.torch.interventions.run import Run
    from neuronscope_instrumentation.torch.interventions.tree import Tree

_TENSOR: Final = torch.Tensor


class _Ended(RunTurns):
    """Stands for the run of a site that outlives its trace."""

    boundary = None
    has_result = False
    unsettled = False

    def __init__(self) -> None:
        self.at_in = self.at_out = self.greenlet = self.value = self.inputs = self.skipped = None
        self.body = self.grad = self.inference = self.resume = self.to_body = None
        self.finished = self.stopped = self.closed = True
        self.dynamo = self.in_grad_mode = False
        self.sites, self.names, self.present = {}, {}, []

    def advance(self) -> None: ...

    def change_body(self) -> None: ...


ENDED: Final[Any] = _Ended()


class SiteObserver(Protocol):
    """Sees a site's outputs without stopping the model: edits of a run, caches."""

    def output(self, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """The output that the model goes on with."""
        ...


class Site(SiteTurns):
    """A module in one trace.

    Reading `output`, `input` or `inputs` lets the model run until the module has been, or is to be, called;
    assigning to them changes what the model goes on with.  While the model waits at a site, reading it again
    gives the same value; once another site has been asked for, reading means the module's *next* call.

    Attributes:
        path: the module's dotted path; ``""`` for the model.
        module: the module itself.
        visits: how often it has been called in this trace since it was first asked for.
        call: what the module's calls are without its slot; `direct`: nothing but its `forward`, unless there
            are hooks.
        names: paths of the sites below that have been asked for, by attribute or number.
    """

    __slots__ = ()

    def __init__(self, tree: Tree, run: Run, path: str, module: nn.Module) -> None:
        self.prepare(tree, run, path, module)

    # --- what users read and write -----------------------------------------------------------------

    def _assign(self, old: Any, value: Any) -> None:
        """Something else shall be the output."""
        if (
            type(value) is not _TENSOR
            or type(old) is not _TENSOR
            or value.is_nested
            or old.is_nested
            or value.shape != old.shape
            or value.dtype is not old.dtype
            or value.device != old.device
        ):
            self._check(old, value, "output")
        self._replace(value)

    def _assign_inputs(self, value: Any) -> None:
        self._refuse_unless(
            values.inputs_mismatch(self._before_call("inputs"), value, f"{self.path}: inputs")
        )
        self._replace(value)

    def _assign_input(self, value: Any) -> None:
        args, kwargs = self._before_call("input")
        if not args and not kwargs:
            raise WrongValueError(
                f"{self.path or 'the model'!r} is called without arguments: assign to inputs"
            )
        self._check(values.inputs_first(args, kwargs), value, "input")
        self._replace(values.with_input(args, kwargs, value))

    def _first(self, inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        return values.inputs_first(*inputs)

    @property
    def first(self) -> torch.Tensor:
        """The first tensor of `output`: of a layer that returns a tuple, its hidden states."""
        return values.first_of(self.output)

    @first.setter
    def first(self, value: torch.Tensor) -> None:
        self.replace_first(value)

    def replace_first(self, value: torch.Tensor) -> None:
        """Replace the first tensor of `output` and keep the rest, whatever structure it is in."""
        old = self.output
        self._check(values.first_of(old), value, "the first tensor of output")
        self._replace(values.replace_first(old, value))

    def replace(self, value: Any) -> None:
        """Replace `output` by anything at all: no check of structure, shape, dtype or device."""
        _ = self.output
        self._replace(value)

    def skip(self, value: Any) -> None:
        """Do without the module's call: `value` is its output.  Hooks of the module do not run either."""
        run = self.run
        self._before_call("skip")
        if run.in_grad_mode:
            run.refuse_in_checkpoint(self.path)
        run.skipped = (value,)

    def edit(self, function: Callable[[Any], Any]) -> None:
        """Give every output of this module from now on through a function, without stopping there."""
        self.observe(_Edit(function))

    def edit_first(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """The same for the first tensor of every output; shape, dtype and device must stay."""

        def edited(output: Any) -> Any:
            first = values.first_of(output)
            new = function(first)
            self._check(first, new, "the edited output")
            return output if new is first else values.replace_first(output, new)

        self.edit(edited)

    def _watch_ops(self) -> Ops:
        return self.tree.watch_ops(self)  # type: ignore[no-any-return]  # `ops_of`

    def end_ops(self) -> None:
        """The run is over: the module's torch functions are watched no more."""
        ops, self.ops_seen, self.ops_resting = self.ops_seen, None, None
        if ops is not None:
            ops.end(self)

    # --- the tree ----------------------------------------------------------------------------------

    def _missing(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.run is not None:
            self.run.raise_failed(self, name)
        return self.tree.below(self, name)

    def _child(self, index: int | str | slice) -> Any:
        return self.tree.child(self, index)

    def __len__(self) -> int:
        return len(self.tree.children(self.module))

    def __iter__(self) -> Iterator[Site]:
        return (self.tree.child(self, name) for name in self.tree.children(self.module))

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<site {self.path or 'model'!r}: {type(self.module).__name__}, {self.visits} visits>"

    # --- the model's side --------------------------------------------------------------------------

    def enter(self, slot: Slot) -> Callable[..., Any]:
        """The slot through which the module's calls come; gives `visit`."""
        self.slot = slot
        below = slot.below
        kind = class_of(self.module)
        self.call = MethodType(kind._call_impl, self.module) if below is None else below
        self.direct = below is None and calls_forward(kind)
        return self.visit

    def _before(self) -> None:
        raise GreenletExit  # the run has been stopped

    @property
    def greenlet(self) -> Any:
        """The greenlet in which the model of this run runs."""
        return self.run.greenlet

    def retire(self) -> None:
        """The run is over, and this site with it, whoever holds it."""
        self.here = self.want_in = self.want_out = self.keep_in = False
        self.end_ops()
        self.observers = ()
        slots.forget(self)
        self.run = ENDED

    def keep_at_input(self, keep: bool) -> None:
        """Let the model wait before each call of the module, or no longer."""
        self.keep_in = self.want_in = keep
        self.run.unsettled = True

    def want_everything(self) -> None:
        """The model's next call of this module ends it."""
        self.want_in = self.keep_in = True

    def want_nothing(self) -> None:
        """Nobody waits for this site any more."""
        self.want_in = self.want_out = self.keep_in = False

    # --- help --------------------------------------------------------------------------------------

    def _before_call(self, what: str) -> Any:
        run = self.run
        if run.at_in is not self:
            if run.at_out is self:
                raise OutOfOrderError(
                    f"{self.path!r}: {what} was asked for after the call, whose output was read before. "
                    f"Use {what} before output",
                    self.path,
                )
            self.want_in = True
            run.advance()
            if run.at_in is not self:
                raise self._not_reached()
        return run.value

    def _replace(self, value: Any) -> None:
        run = self.run
        if run.in_grad_mode:
            run.refuse_in_checkpoint(self.path)
        run.value = value

    def _check(self, old: Any, new: Any, what: str) -> None:
        self._refuse_unless(values.mismatch(old, new, f"{self.path or 'the model'}: {what}"))

    def _refuse_unless(self, why: str | None) -> None:
        if why is not None:
            raise WrongValueError(f"{why} Nothing was changed; site.replace(value) does not check.")

    def _not_reached(self) -> Exception:
        self.want_in, self.want_out = self.keep_in, False
        self.run.unsettled = True
        if self.run.boundary is not None and self.run.at_in is self.run.boundary:
            self.run.step_overrun = True
        if self.run.stopped or (self.run.finished and not self.run.has_result):
            return TraceClosedError(f"{self.path!r} was asked for after the model had been stopped")
        return not_reached(self)

    def observe(self, observer: SiteObserver) -> None:
        """Let an observer see the module's outputs in this run."""
        self.observers += (observer,)

    def see_edits(self) -> None:
        """The module has lasting edits: they come before all else."""
        if not any(isinstance(observer, _Edits) for observer in self.observers):
            self.observers = (_Edits(self.slot), *self.observers)


def prepare_slots() -> None:
    """Before a trace; cheap, and to be repeated."""
    slots.let_visit(getcurrent, None if COMPILED else PlainSiteTurns.visit.__code__)


class _Edit:
    """A function over outputs, for the time of one run."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def output(self, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        return site.run.edited(site.path, self._function, output)


class _Edits:
    """The lasting edits of a module, for the calls of a trace."""

    __slots__ = ("_slot",)

    def __init__(self, slot: Slot) -> None:
        self._slot = slot

    def output(self, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        for edit in self._slot.edits:
            output = edit(output)
        return output

"""One traced call: the model in a greenlet of its own, the body in the caller's.

The body is ordinary code.  When it asks for a site, `Run.advance` lets the model run; the model's slot comes
back to the body as soon as the model is there.  So values are real at once and one side runs at a time.

Hot: a visited site costs one turn each way; what both have in common is in `turning`.
"""

from __future__ import annotations

import contextvars
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import greenlet
import torch
from greenlet import getcurrent

from neuronscope.interventions.errors import (
    CannotSuspendError,
    CheckpointedError,
    InterventionError,
    TraceClosedError,
    WrongThreadError,
)
from neuronscope_instrumentation.torch import slots
from neuronscope_instrumentation.torch.internals import set_dynamo
from neuronscope_instrumentation.torch.interventions import threadstate
from neuronscope_instrumentation.torch.interventions.threadstate import (
    grad_enabled,
    in_engine,
    in_transform,
    inference_enabled,
)
from neuronscope_instrumentation.torch.interventions.turning import RunTurns, release
from neuronscope_instrumentation.torch.outputs import tensor_leaves

if TYPE_CHECKING:
    from neuronscope_instrumentation.torch.interventions.sites import Site

_NOTHING: Final[Mapping[str, Any]] = {}
_PATIENCE: Final = 100  # how often a model is told to end that goes on instead
_CHECKPOINT: Final = "torch/utils/checkpoint.py"


class _Open:
    """The runs of one thread that have not ended; ends them when it is dropped, with its thread.

    A thread that ends takes its greenlets' stacks with it, and what they hold would never be freed.
    Thread-local values are dropped by the ending thread itself: the last moment in which its models can be
    ended.
    """

    __slots__ = ("runs",)

    def __init__(self) -> None:
        self.runs: dict[int, weakref.ref[Run]] = {}

    def __del__(self) -> None:
        for ref in list(self.runs.values()):
            run = ref()
            if run is not None and not run.closed:
                run.abandon()


class _Local(threading.local):
    def __init__(self) -> None:
        self.open = _Open()


_local: Final = _Local()


class Run(RunTurns):
    """The model's side of a trace.  Of one thread; `abandon` may be called from any.

    Attributes:
        at_in: the site before whose module the model waits; None elsewhere.
        at_out: the site after whose module the model waits; None elsewhere.
        value: there: the arguments, or the output; what the model goes on with.
        inputs: at `at_out`: what the module was called with.
        skipped: set at `at_in`: what stands for the module's output.
        sites: by path; those of earlier runs included, which are used again.
        unsettled: something was asked for and not reached, or may be: sites may want something still.
        names: paths of the model's children that have been asked for, by attribute or number.
        present: sites asked for in this run, in this order.
        boundary: the site whose calls are steps of a loop under way; `step_overrun`: a site of a step was
            asked for that had passed, so that the model waits before the next step already.
        finished: the model has returned, raised or been stopped.
        timely: how many of `present` were asked for before the model had finished.
        failed: the ``AttributeError`` that the model raised.  Python takes one, raised while a property was
            asked for, to say that there is no such property.
    """

    __slots__ = (
        "__weakref__", "_args", "_autocast", "_call", "_inference_side", "_kwargs", "_thread", "_versions",
        "_waiting", "boundary", "failed", "has_result", "result", "step_overrun", "timely", "unsettled",
    )  # fmt: skip

    def __init__(self) -> None:
        self.sites: dict[str, Site] = {}
        self.names: dict[str | int, str] = {}
        self.present: list[Site] = []
        self._inference_side = threadstate.InferenceSide()
        self.closed = True

    def begin(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Make ready for a call, in this thread; the model starts when the body asks for something."""
        self._call: Callable[..., Any] | None = call
        self._args = args
        self._kwargs = kwargs
        self.body = getcurrent()
        self._thread = threading.get_ident()
        self.greenlet = greenlet.greenlet(self._main)
        self.greenlet.gr_context = contextvars.copy_context()
        self.resume = self.greenlet.switch
        self.to_body = self.body.switch
        self.dynamo = "torch._dynamo" in sys.modules
        self._versions: list[tuple[torch.Tensor, int]] | None = None
        self.at_in = None
        self.at_out = None
        self.boundary: Site | None = None
        self.step_overrun = False
        self.unsettled = False
        self.value = None
        self.inputs = None
        self.skipped = None
        self.closed = False
        self.finished = False
        self.stopped = False
        self.has_result = False
        self.timely = 0
        self.failed: AttributeError | None = None
        self.result: Any = None
        # The model starts in the state that the thread has now.
        self._waiting: threadstate.ThreadState | None = None
        self.in_grad_mode = grad_enabled()
        self.grad = self.in_grad_mode
        self.inference = inference_enabled()
        self._autocast = threadstate.autocast_state()
        if self.apart() or threadstate.any_autocast():
            self._waiting, self.grad = threadstate.capture(), None
        _local.open.runs[id(self)] = weakref.ref(self)

    # --- turns -------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Body: let the model run until it comes to a place that a site wants, or ends."""
        if self.finished:
            return
        if getcurrent() is not self.body:
            self.change_body()
        if self.apart():
            self.turn(to_model=True)
        self.resume()

    def pause(self) -> None:
        """Model: let the body run until it asks for something else."""
        if self.apart():
            self.turn(to_model=False)
        if not self.dynamo:
            self.to_body()
            return
        compiler = set_dynamo(None)  # else Dynamo would compile what the body calls
        try:
            self.to_body()
        finally:
            set_dynamo(compiler)

    def turn(self, *, to_model: bool, ending: bool = False) -> None:
        """Exchange the two sides' thread states, which may differ."""
        if not ending:
            self._may_suspend()
        now = threadstate.capture()
        then = self._waiting
        if then is None:
            then = threadstate.plain(grad=bool(self.grad), inference=self.inference, autocast=self._autocast)
        if to_model and self._versions is not None:
            self._refuse_changed_in_checkpoint()
        self._waiting = now
        self.grad = None
        if now == then:
            if threadstate.is_plain(now):
                self._waiting, self.grad, self.inference = None, now.grad[0], now.inference
        else:
            threadstate.change(now, then, self._inference_side)
        if not to_model and not ending and self.in_grad_mode and self.in_checkpoint():
            self._versions = _versions(self.value)

    def _may_suspend(self) -> None:
        if in_transform():
            raise CannotSuspendError(
                "the model cannot be stopped inside torch.func transforms (vmap, grad, jvp, functionalize): "
                "ask for a site outside of them"
            )
        if in_engine() != -1:
            raise CannotSuspendError(
                "the model cannot be stopped while autograd runs a backward pass (a hook, a custom "
                "Function's backward, a checkpoint's second forward). For gradients: "
                "with t.backward(loss) as b: b.grad(value)"
            )

    def change_body(self) -> None:
        """Another greenlet asks: fine in the same thread."""
        if threading.get_ident() != self._thread:
            raise WrongThreadError(
                "this trace belongs to another thread: the one that entered it is where its model runs. "
                "Hand over values, not the trace; a thread may open a trace of its own on the same model"
            )
        self.body = getcurrent()
        self.greenlet.parent = self.body
        self.to_body = self.body.switch

    # --- the model's greenlet ----------------------------------------------------------------------

    def _main(self) -> None:
        call, args, kwargs = self._call, self._args, self._kwargs
        self._call, self._args, self._kwargs = None, (), _NOTHING
        try:
            assert call is not None
            self.result = call(*args, **kwargs)
            self.has_result = True
        except AttributeError as error:
            self.failed = error
            raise
        finally:
            self.finished = True
            self.timely = len(self.present)
            self._at_no_site()
            del call, args, kwargs
            if self.apart():
                self.turn(to_model=False, ending=True)

    def _at_no_site(self) -> None:
        self.at_in = self.at_out = self.value = self.inputs = self.skipped = self._versions = None

    # --- the end -----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Body: let the model run to its end, whatever was asked for and not reached."""
        if self.unsettled:
            for site in self.present:
                site.want_nothing()
        while not self.finished:
            self.advance()

    def stop(self) -> None:
        """Body: end the model where it is; its ``finally`` blocks run."""
        if self.finished:
            return
        if sys.is_finalizing():  # the interpreter ends, and switches no more
            self.finished = True
            return
        self.stopped = True
        for site in self.present:
            site.want_everything()
        if getcurrent() is not self.body:
            self.change_body()
        if not self.greenlet:  # it has not even started
            self._call, self._args, self._kwargs, self.finished = None, (), {}, True
        for _ in range(_PATIENCE):
            if self.finished:
                return
            self._versions = None
            if self.apart():
                self.turn(to_model=True, ending=True)
            self.greenlet.throw(greenlet.GreenletExit)
        raise InterventionError("the model does not let itself be stopped: it catches GreenletExit")

    def close(self) -> None:
        """Take everything off the model; values that were read stay.  Idempotent, from any thread."""
        if self.closed:
            return
        self.closed = True
        slots.leave(self.present)
        _local.open.runs.pop(id(self), None)

    def release(self) -> None:
        """After `close`: make ready for another run of the same handle, which is cheaper than a new one.

        Sites that somebody still holds are let go of: they must not come alive again.
        """
        present, self.present = self.present, []
        if self.stopped or self.unsettled:
            for site in present:
                site.want_nothing()
        if not release(present):
            self.sites = {path: site for path, site in self.sites.items() if site.run is self}
        self.result = self.failed = self.greenlet = self.body = self._waiting = None
        self.resume = self.to_body = _gone

    def retire(self) -> None:
        """After `close`: let go of all sites, so that nothing waits for the garbage collector."""
        for site in self.present:
            site.retire()
        self.present, self.sites, self.failed = [], {}, None

    def abandon(self) -> None:
        """The trace is gone without having been left: end the model if that is possible here."""
        self.close()
        self.retire()
        if not self.finished and self.in_its_thread():
            self.stop()
        self.finished = True
        self._at_no_site()
        self._args, self._kwargs = (), {}
        self.resume = self.to_body = _gone
        self.greenlet = None

    def in_its_thread(self) -> bool:
        """Is this the thread in which the model runs?"""
        return threading.get_ident() == self._thread

    def take_result(self) -> Any:
        """What the traced call returned; the model runs to its end first."""
        if not self.finished:
            self.finish()
        if not self.has_result:
            raise TraceClosedError(
                "the model was stopped, so there is no result" if self.stopped else "the model did not return"
            )
        return self.result

    def raise_failed(self, asked: object, name: str) -> None:
        """Raise again what the model raised, if a name is missing only since asking for it ran the model."""
        if self.failed is not None and any(name in vars(kind) for kind in type(asked).__mro__):
            raise self.failed

    # --- checkpoints -------------------------------------------------------------------------------

    def in_checkpoint(self) -> bool:
        """Does the model wait inside `torch.utils.checkpoint`?"""
        frame: FrameType | None = (
            inspect.currentframe() if getcurrent() is self.greenlet else self.greenlet.gr_frame
        )
        while frame is not None:
            if frame.f_code.co_filename.endswith(_CHECKPOINT):
                return True
            frame = frame.f_back
        return False

    def refuse_in_checkpoint(self, path: str) -> None:
        """Writes into a region that will be computed again without them are refused."""
        if self._versions is not None:
            raise _checkpointed(path)

    def _refuse_changed_in_checkpoint(self) -> None:
        versions, self._versions = self._versions, None
        site = self.at_out or self.at_in
        if _changed(versions or ()):
            raise _checkpointed(site.path if site is not None else "")

    def edited(self, path: str, function: Callable[[Any], Any], output: Any) -> Any:
        """What a function makes of an output; one that changes it is refused there as a write is."""
        if not (self.in_grad_mode and self.apart() and self.in_checkpoint()):
            return function(output)
        versions = _versions(output)
        new = function(output)
        if new is not output or _changed(versions):
            raise _checkpointed(path)
        return new


def _checkpointed(path: str) -> InterventionError:
    return CheckpointedError(
        f"{path!r} runs inside torch.utils.checkpoint: the backward pass would compute it again without this "
        "edit and give wrong gradients. Switch checkpointing off (model.gradient_checkpointing_disable()), "
        "or, if no gradients are needed, trace under torch.no_grad()"
    )


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


def _versions(value: object) -> list[tuple[torch.Tensor, int]]:
    return [(leaf, _version(leaf)) for leaf in tensor_leaves(value)]


def _changed(versions: Iterable[tuple[torch.Tensor, int]]) -> bool:
    """Has any of these tensors been changed in place?"""
    return any(_version(leaf) != version for leaf, version in versions)


def _gone() -> Any:
    raise TraceClosedError("this trace was abandoned")

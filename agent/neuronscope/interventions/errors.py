"""What interventions refuse, and why.

::

    InterventionError (NeuronscopeError, RuntimeError)
    ├── SiteNotReachedError            the model did not come (again) to the place that was asked for
    │   └── OutOfOrderError            it had been there already: reads follow the order of execution
    ├── WrongValueError (TypeError)    an assignment that would change the structure, shape, dtype or device
    ├── TraceClosedError               a site or a result of a trace that has ended or was stopped
    ├── WrongThreadError               a trace used from another thread than the model runs in
    ├── CannotSuspendError             the model is inside autograd or torch.func, and must not stop
    ├── CheckpointedError              an edit that a checkpoint's second forward would not repeat
    ├── GradientError                  a gradient that cannot be had, or was asked for too early
    └── PlanError (ValueError)         a plan that says something no plan can mean

They are raised in the body of the user's trace, at the line that asked.  Edits of a model in production raise
nothing: their faults go to the guard.
"""

from __future__ import annotations

from neuronscope.exceptions import NeuronscopeError


class InterventionError(NeuronscopeError, RuntimeError):
    """The root of what interventions raise."""


class SiteNotReachedError(InterventionError):
    """The model did not come to a site that was asked for.

    Attributes:
        site: path of the site.
        ran: sites of the same trace that did run, with the number of their runs, in the order first asked
        for.
    """

    def __init__(self, message: str, site: str, ran: tuple[tuple[str, int], ...] = ()) -> None:
        super().__init__(message)
        self.site = site
        self.ran = ran


class OutOfOrderError(SiteNotReachedError):
    """The model had passed the site before it was asked for: reads follow the order of execution."""


class WrongValueError(InterventionError, TypeError):
    """A value that cannot stand for the one it is to replace; what the model has is unchanged."""


class TraceClosedError(InterventionError):
    """The trace has ended, or its model was stopped; values that were read stay usable."""


class WrongThreadError(InterventionError):
    """A trace was used from another thread than the one its model runs in."""


class CannotSuspendError(InterventionError):
    """The model cannot be stopped here: inside the autograd engine, or inside `torch.func` transforms."""


class CheckpointedError(InterventionError):
    """An edit inside a checkpointed region, whose second forward would run without it."""


class GradientError(InterventionError):
    """A gradient that cannot be had from this value, or not yet."""


class PlanError(InterventionError, ValueError):
    """A plan that cannot be carried out; the message names the step."""

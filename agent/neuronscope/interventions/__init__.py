"""Putting a hand into a model: traces, edits that last, and plans.

``with ns_model.trace(x) as t:`` runs the body as ordinary code and the model beside it, up to each place that
the body asks for.  This package holds what is common to all runtimes; the runtime's adapter does the work.
"""

from __future__ import annotations

from neuronscope.interventions.edits import Ablate, Clamp, Edit, Edits, NanGuard, Scale, Steer, in_force
from neuronscope.interventions.errors import (
    CannotSuspendError,
    CheckpointedError,
    GradientError,
    InterventionError,
    OutOfOrderError,
    PlanError,
    SiteNotReachedError,
    TraceClosedError,
    WrongThreadError,
    WrongValueError,
)
from neuronscope.interventions.options import Options
from neuronscope.interventions.plans import Plan, PlanResult, Step
from neuronscope.interventions.views import View

__all__ = [
    "Ablate",
    "CannotSuspendError",
    "CheckpointedError",
    "Clamp",
    "Edit",
    "Edits",
    "GradientError",
    "InterventionError",
    "NanGuard",
    "Options",
    "OutOfOrderError",
    "Plan",
    "PlanError",
    "PlanResult",
    "Scale",
    "SiteNotReachedError",
    "Steer",
    "Step",
    "TraceClosedError",
    "View",
    "WrongThreadError",
    "WrongValueError",
    "in_force",
]


def __dir__() -> list[str]:
    return sorted(__all__)

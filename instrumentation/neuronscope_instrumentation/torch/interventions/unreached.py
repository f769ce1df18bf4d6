"""Why a site was not reached: the sentence that the user gets."""

from __future__ import annotations

import inspect
import re
from types import FrameType
from typing import TYPE_CHECKING

from neuronscope.interventions.errors import OutOfOrderError, SiteNotReachedError
from neuronscope_instrumentation.torch import layers
from neuronscope_instrumentation.torch.internals import class_of

if TYPE_CHECKING:
    from neuronscope_instrumentation.torch.interventions.sites import Site

_OURS = ("neuronscope_instrumentation/torch/interventions/", "neuronscope/interventions/", "/greenlet/")


def user_line() -> str:
    """``file:line`` of the innermost frame that is not ours."""
    frame: FrameType | None = inspect.currentframe()
    while frame is not None and any(part in frame.f_code.co_filename for part in _OURS):
        frame = frame.f_back
    return "an unknown line" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def not_reached(site: Site) -> SiteNotReachedError:
    """The error for a site at which the model did not come by (again)."""
    run, path = site.run, site.path
    ran = tuple((other.path, other.visits) for other in run.present if other.visits)
    told = (
        ", ".join(f"{other or 'the model'} ({count}×)" for other, count in ran[-8:])
        or "no site of this trace"
    )
    asked = f"{path or 'the model'!r}, asked for at {user_line()}, was not reached"
    if run.boundary is not None and run.at_in is run.boundary:
        return OutOfOrderError(
            f"{asked} within this step: the next one ({run.boundary.path or 'the model'}) begins. Sites "
            f"follow the model's order of execution within each step. What ran: {told}",
            path, ran,
        )  # fmt: skip
    if site.visits:
        return OutOfOrderError(
            f"{asked} again: it had run {site.visits}× before, and the model has finished. Ask for sites in "
            f"the model's order of execution. What ran: {told}",
            path, ran,
        )  # fmt: skip
    if _may_be_earlier(site):
        return OutOfOrderError(
            f"{asked}, and the model has finished: it ran before the sites that were asked for earlier, or "
            f"not at all. Ask for sites in the model's order of execution. What ran: {told}",
            path, ran,
        )  # fmt: skip
    if site in run.present[run.timely :]:
        return OutOfOrderError(
            f"{asked}: the model had finished before it was asked for; t.result runs it to its end. Ask for "
            f"sites before. What ran: {told}",
            path, ran,
        )  # fmt: skip
    return SiteNotReachedError(f"{asked}: {_why(site)}. What ran: {told}", path, ran)


def _may_be_earlier(site: Site) -> bool:
    """Was another site asked for first that runs, by the order of the modules, after this one?"""
    order = {id(module): i for i, module in enumerate(site.tree.model.modules())}
    place = order.get(id(site.module))
    seen = [order[id(s.module)] for s in site.run.present if s.visits and id(s.module) in order]
    return place is not None and bool(seen) and max(seen) > place


def _why(site: Site) -> str:
    model, path = site.tree.model, site.path
    if site.tree.find(path) is not site.module:
        return "another module has been put in its place since; ask for it by its path again"
    if not layers.computes(site.module):
        return (
            f"a {class_of(site.module).__name__} holds modules and never runs itself; ask for what it holds"
        )
    reason = layers.why_not_visited(model, path)
    if reason == "compiled":
        return (
            "it is inside a compiled region, which runs without its modules. "
            "ns_model.with_options(eager=True) traces without compiled code"
        )
    if reason == "fused":
        return (
            "its parent computed for it in one fused kernel. ns_model.with_options(unfuse=True) traces "
            "without; that may change the last bits of the result"
        )
    if reason == "scripted":
        return "it is inside TorchScript, which runs without Python"
    if _called_by_forward(site):
        return (
            "its parent seems to call its .forward(...) directly, which passes by everything that watches "
            "modules. Call the module itself"
        )
    return (
        "the model did not call it in this run. It may have been called in another thread, or by a method "
        "that was not traced (trace(..., method=...))"
    )


def _called_by_forward(site: Site) -> bool:
    parent_path, _, name = site.path.rpartition(".")
    parent = site.tree.find(parent_path)
    if parent is None:
        return False
    try:
        source = inspect.getsource(class_of(parent))
    except (OSError, TypeError):
        return False
    word = r"\w+" if name.isdigit() else re.escape(name)
    return re.search(rf"\b{word}(\[[^\]]*\])?\.forward\(", source) is not None

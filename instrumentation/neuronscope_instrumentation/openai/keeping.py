"""What a route is, and the compiled way through `routes.snapshot` for what was posted before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from neuronscope import compiled
from neuronscope.instrumentation import Endpoint, Snapshot
from neuronscope_instrumentation.common.fields import fields_in_python
from neuronscope_instrumentation.openai.clients import KNOWN

Keep = Callable[[dict[str, Any], Mapping[str, Any], bool], None]
Take = Callable[[Any, dict[str, Any], bool], Snapshot | None]


class Usual(NamedTuple):
    """What a route's `keep` does with most bodies, as compiled code needs it told.

    Attributes:
        listed: a parameter that is a list; with content on it is copied.
        counted: what its length is called.
        rare: parameters that `keep` itself has to look at.
    """

    listed: str
    counted: str
    rare: frozenset[str]


class Route(NamedTuple):
    """An operation, and what to keep of a request for it.

    Attributes:
        keep: keeps what of the body is no scalar; None: there is no body.
        usual: what that does with most bodies, if it can be told.
        target: the parameter that the span is named after; None: the path says it.
    """

    endpoint: Endpoint
    keep: Keep | None
    usual: Usual | None = None
    target: str | None = "model"


# What was posted to before, a few paths for all calls: its route, and whether the URL is such a path.
Posted = dict[str, tuple[Route | None, bool]]
_make: Final = compiled.find("make_snapshot")


def quick(twin: Take, posted: Posted, scalars: frozenset[str]) -> Take:
    """`twin`, compiled for what was posted to before, if there is a compiled one.

    Args:
        scalars: parameters that are kept of every body.
    """
    if _make is None:
        return twin
    made: Take = _make((twin, fields_in_python, posted, KNOWN, Snapshot, scalars))
    return made

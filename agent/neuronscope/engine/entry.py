"""Where calls of a wrapped method begin and end: guarded, and compiled for those that need nothing special.

The compiled `Entry` does what nearly all calls need in one step; whatever asks for more (a pipeline or a
sampler of the service's, a layer, baggage, headers, a stream, an exception) it leaves to `Calls.begin` and
`Invocation.succeed`, as its twin in Python leaves everything.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol

from opentelemetry import trace
from opentelemetry.context import Context, get_current
from opentelemetry.trace import SpanContext

from neuronscope import compiled
from neuronscope import recording as recordings
from neuronscope.engine import clock, current, opening
from neuronscope.engine.guard import GUARD
from neuronscope.engine.invocation import Invocation
from neuronscope.engine.layering import LAYER, WAITING
from neuronscope.engine.span import NO_STATE, LightSpan

if TYPE_CHECKING:
    from neuronscope.engine.calls import Calls
    from neuronscope.engine.seam import Seam


Note = Callable[[dict[str, Any]], Any]


class Installed(Protocol):
    """What an entry looks at of the integration that it belongs to."""

    everything: bool
    active: bool


class Entry(Protocol):
    """Where the calls of one method begin and end.  Nothing is raised into the service."""

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Invocation | None:
        """Open a call; None: it is not observed."""
        ...

    def made(self, call: Invocation, /) -> bool:
        """Did the last `begin` open this call?"""
        ...

    def succeed(self, call: Invocation, result: Any, /) -> bool:
        """The call returned.  False: the service gets the call's `replacement` instead."""
        ...


class EntryInPython:
    """The twin of the compiled `Entry`.

    Args:
        tools: see `tools`.
        installation: the integration that the seam belongs to.
    """

    def __init__(self, tools: object, engine: Calls, seam: Seam, installation: Installed) -> None:
        self._engine = engine
        self._seam = seam
        self._site = seam.site

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> Invocation | None:
        """Open a call; None: it is not observed."""
        engine = self._engine
        return GUARD.begin(self._site, engine.begin, self._seam, args, kwargs) if engine.active else None

    def made(self, call: Invocation, /) -> bool:
        """Never asked in earnest: Python runs no signal handler as a function in Python returns."""
        return False

    def succeed(self, call: Invocation, result: Any, /) -> bool:
        """The call returned.  False: the service gets the call's `replacement` instead."""
        if not GUARD.end(self._site, call.succeed, result):
            GUARD.always(self._site, call.leave)
        return call.replacement is None


def tools(variable: ContextVar[Context]) -> tuple[object, ...]:
    """What the compiled entries need of us and of OpenTelemetry, in the order of ``_native/entry.c``."""
    return (
        variable.get,
        variable.set,
        variable.reset,
        current.detach,
        recordings.CURRENT.get,
        time.perf_counter_ns,
        vars(clock),
        vars(trace),
        WAITING,
        GUARD.disabled,
        GUARD,
        LightSpan,
        Invocation,
        SpanContext,
        opening.SAMPLED,
        opening.NOT_SAMPLED,
        NO_STATE,
        Context,
        opening.CURRENT,
        # What a context may hold that asks for more than a parent.
        (
            LAYER,
            opening.OURS,
            opening.TENANT,
            opening.SUPPRESS_ALL,
            opening.SUPPRESS_LLM,
            opening.SUPPRESS_SDK,
        ),
    )


# Should a release of OpenTelemetry keep the current context elsewhere, or make identities of something else
# than tuples, Python does it all.
_COMPILED: Final = compiled.find("Entry")
_MAKE_NOTE: Final = compiled.find("make_note")
_TOOLS: Final = None if current.VARIABLE is None or not opening.MADE_AS_TUPLES else tools(current.VARIABLE)


def entry(engine: Calls, seam: Seam, installation: Installed) -> Entry:
    """Where the calls of a seam begin and end."""
    if _COMPILED is None or _TOOLS is None:
        return EntryInPython((), engine, seam, installation)
    made: Entry = _COMPILED(_TOOLS, engine, seam, installation)
    return made


def forsake(door: Entry) -> None:
    """A signal handler of the service raised as `begin` returned: what that has opened is never called."""
    context = get_current()
    for span in (context.get(opening.CURRENT), context.get(opening.OURS)):
        if isinstance(span, LightSpan) and span.call is not None and door.made(span.call):
            span.call.give_up()


def noter(
    engine: Calls, library: str, site: str, response: str, resends: str
) -> Callable[[dict[str, Any]], Any]:
    """Notes what a method is called with, inside a call of that library: the HTTP response.  Guarded.

    Args:
        response: name of the argument that holds it.
        resends: of the one that tells how often the request was sent again.
    """

    def note(kwargs: dict[str, Any]) -> None:
        call = engine.open_call(library)
        if call is not None:
            call.http = kwargs.get(response)
            call.resends = kwargs.get(resends)

    guarded = functools.partial(GUARD.end, site, note)
    if _MAKE_NOTE is None or current.VARIABLE is None:
        return guarded
    tools = (
        current.VARIABLE.get,
        opening.CURRENT,
        LightSpan,
        Invocation,
        library,
        response,
        resends,
        guarded,
    )
    made: Callable[[dict[str, Any]], Any] = _MAKE_NOTE(tools)
    return made

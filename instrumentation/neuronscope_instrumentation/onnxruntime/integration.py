"""Spans for the runs of `onnxruntime.InferenceSession`: what ran, on what, how long; never a value.

`run`, `run_with_ort_values` and `run_with_iobinding` are calls; `run_async` is one until its callback is
called, and the callback runs in its context.
"""

from __future__ import annotations

import contextvars
import functools
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from neuronscope.engine.guard import GUARD
from neuronscope.engine.invocation import type_name
from neuronscope.engine.work import Work
from neuronscope.instrumentation import (
    ClientIntegration,
    Endpoint,
    Kind,
    Operation,
    Peer,
    Request,
    Response,
    Snapshot,
    WrappedMethod,
)
from neuronscope.signals import names
from neuronscope_instrumentation.onnxruntime import sessions

if TYPE_CHECKING:
    from neuronscope.engine import Engine

LIBRARY: Final = "neuronscope.onnxruntime"
PEER: Final = Peer("onnxruntime")
_MODULE: Final = "onnxruntime.capi.onnxruntime_inference_collection"
_SESSION: Final = f"{_MODULE}:Session"  # where InferenceSession has them from


# --- the hot path -----------------------------------------------------------------------------------------
def _snapshot(session: Any, arguments: dict[str, Any], _content: bool) -> Snapshot:
    feed = arguments.get("input_feed", arguments.get("input_dict_ort_values"))
    outputs = sessions.output_names(session, arguments.get("output_names")) if feed is not None else []
    endpoint = Endpoint(
        operation=Operation.INFERENCE,
        read_request=read_request,
        read_response=partial(read_response, outputs),
    )
    return Snapshot(endpoint, sessions.name_of(session), _kept(session, feed), PEER)


def _kept(session: Any, feed: object) -> dict[str, Any]:
    return {
        "inputs": sessions.describe_inputs(feed),
        "providers": session.get_providers(),
        "session": session,  # its file is read once: of `run` by the worker
    }


def unwrap(result: Any) -> tuple[Any, ...]:
    """Types and shapes of the outputs, which are let go of at once."""
    if not isinstance(result, list | tuple):
        return ()  # bound outputs are the service's
    values = cast("list[Any]", result)
    return sessions.describe_outputs(values, [""] * len(values))


# --- the worker -------------------------------------------------------------------------------------------
def read_request(kept: Mapping[str, Any], _content: bool) -> Request:
    """The model, where it runs, and the shapes it was given."""
    return Request(extra=_facts(kept))


def read_response(
    output_names: list[str], outputs: tuple[sessions.Described, ...], _content: bool
) -> Response:
    """The shapes it gave."""
    named = [(name, *told[1:]) for name, told in zip(output_names, outputs, strict=False)]
    return Response(extra={names.MODEL_OUTPUTS: sessions.texts(named)} if named else {})


def _facts(kept: Mapping[str, Any]) -> dict[str, Any]:
    inputs: tuple[sessions.Described, ...] = kept["inputs"]
    facts: dict[str, Any] = {names.MODEL_PROVIDERS: list(kept["providers"])}
    found = sessions.fingerprint_of(kept["session"])
    if found is not None:
        facts[names.MODEL_FINGERPRINT] = found
    if inputs:
        facts[names.MODEL_INPUTS] = sessions.texts(inputs)
        if inputs[0][2]:
            facts[names.MODEL_BATCH] = inputs[0][2][0]
    return facts


# --- run_async --------------------------------------------------------------------------------------------
def _install(engine: Engine, module: str) -> Callable[[], None]:
    """Make each `run_async` a span that ends with its callback."""
    session: Any = sys.modules[module].Session
    original: Any = session.run_async

    @functools.wraps(original)
    def run_async(
        self: Any, output_names: Any, input_feed: Any, callback: Any, user_data: Any, run_options: Any = None
    ) -> Any:
        work = GUARD.call("onnxruntime.run_async", _begin, engine, self, input_feed)
        if work is None:
            return original(self, output_names, input_feed, callback, user_data, run_options)
        names_of = GUARD.call("onnxruntime.outputs", sessions.output_names, self, output_names)
        told = _Told(work, names_of or [])
        with work.current():
            # The callback comes in a thread of the runtime's: it gets the context of here and now.
            within = contextvars.copy_context()
            try:
                return original(
                    self, output_names, input_feed, told.before(callback, within), user_data, run_options
                )
            except BaseException as error:
                GUARD.call("onnxruntime.failed", told.end, type_name(error), None)
                raise

    session.run_async = run_async

    def undo() -> None:
        if session.run_async is run_async:
            session.run_async = original

    return undo


def _begin(engine: Engine, session: Any, feed: Any) -> Work | None:
    name = sessions.name_of(session)
    attributes = {
        names.OPERATION_NAME: Operation.INFERENCE.value,
        names.PROVIDER_NAME: PEER.provider,
        names.REQUEST_MODEL: name,
        **_facts(_kept(session, feed)),
    }
    return Work.begin(engine, f"{Operation.INFERENCE.value} {name}", LIBRARY, attributes)


class _Told:
    """Ends a run's span when its callback is called: first, so that the callback's time is not the run's."""

    def __init__(self, work: Work, output_names: list[str]) -> None:
        self._work = work
        self._names = output_names

    def before(self, callback: Any, within: contextvars.Context) -> Callable[[Any, Any, str], Any]:
        """The callback, in the context of its run."""

        def call(results: Any, user_data: Any, error: str) -> Any:
            GUARD.call("onnxruntime.callback", self.end, "RuntimeError" if error else None, results)
            return within.run(callback, results, user_data, error)

        return call

    def end(self, error: str | None, results: Any) -> None:
        """What came of it."""
        if error is not None:
            self._work.fail(error)
        elif isinstance(results, list | tuple):
            values = cast("list[Any]", results)
            told = sessions.texts(sessions.describe_outputs(values, self._names))
            self._work.tell(names.MODEL_OUTPUTS, told)
        self._work.end()


ONNXRUNTIME: Final = ClientIntegration(
    name="onnxruntime",
    requires="onnxruntime>=1.19",
    kind=Kind.FRAMEWORK,
    modules=(_MODULE,),
    methods=(
        WrappedMethod(target=f"{_SESSION}.run", snapshot=_snapshot, unwrap=unwrap, in_process=True),
        WrappedMethod(
            target=f"{_SESSION}.run_with_ort_values", snapshot=_snapshot, unwrap=unwrap, in_process=True
        ),
        WrappedMethod(
            target=f"{_SESSION}.run_with_iobinding", snapshot=_snapshot, unwrap=unwrap, in_process=True
        ),
    ),
    install=_install,
)

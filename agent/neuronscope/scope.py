"""`ns.Scope`: a root span, and a recording of everything that happens in it."""

from __future__ import annotations

import time
from contextvars import Token
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any

from opentelemetry import context as otel_context
from opentelemetry.trace import SpanKind, StatusCode

from neuronscope import joining, platform, recording
from neuronscope.artifact import Artifact, Telemetry
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope.engine.invocation import type_name
from neuronscope.engine.span import LightSpan
from neuronscope.governor import Budget
from neuronscope.recording import Recording
from neuronscope.settings import OverheadAction, Settings
from neuronscope.signals import names
from neuronscope.signals.records import SpanEvent

if TYPE_CHECKING:
    from neuronscope.model import Model

LIBRARY = "neuronscope.scope"


class Scope:
    """Records what happens in a `with` block, in this thread and wherever its context is carried.

    Tasks and `asyncio.to_thread` carry it; threads and thread pools do so where `ns.propagate` or
    ``NEURONSCOPE_PROPAGATE_THREADS`` lets them, and `calls_outside` tells what else was called meanwhile.
    Scopes nest; an outer one also holds what inner ones record.

    Args:
        name: name of the root span.
        model: a model, or a client of a model or a vector store, to observe in this scope without a further
            word: `Model.wrap` chooses the adapter, and `NEURONSCOPE_PROBES` the layers (default: its blocks,
            in summaries) until `attach_probe` names others.  A `Model` will do, too.
        max_overhead_pct: overrides the platform's budget for this scope.
        overhead_action: overrides the platform's action beyond the budget.

    Attributes:
        model: the handle on the model that was given.

    Raises:
        AdapterNotFoundError: no adapter handles the model.
        OverheadBudgetExceeded: at the end of the block, if observation cost more than twice its budget (or
            more than the budget, with ``overhead_action="abort"``).  The data is kept; an exception of the
            block's own is never replaced.
    """

    def __init__(
        self,
        name: str,
        model: Any = None,
        *,
        max_overhead_pct: float | None = None,
        overhead_action: OverheadAction | None = None,
    ) -> None:
        settings = platform.current().settings
        # Checked like any setting.
        checked = Settings(
            max_overhead_pct=settings.max_overhead_pct if max_overhead_pct is None else max_overhead_pct,
            overhead_action=settings.overhead_action if overhead_action is None else overhead_action,
        )
        self.name = name
        outer = recording.CURRENT.get()
        self._budget = Budget(
            checked.max_overhead_pct,
            checked.overhead_action,
            parent=ENGINE.budget if outer is None else outer.budget,
            name=name,
            on_event=self._tell,
        )
        self.model = None if model is None else _handle_on(model)
        self._max_bytes = settings.scope_max_bytes
        self._recording: Recording | None = None
        self._token: Token[Recording | None] | None = None
        self._context: Any = None
        self._context_token: Any = None
        self._span: LightSpan | None = None

    # --- the block ---------------------------------------------------------------------------------
    def __enter__(self) -> Scope:
        if self._recording is not None:
            raise RuntimeError(
                f"the scope {self.name!r} has been used already; make a new ns.Scope for each block"
            )
        self._recording = Recording(self.name, self._budget, self._max_bytes, recording.CURRENT.get())
        self._token = recording.CURRENT.set(self._recording)
        opened = ENGINE.open_span(
            self.name, SpanKind.INTERNAL, LIBRARY, {names.SCOPE_NAME: self.name}, nested=True
        )
        if opened is not None:
            self._span, self._context = opened
            self._recording.root = self._span
            self._context_token = otel_context.attach(self._context)
        GUARD.call("scope.join", joining.MEMBERS.enter, self._recording)
        if self.model is not None:
            GUARD.call("scope.watch", self.model.watch, self._recording)
        self._budget.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._budget.leave()
        self.recording.end()
        if self._context_token is not None and otel_context.get_current() is self._context:
            otel_context.detach(self._context_token)
        if self._token is not None and recording.CURRENT.get() is self._recording:
            recording.CURRENT.reset(self._token)
        exceeded = self._budget.verdict()
        self._tell("neuronscope.coverage", self._budget.facts())
        if self._span is not None:
            self._close_span(self._span, error)
        if exceeded is not None and error is None:
            raise exceeded

    async def __aenter__(self) -> Scope:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)

    def _tell(self, name: str, facts: dict[str, Any]) -> None:
        event = SpanEvent(name, time.time_ns(), facts)
        ENGINE.tell(event)
        if self._recording is not None:
            self._recording.add_event(event)

    def _close_span(self, span: LightSpan, error: BaseException | None) -> None:
        if error is not None:
            span.add_fact(names.ERROR_TYPE, type_name(error))
            span.set_status(StatusCode.ERROR)
        state = self._budget.state
        if self._budget.skipped or self._budget.exhausted:
            span.add_fact(names.FIDELITY, state.value)
            span.add_fact(names.FIDELITY_REASON, "exhausted" if self._budget.exhausted else "budget")
        if span.model_call is not None and self._budget.exhausted:
            span.model_call.fidelity, span.model_call.reason = state, "exhausted"
        ENGINE.finish(span)

    # --- what was recorded ---------------------------------------------------------------------------
    @property
    def recording(self) -> Recording:
        """The recording; the scope must have been entered."""
        if self._recording is None:
            raise RuntimeError(
                f"the scope {self.name!r} has not been entered: use `with ns.Scope(...) as scope:`"
            )
        return self._recording

    @property
    def overhead_pct(self) -> float:
        """Accounted cost of observation in this scope, in per cent of its time."""
        return self._budget.overhead_pct

    @property
    def calls_outside(self) -> int:
        """How many calls began and ended while the scope was open, but in no scope and under no span.

        Known at the end of the block.  They may be the scope's own, made in a thread that its context was not
        carried into (`ns.propagate` does that), or have nothing to do with it.  Of more than 1,000 only the
        last 1,000 are counted.
        """
        ENGINE.drain()
        return self.recording.calls_outside

    @property
    def artifact(self) -> Artifact:
        """What has been recorded so far."""
        record = self.recording
        ENGINE.drain()
        return Artifact(
            Telemetry(record.spans(), record.layers()),
            (dict(ENGINE.resource()),),
            events=record.events(),
            logs=record.logs(),
        )

    def save(self, path: str | PathLike[str]) -> Artifact:
        """Write what was recorded to a `.nsz` file, atomically, and return it."""
        artifact = self.artifact
        artifact.save(path)
        return artifact


def _handle_on(model: Any) -> Model:
    from neuronscope.model import Model  # scopes without a model need nothing of it

    return model if isinstance(model, Model) else Model.wrap(model)

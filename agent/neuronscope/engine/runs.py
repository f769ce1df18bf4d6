"""What frameworks tell of their work by callbacks: runs, by ids, begun and ended in any thread or task.

No block of ours is around a run.  What is current while it lasts is therefore set without a token, and given
back only where it still is: in the context that it was set in.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind

from neuronscope.engine.fit import fit_json
from neuronscope.engine.invocation import type_name
from neuronscope.engine.streams import StreamState
from neuronscope.instrumentation import ErrorFacts, Snapshot
from neuronscope.signals import names

if TYPE_CHECKING:
    from neuronscope.engine import Engine
    from neuronscope.engine.span import LightSpan

Opened = tuple["LightSpan", Context]


@dataclass(slots=True)
class Run:
    """A run that is not over; whether it has a span, its framework's subclass says.

    Attributes:
        context: in which its children run.
        before: what was current before its context was made so, if it ever was.
        below: the run whose context that was, if it was one's.
        left: it is no longer meant to be current.
        stream: of a model's run that streams.
    """

    context: Context
    before: Context | None = None
    below: Run | None = None
    left: bool = False
    stream: StreamState | None = None

    def enter(self) -> None:
        """Make its context current, for a while in which nothing is yielded to the service."""
        self.before, below = otel_context.get_current(), _innermost.get()
        self.below = below if below is not None and below.context is self.before else None
        _innermost.set(self)
        otel_context.attach(self.context)

    def leave(self) -> None:
        """Give back what was current, in this copy of the context or another: no token fits all of them.

        Runs of a batch begin one within the other and end in the same order: what the last one gives back is
        what was current before the first.
        """
        if self.before is None or self.left:
            return
        self.left = True
        if otel_context.get_current() is not self.context:
            return  # it is not here that it is current, or a later run is, which gives back for both
        last = self
        while last.below is not None and last.below.left:
            last = last.below
        _innermost.set(last.below)
        if last.before is not None:
            otel_context.attach(last.before)

    def adopt_here(self) -> None:
        """Make its context current in a copy of the context that will be thrown away, and this with it."""
        otel_context.attach(self.context)

    def attribute(self, key: str) -> Any:
        """An attribute of the span that is current for its children."""
        attributes: Mapping[str, Any] = (
            getattr(trace.get_current_span(self.context), "attributes", None) or {}
        )
        return attributes.get(key)


# Of the runs that were made current in this copy of the context.
_innermost: Final[ContextVar[Run | None]] = ContextVar("neuronscope-innermost-run", default=None)

R = TypeVar("R", bound=Run)


class Runs(Generic[R]):
    """All runs of a framework that are not over.  Thread-safe by the GIL's atomic dict operations.

    Attributes:
        active: False once the adapter is uninstalled.
    """

    def __init__(self, engine: Engine, library: str, site: str) -> None:
        self.active = True
        self._engine = engine
        self._library = library
        self._site = site
        self._runs: dict[Hashable, R] = {}

    # --- beginnings ----------------------------------------------------------------------------------
    def open_span(
        self,
        name: str,
        attributes: dict[str, Any],
        within: Context | None = None,
        *,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Opened | None:
        """A span in the context given, or in the current one; spans of the same library may be around it."""
        return self._engine.open_span(name, kind, self._library, attributes, nested=True, within=within)

    def open_retrieval(self, name: str, query: str | None, within: Context | None = None) -> Opened | None:
        """The span of a retriever; its query is told only with content."""
        attributes: dict[str, Any] = {names.OPERATION_NAME: "retrieval", names.DATA_SOURCE_ID: name}
        if query and self._engine.content:
            attributes[names.RETRIEVAL_QUERY_TEXT] = query
        return self.open_span(f"retrieval {name}", attributes, within, kind=SpanKind.CLIENT)

    def open_tool(
        self, name: str, arguments: Any, within: Context | None = None, **more: Any
    ) -> Opened | None:
        """The span of a tool; its arguments are told only with content."""
        attributes: dict[str, Any] = {
            names.OPERATION_NAME: "execute_tool",
            names.TOOL_NAME: name,
            names.TOOL_TYPE: "function",
            **more,
        }
        if self._engine.content:
            attributes[names.TOOL_ARGUMENTS] = self.shown(arguments)
        return self.open_span(f"execute_tool {name}", attributes, within)

    def open_model(self, kept: Snapshot, method: str, within: Context | None = None) -> Opened | None:
        """The span of a model's run, which waits for a client's call (`engine.layering`)."""
        return self._engine.open_layer(kept, method, self._library, within)

    def follow(self, span: LightSpan) -> StreamState:
        """The state of a model's run that streams; its end is the span's."""
        call, engine = span.call, self._engine
        assert call is not None

        def finish(state: StreamState, error: BaseException | None) -> None:
            call.stream = state
            if error is not None:
                call.error = ErrorFacts(type_name(error))
            engine.finish(span)

        later = engine.later if span.foreign is None else None
        return StreamState(call.snapshot.endpoint, self._site, engine.content, finish, later)

    # --- what came of them ---------------------------------------------------------------------------
    def answered(self, span: LightSpan, result: Any) -> None:
        """A model has answered."""
        assert span.call is not None
        span.call.result = result
        self._engine.finish(span)

    def failed(self, span: LightSpan, kind: str) -> None:
        """A run has raised an error of this type."""
        if span.call is not None:
            span.call.error = ErrorFacts(kind)
        else:
            span.add_fact(names.ERROR_TYPE, kind)
        self._engine.finish(span)

    def found(
        self, span: LightSpan, documents: Sequence[tuple[str | None, str]], scores: Sequence[float] = ()
    ) -> None:
        """A retriever has found documents: how many, which, how near, and with content their words.

        Args:
            documents: id, if it has one, and text of each.
            scores: of all of them, or none.
        """
        span.add_fact(names.DOCUMENTS_RETURNED, len(documents))
        ids = [identifier for identifier, _ in documents if identifier is not None]
        if ids:
            span.add_fact(names.RETRIEVAL_IDS, ids)
        if scores and len(scores) == len(documents):
            span.add_fact(names.RETRIEVAL_SCORES, list(scores))
        if self._engine.content:
            told = [{"id": identifier or "", "content": words} for identifier, words in documents]
            span.add_fact(names.RETRIEVAL_DOCUMENTS, self.shown(told))

    def shown(self, value: Any) -> str:
        """Content as an attribute: JSON of what has a structure, cut to fit."""
        if isinstance(value, dict | list | tuple):
            return fit_json(value, self._engine.settings.attribute_max_length)[0]
        return str(value)


def here() -> tuple[Context, int]:
    """The current context, and the id of its span."""
    context = otel_context.get_current()
    return context, span_id_in(context)


def span_id_in(context: Context) -> int:
    """The id of a context's current span; 0 if there is none."""
    return trace.get_current_span(context).get_span_context().span_id

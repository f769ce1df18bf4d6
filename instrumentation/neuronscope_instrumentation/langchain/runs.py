"""LangChain's runs as spans: a tree by run ids, whatever thread or task a run is told from."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.trace import SpanKind

from neuronscope.engine.fit import fit_json
from neuronscope.engine.invocation import type_name
from neuronscope.engine.streams import StreamState
from neuronscope.instrumentation import Endpoint, ErrorFacts
from neuronscope.signals import names
from neuronscope_instrumentation.common.fields import field, items, mapping, text
from neuronscope_instrumentation.langchain import models
from neuronscope_instrumentation.langchain.models import CHAT, COMPLETION, End

if TYPE_CHECKING:
    from neuronscope.engine import Engine
    from neuronscope.engine.span import LightSpan

LIBRARY: Final = "neuronscope.langchain"
SITE: Final = "langchain"
_CONVERSATIONS: Final = ("thread_id", "session_id", "conversation_id")
# LangChain's ways to end a run before its time.
_LEFT: Final = (GeneratorExit,)


@dataclass(slots=True)
class Run:
    """One run of LangChain's.

    Attributes:
        span: its span; None if it has none of its own.
        context: in which its children run.
        above: ids of the spans outside of it: where one of them is current, its own should be.
        chain: is it a chain, whose inner chains have no span?
        before: what was current before its context was made so, while it is.
        stream: of a model run that has told of tokens.
    """

    span: LightSpan | None
    context: otel_context.Context
    above: tuple[int, ...]
    chain: bool = False
    before: otel_context.Context | None = None
    stream: StreamState | None = None


class Runs:
    """All runs that are not over.  Thread-safe by the GIL's atomic dict operations.

    Attributes:
        active: False once the adapter is uninstalled.
    """

    def __init__(self, engine: Engine) -> None:
        self.active = True
        self._engine = engine
        self._runs: dict[Any, Run] = {}

    # --- where a run belongs -------------------------------------------------------------------------
    def enter_child(self, config: Any) -> None:
        """Make the span of the parent run current in LangChain's copy of the context."""
        run = self._runs.get(getattr(field(config, "callbacks"), "parent_run_id", None))
        if run is not None and self._current_id() in run.above:
            otel_context.attach(run.context)  # the copy is thrown away, and this with it

    @staticmethod
    def _current_id() -> int:
        return trace.get_current_span().get_span_context().span_id

    def _place(self, parent: Any) -> tuple[otel_context.Context, tuple[int, ...], Run | None]:
        """The context that a new run belongs in, and the ids of the spans that will be outside of it.

        What the service has opened itself inside a chain is nearer than the chain.
        """
        run, here = self._runs.get(parent), self._current_id()
        if run is None:
            return otel_context.get_current(), (here,), None
        context = run.context if here in run.above else otel_context.get_current()
        own = trace.get_current_span(context).get_span_context().span_id
        return context, (*run.above, own), run

    def _open(
        self, name: str, kind: SpanKind, attributes: dict[str, Any], told: Mapping[str, Any], **more: Any
    ) -> Run:
        context, above, _ = self._place(told.get("parent_run_id"))
        opened = self._engine.open_span(name, kind, LIBRARY, attributes, nested=True, within=context)
        span, context = opened if opened is not None else (None, context)
        run = self._runs[told["run_id"]] = Run(span, context, above, **more)
        return run

    # --- chains and agents -----------------------------------------------------------------------------
    def start_chain(self, serialized: Any, inputs: Any, **told: Any) -> None:
        """A chain begins: the outermost, nodes of graphs and agents are spans; others only pass theirs on."""
        metadata = mapping(told.get("metadata")) or {}
        name = text(told.get("name")) or text(field(serialized, "name")) or "chain"
        parent = self._runs.get(told.get("parent_run_id"))
        agent = _agent(name, metadata)
        inside = parent is not None and parent.chain
        part = told.get("run_type") in ("prompt", "parser")
        if inside and agent is None and _is_node(name, told, metadata, parent):
            self._open(f"step {name}", SpanKind.INTERNAL, {names.WORKFLOW_STEP: name}, told, chain=True)
            return
        if part or (inside and (agent is None or _is_inside(agent, told, self._runs))):
            context, above, _ = self._place(told.get("parent_run_id"))
            self._runs[told["run_id"]] = Run(None, context, above[:-1] or above, chain=True)
            return
        operation = "invoke_workflow" if agent is None else "invoke_agent"
        attributes: dict[str, Any] = {
            names.OPERATION_NAME: operation,
            (names.WORKFLOW_NAME if agent is None else names.AGENT_NAME): agent or name,
        }
        conversation = next(filter(None, (text(metadata.get(key)) for key in _CONVERSATIONS)), None)
        if conversation is not None and agent is not None:  # the conventions have it on agents only
            attributes[names.CONVERSATION_ID] = conversation
        self._open(f"{operation} {agent or name}", SpanKind.INTERNAL, attributes, told, chain=True)

    def end(self, outputs: Any, **told: Any) -> None:
        """A run is over."""
        self._finish(self._runs.pop(told["run_id"], None))

    def fail(self, error: BaseException, **told: Any) -> None:
        """A run has raised, or was left."""
        run = self._runs.pop(told["run_id"], None)
        if run is not None and run.span is not None:
            if isinstance(error, _LEFT):
                run.span.add_fact(names.STREAM_END, "client_closed")
            else:
                run.span.add_fact(names.ERROR_TYPE, type_name(error))
        self._finish(run)

    def _finish(self, run: Run | None) -> None:
        if run is None:
            return
        self._leave(run)
        if run.span is not None:
            self._engine.finish(run.span)

    @staticmethod
    def _enter(run: Run) -> None:
        """Make the run's context current, for a while in which nothing is yielded to the service."""
        run.before = otel_context.get_current()
        otel_context.attach(run.context)

    @staticmethod
    def _leave(run: Run) -> None:
        """Give back what was current, in this copy of the context or another: no token fits all of them."""
        before, run.before = run.before, None
        if before is not None and otel_context.get_current() is run.context:
            otel_context.attach(before)

    # --- tools -------------------------------------------------------------------------------------------
    def start_tool(self, serialized: Any, text_input: Any, **told: Any) -> None:
        """A tool begins."""
        name = text(told.get("name")) or text(field(serialized, "name")) or "tool"
        attributes: dict[str, Any] = {
            names.OPERATION_NAME: "execute_tool",
            names.TOOL_NAME: name,
            names.TOOL_TYPE: "function",
        }
        if identifier := text(told.get("tool_call_id")):
            attributes[names.TOOL_CALL_ID] = identifier
        if self._engine.content:
            given = told.get("inputs")
            attributes[names.TOOL_ARGUMENTS] = self._json(given if given is not None else text_input)
        self._open(f"execute_tool {name}", SpanKind.INTERNAL, attributes, told)

    def end_tool(self, output: Any, **told: Any) -> None:
        """A tool has answered."""
        run = self._runs.pop(told["run_id"], None)
        if run is not None and run.span is not None and self._engine.content:
            run.span.add_fact(names.TOOL_RESULT, self._json(_plain(output)))
        self._finish(run)

    def _json(self, value: Any) -> str:
        if isinstance(value, dict | list | tuple):
            return fit_json(value, self._engine.settings.attribute_max_length)[0]
        return str(value)

    # --- retrievers ----------------------------------------------------------------------------------------
    def start_retriever(self, serialized: Any, query: str, **told: Any) -> None:
        """A retriever begins, and is current until it ends: it runs in one piece."""
        name = text(told.get("name")) or text(field(serialized, "name")) or "retriever"
        attributes: dict[str, Any] = {names.OPERATION_NAME: "retrieval", names.DATA_SOURCE_ID: name}
        if self._engine.content:
            attributes[names.RETRIEVAL_QUERY_TEXT] = query
        run = self._open(f"retrieval {name}", SpanKind.CLIENT, attributes, told)
        self._enter(run)

    def end_retriever(self, documents: Any, **told: Any) -> None:
        """A retriever has found documents: how many, which, and with content their words."""
        run = self._runs.pop(told["run_id"], None)
        if run is not None and run.span is not None:
            found = items(documents)
            run.span.add_fact(names.DOCUMENTS_RETURNED, len(found))
            ids = [identifier for each in found if (identifier := text(field(each, "id"))) is not None]
            if ids:
                run.span.add_fact(names.RETRIEVAL_IDS, ids)
            if self._engine.content:
                told_documents = [
                    {"id": text(field(each, "id")) or "", "content": text(field(each, "page_content")) or ""}
                    for each in found
                ]
                run.span.add_fact(names.RETRIEVAL_DOCUMENTS, self._json(told_documents))
        self._finish(run)

    # --- models --------------------------------------------------------------------------------------
    def start_chat(self, serialized: Any, messages: Any, **told: Any) -> None:
        """A chat model begins."""
        self._start_model(CHAT, "chat", next(iter(items(messages)), ()), told)

    def start_completion(self, serialized: Any, prompts: Any, **told: Any) -> None:
        """A model that completes texts begins."""
        self._start_model(COMPLETION, "text_completion", next(iter(items(prompts)), ""), told)

    def _start_model(self, endpoint: Endpoint, name: str, sent: Any, told: Mapping[str, Any]) -> None:
        """Wait for a client's call.  The context is current until the first token or the end, no longer."""
        kept = models.snapshot(endpoint, sent, told, self._engine.content)
        within, above, _ = self._place(told.get("parent_run_id"))
        opened = self._engine.open_layer(kept, name, LIBRARY, within)
        if opened is None:
            return
        span, context = opened
        run = self._runs[told["run_id"]] = Run(span, context, above)
        self._enter(run)

    def take_token(self, token: Any, **told: Any) -> None:
        """A model streams."""
        run = self._runs.get(told["run_id"])
        if run is None or run.span is None:
            return
        self._leave(run)
        if run.stream is None:
            run.stream = self._stream(run.span)
        run.stream.take(token)

    def note_event(self, event: Any, **told: Any) -> None:
        """A model streams in events: its client's call has been made."""
        run = self._runs.get(told["run_id"])
        if run is not None:
            self._leave(run)

    def _stream(self, span: LightSpan) -> StreamState:
        call = span.call
        assert call is not None
        engine = self._engine

        def finish(state: StreamState, error: BaseException | None) -> None:
            call.stream = state
            if error is not None:
                call.error = ErrorFacts(type_name(error))
            engine.finish(span)

        later = engine.later if span.foreign is None else None
        return StreamState(call.snapshot.endpoint, SITE, engine.content, finish, later)

    def end_model(self, response: Any, **told: Any) -> None:
        """A model has answered; an answer from LangChain's cache was nobody's call."""
        run = self._runs.pop(told["run_id"], None)
        if run is None or run.span is None:
            return
        self._leave(run)
        if models.was_cached(response):
            self._engine.discard(run.span)
        elif run.stream is not None:
            run.stream.chunks.append(End(response))
            run.stream.close("complete")
        else:
            assert run.span.call is not None
            run.span.call.result = response
            self._engine.finish(run.span)

    def fail_model(self, error: BaseException, **told: Any) -> None:
        """A model has raised, or its stream was left."""
        run = self._runs.pop(told["run_id"], None)
        if run is None or run.span is None:
            return
        self._leave(run)
        stream = run.stream if run.stream is not None else self._stream(run.span)
        if run.stream is None and not isinstance(error, GeneratorExit | asyncio.CancelledError):
            assert run.span.call is not None
            run.span.call.error = ErrorFacts(type_name(error))
            self._engine.finish(run.span)
        else:
            stream.fail(error)


def _agent(name: str, metadata: Mapping[str, Any]) -> str | None:
    """The agent's name, if the chain is one."""
    return text(metadata.get("lc_agent_name")) or (name if name == "AgentExecutor" else None)


def _is_node(name: str, told: Mapping[str, Any], metadata: Mapping[str, Any], parent: Run | None) -> bool:
    """Is the chain a node of LangGraph's?  What runs inside has its metadata as well, but not its tag."""
    if metadata.get("langgraph_node") != name:
        return False
    around = parent.span.own if parent is not None and parent.span is not None else None
    if around is not None and around.get(names.WORKFLOW_STEP) == name:
        return False  # the node's function, called as the node is
    return any(str(tag).startswith("graph:step:") for tag in items(told.get("tags")))


def _is_inside(agent: str, told: Mapping[str, Any], runs: Mapping[Any, Run]) -> bool:
    """Is the chain a part of the same agent?  LangChain passes its name on to all of them."""
    parent = runs.get(told.get("parent_run_id"))
    if parent is None:
        return False
    span = trace.get_current_span(parent.context)
    attributes = mapping(getattr(span, "attributes", None)) or {}
    return attributes.get(names.AGENT_NAME) == agent


def _plain(output: Any) -> Any:
    """What a tool has given back, without the message around it."""
    content = getattr(output, "content", None)
    return output if content is None else content

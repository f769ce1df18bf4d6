"""LangChain's runs as spans: a tree by run ids, whatever thread or task a run is told from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from neuronscope.engine import runs as framework
from neuronscope.engine.invocation import type_name
from neuronscope.engine.runs import Opened
from neuronscope.instrumentation import Endpoint
from neuronscope.signals import names
from neuronscope_instrumentation.common.fields import field, items, mapping, text
from neuronscope_instrumentation.langchain import models
from neuronscope_instrumentation.langchain.models import CHAT, COMPLETION, End

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from neuronscope.engine import Engine
    from neuronscope.engine.span import LightSpan

LIBRARY: Final = "neuronscope.langchain"
SITE: Final = "langchain"
_CONVERSATIONS: Final = ("thread_id", "session_id", "conversation_id")
# LangChain's ways to end a run before its time.
_LEFT: Final = (GeneratorExit,)


@dataclass(slots=True, kw_only=True)
class Run(framework.Run):
    """One run of LangChain's.

    Attributes:
        span: its span; None if it has none of its own.
        above: ids of the spans outside of it: where one of them is current, its own should be.
        chain: is it a chain, whose inner chains have no span?
    """

    span: LightSpan | None
    above: tuple[int, ...]
    chain: bool = False


class Runs(framework.Runs[Run]):
    """LangChain's callbacks."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, LIBRARY, SITE)

    # --- where a run belongs -------------------------------------------------------------------------
    def enter_child(self, config: Any) -> None:
        """Make the span of the parent run current in LangChain's copy of the context."""
        run = self._runs.get(getattr(field(config, "callbacks"), "parent_run_id", None))
        if run is not None and framework.here()[1] in run.above:
            run.adopt_here()

    def _place(self, told: Mapping[str, Any]) -> tuple[Context, tuple[int, ...]]:
        """The context that a new run belongs in, and the ids of the spans that will be outside of it.

        What the service has opened itself inside a chain is nearer than the chain.
        """
        run, (current, here) = self._runs.get(told.get("parent_run_id")), framework.here()
        if run is None:
            return current, (here,)
        context = run.context if here in run.above else current
        return context, (*run.above, framework.span_id_in(context))

    def _begin(
        self, told: Mapping[str, Any], open_in: Callable[[Context], Opened | None], *, chain: bool = False
    ) -> Run:
        context, above = self._place(told)
        span, context = open_in(context) or (None, context)
        run = self._runs[told["run_id"]] = Run(context, span=span, above=above, chain=chain)
        return run

    def _begin_current(self, told: Mapping[str, Any], open_in: Callable[[Context], Opened | None]) -> None:
        run = self._begin(told, open_in)
        if run.span is not None:
            run.enter()

    def _begin_chain(self, told: Mapping[str, Any], name: str, attributes: dict[str, Any]) -> None:
        self._begin(told, lambda within: self.open_span(name, attributes, within), chain=True)

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
            self._begin_chain(told, f"step {name}", {names.WORKFLOW_STEP: name})
            return
        if part or (inside and (agent is None or _is_inside(agent, told, self._runs))):
            context, above = self._place(told)
            self._runs[told["run_id"]] = Run(context, span=None, above=above[:-1] or above, chain=True)
            return
        operation = "invoke_workflow" if agent is None else "invoke_agent"
        attributes: dict[str, Any] = {
            names.OPERATION_NAME: operation,
            (names.WORKFLOW_NAME if agent is None else names.AGENT_NAME): agent or name,
        }
        conversation = next(filter(None, (text(metadata.get(key)) for key in _CONVERSATIONS)), None)
        if conversation is not None and agent is not None:  # the conventions have it on agents only
            attributes[names.CONVERSATION_ID] = conversation
        self._begin_chain(told, f"{operation} {agent or name}", attributes)

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
        run.leave()
        if run.span is not None:
            self._engine.finish(run.span)

    # --- tools -------------------------------------------------------------------------------------------
    def start_tool(self, serialized: Any, text_input: Any, **told: Any) -> None:
        """A tool begins."""
        name = text(told.get("name")) or text(field(serialized, "name")) or "tool"
        given, identifier = told.get("inputs"), text(told.get("tool_call_id"))
        more = {names.TOOL_CALL_ID: identifier} if identifier else {}
        arguments = given if given is not None else text_input
        self._begin(told, lambda within: self.open_tool(name, arguments, within, **more))

    def end_tool(self, output: Any, **told: Any) -> None:
        """A tool has answered."""
        run = self._runs.pop(told["run_id"], None)
        if run is not None and run.span is not None and self._engine.content:
            run.span.add_fact(names.TOOL_RESULT, self.shown(_plain(output)))
        self._finish(run)

    # --- retrievers ----------------------------------------------------------------------------------------
    def start_retriever(self, serialized: Any, query: str, **told: Any) -> None:
        """A retriever begins, and is current until it ends: it runs in one piece."""
        name = text(told.get("name")) or text(field(serialized, "name")) or "retriever"
        self._begin_current(told, lambda within: self.open_retrieval(name, query, within))

    def end_retriever(self, documents: Any, **told: Any) -> None:
        """A retriever has found documents."""
        run = self._runs.pop(told["run_id"], None)
        if run is not None and run.span is not None:
            found = [(text(field(each, "id")), field(each, "page_content")) for each in items(documents)]
            self.found(run.span, [(identifier, text(words) or "") for identifier, words in found])
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
        self._begin_current(told, lambda within: self.open_model(kept, name, within))

    def take_token(self, token: Any, **told: Any) -> None:
        """A model streams."""
        run = self._runs.get(told["run_id"])
        if run is None or run.span is None:
            return
        run.leave()
        if run.stream is None:
            run.stream = self.follow(run.span)
        run.stream.take(token)

    def note_event(self, event: Any, **told: Any) -> None:
        """A model streams in events: its client's call has been made."""
        run = self._runs.get(told["run_id"])
        if run is not None:
            run.leave()

    def end_model(self, response: Any, **told: Any) -> None:
        """A model has answered; an answer from LangChain's cache was nobody's call."""
        run = self._runs.pop(told["run_id"], None)
        if run is None or run.span is None:
            return
        run.leave()
        if models.was_cached(response):
            self._engine.discard(run.span)
        elif run.stream is not None:
            run.stream.chunks.append(End(response))
            run.stream.close("complete")
        else:
            self.answered(run.span, response)

    def fail_model(self, error: BaseException, **told: Any) -> None:
        """A model has raised, or its stream was left."""
        run = self._runs.pop(told["run_id"], None)
        if run is None or run.span is None:
            return
        run.leave()
        if run.stream is None and not isinstance(error, GeneratorExit | asyncio.CancelledError):
            self.failed(run.span, type_name(error))
        else:
            (run.stream or self.follow(run.span)).fail(error)


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
    return parent is not None and parent.attribute(names.AGENT_NAME) == agent


def _plain(output: Any) -> Any:
    """What a tool has given back, without the message around it."""
    content = getattr(output, "content", None)
    return output if content is None else content

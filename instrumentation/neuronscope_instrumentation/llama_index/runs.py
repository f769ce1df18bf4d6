"""LlamaIndex's calls as spans, by the ids that it gives them."""

from __future__ import annotations

import asyncio
import inspect
import sys
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from neuronscope.engine import runs as framework
from neuronscope.engine.invocation import type_name
from neuronscope.engine.layering import Waiting
from neuronscope.engine.runs import Opened
from neuronscope.instrumentation import Endpoint
from neuronscope.signals import names
from neuronscope_instrumentation.common.fields import field, items, number, text
from neuronscope_instrumentation.llama_index import models
from neuronscope_instrumentation.llama_index.models import CHAT, COMPLETION, EMBEDDINGS, End

if TYPE_CHECKING:
    from neuronscope.engine import Engine
    from neuronscope.engine.span import LightSpan

LIBRARY: Final = "neuronscope.llama_index"
SITE: Final = "llama_index"


def _agent_name(workflow: Any) -> str | None:
    """Its name, if the workflow is one agent; of several it is a workflow."""
    module = sys.modules.get("llama_index.core.agent.workflow.base_agent")
    kind = getattr(module, "BaseWorkflowAgent", None)
    return text(workflow.name) if kind is not None and isinstance(workflow, kind) else None


@dataclass(slots=True, kw_only=True)
class Run(framework.Run):
    """One call of LlamaIndex's.

    Attributes:
        span: its span.
        endpoint: of a model's or an embedder's call; None for others.
        waiting: tells of clients' calls made while its stream is read.
        dropped: notices that the stream was thrown away.
        steps: is it a workflow whose steps have spans?
    """

    span: LightSpan
    endpoint: Endpoint | None = None
    waiting: Waiting | None = None
    dropped: weakref.ref[Any] | None = None
    steps: bool = False


class Runs(framework.Runs[Run]):
    """LlamaIndex's calls and events."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine, LIBRARY, SITE)

    # --- beginnings ----------------------------------------------------------------------------------
    def start_workflow(self, id_: str, engine: Any, arguments: Mapping[str, Any], method: str) -> None:
        """A query engine or a chat engine."""
        name = type(engine).__name__
        attributes = {names.OPERATION_NAME: "invoke_workflow", names.WORKFLOW_NAME: name}
        self._enter(id_, self.open_span(f"invoke_workflow {name}", attributes))

    def start_events(self, id_: str, workflow: Any, arguments: Mapping[str, Any], method: str) -> None:
        """An event-driven workflow, or an agent, which is one; steps that the service wrote have spans."""
        agent = _agent_name(workflow)
        name = agent or type(workflow).__name__
        operation = "invoke_workflow" if agent is None else "invoke_agent"
        attributes: dict[str, Any] = {
            names.OPERATION_NAME: operation,
            (names.WORKFLOW_NAME if agent is None else names.AGENT_NAME): name,
        }
        run = self._enter(id_, self.open_span(f"{operation} {name}", attributes))
        if run is not None:
            run.steps = not type(workflow).__module__.startswith("llama_index.")

    def start_step(self, id_: str, workflow: str, name: str) -> None:
        """A step of the workflow that has this id."""
        run = self._runs.get(workflow)
        if run is not None and run.steps:
            self._enter(id_, self.open_span(f"step {name}", {names.WORKFLOW_STEP: name}, run.context))

    def start_retriever(self, id_: str, retriever: Any, arguments: Mapping[str, Any], method: str) -> None:
        """A retriever."""
        query = arguments.get("str_or_query_bundle")
        asked = query if isinstance(query, str) else text(field(query, "query_str"))
        self._enter(id_, self.open_retrieval(type(retriever).__name__, asked))

    def start_tool(self, id_: str, tool: Any, arguments: Mapping[str, Any], method: str) -> None:
        """A tool."""
        name = text(field(field(tool, "metadata"), "name")) or type(tool).__name__
        self._enter(id_, self.open_tool(name, dict(arguments)))

    def start_model(self, id_: str, model: Any, arguments: Mapping[str, Any], method: str) -> None:
        """A model: it waits for a client's call."""
        self._wait(id_, CHAT if method.endswith("chat") else COMPLETION, model, arguments, method)

    def start_embedding(self, id_: str, model: Any, arguments: Mapping[str, Any], method: str) -> None:
        """An embedder."""
        self._wait(id_, EMBEDDINGS, model, arguments, method)

    def _wait(
        self, id_: str, endpoint: Endpoint, model: Any, arguments: Mapping[str, Any], method: str
    ) -> None:
        kept = models.snapshot(endpoint, model, arguments, self._engine.content)
        run = self._enter(id_, self.open_model(kept, method))
        if run is not None:
            run.endpoint = endpoint

    def _enter(self, id_: str, opened: Opened | None) -> Run | None:
        if opened is None:
            return None
        span, context = opened
        run = Run(context, span=span)
        run.enter()
        self._runs[id_] = run
        return run

    # --- ends ----------------------------------------------------------------------------------------
    def end(self, id_: str, result: Any) -> None:
        """A method has returned: a result, or a stream that is told by events from now on."""
        run = self._runs.get(id_)
        if run is None:
            return
        run.leave()
        if run.endpoint is not None and (inspect.isgenerator(result) or inspect.isasyncgen(result)):
            self._follow(id_, run, result)
            return
        self._runs.pop(id_, None)
        if run.endpoint is not None:
            self.answered(run.span, models.width(result) if run.endpoint is EMBEDDINGS else result)
        else:
            self._tell(run.span, result)
            self._engine.finish(run.span)

    def _tell(self, span: LightSpan, result: Any) -> None:
        """What a retriever has found or a tool has answered."""
        operation = (span.own or {}).get(names.OPERATION_NAME)
        if operation == "retrieval":
            found = items(result)
            scores = [score for each in found if (score := number(field(each, "score"))) is not None]
            texts = [(str(field(each, "node_id")), text(field(each, "text")) or "") for each in found]
            self.found(span, texts, scores)
        elif operation == "execute_tool" and self._engine.content:
            span.add_fact(names.TOOL_RESULT, str(result))

    def fail(self, id_: str, error: BaseException | None) -> None:
        """A method has raised."""
        run = self._runs.pop(id_, None)
        if run is None:
            return
        run.leave()
        self.failed(run.span, type_name(error) if error is not None else "_OTHER")

    # --- streams -------------------------------------------------------------------------------------
    def _follow(self, id_: str, run: Run, stream: Any) -> None:
        """A model's call has returned a stream; often its client's call is made when that is read first."""
        run.stream = self.follow(run.span)
        if run.span.layer is not None:
            run.waiting = Waiting(run.span.layer)
        # Dropped unread, it has no event to tell that; its state notices.
        run.dropped = weakref.ref(stream, lambda _: self._drop(id_))

    def _drop(self, id_: str) -> None:
        run = self._runs.pop(id_, None)
        if run is not None and run.waiting is not None:
            run.waiting.stop()

    def take_chunk(self, id_: str, event: Any) -> None:
        """A chunk is on its way to the service."""
        run = self._runs.get(id_)
        if run is not None and run.stream is not None:
            self._hear(run)
            run.stream.take(field(field(event, "response"), "delta") or "")

    def end_stream(self, id_: str, event: Any) -> None:
        """A stream is over; of calls that don't stream, their return tells more."""
        run = self._runs.get(id_)
        if run is not None and run.stream is not None:
            self._runs.pop(id_, None)
            self._hear(run)
            run.stream.chunks.append(End(field(event, "response")))
            run.stream.close("complete")

    def fail_stream(self, id_: str, event: Any) -> None:
        """A stream has raised, or was left."""
        run = self._runs.get(id_)
        if run is not None and run.stream is not None:
            self._runs.pop(id_, None)
            self._hear(run)
            error = field(event, "exception")
            if isinstance(error, asyncio.CancelledError | GeneratorExit | Exception):
                run.stream.fail(error)
            else:
                run.stream.close("error")

    @staticmethod
    def _hear(run: Run) -> None:
        waiting, run.waiting = run.waiting, None
        if waiting is not None:
            waiting.hear()

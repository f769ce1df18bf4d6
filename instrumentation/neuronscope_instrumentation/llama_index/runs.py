"""LlamaIndex's calls as spans, by the ids that it gives them."""

from __future__ import annotations

import asyncio
import inspect
import sys
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as otel_context
from opentelemetry.trace import SpanKind

from neuronscope.engine.fit import fit_json
from neuronscope.engine.invocation import type_name
from neuronscope.engine.layering import Waiting
from neuronscope.engine.streams import StreamState
from neuronscope.instrumentation import Endpoint, ErrorFacts
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


@dataclass(slots=True)
class Run:
    """One call of LlamaIndex's that is not over.

    Attributes:
        span: its span.
        context: in which it runs.
        before: what was current before.
        endpoint: of a model's or an embedder's call; None for others.
        stream: of a model's call that has returned a stream.
        waiting: tells of clients' calls made while that is read.
        dropped: notices that the stream was thrown away.
        steps: is it a workflow whose steps have spans?
    """

    span: LightSpan
    context: otel_context.Context
    before: otel_context.Context | None
    endpoint: Endpoint | None = None
    stream: StreamState | None = None
    waiting: Waiting | None = None
    dropped: weakref.ref[Any] | None = None
    steps: bool = False


class Runs:
    """All calls that are not over.  Thread-safe by the GIL's atomic dict operations.

    Attributes:
        active: False once the adapter is uninstalled.
    """

    def __init__(self, engine: Engine) -> None:
        self.active = True
        self._engine = engine
        self._runs: dict[str, Run] = {}

    # --- beginnings ----------------------------------------------------------------------------------
    def start_workflow(self, id_: str, engine: Any, arguments: Mapping[str, Any], method: str) -> None:
        """A query engine or a chat engine."""
        name = type(engine).__name__
        attributes = {names.OPERATION_NAME: "invoke_workflow", names.WORKFLOW_NAME: name}
        self._open(id_, f"invoke_workflow {name}", SpanKind.INTERNAL, attributes)

    def start_events(self, id_: str, workflow: Any, arguments: Mapping[str, Any], method: str) -> None:
        """An event-driven workflow, or an agent, which is one; steps that the service wrote have spans."""
        agent = _agent_name(workflow)
        name = agent or type(workflow).__name__
        operation = "invoke_workflow" if agent is None else "invoke_agent"
        attributes: dict[str, Any] = {
            names.OPERATION_NAME: operation,
            (names.WORKFLOW_NAME if agent is None else names.AGENT_NAME): name,
        }
        self._open(id_, f"{operation} {name}", SpanKind.INTERNAL, attributes)
        run = self._runs.get(id_)
        if run is not None:
            run.steps = not type(workflow).__module__.startswith("llama_index.")

    def start_step(self, id_: str, workflow: str, name: str) -> None:
        """A step of the workflow that has this id."""
        run = self._runs.get(workflow)
        if run is not None and run.steps:
            self._open(id_, f"step {name}", SpanKind.INTERNAL, {names.WORKFLOW_STEP: name}, run.context)

    def start_retriever(self, id_: str, retriever: Any, arguments: Mapping[str, Any], method: str) -> None:
        """A retriever."""
        name = type(retriever).__name__
        attributes: dict[str, Any] = {names.OPERATION_NAME: "retrieval", names.DATA_SOURCE_ID: name}
        if self._engine.content:
            query = arguments.get("str_or_query_bundle")
            asked = query if isinstance(query, str) else text(field(query, "query_str"))
            if asked:
                attributes[names.RETRIEVAL_QUERY_TEXT] = asked
        self._open(id_, f"retrieval {name}", SpanKind.CLIENT, attributes)

    def start_tool(self, id_: str, tool: Any, arguments: Mapping[str, Any], method: str) -> None:
        """A tool."""
        name = text(field(field(tool, "metadata"), "name")) or type(tool).__name__
        attributes: dict[str, Any] = {
            names.OPERATION_NAME: "execute_tool",
            names.TOOL_NAME: name,
            names.TOOL_TYPE: "function",
        }
        if self._engine.content:
            attributes[names.TOOL_ARGUMENTS] = self._json(dict(arguments))
        self._open(id_, f"execute_tool {name}", SpanKind.INTERNAL, attributes)

    def _open(
        self,
        id_: str,
        name: str,
        kind: SpanKind,
        attributes: dict[str, Any],
        within: otel_context.Context | None = None,
    ) -> None:
        opened = self._engine.open_span(name, kind, LIBRARY, attributes, nested=True, within=within)
        if opened is not None:
            self._enter(id_, Run(*opened, before=None))

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
        opened = self._engine.open_layer(kept, method, LIBRARY)
        if opened is not None:
            self._enter(id_, Run(*opened, before=None, endpoint=endpoint))

    def _enter(self, id_: str, run: Run) -> None:
        run.before = otel_context.get_current()
        otel_context.attach(run.context)
        self._runs[id_] = run

    @staticmethod
    def _leave(run: Run) -> None:
        before, run.before = run.before, None
        if before is not None and otel_context.get_current() is run.context:
            otel_context.attach(before)

    # --- ends ----------------------------------------------------------------------------------------
    def end(self, id_: str, result: Any) -> None:
        """A method has returned: a result, or a stream that is told by events from now on."""
        run = self._runs.get(id_)
        if run is None:
            return
        self._leave(run)
        if run.endpoint is not None and (inspect.isgenerator(result) or inspect.isasyncgen(result)):
            self._follow(id_, run, result)
            return
        self._runs.pop(id_, None)
        if run.endpoint is not None:
            assert run.span.call is not None
            run.span.call.result = models.width(result) if run.endpoint is EMBEDDINGS else result
        else:
            self._tell(run, result)
        self._engine.finish(run.span)

    def _tell(self, run: Run, result: Any) -> None:
        """What a retriever has found or a tool has answered."""
        operation = (run.span.own or {}).get(names.OPERATION_NAME)
        if operation == "retrieval":
            found = items(result)
            run.span.add_fact(names.DOCUMENTS_RETURNED, len(found))
            run.span.add_fact(names.RETRIEVAL_IDS, [str(field(each, "node_id")) for each in found])
            scores = [score for each in found if (score := number(field(each, "score"))) is not None]
            if scores and len(scores) == len(found):
                run.span.add_fact(names.RETRIEVAL_SCORES, scores)
            if self._engine.content:
                documents = [
                    {"id": str(field(each, "node_id")), "content": text(field(each, "text")) or ""}
                    for each in found
                ]
                run.span.add_fact(names.RETRIEVAL_DOCUMENTS, self._json(documents))
        elif operation == "execute_tool" and self._engine.content:
            run.span.add_fact(names.TOOL_RESULT, str(result))

    def fail(self, id_: str, error: BaseException | None) -> None:
        """A method has raised."""
        run = self._runs.pop(id_, None)
        if run is None:
            return
        self._leave(run)
        kind = type_name(error) if error is not None else "_OTHER"
        if run.endpoint is not None:
            assert run.span.call is not None
            run.span.call.error = ErrorFacts(kind)
        else:
            run.span.add_fact(names.ERROR_TYPE, kind)
        self._engine.finish(run.span)

    def _json(self, value: Any) -> str:
        return fit_json(value, self._engine.settings.attribute_max_length)[0]

    # --- streams -------------------------------------------------------------------------------------
    def _follow(self, id_: str, run: Run, stream: Any) -> None:
        """A model's call has returned a stream; often its client's call is made when that is read first."""
        call, engine, span = run.span.call, self._engine, run.span
        assert call is not None

        def finish(state: StreamState, error: BaseException | None) -> None:
            call.stream = state
            if error is not None:
                call.error = ErrorFacts(type_name(error))
            engine.finish(span)

        later = engine.later if span.foreign is None else None
        run.stream = StreamState(call.snapshot.endpoint, SITE, engine.content, finish, later)
        if span.layer is not None:
            run.waiting = Waiting(span.layer)
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

"""The two handlers: LlamaIndex's words into ours.  Imports LlamaIndex, and is imported after it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.base.llms.base import BaseLLM
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.exception import ExceptionEvent
from llama_index.core.instrumentation.events.llm import (
    LLMChatEndEvent,
    LLMChatInProgressEvent,
    LLMCompletionEndEvent,
    LLMCompletionInProgressEvent,
)
from llama_index.core.instrumentation.span import BaseSpan
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.tools.types import BaseTool
from llama_index.core.workflow import Workflow

from neuronscope.engine.guard import GUARD
from neuronscope_instrumentation.llama_index.models import SUBJECT
from neuronscope_instrumentation.llama_index.runs import SITE, Runs

Start = Callable[[Runs, str, Any, Any, str], None]
# What a class's methods are; those of the last two wait for a client's call.
_QUERIES = {"query", "aquery"}
_CHATS = {"chat", "achat", "stream_chat", "astream_chat"}
_LLM = _CHATS | {"complete", "acomplete", "stream_complete", "astream_complete"}
_EMBEDDINGS = {
    f"{prefix}get_{what}"
    for prefix in ("", "a")
    for what in ("query_embedding", "text_embedding", "text_embedding_batch")
}
_KINDS: tuple[tuple[type, set[str], Start], ...] = (
    (BaseQueryEngine, _QUERIES, Runs.start_workflow),
    (BaseChatEngine, _CHATS, Runs.start_workflow),
    (BaseRetriever, {"retrieve", "aretrieve"}, Runs.start_retriever),
    (BaseTool, {"call", "acall"}, Runs.start_tool),
    (BaseLLM, _LLM, Runs.start_model),
    (BaseEmbedding, _EMBEDDINGS, Runs.start_embedding),
    (Workflow, {"run"}, Runs.start_events),
)


def make_handlers(runs: Runs) -> tuple[BaseSpanHandler[BaseSpan], BaseEventHandler]:
    """Handlers that report to `runs`; they never raise (LlamaIndex would swallow it) and keep nothing."""

    class NeuronScopeSpans(BaseSpanHandler[BaseSpan]):
        def span_enter(
            self,
            id_: str,
            bound_args: inspect.BoundArguments,
            instance: Any = None,
            parent_id: str | None = None,
            tags: Any = None,
            **kwargs: Any,
        ) -> None:
            if runs.active:
                GUARD.call(SITE, _start, runs, id_, bound_args, instance, parent_id)

        def span_exit(
            self, id_: str, bound_args: Any, instance: Any = None, result: Any = None, **kwargs: Any
        ) -> None:
            GUARD.call(SITE, runs.end, id_, result)

        def span_drop(
            self,
            id_: str,
            bound_args: Any,
            instance: Any = None,
            err: BaseException | None = None,
            **kwargs: Any,
        ) -> None:
            GUARD.call(SITE, runs.fail, id_, err)

        def new_span(self, *_: Any, **__: Any) -> None:
            """Never called: the three methods above are all that the dispatcher knows."""

        def prepare_to_exit_span(self, *_: Any, **__: Any) -> None:
            """As above."""

        def prepare_to_drop_span(self, *_: Any, **__: Any) -> None:
            """As above."""

    class NeuronScopeEvents(BaseEventHandler):
        def handle(self, event: BaseEvent, **kwargs: Any) -> None:
            told = _EVENTS.get(type(event))
            if told is not None and event.span_id is not None:
                GUARD.call(SITE, told, runs, event.span_id, event)

    return NeuronScopeSpans(), NeuronScopeEvents()


def _start(runs: Runs, id_: str, bound: inspect.BoundArguments, instance: Any, parent_id: str | None) -> None:
    method = id_.partition("-")[0].rpartition(".")[2]
    for kind, methods, start in _KINDS:
        if method in methods and isinstance(instance, kind):
            start(runs, id_, instance, _by_name(bound.arguments), method)
            return
    # A step is a function of a workflow's, and told without it.
    if parent_id is not None and (instance is None or isinstance(instance, Workflow)):
        runs.start_step(id_, parent_id, method)


def _by_name(bound: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments by name; what a decorator has taken as ``*args`` begins with what it is about."""
    arguments = dict(bound)
    rest = arguments.pop("args", ())
    arguments.update(arguments.pop("kwargs", {}))
    return {SUBJECT: rest[0], **arguments} if rest else arguments


_EVENTS: dict[type, Callable[[Runs, str, Any], None]] = {
    LLMChatInProgressEvent: Runs.take_chunk,
    LLMCompletionInProgressEvent: Runs.take_chunk,
    LLMChatEndEvent: Runs.end_stream,
    LLMCompletionEndEvent: Runs.end_stream,
    ExceptionEvent: Runs.fail_stream,
}

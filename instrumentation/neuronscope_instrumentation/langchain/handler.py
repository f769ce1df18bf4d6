"""The callback handler: LangChain's words into ours.  Imports LangChain, and is imported after it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler

from neuronscope.engine.guard import GUARD
from neuronscope_instrumentation.langchain.runs import SITE, Runs


def make_handler(runs: Runs) -> BaseCallbackHandler:
    """A handler that reports to `runs`; it never raises, and runs in the caller's own context."""

    class NeuronScope(BaseCallbackHandler):
        run_inline = True
        raise_error = GUARD.reraise  # our own tests

        def __copy__(self) -> NeuronScope:
            return self

        def __deepcopy__(self, memo: Any) -> NeuronScope:
            return self

    for name, method in _METHODS.items():
        setattr(NeuronScope, name, _guarded(runs, name, method))
    return NeuronScope()


def _guarded(runs: Runs, name: str, method: Callable[..., None]) -> Callable[..., None]:
    def callback(_: Any, *args: Any, **kwargs: Any) -> None:
        if runs.active:
            GUARD.call(SITE, lambda: method(runs, *args, **kwargs))

    callback.__name__ = name
    return callback


_METHODS: dict[str, Callable[..., None]] = {
    "on_chain_start": Runs.start_chain,
    "on_chain_end": Runs.end,
    "on_chain_error": Runs.fail,
    "on_tool_start": Runs.start_tool,
    "on_tool_end": Runs.end_tool,
    "on_tool_error": Runs.fail,
    "on_retriever_start": Runs.start_retriever,
    "on_retriever_end": Runs.end_retriever,
    "on_retriever_error": Runs.fail,
    "on_chat_model_start": Runs.start_chat,
    "on_llm_start": Runs.start_completion,
    "on_llm_new_token": Runs.take_token,
    "on_stream_event": Runs.note_event,
    "on_llm_end": Runs.end_model,
    "on_llm_error": Runs.fail_model,
}

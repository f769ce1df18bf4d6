"""LangChain, through its own callbacks: chains, agents, retrievers and tools as parents of the leaf spans.

A callback handler is registered by LangChain's public hook, so that every run has it and no code changes.  It
opens and ends spans; what makes them *current* is the context that LangChain makes for each child run, never
the service's own: a chain that streams holds nothing across a `yield`.

A chat model's span stands only where no client's call was observed beneath it (`engine.layering`): tokens are
billed at the leaf.  Of nested chains only the outermost is a span, and agents, and nodes of LangGraph: these
are chains whose metadata tells it.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from neuronscope.engine.guard import GUARD
from neuronscope.instrumentation import ClientIntegration, Gap, Kind
from neuronscope_instrumentation.langchain.runs import SITE, Runs

if TYPE_CHECKING:
    from neuronscope.engine import Engine

_CONFIG: Final = "langchain_core.runnables.config"


def _install(engine: Engine, module_name: str) -> Callable[[], None]:
    """Register the handler, and put the spans of runs into the contexts of their children."""
    from neuronscope_instrumentation.langchain.handler import make_handler

    runs = Runs(engine)
    handler = make_handler(runs)
    context: Any = importlib.import_module("langchain_core.tracers.context")
    variable: ContextVar[Any] = ContextVar("neuronscope_langchain", default=handler)
    context.register_configure_hook(variable, inheritable=True)
    entry = context._configure_hooks[-1]
    restore = _follow_contexts(runs, sys.modules[module_name])

    def undo() -> None:
        runs.active = False
        if entry in context._configure_hooks:
            context._configure_hooks.remove(entry)
        restore()

    return undo


def _follow_contexts(runs: Runs, config: Any) -> Callable[[], None]:
    """Make the span of a run current in the copy of the context in which its children run."""
    original: Callable[..., Any] = config._set_config_context

    @functools.wraps(original)
    def set_config_context(child: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(child, *args, **kwargs)
        GUARD.call(SITE, runs.enter_child, child)
        return result

    config._set_config_context = set_config_context

    def undo() -> None:
        if vars(config).get("_set_config_context") is set_config_context:
            config._set_config_context = original

    return undo


_LEAF: Final = "no callback: told only by an observed client beneath"

LANGCHAIN: Final = ClientIntegration(
    name="langchain",
    requires="langchain-core>=0.3",
    kind=Kind.FRAMEWORK,
    modules=(_CONFIG,),
    gaps=tuple(
        Gap(f"langchain_core.embeddings.embeddings:Embeddings.{method}", _LEAF)
        for method in ("embed_documents", "embed_query")
    ),
    install=_install,
)

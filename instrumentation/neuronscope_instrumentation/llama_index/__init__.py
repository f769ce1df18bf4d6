"""LlamaIndex, through its dispatcher: query engines, retrievers and tools around the leaf spans.

A span handler and an event handler are added to the root dispatcher, which is LlamaIndex's public seam.  Its
spans are calls of methods, and are current for the time of such a call; what streams is told by events.

A model's span, an embedder's too, stands only where no client's call was observed beneath it
(`engine.layering`): tokens are billed at the leaf.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from neuronscope.instrumentation import ClientIntegration, Gap, Kind
from neuronscope_instrumentation.llama_index.runs import Runs

if TYPE_CHECKING:
    from neuronscope.engine import Engine


def _install(engine: Engine, module_name: str) -> Callable[[], None]:
    """Add the two handlers to the root dispatcher; the undo takes them away."""
    from neuronscope_instrumentation.llama_index.handlers import make_handlers

    runs = Runs(engine)
    spans, events = make_handlers(runs)
    root: Any = importlib.import_module("llama_index.core.instrumentation").root_dispatcher
    root.add_span_handler(spans)
    root.add_event_handler(events)

    def undo() -> None:
        runs.active = False
        for handlers, ours in ((root.span_handlers, spans), (root.event_handlers, events)):
            handlers[:] = [each for each in handlers if each is not ours]

    return undo


_LEAF: Final = "told only by an observed client beneath"

LLAMA_INDEX: Final = ClientIntegration(
    name="llama_index",
    requires="llama-index-core>=0.12",
    kind=Kind.FRAMEWORK,
    # The last of the modules that its own classes need: then all of them can be told apart.
    modules=("llama_index.core",),
    gaps=(
        *(
            Gap(f"llama_index.core.multi_modal_llms.base:MultiModalLLM.{method}", _LEAF)
            for method in ("chat", "complete", "stream_chat", "stream_complete")
        ),
        *(
            Gap(f"llama_index.core.embeddings.multi_modal_base:MultiModalEmbedding.get_image_{what}", _LEAF)
            for what in ("embedding", "embedding_batch")
        ),
        *(
            Gap(f"llama_index.core.base.embeddings.base_sparse:BaseSparseEmbedding.get_{what}", _LEAF)
            for what in ("query_embedding", "text_embedding", "text_embedding_batch")
        ),
    ),
    install=_install,
)

"""How services use LlamaIndex: a model that calls OpenAI's client, and an index of two documents."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import openai

from client_cases import CANARY
from neuronscope.testing import FakeOpenAI

llms: Any = import_module("llama_index.core.llms")
callbacks: Any = import_module("llama_index.core.llms.callbacks")
core: Any = import_module("llama_index.core")
tools: Any = import_module("llama_index.core.tools")
instrumentation: Any = import_module("llama_index.core.instrumentation")


def asks_openai(client: openai.OpenAI) -> Any:
    """A model of the service's own that calls the openai SDK, lazily where it streams."""
    asked: Any = {"model": "gpt-x", "messages": [{"role": "user", "content": CANARY}]}

    def complete(self: Any, prompt: str, formatted: bool = False, **_: Any) -> Any:
        create: Any = client.chat.completions.create
        answer: Any = create(**asked)
        return llms.CompletionResponse(text=answer.choices[0].message.content)

    def stream_complete(self: Any, prompt: str, formatted: bool = False, **_: Any) -> Any:
        def chunks() -> Iterator[Any]:
            said = ""
            for chunk in client.chat.completions.create(**asked, stream=True):
                delta = (chunk.choices[0].delta.content or "") if chunk.choices else ""
                said += delta
                yield llms.CompletionResponse(text=said, delta=delta)

        return chunks()

    members: dict[str, Any] = {
        "metadata": property(lambda _: llms.LLMMetadata(model_name="gpt-x")),
        "complete": callbacks.llm_completion_callback()(complete),
        "stream_complete": callbacks.llm_completion_callback()(stream_complete),
        "__module__": __name__,
    }
    return type("AsksOpenAI", (llms.CustomLLM,), members)()


def gpt(server: FakeOpenAI) -> Any:
    """A model whose calls the openai adapter observes."""
    return asks_openai(openai.OpenAI(base_url=server.base_url, api_key="k", max_retries=0))


def index() -> Any:
    """Two documents."""
    documents = [core.Document(text=CANARY, id_="d1"), core.Document(text="two", id_="d2")]
    return core.VectorStoreIndex.from_documents(documents, embed_model=core.MockEmbedding(embed_dim=4))

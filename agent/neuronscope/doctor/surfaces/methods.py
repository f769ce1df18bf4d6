"""Where each library has its public methods: what a `Surface` finds."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

from neuronscope.doctor.surfaces.surface import is_suspected, public, suspected


def modules(package: str, skip: str = "") -> Iterator[ModuleType]:
    """All modules below a package, imported; but for those whose name contains `skip`."""
    root = importlib.import_module(package)
    yield root
    for found in pkgutil.walk_packages(root.__path__, f"{package}."):
        if not skip or skip not in found.name:
            yield importlib.import_module(found.name)


def subclasses(base: type) -> Iterator[type]:
    """All subclasses, at any depth."""
    found: list[type] = base.__subclasses__()
    for each in found:
        yield each
        yield from subclasses(each)


def stainless(package: str) -> Iterator[str]:
    """Of an SDK that Stainless generates."""
    for _ in modules(f"{package}.resources"):
        pass
    resource = importlib.import_module(f"{package}._resource")
    for base in (resource.SyncAPIResource, resource.AsyncAPIResource):
        yield from suspected(subclasses(base))


def ollama() -> Iterator[str]:
    """Of the two clients."""
    client = importlib.import_module("ollama")
    yield from suspected((client.Client, client.AsyncClient))


def mistral() -> Iterator[str]:
    """Of all parts of the SDK."""
    for _ in modules("mistralai.client", skip="mistralai.client.models."):
        pass
    yield from suspected(subclasses(importlib.import_module("mistralai.client.basesdk").BaseSDK))


def cohere() -> Iterator[str]:
    """Of everything that is called a client."""
    for module in modules("cohere", skip="manually_maintained"):
        for name, cls in vars(module).items():
            if (
                inspect.isclass(cls)
                and name.endswith(("Client", "BaseCohere"))
                and cls.__module__ == module.__name__
            ):
                yield from suspected([cls])


def google() -> Iterator[str]:
    """Of the modules with a model behind them."""
    for name in ("batches", "caches", "chats", "files", "live", "models", "tunings", "operations"):
        module = importlib.import_module(f"google.genai.{name}")
        yield from suspected(
            cls for _, cls in inspect.getmembers(module, inspect.isclass) if cls.__module__ == module.__name__
        )


def bedrock() -> Iterator[str]:
    """All operations of the two services that run models, as methods of the clients that botocore makes."""
    core: Any = importlib.import_module("botocore")
    session = importlib.import_module("botocore.session").get_session()
    for service in ("bedrock-runtime", "bedrock-agent-runtime"):
        model = session.get_service_model(service)
        owner = "".join(part.capitalize() for part in service.split("-"))
        for operation in model.operation_names:
            yield f"botocore.client:{owner}.{core.xform_name(operation)}"


# Modules of LiteLLM whose decorated functions call models.
_LITELLM: Final = (
    "decisions.main",
    "extraction.main",
    "google_genai.main",
    "images.main",
    "llms.anthropic.messages.native.handler",
    "main",
    "rag.main",
    "rerank_api.main",
    "responses.main",
    "systemone.main",
    "videos.main",
)


def litellm() -> Iterator[str]:
    """Functions inside LiteLLM's own decorator."""
    for part in _LITELLM:
        name = f"litellm.{part}"
        for function, value in public(vars(importlib.import_module(name))):
            if "original_function" in value.__code__.co_freevars and is_suspected(function, value):
                yield f"{name}:{function}"


def langchain() -> Iterator[str]:
    """Callbacks, all of them; and what LangChain has of models that no callback tells of."""
    handler = importlib.import_module("langchain_core.callbacks").BaseCallbackHandler
    for name in dir(handler):
        if name.startswith("on_"):
            yield f"{handler.__module__}:{handler.__name__}.{name}"
    yield from suspected([importlib.import_module("langchain_core.embeddings").Embeddings])


# LlamaIndex's base classes that stand for a model, or for what calls one.
_LLAMA_INDEX: Final = (
    "base.base_query_engine:BaseQueryEngine",
    "base.base_retriever:BaseRetriever",
    "base.base_selector:BaseSelector",
    "base.embeddings.base:BaseEmbedding",
    "base.embeddings.base_sparse:BaseSparseEmbedding",
    "base.llms.base:BaseLLM",
    "chat_engine.types:BaseChatEngine",
    "embeddings.multi_modal_base:MultiModalEmbedding",
    "evaluation.base:BaseEvaluator",
    "llms.function_calling:FunctionCallingLLM",
    "llms.llm:LLM",
    "multi_modal_llms.base:MultiModalLLM",
    "postprocessor.types:BaseNodePostprocessor",
    "response_synthesizers.base:BaseSynthesizer",
    "tools.types:AsyncBaseTool",
)


def llama_index() -> Iterator[str]:
    """Methods of the base classes, but for those that are evidently about something else."""
    for target in _LLAMA_INDEX:
        module, _, name = target.partition(":")
        cls: type = getattr(importlib.import_module(f"llama_index.core.{module}"), name)
        for method, _function in public(vars(cls)):
            yield f"{cls.__module__}:{name}.{method}"


def sentence_transformers() -> Iterator[str]:
    """Of all kinds of models that the installed release has."""
    library = importlib.import_module("sentence_transformers")
    kinds = (kind for _, kind in inspect.getmembers(library, inspect.isclass))
    yield from suspected(kind for kind in kinds if hasattr(kind, "start_multi_process_pool"))


def vllm() -> Iterator[str]:
    """Of the two engines, with what they inherit."""
    offline: type = importlib.import_module("vllm.entrypoints.llm").LLM
    engine: type = importlib.import_module("vllm.v1.engine.async_llm").AsyncLLM
    for cls in (offline, engine):
        for name, function in inspect.getmembers(cls, inspect.isfunction):
            if not name.startswith("_") and is_suspected(name, function):
                yield f"{cls.__module__}:{cls.__name__}.{name}"

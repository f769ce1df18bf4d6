"""How adapters are found: a lazy built-in table, entry points for outsiders, and `register_adapter`.

The table holds strings, so that `neuronscope` imports no adapter, and no adapter its library, before it
is needed.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Final, cast

from neuronscope.exceptions import AdapterNotFoundError, ConfigError
from neuronscope.instrumentation import BackendAdapter, ClientIntegration, PreparingBackend
from neuronscope.instrumentation.families import ClientFamily

__all__ = ["client", "client_names", "register_adapter", "unregister_adapter"]


@dataclass(frozen=True, slots=True)
class Entry:
    """Where an adapter is.

    Attributes:
        target: ``"module:OBJECT"``.
        distribution: what it observes, as installed by pip.
        extra: NeuronScope's extra that installs it.
        on_request: ``"all"`` leaves it out: it is observed only where it is named.
    """

    target: str
    distribution: str
    extra: str | None = None
    on_request: bool = False

    def load(self) -> Any:
        """Import the adapter."""
        module, _, name = self.target.partition(":")
        return getattr(importlib.import_module(module), name)


CLIENTS: Final[dict[str, Entry]] = {
    "uvicorn": Entry("neuronscope_instrumentation.asgi:UVICORN", "uvicorn", "server"),
    "openai": Entry("neuronscope_instrumentation.openai:OPENAI", "openai", "openai"),
    "anthropic": Entry("neuronscope_instrumentation.anthropic:ANTHROPIC", "anthropic", "anthropic"),
    "ollama": Entry("neuronscope_instrumentation.ollama:OLLAMA", "ollama", "ollama"),
    "mistral": Entry("neuronscope_instrumentation.mistral:MISTRAL", "mistralai", "mistral"),
    "cohere": Entry("neuronscope_instrumentation.cohere:COHERE", "cohere", "cohere"),
    "google_genai": Entry(
        "neuronscope_instrumentation.google_genai:GOOGLE_GENAI", "google-genai", "google-genai"
    ),
    "bedrock": Entry("neuronscope_instrumentation.bedrock:BEDROCK", "botocore", "bedrock"),
    "langchain": Entry("neuronscope_instrumentation.langchain:LANGCHAIN", "langchain-core", "langchain"),
    "llama_index": Entry(
        "neuronscope_instrumentation.llama_index:LLAMA_INDEX", "llama-index-core", "llama-index"
    ),
    "vllm": Entry("neuronscope_instrumentation.vllm:VLLM", "vllm", "vllm"),
    "litellm": Entry("neuronscope_instrumentation.litellm:LITELLM", "litellm", "litellm"),
    "qdrant": Entry("neuronscope_instrumentation.qdrant:QDRANT", "qdrant-client", "qdrant"),
    "pinecone": Entry("neuronscope_instrumentation.pinecone:PINECONE", "pinecone", "pinecone"),
    "chroma": Entry("neuronscope_instrumentation.chroma:CHROMA", "chromadb", "chroma"),
    "weaviate": Entry("neuronscope_instrumentation.weaviate:WEAVIATE", "weaviate-client", "weaviate"),
    "pgvector": Entry("neuronscope_instrumentation.pgvector:PGVECTOR", "psycopg", "pgvector"),
    "faiss": Entry("neuronscope_instrumentation.faiss:FAISS", "faiss-cpu", "faiss"),
    "milvus": Entry("neuronscope_instrumentation.milvus:MILVUS", "pymilvus", "milvus"),
    "lancedb": Entry("neuronscope_instrumentation.lancedb:LANCEDB", "lancedb", "lancedb"),
    "redis": Entry("neuronscope_instrumentation.redis:REDIS", "redis", "redis"),
    "elasticsearch": Entry(
        "neuronscope_instrumentation.elasticsearch:ELASTICSEARCH", "elasticsearch", "elasticsearch"
    ),
    "opensearch": Entry("neuronscope_instrumentation.opensearch:OPENSEARCH", "opensearch-py", "opensearch"),
    "sentence_transformers": Entry(
        "neuronscope_instrumentation.sentence_transformers:SENTENCE_TRANSFORMERS",
        "sentence-transformers",
        "sentence-transformers",
    ),
    "transformers": Entry(
        "neuronscope_instrumentation.transformers:TRANSFORMERS", "transformers", "transformers"
    ),
    "continuous_batching": Entry(
        "neuronscope_instrumentation.transformers:BATCHING", "transformers", "transformers"
    ),
    "pipelines": Entry("neuronscope_instrumentation.transformers:PIPELINES", "transformers", "transformers"),
    "tokenizers": Entry(
        "neuronscope_instrumentation.transformers:TOKENIZERS", "transformers", "transformers", on_request=True
    ),
    "onnxruntime": Entry("neuronscope_instrumentation.onnxruntime:ONNXRUNTIME", "onnxruntime", "onnxruntime"),
    "keras": Entry("neuronscope_instrumentation.tf:KERAS", "keras", "tf"),
}
# In order of precedence, after what the user registered.
BACKENDS: Final[dict[str, Entry]] = {
    "tf": Entry("neuronscope_instrumentation.tf:ADAPTER", "keras", "tf"),  # on torch its layers are modules
    "torch": Entry("neuronscope_instrumentation.torch:ADAPTER", "torch", "torch"),
    "hf_transformers": Entry(  # adds to torch: taken by name, and for tokenizers
        "neuronscope_instrumentation.transformers:ADAPTER", "transformers", "transformers"
    ),
    "jax": Entry("neuronscope_instrumentation.jax:ADAPTER", "jax", "jax"),
    "onnx": Entry("neuronscope_instrumentation.onnx:ADAPTER", "onnx", "onnx"),
    "onnxruntime": Entry("neuronscope_instrumentation.onnxruntime:ADAPTER", "onnxruntime", "onnxruntime"),
}
# Names for several client adapters at once, by what they observe.
FAMILIES: Final[dict[str, tuple[str, ...]]] = {
    "llm_api": (
        "openai", "anthropic", "google_genai", "mistral", "cohere", "bedrock", "ollama", "vllm", "litellm",
    ),
    "vector_store": (
        "qdrant", "pinecone", "chroma", "weaviate", "pgvector", "faiss", "milvus", "lancedb", "redis",
        "elasticsearch", "opensearch",
    ),
    "hf_transformers": ("transformers", "continuous_batching", "pipelines", "tokenizers"),
}  # fmt: skip
# Those that `Model.wrap` takes for clients; objects of the third are models, too.
CLIENT_FAMILIES: Final = ("llm_api", "vector_store")
ENTRY_POINT_GROUP: Final = "neuronscope.adapters"

_registered_clients: dict[str, ClientIntegration] = {}
_registered_backends: dict[str, BackendAdapter] = {}


def register_adapter(adapter: object) -> None:
    """Add an adapter of one's own, for models or for a library; it replaces a built-in one of its name.

    Raises:
        ConfigError: the object is neither a `ClientIntegration` nor a `BackendAdapter`.
    """
    if isinstance(adapter, ClientIntegration):
        _registered_clients[adapter.name] = adapter
    elif isinstance(adapter, BackendAdapter):
        _registered_backends[adapter.name] = adapter
    else:
        raise ConfigError(
            "an adapter must be a ns.ClientIntegration or have the methods of ns.BackendAdapter "
            f"(name, matches, list_layers, install_observer_hook, remove_hooks, fingerprint_model); got "
            f"{type(adapter).__name__}"
        )


def unregister_adapter(name: str) -> None:
    """Take back `register_adapter`; unknown names are ignored."""
    _registered_clients.pop(name, None)
    _registered_backends.pop(name, None)


def client_names() -> list[str]:
    """Names of all client integrations known, built-in ones first."""
    return list(dict.fromkeys([*CLIENTS, *_registered_clients, *_outside(ClientIntegration)]))


def members(names: Iterable[str]) -> list[str]:
    """These adapters' names, with families replaced by what is in them."""
    return [member for name in names for member in FAMILIES.get(name, (name,))]


def clients_for(obj: object) -> Iterator[ClientIntegration]:
    """Client integrations of the package that an object's class, or one of its bases, is from."""
    # A subclass of the user's own is handled by its base class's adapter.
    packages = {_package(base.__module__) for base in type(obj).__mro__} - {"builtins"}
    for name in client_names():
        integration = client(name)
        if any(_package(method.target.partition(":")[0]) in packages for method in integration.methods):
            yield integration


def _package(module: str) -> str:
    return module.partition(".")[0]


def client(name: str) -> ClientIntegration:
    """The client integration of that name.

    Raises:
        AdapterNotFoundError: there is none.
    """
    if name in _registered_clients:
        return _registered_clients[name]
    if name in CLIENTS:
        return cast(ClientIntegration, CLIENTS[name].load())
    found = _outside(ClientIntegration).get(name)
    if found is None:
        raise AdapterNotFoundError(
            f"no client adapter is called {name!r}. There are: {', '.join(client_names())}"
        )
    return cast(ClientIntegration, found)


def backends() -> Iterator[BackendAdapter]:
    """In order of precedence: the user's own, built-in runtimes, other packages', and those of clients."""
    yield from _registered_backends.values()
    for entry in BACKENDS.values():
        yield cast(BackendAdapter, entry.load())
    yield from cast("dict[str, BackendAdapter]", _outside(BackendAdapter)).values()
    for name in CLIENT_FAMILIES:
        yield ClientFamily(name, FAMILIES[name], clients_for)


def prepare_backends() -> None:
    """Load what the runtimes need to watch a model: now, not in a model's first call."""
    for backend in backends():
        if isinstance(backend, PreparingBackend):
            backend.prepare()


def backend_for(model: object, name: str | None = None) -> BackendAdapter:
    """The adapter that handles `model`; `name` asks for one in particular.

    Raises:
        AdapterNotFoundError: none matches, or none has that name.
    """
    known = list(backends())
    if name is not None:
        for adapter in known:
            if adapter.name == name:
                return adapter
        raise AdapterNotFoundError(
            f"no model adapter is called {name!r}. There are: {', '.join(a.name for a in known)}"
        )
    for adapter in known:
        if adapter.matches(model):
            return adapter
    observed = next((f"{integration.name!r}" for integration in clients_for(model)), None)
    if observed is not None:
        raise AdapterNotFoundError(
            f"a {type(model).__module__}.{type(model).__qualname__} is no model whose layers can be watched. "
            f"Calls of its library are observed: ns.instrument({observed})."
        )
    raise AdapterNotFoundError(
        f"no adapter handles a {type(model).__module__}.{type(model).__qualname__}. Tried: "
        f"{', '.join(adapter.name for adapter in known)}. Write one (ns.BackendAdapter) and pass it to "
        "ns.registry.register_adapter."
    )


def _outside(kind: type) -> dict[str, Any]:
    """Adapters that other installed packages bring by entry point."""
    found: dict[str, Any] = {}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        adapter = point.load()
        if isinstance(adapter, kind):
            found[point.name] = adapter
    return found


def __dir__() -> list[str]:
    return sorted(__all__)

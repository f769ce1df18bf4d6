"""What public methods the SDKs have that a model may work for, and what we say of each.

A method is *suspected* when it takes what models take (a model, messages, a prompt, a query …) or opens a
connection; every suspect must be covered by its adapter, declared a gap there, or be known bookkeeping.  So a
new release of an SDK that brings a new API makes a test of ours fail, by name, and `neuronscope doctor` tell.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import ModuleType
from typing import Any, Final

# Parameters that tell that a model is meant.
SUSPICIOUS: Final = frozenset(
    {
        "agent_id",
        "contents",
        "conversation_id",
        "document",
        "documents",
        "input",
        "inputs",
        "message",
        "messages",
        "model",
        "model_id",
        "prompt",
        "query",
        "text",
        "texts",
    }
)
OPENING: Final = frozenset({"connect", "parse", "parse_stream", "stream"})


@dataclass(frozen=True, kw_only=True)
class Surface:
    """The public methods of one SDK.

    Patterns are those of `fnmatch` over ``module:Class.method``, without the package's name.  Asynchronous
    twins (``AsyncThings``, ``method_async``) go by the name of the other.

    Attributes:
        name: the adapter's.
        package: what the targets leave out.
        classes: the classes that have them.
        covered: a span is made for these.
        bookkeeping: no model works for these, or none that is called by them.
    """

    name: str
    package: str
    classes: Callable[[], Iterable[type]]
    covered: tuple[str, ...]
    bookkeeping: tuple[str, ...]

    def suspects(self) -> set[str]:
        """Targets of all suspected methods."""
        return {
            f"{cls.__module__.removeprefix(f'{self.package}.')}:{_plain(cls.__name__)}.{name.removesuffix('_async')}"
            for cls in self.classes()
            for name, function in vars(cls).items()
            if not name.startswith("_") and inspect.isfunction(function) and _suspected(name, function)
        }

    def gap(self, target: str) -> str:
        """A gap's target as ours are."""
        module, _, path = target.removeprefix(f"{self.package}.").partition(":")
        owner, _, name = path.rpartition(".")
        return f"{module}:{_plain(owner)}.{name.removesuffix('_async')}"

    def unknown(self, gaps: Iterable[str]) -> set[str]:
        """Suspects that nobody has said anything about."""
        known = {self.gap(target) for target in gaps}
        patterns = (*self.covered, *self.bookkeeping)
        return {
            target
            for target in self.suspects()
            if target not in known and not any(fnmatchcase(target, pattern) for pattern in patterns)
        }

    def stale(self) -> set[str]:
        """Patterns that fit nothing any more."""
        suspects = self.suspects()
        return {
            pattern
            for pattern in (*self.covered, *self.bookkeeping)
            if not any(fnmatchcase(target, pattern) for target in suspects)
        }


def _plain(name: str) -> str:
    return name.removeprefix("Async")


def _suspected(name: str, function: Any) -> bool:
    return name in OPENING or not SUSPICIOUS.isdisjoint(inspect.signature(function).parameters)


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


def _stainless(package: str) -> Iterator[type]:
    for _ in modules(f"{package}.resources"):
        pass
    resource = importlib.import_module(f"{package}._resource")
    for base in (resource.SyncAPIResource, resource.AsyncAPIResource):
        yield from subclasses(base)


def _openai() -> Iterator[type]:
    return _stainless("openai")


def _anthropic() -> Iterator[type]:
    return _stainless("anthropic")


def _ollama() -> Iterator[type]:
    client = importlib.import_module("ollama")
    yield from (client.Client, client.AsyncClient)


def _mistral() -> Iterator[type]:
    for _ in modules("mistralai.client", skip="mistralai.client.models."):
        pass
    yield from subclasses(importlib.import_module("mistralai.client.basesdk").BaseSDK)


def _cohere() -> Iterator[type]:
    for module in modules("cohere", skip="manually_maintained"):
        for name, cls in vars(module).items():
            if (
                inspect.isclass(cls)
                and name.endswith(("Client", "BaseCohere"))
                and cls.__module__ == module.__name__
            ):
                yield cls


def _google() -> Iterator[type]:
    for name in ("batches", "caches", "chats", "files", "live", "models", "tunings", "operations"):
        module = importlib.import_module(f"google.genai.{name}")
        yield from (
            cls for _, cls in inspect.getmembers(module, inspect.isclass) if cls.__module__ == module.__name__
        )


_NO_MODEL: Final = ("*.list", "*.retrieve", "*.delete", "*.update", "*.get", "*.archive")
SURFACES: Final = (
    Surface(
        name="openai",
        package="openai.resources",
        classes=_openai,
        covered=(
            "audio.speech:Speech.create",
            "audio.transcriptions:Transcriptions.create",
            "audio.translations:Translations.create",
            "beta.responses.responses:Responses.compact",
            "beta.responses.responses:Responses.create",
            "chat.completions.completions:Completions.create",
            "chat.completions.completions:Completions.parse",
            "chat.completions.completions:Completions.stream",
            "completions:Completions.create",
            "decisions:Decisions.create",
            "embeddings:Embeddings.create",
            "images:Images.create_variation",
            "images:Images.edit",
            "images:Images.generate",
            "moderations:Moderations.create",
            "responses.responses:Responses.compact",
            "responses.responses:Responses.create",
            "responses.responses:Responses.parse",
            "responses.responses:Responses.stream",
            "vector_stores.vector_stores:VectorStores.search",
            "videos:Videos.create",
            "videos:Videos.create_and_poll",
            "videos:Videos.edit",
            "videos:Videos.extend",
            "videos:Videos.remix",
        ),
        bookkeeping=(
            *_NO_MODEL[:4],
            "audio.voices:Voices.create",
            "beta.agents.agents:Agents.create",
            "beta.assistants:Assistants.create",
            "beta.realtime.sessions:Sessions.create",
            "beta.responses.input_tokens:InputTokens.count",
            "beta.threads.threads:Threads.create",
            "conversations.items:Items.create",
            "fine_tuning.jobs.jobs:Jobs.create",
            "realtime.calls:Calls.accept",
            "responses.input_tokens:InputTokens.count",
        ),
    ),
    Surface(
        name="anthropic",
        package="anthropic.resources",
        classes=_anthropic,
        covered=tuple(
            f"*essages:Messages.{name}" for name in ("create", "parse", "stream", "thread", "tool_runner")
        ),
        bookkeeping=(
            "*.list",
            "*.retrieve",
            "*.update",
            "*.archive",
            "*essages:Messages.count_tokens",
            "beta.agents.agents:Agents.create",
        ),
    ),
    Surface(
        name="ollama",
        package="ollama",
        classes=_ollama,
        covered=tuple(f"_client:Client.{name}" for name in ("chat", "embed", "embeddings", "generate")),
        bookkeeping=tuple(
            f"_client:Client.{name}" for name in ("create", "delete", "pull", "push", "show", "web_search")
        ),
    ),
    Surface(
        name="mistral",
        package="mistralai.client",
        classes=_mistral,
        covered=(
            "agents:Agents.complete",
            "agents:Agents.stream",
            "chat:Chat.complete",
            "chat:Chat.parse",
            "chat:Chat.parse_stream",
            "chat:Chat.stream",
            "embeddings:Embeddings.create",
            "fim:Fim.complete",
            "fim:Fim.stream",
        ),
        bookkeeping=(
            "*.list",
            "*.delete",
            "*.update",
            "*.archive",
            "*.unarchive",
            "*.retrieve",
            "*.get",
            "audio_agents:*",
            "audio_sessions:*",
            "beta_agents:*",
            "context_search_indexes:*",
            "conversations:Conversations.get_history",
            "conversations:Conversations.get_messages",
            "executions:*",
            "jobs:Jobs.create",
            "responses:Responses.count_input_tokens",
            "voices:Voices.search",
            "workflows:*",
        ),
    ),
    Surface(
        name="cohere",
        package="cohere",
        classes=_cohere,
        covered=(
            "*base_client:*BaseCohere.chat",
            "*base_client:*BaseCohere.chat_stream",
            "*base_client:*BaseCohere.embed",
            "*base_client:*BaseCohere.generate",
            "*base_client:*BaseCohere.generate_stream",
            "*base_client:*BaseCohere.rerank",
            "client:Client.embed",
            "client:Client.embed_stream",
            "v2.*client:*V2Client.chat",
            "v2.*client:*V2Client.chat_stream",
            "v2.*client:*V2Client.embed",
            "v2.*client:*V2Client.rerank",
        ),
        bookkeeping=(
            "*.tokenize",
            "*.detokenize",
            "*.fetch_tokenizer",
            "*ModelsClient.get",
            "*EmbedJobsClient.create",
            "*raw_*client:Raw*",  # what the clients call
            "core.*",
            "bedrock_client:BedrockClient.rerank",  # tells that there is none
        ),
    ),
    Surface(
        name="google_genai",
        package="google.genai",
        classes=_google,
        covered=(
            "chats:Chat.send_message",
            "chats:Chat.send_message_stream",
            "models:Models.embed_content",
            "models:Models.generate_content",
            "models:Models.generate_content_stream",
        ),
        bookkeeping=(
            "*.get",
            "*.update",
            "*.delete",
            "caches:Caches.create",
            "chats:Chats.create",
            "live:Session.send*",
            "models:Models.compute_tokens",
            "models:Models.count_tokens",
        ),
    ),
)

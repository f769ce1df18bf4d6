"""The SDKs of providers: which of their methods have a span."""

from __future__ import annotations

from functools import partial
from typing import Final

from neuronscope.doctor.surfaces import methods
from neuronscope.doctor.surfaces.surface import Surface

_NO_MODEL: Final = ("*.list", "*.retrieve", "*.delete", "*.update", "*.get", "*.archive")
CLIENTS: Final = (
    Surface(
        name="openai",
        package="openai.resources",
        found=partial(methods.stainless, "openai"),
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
        found=partial(methods.stainless, "anthropic"),
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
        found=methods.ollama,
        covered=tuple(f"_client:Client.{name}" for name in ("chat", "embed", "embeddings", "generate")),
        bookkeeping=tuple(
            f"_client:Client.{name}" for name in ("create", "delete", "pull", "push", "show", "web_search")
        ),
    ),
    Surface(
        name="mistral",
        package="mistralai.client",
        found=methods.mistral,
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
        found=methods.cohere,
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
        found=methods.google,
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

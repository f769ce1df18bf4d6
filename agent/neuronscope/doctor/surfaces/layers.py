"""Cloud runtimes, layers over other clients, models in this process: which methods have a span."""

from __future__ import annotations

from typing import Final

from neuronscope.doctor.surfaces import methods
from neuronscope.doctor.surfaces.surface import Surface

LAYERS: Final = (
    Surface(
        name="bedrock",
        package="botocore.client",
        found=methods.bedrock,
        covered=(
            "BedrockRuntime.converse",
            "BedrockRuntime.converse_stream",
            "BedrockRuntime.invoke_model",
            "BedrockRuntime.invoke_model_with_response_stream",
            "BedrockRuntime.start_async_invoke",
        ),
        bookkeeping=(
            "BedrockRuntime.count_tokens",
            "BedrockRuntime.get_async_invoke",
            "BedrockRuntime.list_async_invokes",
            "BedrockAgentRuntime.check_*",
            "BedrockAgentRuntime.create_*",
            "BedrockAgentRuntime.delete_*",
            "BedrockAgentRuntime.end_*",
            "BedrockAgentRuntime.get_*",
            "BedrockAgentRuntime.list_*",
            "BedrockAgentRuntime.put_*",
            "BedrockAgentRuntime.stop_*",
            "BedrockAgentRuntime.*tag_resource",
            "BedrockAgentRuntime.update_*",
        ),
    ),
    Surface(
        name="langchain",
        package="langchain_core",
        found=methods.langchain,
        covered=(
            *(
                f"callbacks.base:BaseCallbackHandler.on_{what}_{when}"
                for what in ("chain", "llm", "retriever", "tool")
                for when in ("start", "end", "error")
            ),
            "callbacks.base:BaseCallbackHandler.on_chat_model_start",
            "callbacks.base:BaseCallbackHandler.on_llm_new_token",
            "callbacks.base:BaseCallbackHandler.on_stream_event",
        ),
        bookkeeping=(
            "callbacks.base:BaseCallbackHandler.on_agent_*",  # the agent is a chain
            "callbacks.base:BaseCallbackHandler.on_custom_event",
            "callbacks.base:BaseCallbackHandler.on_retry",  # each try is a run
            "callbacks.base:BaseCallbackHandler.on_text",
        ),
    ),
    Surface(
        name="litellm",
        package="litellm",
        found=methods.litellm,
        covered=(
            "main:completion",
            "main:embedding",
            "main:text_completion",  # through `completion`, or the client of OpenAI
            "rerank_api.main:rerank",
            "responses.main:responses",
        ),
        bookkeeping=(
            "rag.main:query",  # through `completion`
        ),
    ),
    Surface(
        name="llama_index",
        package="llama_index.core",
        found=methods.llama_index,
        covered=(
            "base.base_query_engine:BaseQueryEngine.query",
            "base.base_retriever:BaseRetriever.retrieve",
            "base.embeddings.base:BaseEmbedding.get_query_embedding",
            "base.embeddings.base:BaseEmbedding.get_text_embedding*",
            "base.llms.base:BaseLLM.*chat",
            "base.llms.base:BaseLLM.*complete",
            "chat_engine.types:BaseChatEngine.*chat",
            "tools.types:BaseTool.call",
        ),
        # What calls those.
        bookkeeping=(
            "base.base_query_engine:BaseQueryEngine.retrieve",
            "base.base_query_engine:BaseQueryEngine.synthesize",
            "base.base_selector:*",
            "base.embeddings.base:*.acall",
            "base.embeddings.base:*.check_base_embeddings_class",
            "base.embeddings.base_sparse:*.custom_model_dump",
            "base.embeddings.*:*.get_agg_embedding_from_queries",
            "base.embeddings.*:*.similarity",
            "base.embeddings.*:*.to_payload",
            "base.llms.base:*.check_callback_manager",
            "base.llms.base:*.convert_chat_messages",
            "base.llms.base:*.to_payload",
            "chat_engine.types:*chat_repl",
            "chat_engine.types:*.reset",
            "evaluation.base:*",
            "llms.function_calling:*",
            "llms.llm:*",
            "postprocessor.types:*",
            "response_synthesizers.base:*",
        ),
    ),
    Surface(
        name="sentence_transformers",
        package="sentence_transformers",
        found=methods.sentence_transformers,
        covered=(
            "cross_encoder.model:CrossEncoder.predict",
            "cross_encoder.model:CrossEncoder.rank",
            "*.model:*Encoder.encode*",
            "sentence_transformer.model:SentenceTransformer.encode*",
        ),
        bookkeeping=("*.is_singular_input",),
    ),
    Surface(
        name="vllm",
        package="vllm",
        found=methods.vllm,
        covered=(
            "entrypoints.llm:LLM.chat",
            "entrypoints.llm:LLM.embed",
            "entrypoints.llm:LLM.generate",
            "v1.engine.async_llm:LLM.generate",
        ),
        bookkeeping=("v1.engine.async_llm:LLM.add_request",),
    ),
)

"""vLLM in this process: `LLM.generate`, `chat` and `embed`, and the asynchronous engine's `generate`.

`chat` goes through `generate` and is one span.  Where vLLM keeps statistics (``disable_log_stats=False``) a
span has the time that its requests spent in the queue, in prefill and in decoding.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

from neuronscope.instrumentation import ClientIntegration, Gap, Kind, Stream, WrappedMethod
from neuronscope_instrumentation.vllm.outputs import summaries
from neuronscope_instrumentation.vllm.requests import snapshot_chat, snapshot_embed, snapshot_generate

_LLM: Final = "vllm.entrypoints.llm:LLM"

_NUMBERS: Final = ("classify", "encode", "reward", "score")


def _call(target: str, snapshot: Any, *, optional: bool = False) -> WrappedMethod:
    return WrappedMethod(
        target=target, snapshot=snapshot, unwrap=summaries, in_process=True, optional=optional
    )


def _stream(target: str, *, optional: bool = False) -> WrappedMethod:
    return WrappedMethod(
        target=target,
        snapshot=snapshot_generate,
        stream=Stream(is_stream=inspect.isasyncgen),
        in_process=True,
        optional=optional,
    )


VLLM: Final = ClientIntegration(
    name="vllm",
    requires="vllm>=0.8",
    kind=Kind.LLM,
    methods=(
        _call(f"{_LLM}.generate", snapshot_generate),
        _call(f"{_LLM}.chat", snapshot_chat),
        _call(f"{_LLM}.embed", snapshot_embed, optional=True),
        _call("vllm.entrypoints.pooling.offline:PoolingOfflineMixin.embed", snapshot_embed, optional=True),
        _stream("vllm.v1.engine.async_llm:AsyncLLM.generate"),
        # Up to 0.10 a class of its own, for whoever runs the engine before the last; then a name of that one.
        _stream("vllm.engine.async_llm_engine:AsyncLLMEngine.generate", optional=True),
    ),
    gaps=(
        *(Gap(f"{_LLM}.{method}", "numbers and verdicts, not texts") for method in _NUMBERS),
        Gap("vllm.v1.engine.async_llm:AsyncLLM.encode", "numbers and verdicts, not texts"),
        Gap(f"{_LLM}.beam_search", "many requests a prompt"),
        Gap(f"{_LLM}.enqueue", "what it starts is waited for elsewhere"),
    ),
)

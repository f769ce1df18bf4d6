"""LiteLLM, a layer over all providers: a call is billed once, by whoever makes it.

For some providers LiteLLM calls a client that we observe (OpenAI's and Azure's through the openai SDK): that
client's span tells the call, and LiteLLM has none.  For the others it speaks HTTP itself, and its own span is
the one.  Which it was is known when the call has ended, so nothing has to know LiteLLM's table of providers.

The seam is the function inside LiteLLM's own decorator: what the service has imported stays the object it is,
an answer from LiteLLM's cache is no call, and each try of a retry, fallback or `Router` is one.  Its public
callbacks would not do: they come in another thread after the call, and never for a stream that was left.
"""

from __future__ import annotations

from typing import Final

from neuronscope.instrumentation import ClientIntegration, Gap, Kind, WrappedMethod
from neuronscope_instrumentation.litellm import requests
from neuronscope_instrumentation.litellm.streams import HANDLER, RESPONSES_STREAMS, STREAMS, install


def _call(function: str, module: str = "litellm.main") -> WrappedMethod:
    name = function.removeprefix("a")
    return WrappedMethod(
        target=f"{module}:{function}",
        snapshot=requests.SNAPSHOTS[name],
        stream=STREAMS,
        layer=True,
        inside="original_function",
    )


_LEAF: Final = "told only by an observed client beneath"

LITELLM: Final = ClientIntegration(
    name="litellm",
    requires="litellm>=1.80",
    kind=Kind.FRAMEWORK,
    modules=(HANDLER, RESPONSES_STREAMS),
    methods=(
        _call("completion"),
        _call("acompletion"),
        _call("embedding"),
        _call("aembedding"),
        _call("rerank", "litellm.rerank_api.main"),
        _call("arerank", "litellm.rerank_api.main"),
        _call("responses", "litellm.responses.main"),
        _call("aresponses", "litellm.responses.main"),
    ),
    gaps=(
        Gap("litellm.google_genai.main:generate_content", _LEAF),
        Gap("litellm.google_genai.main:generate_content_stream", _LEAF),
        Gap("litellm.llms.anthropic.messages.native.handler:anthropic_messages", _LEAF),
        Gap("litellm.responses.main:compact_responses", _LEAF),
        Gap("litellm.decisions.main:decisions", _LEAF),
        Gap("litellm.extraction.main:extraction", _LEAF),
        Gap("litellm.systemone.main:systemone", _LEAF),
        *(
            Gap(f"litellm.images.main:{function}", _LEAF)
            for function in ("image_edit", "image_generation", "image_variation")
        ),
        *(
            Gap(f"litellm.videos.main:video_{function}", _LEAF)
            for function in ("edit", "extension", "generation", "remix")
        ),
        Gap("litellm.main:speech", _LEAF),
        Gap("litellm.main:transcription", _LEAF),
    ),
    install=install,
)

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

from neuronscope.instrumentation import ClientIntegration, Kind, WrappedMethod
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
    install=install,
)

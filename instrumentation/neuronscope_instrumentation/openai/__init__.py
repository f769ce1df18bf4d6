"""The OpenAI SDK, 1.40 to the newest: chat completions and embeddings.

One choke point, `request` of the sync and the async base client, sees every variant of a call: `create`,
`parse`, the `stream` helper, raw and streaming responses, Azure, and clients of compatible servers.  The
path of the request's URL decides what it is; paths that call no model run untouched.
"""

from __future__ import annotations

from typing import Final

from neuronscope.instrumentation import ClientIntegration, Kind
from neuronscope_instrumentation.common.stainless import request_method
from neuronscope_instrumentation.openai.routes import snapshot

_CLIENTS: Final = (
    "openai._client:OpenAI",
    "openai._client:AsyncOpenAI",
    "openai.lib.azure:AzureOpenAI",
    "openai.lib.azure:AsyncAzureOpenAI",
)


OPENAI: Final = ClientIntegration(
    name="openai",
    requires="openai>=1.40",
    kind=Kind.LLM,
    methods=(
        request_method("openai._base_client:SyncAPIClient.request", snapshot),
        request_method("openai._base_client:AsyncAPIClient.request", snapshot),
    ),
    copies=tuple(f"{client}.{method}" for client in _CLIENTS for method in ("copy", "with_options")),
)

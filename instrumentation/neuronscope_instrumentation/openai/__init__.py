"""The OpenAI SDK, 1.40 to the newest: every endpoint that a model works for.

One choke point, `request` of the sync and the async base client, sees every variant of a call: `create`,
`parse`, the `stream` helpers, raw and streaming responses, beta paths, the module-level client, Azure, and
clients of compatible servers.  Method and path of the request decide what it is (`routes.py`); requests that
no model works on run untouched.  What does not pass there is told in `gaps`.
"""

from __future__ import annotations

from typing import Final

from neuronscope.instrumentation import ClientIntegration, Gap, Kind
from neuronscope_instrumentation.common.stainless import request_method, response_seams
from neuronscope_instrumentation.openai.routes import snapshot

_BASE: Final = "openai._base_client"
_CLIENTS: Final = (
    "openai._client:OpenAI",
    "openai._client:AsyncOpenAI",
    "openai.lib.azure:AzureOpenAI",
    "openai.lib.azure:AsyncAzureOpenAI",
    "openai.lib.bedrock:BedrockOpenAI",
    "openai.lib.bedrock:AsyncBedrockOpenAI",
)
_SOCKET: Final = "a websocket: calls are messages on it, not requests"
_SERVER_SIDE: Final = "runs at the provider, which calls models as often as it likes"


OPENAI: Final = ClientIntegration(
    name="openai",
    requires="openai>=1.40",
    kind=Kind.LLM,
    methods=(
        request_method(f"{_BASE}:SyncAPIClient.request", snapshot),
        request_method(f"{_BASE}:AsyncAPIClient.request", snapshot),
    ),
    responses=response_seams(_BASE),
    copies=tuple(f"{client}.{method}" for client in _CLIENTS for method in ("copy", "with_options")),
    gaps=(
        Gap("openai.resources.responses.responses:Responses.connect", _SOCKET),
        Gap("openai.resources.beta.responses.responses:Responses.connect", _SOCKET),
        Gap("openai.resources.realtime.realtime:Realtime.connect", _SOCKET),
        Gap("openai.resources.beta.realtime.realtime:Realtime.connect", _SOCKET),
        Gap("openai.resources.realtime.translations.translations:Translations.connect", _SOCKET),
        Gap("openai.resources.realtime.calls:Calls.create", "sound goes over WebRTC"),
        Gap("openai.resources.live.live:Live.create", "sound goes over WebRTC"),
        Gap("openai.resources.live.live:Live.connect", _SOCKET),
        Gap("openai.resources.live.forks:Forks.connect", _SOCKET),
        Gap("openai.resources.live.sideband:Sideband.connect", _SOCKET),
        Gap("openai.resources.beta.agents.sessions.sessions:Sessions.create", _SERVER_SIDE),
        Gap("openai.resources.beta.agents.sessions.sessions:Sessions.stream", _SERVER_SIDE),
        Gap("openai.resources.beta.agents.sessions.events:Events.create", _SERVER_SIDE),
        Gap("openai.resources.beta.agents.sessions.events:Events.stream", _SERVER_SIDE),
        Gap("openai.resources.beta.agents.automations.invocations:Invocations.create", _SERVER_SIDE),
        Gap("openai.resources.beta.threads.threads:Threads.create_and_run", _SERVER_SIDE),
        Gap("openai.resources.beta.threads.threads:Threads.create_and_run_poll", _SERVER_SIDE),
        Gap("openai.resources.beta.threads.threads:Threads.create_and_run_stream", _SERVER_SIDE),
        Gap("openai.resources.beta.threads.runs.runs:Runs.create", _SERVER_SIDE),
        Gap("openai.resources.beta.threads.runs.runs:Runs.create_and_poll", _SERVER_SIDE),
        Gap("openai.resources.beta.threads.runs.runs:Runs.create_and_stream", _SERVER_SIDE),
        Gap("openai.resources.beta.threads.runs.runs:Runs.stream", _SERVER_SIDE),
        Gap("openai.resources.beta.threads.runs.runs:Runs.submit_tool_outputs", _SERVER_SIDE),
        Gap("openai.resources.beta.threads.runs.runs:Runs.submit_tool_outputs_and_poll", _SERVER_SIDE),
        Gap("openai.resources.beta.threads.runs.runs:Runs.submit_tool_outputs_stream", _SERVER_SIDE),
        Gap("openai.resources.batches:Batches.create", "answers come as a file, hours later"),
        Gap("openai.resources.evals.runs.runs:Runs.create", _SERVER_SIDE),
    ),
)

"""The Anthropic SDK, 0.40 to the newest: messages, on Anthropic's own API and on cloud platforms.

One choke point, `request` of the sync and the async base client, sees every variant of a call: `create`,
`parse`, the `stream` helper, the tool runner, beta paths, raw and streaming responses, and the clients of
cloud platforms before they rewrite the path.  Counting tokens and batches call no model.

From 2.x on the SDK traces itself: what it would tell becomes attributes of our span, never a second one.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from neuronscope.instrumentation import ClientIntegration, Gap, Kind, WrappedMethod
from neuronscope_instrumentation.anthropic.requests import snapshot
from neuronscope_instrumentation.common import stainless
from neuronscope_instrumentation.common.stainless import request_method, response_seams

if TYPE_CHECKING:
    from collections.abc import Callable

    from neuronscope.engine import Engine

_BASE: Final = "anthropic._base_client"
_CLIENTS: Final = tuple(
    f"{module}:{prefix}{client}"
    for module, client in (
        ("anthropic._client", "Anthropic"),
        ("anthropic.lib.bedrock._client", "AnthropicBedrock"),
        ("anthropic.lib.bedrock._mantle", "AnthropicBedrockMantle"),
        ("anthropic.lib.vertex._client", "AnthropicVertex"),
        ("anthropic.lib.foundry", "AnthropicFoundry"),
        ("anthropic.lib.aws._client", "AnthropicAWS"),
        ("anthropic.lib.google_cloud._client", "AnthropicGoogleCloud"),
    )
    for prefix in ("", "Async")
)


def _helper_reads_response() -> bool:
    """Does the SDK's stream helper read the response itself, past the stream that `request` returned?

    Early releases (0.40) give the helper the response alone, and no `response` property that asks the stream:
    the body is watched there instead.
    """
    helper = getattr(sys.modules.get("anthropic.lib.streaming._messages"), "MessageStream", None)
    return helper is not None and not hasattr(helper, "response")


def _is_stream(result: object) -> bool:
    return stainless.is_stream(result) and not _helper_reads_response()


def _body(result: Any) -> Any:
    return result.response if stainless.is_stream(result) else stainless.body(result)


def _request(target: str) -> WrappedMethod:
    method = request_method(target, snapshot)
    assert method.stream is not None
    return replace(method, stream=replace(method.stream, is_stream=_is_stream), body=_body)


def _merge_native_tracing(engine: Engine, module_name: str) -> Callable[[], None]:
    """Let the SDK's own tracing write on our span."""
    from neuronscope.engine.native_tracing import merge_spans_of

    return merge_spans_of(engine, "neuronscope.anthropic", module_name, "start_api_call_span")


ANTHROPIC: Final[ClientIntegration] = ClientIntegration(
    name="anthropic",
    requires="anthropic>=0.40",
    kind=Kind.LLM,
    modules=(_BASE,),
    methods=(
        _request(f"{_BASE}:SyncAPIClient.request"),
        _request(f"{_BASE}:AsyncAPIClient.request"),
    ),
    responses=response_seams(_BASE),
    copies=tuple(f"{client}.{method}" for client in _CLIENTS for method in ("copy", "with_options")),
    install=_merge_native_tracing,
    gaps=(
        Gap("anthropic.resources.messages.batches:Batches.create", "answers come hours later"),
        Gap("anthropic.resources.beta.messages.batches:Batches.create", "answers come hours later"),
        Gap("anthropic.resources.beta.dreams:Dreams.create", "runs at the provider"),
        Gap("anthropic.resources.beta.sessions.sessions:Sessions.create", "runs at the provider"),
        Gap("anthropic.resources.beta.sessions.events:Events.send", "runs at the provider"),
        Gap("anthropic.resources.beta.sessions.events:Events.stream", "runs at the provider"),
        Gap("anthropic.resources.beta.sessions.threads.events:Events.stream", "runs at the provider"),
        Gap("anthropic.resources.beta.deployments:Deployments.run", "runs at the provider"),
    ),
)
__all__: list[Any] = ["ANTHROPIC"]

"""The Anthropic SDK, 0.40 to the newest: messages, on Anthropic's own API and on cloud platforms.

One choke point, `request` of the sync and the async base client, sees every variant of a call: `create`,
`parse`, the `stream` helper, the tool runner, beta paths, raw and streaming responses, and the clients of
cloud platforms before they rewrite the path.  Counting tokens and batches call no model.

From 2.x on the SDK traces itself: what it would tell becomes attributes of our span, never a second one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from neuronscope.instrumentation import ClientIntegration, Kind
from neuronscope_instrumentation.anthropic.requests import snapshot
from neuronscope_instrumentation.common.stainless import request_method

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
        request_method(f"{_BASE}:SyncAPIClient.request", snapshot),
        request_method(f"{_BASE}:AsyncAPIClient.request", snapshot),
    ),
    copies=tuple(f"{client}.{method}" for client in _CLIENTS for method in ("copy", "with_options")),
    install=_merge_native_tracing,
)
__all__: list[Any] = ["ANTHROPIC"]

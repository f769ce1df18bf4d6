"""AWS Bedrock: the runtime of models, through botocore and aiobotocore, whatever made the client.

One choke point, `_make_api_call` of the base client, sees every API call of every service; those of Bedrock's
runtime that call a model are ours, the others run untouched.  Retries are made below it: one span a call.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from neuronscope.engine.guard import GUARD
from neuronscope.instrumentation import ClientIntegration, Gap, Kind, WrappedMethod
from neuronscope_instrumentation.bedrock.requests import add_headers, inject_headers, snapshot
from neuronscope_instrumentation.bedrock.streams import EVENTS, unread_body

if TYPE_CHECKING:
    from neuronscope.engine import Engine

_CLIENT: Final = "botocore.client"
_ASYNC_CLIENT: Final = "aiobotocore.client"


def _api_call(target: str) -> WrappedMethod:
    return WrappedMethod(
        target=target, snapshot=snapshot, stream=EVENTS, body=unread_body, inject_headers=inject_headers
    )


def _install(engine: Engine, module_name: str) -> Callable[[], None]:
    """Send the trace headers that a call's parameters carry: botocore has no place for headers in a call."""
    members: dict[str, Any] = vars(sys.modules[module_name])
    client = members["BaseClient" if module_name == _CLIENT else "AioBaseClient"]
    original: Callable[..., Any] = client._convert_to_request_dict

    @functools.wraps(original)
    def convert(self: Any, api_params: Any, *args: Any, **kwargs: Any) -> Any:
        request = original(self, api_params, *args, **kwargs)
        GUARD.call("bedrock.headers", add_headers, request, api_params)
        return request

    @functools.wraps(original)
    async def convert_later(self: Any, api_params: Any, *args: Any, **kwargs: Any) -> Any:
        request = await original(self, api_params, *args, **kwargs)
        GUARD.call("bedrock.headers", add_headers, request, api_params)
        return request

    wrapper = convert_later if inspect.iscoroutinefunction(original) else convert
    client._convert_to_request_dict = wrapper

    def undo() -> None:
        if vars(client).get("_convert_to_request_dict") is wrapper:
            client._convert_to_request_dict = original

    return undo


_VERDICTS: Final = ("apply_guardrail", "invoke_guardrail_checks")
_AGENTS: Final = (
    "agentic_retrieve_stream",
    "generate_query",
    "invoke_agent",
    "invoke_flow",
    "invoke_inline_agent",
    "optimize_prompt",
    "rerank",
    "retrieve",
    "retrieve_and_generate",
    "retrieve_and_generate_stream",
    "start_flow_execution",
)

BEDROCK: Final = ClientIntegration(
    name="bedrock",
    requires="botocore>=1.34.131",
    kind=Kind.LLM,
    modules=(_CLIENT, _ASYNC_CLIENT),
    methods=(
        _api_call(f"{_CLIENT}:BaseClient._make_api_call"),
        _api_call(f"{_ASYNC_CLIENT}:AioBaseClient._make_api_call"),
    ),
    gaps=(
        Gap(
            f"{_CLIENT}:BedrockRuntime.invoke_model_with_bidirectional_stream",
            "sound both ways over HTTP/2, which botocore leaves to another SDK",
        ),
        *(Gap(f"{_CLIENT}:BedrockRuntime.{method}", "verdicts, not texts") for method in _VERDICTS),
        *(Gap(f"{_CLIENT}:BedrockAgentRuntime.{method}", "runs at the provider") for method in _AGENTS),
    ),
    install=_install,
)

"""The Mistral SDK, 1.2 to the newest: chat, fill-in-the-middle, agents and embeddings.

One choke point, `do_request` of the base class, sees every call as it goes over the wire: plain, streamed
and parsed ones.  What is asked and answered is read from the bytes, afterwards; objects of the service are
never touched.  The path decides what a request is; the others run untouched.

The SDK can trace itself: what it would tell becomes attributes of our span, never a second one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from neuronscope.instrumentation import ClientIntegration, Gap, Kind, WrappedMethod
from neuronscope_instrumentation.mistral.requests import inject_headers, snapshot

if TYPE_CHECKING:
    from neuronscope.engine import Engine

# Where 1.x has them, and where 2.x and later do.
_BASES: Final = ("mistralai.basesdk", "mistralai.client.basesdk")
_TRACING: Final = ("mistralai._hooks.tracing", "mistralai.client._hooks.tracing")


def _response(result: Any) -> Any:
    return result  # an HTTP response already


def _merge_native_tracing(engine: Engine, module_name: str) -> Callable[[], None]:
    from neuronscope.engine.native_tracing import merge_tracer_of

    return merge_tracer_of(engine, "neuronscope.mistral", module_name, "get_or_create_otel_tracer")


MISTRAL: Final[ClientIntegration] = ClientIntegration(
    name="mistral",
    requires="mistralai>=1.2",
    kind=Kind.LLM,
    modules=_TRACING,
    methods=tuple(
        WrappedMethod(
            target=f"{module}:BaseSDK.{function}",
            snapshot=snapshot,
            body=_response,
            inject_headers=inject_headers,
        )
        for module in _BASES
        for function in ("do_request", "do_request_async")
    ),
    install=_merge_native_tracing,
    members=lambda client: (client.sdk_configuration,),  # which all parts of a client share
    gaps=(
        *(
            Gap(f"mistralai.client.conversations:Conversations.{method}", "runs at the provider")
            for method in (
                "append",
                "append_stream",
                "restart",
                "restart_stream",
                "run_async",
                "run_stream_async",
                "start",
                "start_stream",
            )
        ),
        *(
            Gap(f"mistralai.client.classifiers:Classifiers.{method}", "verdicts, not texts")
            for method in ("classify", "classify_chat", "moderate", "moderate_chat")
        ),
        Gap("mistralai.client.judges:Judges.judge_conversation", "verdicts, not texts"),
        Gap("mistralai.client.ocr:Ocr.process", "documents of pictures"),
        Gap("mistralai.client.responses:Responses.create", "not adapted yet"),
        Gap("mistralai.client.speech:Speech.complete", "sound"),
        Gap("mistralai.client.transcriptions:Transcriptions.complete", "sound"),
        Gap("mistralai.client.transcriptions:Transcriptions.stream", "sound"),
    ),
)

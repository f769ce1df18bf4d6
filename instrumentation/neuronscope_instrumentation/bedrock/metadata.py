"""What botocore tells beside an answer: Bedrock's token headers, AWS's id of the request, retries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from neuronscope.instrumentation import Response
from neuronscope.signals import names
from neuronscope_instrumentation.bedrock.converse import usage
from neuronscope_instrumentation.common.fields import count, mapping, text
from neuronscope_instrumentation.common.parts import without_none

_COUNTS: Final = {
    "inputTokens": "x-amzn-bedrock-input-token-count",
    "outputTokens": "x-amzn-bedrock-output-token-count",
    "cacheReadInputTokens": "x-amzn-bedrock-cache-read-input-token-count",
    "cacheWriteInputTokens": "x-amzn-bedrock-cache-write-input-token-count",
}
_TIER: Final = "x-amzn-bedrock-service-tier"


def with_metadata(response: Response, metadata: Mapping[str, Any]) -> Response:
    """The response with what it does not say itself: token counts of the headers, request id, retries."""
    headers = mapping(metadata.get("HTTPHeaders")) or {}
    counts = usage({name: _digits(headers.get(header)) for name, header in _COUNTS.items()})
    found = {**counts, **without_none({"service_tier": text(headers.get(_TIER))})}
    changes = {name: value for name, value in found.items() if getattr(response, name) is None}
    told = {
        names.AWS_REQUEST_ID: text(metadata.get("RequestId")),
        names.HTTP_RESEND_COUNT: count(metadata.get("RetryAttempts")),
    }
    extra = {key: value for key, value in told.items() if value}
    return replace(response, **changes, extra={**response.extra, **extra})


def _digits(value: Any) -> int | None:
    return int(value) if isinstance(value, str) and value.isdecimal() else None

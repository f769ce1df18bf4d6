"""What came back, read from the wire: whole answers, and streams as folds over their chunks."""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from neuronscope.engine.invocation import type_name
from neuronscope.instrumentation import ErrorFacts, Response
from neuronscope.signals import names
from neuronscope_instrumentation.common.asking import tools_called
from neuronscope_instrumentation.common.draft import Draft, Drafts, note_call, start
from neuronscope_instrumentation.common.fields import count, document, field, items, mapping, text
from neuronscope_instrumentation.common.parts import without_none
from neuronscope_instrumentation.google_genai.messages import content_parts

_FILTERED: Final = (
    "SAFETY",
    "RECITATION",
    "BLOCKLIST",
    "PROHIBITED_CONTENT",
    "SPII",
    "LANGUAGE",
    "IMAGE_SAFETY",
    "IMAGE_PROHIBITED_CONTENT",
    "IMAGE_RECITATION",
    "JAILBREAK",
    "MODEL_ARMOR",
)
_FAILED: Final = (
    "MALFORMED_FUNCTION_CALL",
    "MALFORMED_RESPONSE",
    "UNEXPECTED_TOOL_CALL",
    "TOO_MANY_TOOL_CALLS",
    "MISSING_THOUGHT_SIGNATURE",
    "NO_IMAGE",
    "IMAGE_OTHER",
)
_FINISH: Final = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    **dict.fromkeys(_FILTERED, "content_filter"),
    **dict.fromkeys(_FAILED, "error"),
}
# Tokens of these have prices of their own.
_MODALITIES: Final = {
    ("promptTokensDetails", "TEXT"): names.TEXT_INPUT_TOKENS,
    ("promptTokensDetails", "IMAGE"): names.IMAGE_INPUT_TOKENS,
    ("promptTokensDetails", "AUDIO"): names.AUDIO_INPUT_TOKENS,
    ("candidatesTokensDetails", "TEXT"): names.TEXT_OUTPUT_TOKENS,
    ("candidatesTokensDetails", "IMAGE"): names.IMAGE_OUTPUT_TOKENS,
    ("candidatesTokensDetails", "AUDIO"): names.AUDIO_OUTPUT_TOKENS,
}


def _answer(result: Any) -> Any:
    """The body of an SDK response, as JSON text, decoded."""
    body: Any = result
    if mapping(result) is None and not isinstance(result, str | bytes):
        body = field(result, "body")
    return document(body.encode("utf-8", "replace") if isinstance(body, str) else body)


def read_response(result: Any, content: bool) -> Response:
    """A generation in our words."""
    answer = _answer(result)
    drafts = Drafts()
    reasons: dict[int, str] = {}
    _take(answer, drafts if content else None, reasons)
    return Response(
        **_head(answer),
        extra={**tools_called(map(_tool_name, _parts(answer))), **_modalities(answer)},
        finish_reasons=[reasons[index] for index in sorted(reasons)] or None,
        messages=list(drafts) or None,
    )


def _parts(answer: Any) -> list[Any]:
    return [
        part
        for candidate in items(field(answer, "candidates"))
        for part in items(field(field(candidate, "content"), "parts"))
    ]


def _tool_name(part: Any) -> Any:
    return field(field(part, "functionCall"), "name")


def _modalities(answer: Any) -> dict[str, int]:
    """Token counts by modality, as far as the provider tells them apart."""
    usage = field(answer, "usageMetadata")
    found: dict[str, int] = {}
    for kind in ("promptTokensDetails", "candidatesTokensDetails"):
        for told in items(field(usage, kind)):
            key, tokens = _MODALITIES.get((kind, field(told, "modality"))), count(field(told, "tokenCount"))
            if key is not None and tokens:
                found[key] = tokens
    return found


def _take(answer: Any, drafts: Drafts | None, reasons: dict[int, str]) -> None:
    """Note what each candidate says, and why it ended."""
    for position, candidate in enumerate(items(field(answer, "candidates"))):
        index = count(field(candidate, "index"))
        index = position if index is None else index
        reason = text(field(candidate, "finishReason"))
        if reason is not None:
            reasons[index] = reason
        if drafts is not None:
            _add(drafts.of(index), candidate, reason)
    blocked = text(field(field(answer, "promptFeedback"), "blockReason"))
    if blocked is not None:
        reasons.setdefault(0, blocked)


def _add(draft: Draft, candidate: Any, reason: str | None) -> None:
    for part in content_parts(field(candidate, "content")):
        if part.get("content") != "":
            draft.part(part)
    if reason is not None:
        draft.finish_reason = _FINISH.get(reason, reason.lower())


def _head(answer: Any) -> dict[str, Any]:
    """Facts beside the candidates; absent ones are left out.

    Gemini counts thoughts apart from candidates; OpenTelemetry's output tokens have them in.
    """
    usage = field(answer, "usageMetadata")
    prompt, tools = count(field(usage, "promptTokenCount")), count(field(usage, "toolUsePromptTokenCount"))
    written, thought = count(field(usage, "candidatesTokenCount")), count(field(usage, "thoughtsTokenCount"))
    return without_none(
        {
            "id": text(field(answer, "responseId")),
            "model": text(field(answer, "modelVersion")),
            "input_tokens": None if prompt is None else prompt + (tools or 0),
            "output_tokens": None if written is None and thought is None else (written or 0) + (thought or 0),
            "cache_read_tokens": count(field(usage, "cachedContentTokenCount")),
            "reasoning_tokens": thought,
            "service_tier": (text(field(usage, "trafficType")) or "").lower() or None,
        }
    )


def fold_chunk(so_far: Response, chunk: Any, content: bool) -> Response:
    """The response after one more chunk; the counts of each include those before."""
    answer = _answer(chunk)
    streamed = start(so_far, content)
    changes = _head(answer)
    modalities = _modalities(answer)
    if modalities:
        changes["extra"] = {**streamed.extra, **modalities}
    for part in _parts(answer):  # each comes whole
        note_call(streamed, changes, len(streamed.called), _tool_name(part))
    before = len(streamed.reasons)
    _take(answer, streamed.drafts, streamed.reasons)
    if len(streamed.reasons) > before:
        changes["finish_reasons"] = [streamed.reasons[index] for index in sorted(streamed.reasons)]
        changes["done"] = True
    return replace(streamed, **changes) if changes else streamed


def has_content(chunk: Any) -> bool:
    """Does a chunk carry something the model has written: text, a thought, a call, a picture?"""
    for candidate in items(field(_answer(chunk), "candidates")):
        parts = items(field(field(candidate, "content"), "parts"))
        if any(part and field(part, "text") != "" for part in parts):
            return True
    return False


def read_embeddings(result: Any, content: bool) -> Response:
    """An embeddings answer in our words: never a vector, only its length."""
    answer = _answer(result)
    told = [*items(field(answer, "embeddings")), field(answer, "embedding")]
    predictions = items(field(answer, "predictions"))  # Vertex
    told += [field(prediction, "embeddings") for prediction in predictions]
    vectors = [items(field(one, "values")) for one in told if mapping(one) is not None]
    counts = [
        count(field(field(field(one, "embeddings"), "statistics"), "token_count")) for one in predictions
    ]
    known = [number for number in counts if number is not None]
    tokens = count(field(field(answer, "usageMetadata"), "promptTokenCount"))
    return Response(
        dimensions=len(vectors[0]) or None if vectors else None,
        input_tokens=tokens if tokens is not None or not known else sum(known),
    )


def read_error(error: BaseException) -> ErrorFacts:
    """A failed call: the SDK calls the status `code`."""
    return ErrorFacts(type_name(error), count(getattr(error, "code", None)))

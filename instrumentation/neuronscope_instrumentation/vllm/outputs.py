"""What came back, as numbers: a call's outputs hold token ids and logits that nobody should wait for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from msgspec.structs import replace

from neuronscope.instrumentation import Message, Response
from neuronscope.signals import names
from neuronscope_instrumentation.common.draft import Streamed, start
from neuronscope_instrumentation.common.fields import count, field, items, number, text
from neuronscope_instrumentation.common.parts import without_none


@dataclass(frozen=True, slots=True)
class Times:
    """When a request was queued, scheduled, had its first and its last token: seconds of one clock."""

    queued: float
    scheduled: float
    first: float
    last: float


@dataclass(frozen=True, slots=True)
class Summary:
    """One request's output.

    Attributes:
        prompt: its tokens.
        cached: those of them whose keys and values were there already.
        generated: tokens of all of its answers.
        reasons: why each answer ended.
        texts: of the answers.
        times: None where vLLM keeps no statistics.
        width: length of an embedding.
        id: vLLM's own of the request.
    """

    prompt: int | None
    cached: int | None
    generated: int
    reasons: Sequence[str]
    texts: Sequence[str]
    times: Times | None
    width: int | None = None
    id: str | None = None


def summaries(results: Any) -> list[Summary]:
    """A summary of each request; runs right after the call, so that nothing keeps its outputs."""
    return [summary(each) for each in items(results)]


def summary(output: Any) -> Summary:
    """One request's summary."""
    answers = items(field(output, "outputs"))
    embedding = field(field(output, "outputs"), "embedding")
    prompt = field(output, "prompt_token_ids")
    return Summary(
        prompt=len(prompt) if prompt is not None else None,
        cached=count(field(output, "num_cached_tokens")),
        generated=sum(len(field(answer, "token_ids") or ()) for answer in answers),
        reasons=[reason for each in answers if (reason := text(field(each, "finish_reason"))) is not None],
        texts=[field(answer, "text") or "" for answer in answers],
        times=times(field(output, "metrics")),
        width=len(items(embedding)) or None,
        id=text(field(output, "request_id")),
    )


def times(metrics: Any) -> Times | None:
    """The clock readings of a request; two generations of vLLM name them differently."""
    for fields in (_STATISTICS, _OLDER):
        told = [number(field(metrics, name)) for name in fields]
        queued, scheduled, first, last = told
        if queued and scheduled and first and last:
            return Times(queued, scheduled, first, last)
    return None


_STATISTICS: Final = ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts")
_OLDER: Final = ("arrival_time", "first_scheduled_time", "first_token_time", "last_token_time")


def read_outputs(found: Sequence[Summary], content: bool) -> Response:
    """A call's outputs in our words: all of its requests together."""
    generated = sum(each.generated for each in found)
    answers = sum(len(each.texts) for each in found)
    messages = [
        Message("assistant", [{"type": "text", "content": words}], reason)
        for each in found
        for words, reason in zip_longest(each.texts, each.reasons[: len(each.texts)])
    ]
    return Response(
        input_tokens=_sum(each.prompt for each in found),
        output_tokens=generated,
        cache_read_tokens=_sum(each.cached for each in found),
        id=found[0].id if len(found) == 1 else None,
        finish_reasons=[reason for each in found for reason in each.reasons] or None,
        messages=messages or None if content else None,
        extra={names.MODEL_BATCH: len(found), **durations(found, generated - answers)},
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [each for each in counts if each is not None]
    return sum(known) if known else None


def durations(found: Sequence[Summary], decoded: int) -> dict[str, float]:
    """Queue, prefill and decoding of a call: from the first of its requests to the last.

    Args:
        decoded: tokens after the first of each answer, which prefill makes.
    """
    known = [each.times for each in found if each.times is not None]
    if not known or len(known) < len(found):
        return {}
    first = min(each.first for each in known)
    decode = max(each.last for each in known) - first
    told = {
        names.MODEL_QUEUE: max(each.scheduled - each.queued for each in known),
        names.MODEL_PREFILL: max(each.first for each in known) - min(each.scheduled for each in known),
        names.MODEL_DECODE: decode,
    }
    return {**told, names.MODEL_DECODE_RATE: decoded / decode} if decode > 0 else told


def read_embeddings(found: Sequence[Summary], content: bool) -> Response:
    """Embeddings in our words: how long, and the tokens of all texts."""
    return Response(
        input_tokens=_sum(each.prompt for each in found),
        dimensions=found[0].width if found else None,
    )


def fold_output(delta: bool, so_far: Response, output: Any, content: bool) -> Response:
    """The response after one more output: all of it so far, or in deltas what is new."""
    streamed = start(so_far, content)
    told = summary(output)
    before = streamed.output_tokens or 0
    generated = before + told.generated if delta else max(before, told.generated)
    changes = without_none({"id": told.id, "input_tokens": told.prompt, "cache_read_tokens": told.cached})
    _add_texts(streamed, told, delta=delta)
    if told.reasons:
        changes["finish_reasons"] = list(told.reasons)
    if field(output, "finished") is True:
        changes["done"] = True
        changes["extra"] = durations([told], generated - len(told.texts))
    return replace(streamed, output_tokens=generated, **changes)


def _add_texts(streamed: Streamed, told: Summary, *, delta: bool) -> None:
    if streamed.drafts is not None:
        for index, words in enumerate(told.texts):
            draft = streamed.drafts.of(index)
            if not delta:
                draft.text.clear()
            draft.text.append(words)
            draft.finish_reason = told.reasons[index] if index < len(told.reasons) else None


def has_text(output: Any) -> bool:
    """Does an output carry text?"""
    return any(field(answer, "text") for answer in items(field(output, "outputs")))

"""Verdicts instead of texts: moderations, and decisions on questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from neuronscope.instrumentation import Endpoint, Message, Operation, Request, Response
from neuronscope.signals import names
from neuronscope_instrumentation.common.fields import document, field, items, mapping, text
from neuronscope_instrumentation.openai.answers import read_error
from neuronscope_instrumentation.openai.embeddings import input_count
from neuronscope_instrumentation.openai.facts import known, read_headers
from neuronscope_instrumentation.openai.items import plain, read_input
from neuronscope_instrumentation.openai.messages import read_message
from neuronscope_instrumentation.openai.responses import usage

_INPUT: Final = "input"
_INPUT_COUNT: Final = "input_count"


def keep_judged(kept: dict[str, Any], body: Mapping[str, Any], content: bool) -> None:
    """Add to `kept` what is judged."""
    judged = body.get("input")
    kept[_INPUT_COUNT] = input_count(judged)
    if content:
        kept[_INPUT] = judged if isinstance(judged, str) else list(items(judged))


def read_moderation_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """What is to be moderated: a text, texts, or parts of one message."""
    return Request(
        model=text(arguments.get("model")),
        input_count=arguments.get(_INPUT_COUNT),
        messages=list(_moderated(arguments[_INPUT])) if content and _INPUT in arguments else None,
    )


def _moderated(judged: Any) -> list[Message]:
    texts = [judged] if isinstance(judged, str) else items(judged)
    if all(isinstance(each, str) for each in texts):
        return [Message("user", [{"type": "text", "content": each}]) for each in texts]
    return [read_message({"role": "user", "content": judged})]


def read_moderation(result: Any, content: bool) -> Response:
    """A verdict in our words: flagged or not, and for what."""
    answer = document(result)
    verdicts = items(field(answer, "results"))
    flagged = sorted({name for verdict in verdicts for name in _categories(field(verdict, "categories"))})
    return Response(
        **known({"id": text(field(answer, "id")), "model": text(field(answer, "model"))}),
        extra=known(
            {
                names.MODERATION_FLAGGED: any(field(verdict, "flagged") is True for verdict in verdicts)
                if verdicts
                else None,
                names.MODERATION_CATEGORIES: flagged or None,
            }
        ),
    )


def _categories(categories: Any) -> list[str]:
    """Names of what applies, as the API calls them."""
    dump = getattr(categories, "model_dump", None)
    found = mapping(dump(by_alias=True, warnings=False) if dump is not None else categories) or {}
    return [name for name, applies in found.items() if applies is True]


def read_decision_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """What is to be decided upon."""
    return Request(
        model=text(arguments.get("model")),
        output_type="json",
        messages=read_input(arguments[_INPUT]) if content and _INPUT in arguments else None,
    )


def read_decision(result: Any, content: bool) -> Response:
    """Decisions in our words; an answer may be a refusal."""
    decision = document(result)
    answers = items(field(decision, "answers"))
    refused = any(field(answer, "type") == "refusal" for answer in answers)
    told = [{"type": "text", "content": str(plain(answer))} for answer in answers]
    return Response(
        **known({"model": text(field(decision, "model")), **usage(field(decision, "usage"))}),
        messages=[Message("assistant", told)] if content and told else None,
        extra=known({names.OUTPUT_COUNT: len(answers) or None, names.REFUSED: refused or None}),
    )


MODERATIONS: Final = Endpoint(
    operation=Operation.MODERATION,
    read_request=read_moderation_request,
    read_response=read_moderation,
    read_error=read_error,
    read_headers=read_headers,
)
DECISIONS: Final = Endpoint(
    operation=Operation.GENERATE_CONTENT,
    read_request=read_decision_request,
    read_response=read_decision,
    read_error=read_error,
    read_headers=read_headers,
)

"""What a usual call tells at once is what the readers tell of it; what is odd is left to them, untouched."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion

from neuronscope.engine import facts
from neuronscope.instrumentation import Endpoint
from neuronscope_instrumentation.openai.chat import CHAT
from neuronscope_instrumentation.openai.embeddings import EMBEDDINGS

LIMIT = 1_000
many = settings(max_examples=300, deadline=None, database=None, derandomize=True)

_odd = st.sampled_from([None, "", "text", 0, 7, 1.5, True, [], ["a"], {}, {"a": 1}])
_counts = st.none() | st.integers(0, 500) | _odd
_texts = st.none() | st.sampled_from(["", "a", "fp_1", "auto"]) | _odd


def _some(**values: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries({}, optional=values)


_usage = _some(
    prompt_tokens=_counts,
    completion_tokens=_counts,
    prompt_cache_hit_tokens=_counts,
    prompt_tokens_details=_odd | _some(cached_tokens=_counts, audio_tokens=_counts, image_tokens=_counts),
    completion_tokens_details=_odd | _some(reasoning_tokens=_counts, audio_tokens=_counts),
)
_choice = _some(
    index=st.integers(0, 2),
    finish_reason=_texts,
    logprobs=st.none() | _odd,
    message=_odd
    | _some(
        content=_texts,
        refusal=st.none() | _odd,
        tool_calls=st.none() | st.just([{"id": "1", "type": "function", "function": {"name": "f"}}]),
        function_call=st.none() | st.just({"name": "g"}),
    ),
)
_answers = _some(
    id=_texts,
    model=_texts,
    service_tier=_texts,
    system_fingerprint=_texts,
    choices=_odd | st.lists(_choice, max_size=2),
    usage=_odd | _usage,
)
_requests = _some(
    model=_texts,
    temperature=_counts,
    top_p=_counts,
    top_k=_counts,
    max_tokens=_counts,
    max_completion_tokens=_counts,
    seed=_counts,
    n=_counts,
    service_tier=_texts,
    stream=_odd,
    output_type=_texts,
    message_count=_counts,
    reasoning_effort=_texts,
    tools=st.none() | st.just([]) | st.just([{"type": "function", "function": {"name": "f"}}]),
    dimensions=_counts,
    encoding_format=_texts,
    input_count=_counts,
)


def _agree(told: dict[str, object], at_once: bool, read: dict[str, object]) -> bool:
    return told == (read if at_once else {})


@many
@given(_answers, st.booleans())
def test_answers_of_chats(answer: dict[str, object], parsed: bool) -> None:
    """Parsed by the SDK, or a dictionary."""
    fields: Any = answer
    result = ChatCompletion.construct(**fields) if parsed else answer
    assert CHAT.read_response is not None
    assert CHAT.tell_response is not None
    told: dict[str, object] = {}
    read: dict[str, object] = {}
    at_once = CHAT.tell_response(told, result)
    facts.add_response(read, CHAT.read_response(result, False), LIMIT)
    assert _agree(told, at_once, read)


@many
@given(_requests, st.sampled_from([CHAT, EMBEDDINGS]))
def test_requests(arguments: dict[str, object], endpoint: Endpoint) -> None:
    """Chats and embeddings."""
    assert endpoint.tell_request is not None
    told: dict[str, object] = {}
    read: dict[str, object] = {}
    at_once = endpoint.tell_request(told, arguments)
    facts.add_request(read, endpoint.read_request(arguments, False), LIMIT)
    assert _agree(told, at_once, read)


@pytest.mark.parametrize("parsed", [True, False])
def test_a_usual_answer_is_told_at_once(parsed: bool) -> None:
    """Else this would be slower than it was, and nobody would notice."""
    body = (
        b'{"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [{"index": 0,'
        b' "finish_reason": "stop", "logprobs": null, "message": {"role": "assistant", "content": "x",'
        b' "refusal": null}}], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}'
    )
    answer = msgspec.json.decode(body)
    told: dict[str, object] = {}
    assert CHAT.tell_response is not None
    assert CHAT.tell_response(told, ChatCompletion.model_validate(answer) if parsed else answer)
    assert told == {
        "gen_ai.response.id": "c",
        "gen_ai.response.model": "m",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 4,
    }

"""The specification's example of an LLM client, with its blanks filled in."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import cast

import openai
import pytest

import neuronscope as ns
from neuronscope.testing import FakeOpenAI

pytestmark = pytest.mark.integration


def test_an_instrumented_client_is_recorded_in_a_scope() -> None:
    """Tokens, latency and finish reason of the call."""
    with FakeOpenAI() as server:
        query = "What is observability?"

        # Instrument the OpenAI client — all calls are automatically traced
        client = ns.hooks.instrument_openai(openai.OpenAI(base_url=server.base_url, api_key="test"))

        with client, ns.Scope("gpt4_rag_query") as scope:
            response = client.chat.completions.create(
                model="gpt-4o",
                messages=[{"role": "user", "content": query}],
                temperature=0.0,
            )

        # Captured telemetry includes:
        art = scope.artifact
        assert response.usage is not None
        assert len(art.llm_spans) == 1
        assert art.llm_spans[0].prompt_tokens == response.usage.prompt_tokens
        assert art.llm_spans[0].completion_tokens == response.usage.completion_tokens
        assert 0 < art.llm_spans[0].latency_ms < 60_000
        assert art.llm_spans[0].finish_reason == "stop"
        cost = art.llm_spans[0].cost_usd
        assert cost is not None
        assert 0 < cost < 1


def test_nothing_of_the_clients_is_kept() -> None:
    """Strings and numbers are all that is captured: the answer goes when the service lets it go."""
    with FakeOpenAI() as server:
        client = ns.hooks.instrument_openai(openai.OpenAI(base_url=server.base_url, api_key="test"))
        with client, ns.Scope("kept") as scope:
            answer = client.chat.completions.create(
                model="gpt-4o", messages=[{"role": "user", "content": "hello"}]
            )
            watched = [weakref.ref(part) for part in (answer, answer.choices[0], answer.choices[0].message)]
        (span,) = [call.span for call in scope.artifact.llm_spans]
        del answer
        gc.collect()
        assert [ref() for ref in watched] == [None] * 3
        kinds = {type(each) for value in span.attributes.values() for each in _parts(value)}
        assert kinds <= {str, int, float, bool}


def _parts(value: object) -> Sequence[object]:
    return cast("Sequence[object]", value) if isinstance(value, list | tuple) else (value,)

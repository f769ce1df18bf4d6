"""The specification's example of an LLM client, with its blanks filled in."""

from __future__ import annotations

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

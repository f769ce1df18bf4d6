"""Single clients are observed, and no other of the same library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import client_anthropic
import client_cohere
import client_google
import client_mistral
import client_ollama
import client_openai
import neuronscope as ns
from client_cases import ClientCase
from neuronscope.testing import InMemoryExporter

pytestmark = pytest.mark.integration

HOOKS: tuple[tuple[Callable[[Any], Any], ClientCase], ...] = (
    (ns.hooks.instrument_openai, client_openai.CASE),
    (ns.hooks.instrument_anthropic, client_anthropic.CASE),
    (ns.hooks.instrument_ollama, client_ollama.CASE),
    (ns.hooks.instrument_mistral, client_mistral.CASE),
    (ns.hooks.instrument_cohere, client_cohere.CASE),
    (ns.hooks.instrument_google_genai, client_google.CASE),
)


@pytest.mark.parametrize(("hook", "case"), HOOKS, ids=[case.name for _, case in HOOKS])
def test_one_client_is_observed_and_no_other(hook: Callable[[Any], Any], case: ClientCase) -> None:
    """The very object comes back; plain calls, streams and embeddings of it have spans."""
    exporter = InMemoryExporter()
    with (
        ns.Platform(exporters=[exporter], deferred=False),
        case.server() as server,
        case.sync(server) as mine,
        case.sync(server) as other,
    ):
        assert hook(mine) is mine
        for client in (other, mine):
            case.chat(client)
            list(case.stream(client))
            if case.embed is not None:
                case.embed(client)
        assert len(exporter.spans) == (2 if case.embed is None else 3)


@pytest.mark.parametrize(("hook", "case"), HOOKS, ids=[case.name for _, case in HOOKS])
def test_a_client_that_is_gone_takes_its_observation_along(
    hook: Callable[[Any], Any], case: ClientCase
) -> None:
    """Another object at the same place in memory is another object."""
    exporter = InMemoryExporter()
    with ns.Platform(exporters=[exporter], deferred=False), case.server() as server:
        for observed in (True, False):
            with case.sync(server) as client:
                if observed:
                    hook(client)
                case.chat(client)
            del client
        assert len(exporter.spans) == 1

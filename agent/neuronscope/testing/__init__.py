"""For your own tests: an exporter in memory, a fixed clock and ids, and fake providers on real sockets.

::

    exporter = ns.testing.InMemoryExporter()
    with ns.Platform(exporters=[exporter], deferred=False):
        ns.instrument("openai")
        ...
    assert exporter.spans[0].attributes["gen_ai.operation.name"] == "chat"
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from neuronscope.testing.exporter import InMemoryExporter
from neuronscope.testing.fixed import FixedClock, fixed

if TYPE_CHECKING:
    from neuronscope.testing.fake_anthropic import FakeAnthropic
    from neuronscope.testing.fake_bedrock import FakeBedrock
    from neuronscope.testing.fake_cohere import FakeCohere
    from neuronscope.testing.fake_google import FakeGoogle
    from neuronscope.testing.fake_mistral import FakeMistral
    from neuronscope.testing.fake_ollama import FakeOllama
    from neuronscope.testing.fake_openai import FakeOpenAI
    from neuronscope.testing.fake_pinecone import FakePinecone

__all__ = [
    "FakeAnthropic",
    "FakeBedrock",
    "FakeCohere",
    "FakeGoogle",
    "FakeMistral",
    "FakeOllama",
    "FakeOpenAI",
    "FakePinecone",
    "FixedClock",
    "InMemoryExporter",
    "fixed",
]

_FAKES: Final = {
    "FakeAnthropic": "fake_anthropic",
    "FakeBedrock": "fake_bedrock",
    "FakeCohere": "fake_cohere",
    "FakeGoogle": "fake_google",
    "FakeMistral": "fake_mistral",
    "FakeOllama": "fake_ollama",
    "FakeOpenAI": "fake_openai",
    "FakePinecone": "fake_pinecone",
}


def __getattr__(name: str) -> object:
    if name in _FAKES:
        return getattr(import_module(f"neuronscope.testing.{_FAKES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

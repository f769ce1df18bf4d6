"""For your own tests: an exporter that keeps everything in memory, and fake providers on real sockets.

::

    exporter = ns.testing.InMemoryExporter()
    with ns.Platform(exporters=[exporter], deferred=False):
        ns.instrument("openai")
        ...
    assert exporter.spans[0].attributes["gen_ai.operation.name"] == "chat"
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neuronscope.testing.exporter import InMemoryExporter

if TYPE_CHECKING:
    from neuronscope.testing.fake_openai import FakeOpenAI

__all__ = ["FakeOpenAI", "InMemoryExporter"]


def __getattr__(name: str) -> object:
    if name == "FakeOpenAI":
        from neuronscope.testing.fake_openai import FakeOpenAI

        return FakeOpenAI
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Who else instruments vector stores, how each is installed, and how it is switched on.

As for model clients (`tests.benchmarks.calls.peers`): the functions run in the peer's own environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from tests.benchmarks.calls.peers import SDK, Counter, instrument, openlit

STORES = ("qdrant-client==1.20.0", "chromadb==1.5.9", "pinecone==10.2.0", "pandas")


@dataclass(frozen=True, slots=True)
class StorePeer:
    """One peer.

    Attributes:
        title: its name in reports.
        requirements: what its environment holds.
        distribution: the package whose version is reported.
        switch_on: ``(store) -> Counter``.
        alone: further packages, installed without what they depend on.
        inequality: where its work is not equal to ours.
    """

    title: str
    requirements: tuple[str, ...]
    distribution: str
    switch_on: Callable[[str], Counter]
    alone: tuple[str, ...] = ()
    inequality: str = ""


_TRACELOOP = {"qdrant": "Qdrant", "chroma": "Chroma", "pinecone": "Pinecone"}


def _traceloop(store: str) -> Counter:
    os.environ["TRACELOOP_TRACE_CONTENT"] = "false"
    module = {"chroma": "chromadb"}.get(store, store)
    return instrument(f"opentelemetry.instrumentation.{module}:{_TRACELOOP[store]}Instrumentor", logs=False)


def _openlit(_store: str) -> Counter:
    return openlit(False)


PEERS: dict[str, StorePeer] = {
    "traceloop-stores": StorePeer(
        "Traceloop (OpenLLMetry)",
        (
            *STORES,
            *SDK,
            "opentelemetry-instrumentation-qdrant==0.62.4",
            "opentelemetry-instrumentation-chromadb==0.62.4",
            # 0.62.4 cannot be installed: it asks for a release of its conventions that there is not.
            "opentelemetry-instrumentation-pinecone==0.60.0",
        ),
        "opentelemetry-instrumentation-qdrant",
        _traceloop,
        inequality="its Qdrant span has three attributes and no scores; of Chroma and Pinecone it records "
        "documents, metadata and whole vectors whatever the content switch says",
    ),
    "openlit-stores": StorePeer(
        "OpenLIT",
        (
            *STORES,
            *SDK,
            "opentelemetry-instrumentation==0.66b2",
            "opentelemetry-exporter-otlp==1.45.2",
            "openai==2.54.0",
            "requests",
            "schedule",
            "xmltodict",
        ),
        "openlit",
        _openlit,
        alone=("openlit==1.44.0",),
        inequality="writes the query vector as text into two attributes",
    ),
}

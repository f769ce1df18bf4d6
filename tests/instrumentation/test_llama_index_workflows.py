"""LlamaIndex's workflows and agents: their steps are parents."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from workflows import Workflow, step
from workflows.events import Event, StartEvent, StopEvent

import neuronscope as ns
from client_cases import CANARY, Mode, agent, captured_logs
from frameworks import tree
from llama_index_case import gpt, index
from neuronscope.signals import names
from neuronscope.testing import FakeOpenAI

pytestmark = [
    pytest.mark.integration,
    # LlamaIndex's chat memory leaves its in-memory database to the collector, and streams their connections.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    """One provider for the module."""
    with FakeOpenAI() as fake:
        yield fake


class Found(Event):
    """What the first step hands to the second."""

    text: str


class Questions(Workflow):
    """A workflow of the service's own: it retrieves, then asks."""

    def __init__(self, retriever: Any, model: Any) -> None:
        super().__init__(timeout=60)
        self.retriever, self.model = retriever, model

    @step
    async def look_up(self, ev: StartEvent) -> Found:
        """Synchronous calls are made in the step."""
        return Found(text=self.retriever.retrieve(ev.question)[0].text)

    @step
    async def answer(self, ev: Found) -> StopEvent:
        """Asynchronous ones too."""
        if self.model is None:
            raise LookupError(CANARY)
        return StopEvent(result=str(await self.model.acomplete(ev.text)))


def test_steps_of_a_workflow_are_parents(server: FakeOpenAI) -> None:
    """The workflow within what was current where it was started; what its steps call beneath them."""

    def run(mode: Mode) -> Any:
        questions = Questions(index().as_retriever(similarity_top_k=1), gpt(server))

        async def serve() -> Any:
            with ns.Scope("question"):
                running: Any = questions.run(question=CANARY)
                return await running

        with captured_logs() as logs, agent(mode, "llama_index", "openai") as exporter:
            return asyncio.run(serve()), logs, exporter.spans

    (expected, _, nothing), (on, logs, spans) = run("off"), run("on")
    assert on == expected
    assert nothing == logs == []
    own = [line.partition("invoke_workflow")[2] for line in tree(spans) if "invoke_workflow" in line]
    assert own == [
        " Questions",
        " Questions > llama_index:step answer",
        " Questions > llama_index:step answer > openai:chat gpt-x",
        " Questions > llama_index:step look_up",
        " Questions > llama_index:step look_up > llama_index:retrieval VectorIndexRetriever",
        *(line for line in own if "retrieval VectorIndexRetriever >" in line),
    ]
    (answer,) = [span for span in spans if span.name == "step answer"]
    assert answer.attributes[names.WORKFLOW_STEP] == "answer"
    assert CANARY not in repr(spans)


def test_a_step_that_fails_says_so() -> None:
    """As its workflow does; the service gets its exception."""

    async def serve() -> None:
        await Questions(index().as_retriever(), None).run(question=CANARY)

    with agent("on", "llama_index") as exporter, pytest.raises(LookupError, match=CANARY):
        asyncio.run(serve())
    failed = {span.name for span in exporter.spans if span.attributes.get(names.ERROR_TYPE) == "LookupError"}
    assert failed == {"step answer", "invoke_workflow Questions"}
    assert CANARY not in repr(exporter.spans)


# LlamaIndex looks at every attribute of its own models.
@pytest.mark.filterwarnings("ignore:.*deprecated:pydantic.warnings.PydanticDeprecatedSince20")
@pytest.mark.filterwarnings("ignore:.*deprecated:pydantic.warnings.PydanticDeprecatedSince211")
@pytest.mark.filterwarnings("ignore:is_running called from within a step:DeprecationWarning")
def test_an_agent_is_no_workflow(server: FakeOpenAI) -> None:
    """LlamaIndex's own steps inside it have no spans."""
    agents: Any = import_module("llama_index.core.agent.workflow")

    async def serve() -> Any:
        react = agents.ReActAgent(name="helper", llm=gpt(server), tools=[], timeout=60)
        return await react.run("hello")

    with agent("on", "llama_index", "openai") as exporter:
        asyncio.run(serve())
    found = tree(exporter.spans)
    assert "llama_index:invoke_agent helper" in found
    assert not [line for line in found if "step" in line]
    assert [line for line in found if line.startswith("llama_index:invoke_agent helper > openai:chat")]

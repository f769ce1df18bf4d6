"""Generators in the place of generators: what is sent, thrown and returned goes through; one span each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator
from typing import Any

import pytest

import fakelib
import neuronscope as ns
from neuronscope.engine import ENGINE
from neuronscope.instrumentation import (
    ClientIntegration,
    Endpoint,
    Kind,
    Operation,
    Peer,
    Request,
    Response,
    Snapshot,
    Stream,
    WrappedMethod,
)
from neuronscope.signals import names
from neuronscope.testing import InMemoryExporter

Talk = Generator[str, Any, str]


class Talker:
    """Its results are generators that listen."""

    def talk(self) -> Talk:
        return self._talk()

    async def atalk(self) -> AsyncGenerator[str, Any]:
        return self._atalk()

    def _talk(self) -> Talk:
        heard = yield "hello"
        try:
            heard = yield f"heard {heard}"
        except ValueError as error:
            yield f"caught {error}"
        yield "bye"
        return "done"

    async def _atalk(self) -> AsyncGenerator[str, Any]:
        heard = yield "hello"
        try:
            heard = yield f"heard {heard}"
        except ValueError as error:
            yield f"caught {error}"
        yield "bye"


def count(response: Response, chunk: Any, content: bool) -> Response:
    return Response(output_tokens=(response.output_tokens or 0) + 1)


ENDPOINT = Endpoint(operation=Operation.CHAT, read_request=lambda _, __: Request(), fold_chunk=count)
TALKERS = ClientIntegration(
    name="talkers",
    requires="talkers>=1",
    kind=Kind.LLM,
    methods=tuple(
        WrappedMethod(
            target=f"{__name__}:Talker.{name}",
            snapshot=lambda _, __, ___: Snapshot(ENDPOINT, "m", {}, Peer("fake")),
            stream=Stream(is_stream=lambda result: isinstance(result, Generator | AsyncGenerator)),
        )
        for name in ("talk", "atalk")
    ),
)


def conversation(talk: Talk) -> list[object]:
    """Everything one can do to a generator, and what comes of it."""
    said: list[object] = [next(talk), talk.send("you"), talk.throw(ValueError("that")), next(talk)]
    try:
        next(talk)
    except StopIteration as stop:
        said.append(stop.value)
    return [type(talk).__name__, *said]


async def aconversation(talk: AsyncGenerator[str, Any]) -> list[object]:
    said: list[object] = [await anext(talk), await talk.asend("you"), await talk.athrow(ValueError("that"))]
    said += [item async for item in talk]
    return [type(talk).__name__, *said]


@pytest.fixture
def memory() -> Iterator[InMemoryExporter]:
    """The talkers, observed inline."""
    exporter = InMemoryExporter()
    ns.registry.register_adapter(TALKERS)
    ns.Platform(exporters=[exporter], deferred=False)
    yield exporter
    ns.uninstrument("talkers")
    ns.registry.unregister_adapter("talkers")


def test_sent_thrown_and_returned(memory: InMemoryExporter) -> None:
    """As without us; the stream is complete, though something was thrown into it."""
    plain = conversation(Talker().talk())
    ns.instrument("talkers")
    assert conversation(Talker().talk()) == plain
    (span,) = memory.spans
    assert span.attributes[names.STREAM_END] == "complete"
    assert span.attributes[names.STREAM_CHUNKS] == 4
    assert names.ERROR_TYPE not in span.attributes


def test_the_same_asynchronously(memory: InMemoryExporter) -> None:
    """`asend` and `athrow`."""

    async def both() -> list[object]:
        return await aconversation(await Talker().atalk())

    plain = asyncio.run(both())
    ns.instrument("talkers")
    assert asyncio.run(both()) == plain
    (span,) = memory.spans
    assert span.attributes[names.STREAM_END] == "complete"
    assert span.attributes[names.STREAM_CHUNKS] == 4


def test_what_the_generator_does_not_catch(memory: InMemoryExporter) -> None:
    """The very exception comes back, and ends the span as an error."""
    ns.instrument("talkers")
    talk, error = Talker().talk(), KeyError("mine")
    next(talk)
    with pytest.raises(KeyError) as caught:
        talk.throw(error)
    assert caught.value is error
    (span,) = memory.spans
    assert span.attributes[names.STREAM_END] == "error"
    assert span.attributes[names.ERROR_TYPE] == "KeyError"


def test_chunks_that_the_worker_folds_are_not_lost() -> None:
    """More than are handed over at once: all are folded, and nothing is counted as dropped."""
    exporter = InMemoryExporter()
    ns.registry.register_adapter(fakelib.integration(fakelib.__name__))
    ns.Platform(exporters=[exporter])
    ns.instrument("fake")
    try:
        assert len(list(fakelib.Client().chat("word " * 200, stream=True))) == 200
        assert ENGINE.flush(60)
    finally:
        ns.uninstrument("fake")
        ns.registry.unregister_adapter("fake")
    assert exporter.spans[0].attributes[names.OUTPUT_TOKENS] == 200
    assert ENGINE.metrics.total(names.DROPPED) == 0

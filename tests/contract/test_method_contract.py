"""What holds for every method of every client, in every variant that its library has.

The few calls that `test_client_contract.py` looks at closely stand for a client; here is the whole table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry import context as otel_context

import clients
import neuronscope as ns
from client_cases import (
    CANARY,
    Call,
    ClientCase,
    Outcome,
    agent,
    facts_like,
    impatient,
    observe,
    observe_async,
    three_ways,
    until_asked,
)
from neuronscope.engine.guard import GUARD
from neuronscope.signals import names
from neuronscope.testing import InMemoryExporter
from neuronscope.testing.fake_provider import FakeProvider, Reply

pytestmark = [
    pytest.mark.integration,
    # what the SDK says of methods that still work
    pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning"),
]

CASES = clients.cases()
CALLS = [(case, call) for case in CASES for call in case.calls]
each_call = pytest.mark.parametrize(
    ("case", "call"), CALLS, ids=[f"{case.name} {call.name}" for case, call in CALLS]
)
STREAMS = [(case, call) for case, call in CALLS if call.opened is not None]
each_stream = pytest.mark.parametrize(
    ("case", "call"), STREAMS, ids=[f"{case.name} {call.name}" for case, call in STREAMS]
)
each_client = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, FakeProvider]]:
    """One provider a client."""
    fakes = {case.name: case.server() for case in CASES}
    for fake in fakes.values():
        fake.__enter__()
    yield fakes
    for fake in fakes.values():
        fake.__exit__(None, None, None)


def both_ways(
    case: ClientCase, call: Call, server: FakeProvider, *replies: Reply
) -> Iterator[tuple[Outcome, Outcome]]:
    """Run a call in all modes, sync and async: with content off, and on."""
    answers = replies or call.replies()

    def run(client: Any, server: FakeProvider) -> Any:
        server.reply(*answers)
        return call.run(client)

    async def arun(client: Any, server: FakeProvider) -> Any:
        server.reply(*answers)
        return await call.arun(client)

    yield three_ways(lambda mode: observe(case, mode, run, server))
    yield three_ways(lambda mode: observe_async(case, mode, arun, server))


@each_call
def test_a_call_is_one_span_and_no_difference(
    case: ClientCase, call: Call, servers: dict[str, FakeProvider]
) -> None:
    """The service sees the same; the span has the facts; content is there only when asked for."""
    for on, content in both_ways(case, call, servers[case.name]):
        for outcome in (on, content):
            (span,) = outcome.spans
            assert facts_like(span.attributes, call.facts) == call.facts
        assert (CANARY in repr(content.spans)) is call.content


@each_call
def test_an_error_is_the_services_and_the_spans(
    case: ClientCase, call: Call, servers: dict[str, FakeProvider]
) -> None:
    """A refusal by the provider, with the canary in its text."""
    for outcomes in both_ways(case, call, servers[case.name], case.error(401, CANARY)):
        for outcome in outcomes:
            (span,) = outcome.spans
            assert span.status.name == "ERROR"
            assert span.attributes[names.ERROR_TYPE] == case.unauthorised
            if case.tells_status:
                assert span.attributes[names.HTTP_RESPONSE_STATUS_CODE] == 401


def late(call: Call) -> Reply:
    """An answer of the right kind that keeps one waiting."""
    replies = call.replies()
    return replace(replies[0], delay_s=2) if replies else Reply(body={}, delay_s=2)


@each_call
def test_no_answer_in_time(case: ClientCase, call: Call, servers: dict[str, FakeProvider]) -> None:
    """The client gives up; once is enough to see it, here with the agent alone."""
    server = servers[case.name]

    def run(client: Any, server: FakeProvider) -> Any:
        server.reply(late(call))
        return call.run(client)

    with impatient():
        outcome = observe(case, "on", run, server)
    (span,) = outcome.spans
    assert span.status.name == "ERROR"
    assert names.ERROR_TYPE in span.attributes


@each_call
def test_a_cancelled_call(case: ClientCase, call: Call, servers: dict[str, FakeProvider]) -> None:
    """A `BaseException` goes through, and ends the span."""

    async def run(client: Any, server: FakeProvider) -> Any:
        server.reply(late(call))
        task = asyncio.ensure_future(call.arun(client))
        await until_asked(server)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    outcome = observe_async(case, "on", run, servers[case.name])
    (span,) = outcome.spans
    assert span.attributes.get(names.ERROR_TYPE) == "asyncio.exceptions.CancelledError"


@each_stream
def test_a_stream_left_early(case: ClientCase, call: Call, servers: dict[str, FakeProvider]) -> None:
    """Closed after its first chunk: no error, and the span says so."""
    opened, aopened = call.opened, call.aopened
    assert opened is not None
    assert aopened is not None

    def run(client: Any, server: FakeProvider) -> Any:
        server.reply(*call.replies())
        stream = opened(client)
        first = next(iter(stream))
        stream.close()
        return first

    async def arun(client: Any, server: FakeProvider) -> Any:
        server.reply(*call.replies())
        stream = await aopened(client)
        first = await anext(aiter(stream))
        closing = stream.aclose() if hasattr(stream, "aclose") else stream.close()
        if closing is not None:
            await closing
        return first

    server = servers[case.name]
    for outcomes in (
        three_ways(lambda mode: observe(case, mode, run, server)),
        three_ways(lambda mode: observe_async(case, mode, arun, server)),
    ):
        for outcome in outcomes:
            (span,) = outcome.spans
            assert span.attributes[names.STREAM_END] == "client_closed"
            assert names.ERROR_TYPE not in span.attributes


def run_all(case: ClientCase, client: Any, server: FakeProvider) -> None:
    for call in case.calls:
        server.reply(*call.replies())
        call.run(client)


@each_client
def test_what_is_not_observed(case: ClientCase, servers: dict[str, FakeProvider]) -> None:
    """No span of any call that is suppressed, nor after uninstrumenting; no trace header either."""
    server = servers[case.name]
    server.clear()
    with case.sync(server) as client:
        with agent("on", case.name) as exporter:
            token = otel_context.attach(otel_context.set_value("suppress_instrumentation", True))
            try:
                run_all(case, client, server)
            finally:
                otel_context.detach(token)
            assert exporter.spans == []
            assert not any("traceparent" in request.headers for request in server.requests)
        run_all(case, client, server)
        assert exporter.spans == []


@each_client
def test_a_redactor_masks_every_call(case: ClientCase, servers: dict[str, FakeProvider]) -> None:
    """What it takes out is in no span, and its own failure costs the content, not the span."""
    server = servers[case.name]
    seen: list[str] = []

    def redact(key: str, text: str) -> str:
        seen.append(key)
        if len(seen) % 5 == 0:
            raise LookupError("the redactor's own")
        return text.replace(CANARY, "*")

    GUARD.reraise = False
    exporter = InMemoryExporter()
    with (
        ns.Platform(exporters=[exporter], deferred=False, capture_content="span_only", redactor=redact),
        case.sync(server) as client,
    ):
        ns.instrument(case.name)
        server.clear()
        run_all(case, client, server)
    assert len(exporter.spans) == len(case.calls)
    assert CANARY not in repr(exporter.spans)
    assert seen

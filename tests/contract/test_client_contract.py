"""What holds for every LLM client: the service sees no difference, each call is one span with its facts.

A new adapter adds a `ClientCase` to `CASES`.  Whatever it cannot do like the others is said in its own
test file, beside what only it can do.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from opentelemetry import context as otel_context

import clients
import neuronscope as ns
from client_cases import (
    CANARY,
    WORDS,
    ClientCase,
    agent,
    facts_like,
    function_at,
    impatient,
    observe,
    observe_async,
    plain,
    three_ways,
)
from neuronscope import platform
from neuronscope.engine.guard import GUARD
from neuronscope.instrumentation import ClientIntegration, Endpoint, Snapshot
from neuronscope.signals import names
from neuronscope.testing.fake_provider import FakeProvider, Reply

pytestmark = pytest.mark.integration

each_client = pytest.mark.parametrize("case", clients.cases(), ids=lambda case: case.label)
# Those, and the clients that an SDK has for other platforms.
each_way_in = pytest.mark.parametrize(
    "case", [*clients.cases(), *clients.variants()], ids=lambda case: case.label
)


@pytest.fixture
def server(case: ClientCase) -> Iterator[FakeProvider]:
    """The case's provider."""
    with case.server() as fake:
        yield fake


# --- the same with and without ---------------------------------------------------------------------
def drain(stream: Any) -> list[Any]:
    return list(stream)


async def adrain(stream: Any) -> list[Any]:
    return [chunk async for chunk in stream]


@each_way_in
def test_a_call_is_one_span_and_no_difference(case: ClientCase, server: FakeProvider) -> None:
    """Plain: values, types, log lines and request bodies; sync and async."""

    def chat(client: Any, server: FakeProvider) -> Any:
        server.reply(case.reply(CANARY))
        return case.chat(client)

    async def achat(client: Any, server: FakeProvider) -> Any:
        server.reply(case.reply(CANARY))
        return await case.achat(client)

    for on, content in (
        three_ways(lambda mode: observe(case, mode, chat, server)),
        three_ways(lambda mode: observe_async(case, mode, achat, server)),
    ):
        for outcome in (on, content):
            (span,) = outcome.spans
            assert span.attributes[names.OPERATION_NAME] == case.operation
            assert facts_like(span.attributes, case.complete) == case.complete
            assert span.name == f"{case.operation} {case.complete[names.REQUEST_MODEL]}"


@each_way_in
def test_a_stream_is_one_span_and_no_difference(case: ClientCase, server: FakeProvider) -> None:
    """Read to its end: every chunk, its type, and the facts of the whole; sync and async."""

    def stream(client: Any, server: FakeProvider) -> Any:
        server.reply(case.stream_reply(f"{CANARY} two three four five"))
        opened = case.stream(client)
        return type(opened).__qualname__, drain(opened)

    async def astream(client: Any, server: FakeProvider) -> Any:
        server.reply(case.stream_reply(f"{CANARY} two three four five"))
        opened = await case.astream(client)
        return type(opened).__qualname__, await adrain(opened)

    for outcomes in (
        three_ways(lambda mode: observe(case, mode, stream, server)),
        three_ways(lambda mode: observe_async(case, mode, astream, server)),
    ):
        for outcome in outcomes:
            (span,) = outcome.spans
            assert facts_like(span.attributes, case.streamed) == case.streamed
            assert isinstance(span.attributes[names.TIME_TO_FIRST_CHUNK], float)


@each_client
def test_embeddings_are_one_span_and_no_difference(case: ClientCase, server: FakeProvider) -> None:
    """Their length and count; never a number of them, with content on neither."""
    embed, aembed = case.embed, case.aembed
    if embed is None or aembed is None:
        return

    def scenario(client: Any, server: FakeProvider) -> Any:
        return embed(client)

    async def ascenario(client: Any, server: FakeProvider) -> Any:
        return await aembed(client)

    for outcomes in (
        three_ways(lambda mode: observe(case, mode, scenario, server)),
        three_ways(lambda mode: observe_async(case, mode, ascenario, server)),
    ):
        for outcome in outcomes:
            (span,) = outcome.spans
            assert span.attributes[names.OPERATION_NAME] == "embeddings"
            assert facts_like(span.attributes, case.embedding) == case.embedding
            assert "0.25" not in repr(span)


# --- errors ----------------------------------------------------------------------------------------
@each_client
def test_errors_go_through_and_are_told_by_type(case: ClientCase, server: FakeProvider) -> None:
    """A refusal, no answer, an answer that does not come in time; sync and async, plain and streamed."""
    refused = case.error(401, CANARY)
    silent = Reply(body={}, cut_after=0) if case.notices_cut else case.error(503, CANARY)
    replies: dict[str, tuple[Reply, Reply]] = {
        "refused": (refused, refused),
        "silent": (silent, case.stream_reply(WORDS, cut_after=0)),
        "slow": (Reply(body={}, delay_s=3), case.stream_reply(WORDS, delay_s=3)),
    }
    for kind, (reply, streamed) in replies.items():
        patience = impatient() if kind == "slow" else nullcontext()

        def chat(client: Any, server: FakeProvider, reply: Reply = reply) -> Any:
            server.reply(reply)
            return case.chat(client)

        async def achat(client: Any, server: FakeProvider, reply: Reply = reply) -> Any:
            server.reply(reply)
            return await case.achat(client)

        def stream(client: Any, server: FakeProvider, reply: Reply = streamed) -> Any:
            server.reply(reply)
            return drain(case.stream(client))

        async def astream(client: Any, server: FakeProvider, reply: Reply = streamed) -> Any:
            server.reply(reply)
            return await adrain(await case.astream(client))

        plain_call = expected_type(case, kind)
        streamed_call = plain_call if kind == "refused" else None  # the HTTP library's own, while it is read
        with patience:
            results = (
                (three_ways(lambda mode, run=chat: observe(case, mode, run, server)), plain_call),  # type: ignore[misc]
                (three_ways(lambda mode, run=stream: observe(case, mode, run, server)), streamed_call),  # type: ignore[misc]
                (three_ways(lambda mode, run=achat: observe_async(case, mode, run, server)), plain_call),  # type: ignore[misc]
                (three_ways(lambda mode, run=astream: observe_async(case, mode, run, server)), streamed_call),  # type: ignore[misc]
            )
        for outcomes, expected in results:
            for outcome in outcomes:
                (span,) = outcome.spans
                assert span.status.name == "ERROR"
                told = span.attributes[names.ERROR_TYPE]
                assert told == expected or (expected is None and told)
                if kind == "refused" and case.tells_status:
                    assert span.attributes[names.HTTP_RESPONSE_STATUS_CODE] == 401


def expected_type(case: ClientCase, kind: str) -> str | None:
    return {"refused": case.unauthorised, "slow": case.timeout}.get(kind)


@each_way_in
def test_a_stream_cut_off_is_an_error(case: ClientCase, server: FakeProvider) -> None:
    """The connection breaks in the middle: what came before counts."""

    def scenario(client: Any, server: FakeProvider) -> Any:
        server.reply(case.stream_reply(WORDS, cut_after=4))
        chunks: list[Any] = []
        try:
            for chunk in case.stream(client):
                chunks.append(chunk)  # noqa: PERF402 - what came before the cut counts
        except case.errors as cut:
            return chunks, type(cut).__qualname__
        return chunks

    for outcome in three_ways(lambda mode: observe(case, mode, scenario, server)):
        (span,) = outcome.spans
        assert span.attributes[names.STREAM_END] == "error"
        assert names.ERROR_TYPE in span.attributes
        chunks = outcome.value[0]
        assert span.attributes[names.STREAM_CHUNKS] == len(chunks) + case.unseen


# --- content ---------------------------------------------------------------------------------------
@each_way_in
def test_content_is_recorded_only_when_asked_for(case: ClientCase, server: FakeProvider) -> None:
    """The canary is in prompt, tool, stop word, answer and error; with content on it is where it belongs."""

    def use(client: Any, server: FakeProvider) -> Any:
        server.reply(case.reply(CANARY), case.stream_reply(f"{CANARY} two"), case.error(400, CANARY))
        case.chat(client)
        drain(case.stream(client))
        with pytest.raises(case.errors):
            case.chat(client)

    on = observe(case, "on", use, server)
    assert len(on.spans) == 3
    assert CANARY not in repr(on.spans)
    spans = observe(case, "content", use, server).spans
    for span, answer in zip(spans[:2], (CANARY, f"{CANARY} two"), strict=True):
        asked = json.loads(str(span.attributes[names.INPUT_MESSAGES]))
        assert {"type": "text", "content": CANARY} in [part for message in asked for part in message["parts"]]
        (told,) = json.loads(str(span.attributes[names.OUTPUT_MESSAGES]))
        assert told["role"] == "assistant"
        assert told["parts"] == [{"type": "text", "content": answer}]
        assert told["finish_reason"] == "stop"


# --- the agent around it ---------------------------------------------------------------------------
@each_client
def test_uninstrument_restores_every_function(case: ClientCase) -> None:
    """The very objects; nothing that the installed version should have is missing."""
    before = [function_at(target) for target in case.watched]
    ns.instrument(case.name)
    for target, function in zip(case.watched, before, strict=True):
        assert function_at(target) is not function, target
    assert platform.installations()[case.name].missing == set()
    ns.uninstrument(case.name)
    for target, function in zip(case.watched, before, strict=True):
        assert function_at(target) is function, target


@each_client
def test_a_client_made_before_is_observed_and_afterwards_left_alone(
    case: ClientCase, server: FakeProvider
) -> None:
    """Import order does not matter; instrumenting twice is one span."""
    with case.sync(server) as client:
        with agent("on", case.name) as exporter:
            ns.instrument(case.name)
            case.chat(client)
            assert len(exporter.spans) == 1
        case.chat(client)
        drain(case.stream(client))
        assert len(exporter.spans) == 1


@each_client
def test_suppressed_calls_are_not_observed(case: ClientCase, server: FakeProvider) -> None:
    """OpenTelemetry's key; an outer layer has the span already."""
    with agent("on", case.name) as exporter, case.sync(server) as client:
        token = otel_context.attach(otel_context.set_value("suppress_instrumentation", True))
        try:
            case.chat(client)
            drain(case.stream(client))
        finally:
            otel_context.detach(token)
        assert exporter.spans == []
    assert not any("traceparent" in request.headers for request in server.requests)


@each_way_in
def test_a_server_of_ones_own_gets_the_spans_id(case: ClientCase, server: FakeProvider) -> None:
    """Plain and streamed, once."""
    with agent("on", case.name) as exporter, case.sync(server) as client:
        case.chat(client)
        drain(case.stream(client))
        assert [request.headers.get("traceparent") for request in server.requests] == [
            [f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"] for span in exporter.spans
        ]


# --- faults of ours --------------------------------------------------------------------------------
def broken(*_: Any) -> Any:
    raise RuntimeError("a bug of ours")


READERS = ("read_request", "read_response", "fold_chunk", "is_content", "is_complete", "read_error")


def sabotaged(adapter: ClientIntegration, part: str) -> ClientIntegration:
    """The adapter with one of its functions, or all its readers, raising."""

    def break_readers(function: Any) -> Any:
        def snapshot(*args: Any) -> Snapshot | None:
            kept = function(*args)
            if kept is None:
                return None
            endpoint: Endpoint = dataclasses.replace(kept.endpoint, **dict.fromkeys(READERS, broken))
            return Snapshot(endpoint, kept.target, kept.arguments, kept.peer)

        return snapshot

    methods: list[Any] = []
    for method in adapter.methods:
        changes: dict[str, Any] = {}
        if part == "readers":
            changes["snapshot"] = break_readers(method.snapshot)
        elif part.startswith("stream."):
            inner = part.removeprefix("stream.")
            if method.stream is not None and getattr(method.stream, inner) is not None:
                changes["stream"] = dataclasses.replace(method.stream, **{inner: broken})
        elif getattr(method, part) is not None:
            changes[part] = broken
        methods.append(dataclasses.replace(method, **changes))
    return dataclasses.replace(adapter, methods=tuple(methods))


@each_client
@pytest.mark.parametrize(
    "part",
    [
        "snapshot",
        "inject_headers",
        "stream.is_stream",
        "stream.get_iterator",
        "stream.set_iterator",
        "readers",
    ],
)
def test_faults_of_the_adapter_change_nothing(case: ClientCase, server: FakeProvider, part: str) -> None:
    """Each function of the table made to raise in turn: the service notices nothing."""

    def use(client: Any, server: FakeProvider) -> Any:
        server.reply(case.reply("one"), case.stream_reply("one two"), case.error(401, "no"))
        results = [plain(case.chat(client)), plain(drain(case.stream(client)))]
        with pytest.raises(case.errors) as caught:
            case.chat(client)
        return [*results, plain(caught.value)]

    expected = observe(case, "off", use, server).value
    ns.registry.register_adapter(sabotaged(ns.registry.client(case.name), part))
    GUARD.reraise = False
    try:
        outcome = observe(case, "on", use, server)
    finally:
        ns.registry.unregister_adapter(case.name)
    assert outcome.value == expected
    assert part in ("snapshot", "inject_headers") or len(outcome.spans) == 3

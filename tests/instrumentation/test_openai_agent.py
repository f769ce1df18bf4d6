"""The agent around the SDK: installing, faults, privacy, propagation, pipelines, memory."""

from __future__ import annotations

import contextvars
import dataclasses
import gc
import json
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import openai
import pytest
from openai._base_client import AsyncAPIClient, SyncAPIClient
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.propagate import inject
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import neuronscope as ns
from neuronscope import platform
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope.signals import names
from neuronscope.testing import InMemoryExporter
from neuronscope.testing.fake_openai import FakeOpenAI, chat, chat_stream, error
from neuronscope_instrumentation.openai import OPENAI, routes
from neuronscope_instrumentation.openai.keeping import Route
from openai_cases import CANARY, Mode, agent, observe, plain, sync_client

pytestmark = pytest.mark.integration

MESSAGES: Any = [{"role": "user", "content": CANARY}]
BASE_CLIENTS = (SyncAPIClient, AsyncAPIClient)


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    """One provider for the module."""
    with FakeOpenAI() as fake:
        yield fake


@pytest.fixture(autouse=True)
def forget_requests(server: FakeOpenAI) -> None:
    """Each test sees its own requests."""
    server.clear()


# --- installing ------------------------------------------------------------------------------------
def test_uninstrument_restores_every_function() -> None:
    """The very objects, on every class of the table."""
    watched = [
        (owner, name) for owner in (*BASE_CLIENTS, openai.OpenAI, openai.AsyncOpenAI, openai.AzureOpenAI)
        for name in ("request", "copy", "with_options") if name in vars(owner)
    ]  # fmt: skip
    before = [vars(owner)[name] for owner, name in watched]
    ns.instrument("openai")
    assert all(
        vars(owner)[name] is not function for (owner, name), function in zip(watched, before, strict=True)
    )
    assert platform.installations()["openai"].missing == set()
    ns.uninstrument("openai")
    assert all(vars(owner)[name] is function for (owner, name), function in zip(watched, before, strict=True))


def test_instrumenting_twice_is_one_span(server: FakeOpenAI) -> None:
    """By package, by package again, and by object."""
    with agent("on") as exporter, sync_client(server) as client:
        ns.instrument("openai")
        ns.hooks.instrument_openai(client)
        client.chat.completions.create(model="m", messages=MESSAGES)
        assert len(exporter.spans) == 1


def test_only_the_given_client_and_its_copies_are_observed(server: FakeOpenAI) -> None:
    """`with_options` and `copy` make clients that stand for the first."""
    exporter = InMemoryExporter()
    with (
        ns.Platform(exporters=[exporter], deferred=False),
        sync_client(server) as mine,
        sync_client(server) as other,
    ):
        assert ns.hooks.instrument_openai(mine) is mine
        other.chat.completions.create(model="other", messages=MESSAGES)
        mine.chat.completions.create(model="mine", messages=MESSAGES)
        mine.with_options(timeout=9).chat.completions.create(model="options", messages=MESSAGES)
        mine.copy().with_options(timeout=8).embeddings.create(model="copied", input="x")
        assert [span.attributes[names.REQUEST_MODEL] for span in exporter.spans] == [
            "mine",
            "options",
            "copied",
        ]


def test_methods_bound_before_instrumenting_are_observed(server: FakeOpenAI) -> None:
    """Import order and cached methods do not matter."""
    with sync_client(server) as client:
        create, raw = client.chat.completions.create, client.chat.completions.with_raw_response.create
        with agent("on") as exporter:
            create(model="m", messages=MESSAGES)
            raw(model="m", messages=MESSAGES)
            assert len(exporter.spans) == 2
        create(model="m", messages=MESSAGES)
        raw(model="m", messages=MESSAGES)
        assert len(exporter.spans) == 2


def test_suppressed_calls_are_not_observed(server: FakeOpenAI) -> None:
    """OpenTelemetry's key; an outer layer has the span already."""
    with agent("on") as exporter, sync_client(server) as client:
        token = otel_context.attach(otel_context.set_value("suppress_instrumentation", True))
        try:
            client.chat.completions.create(model="m", messages=MESSAGES)
        finally:
            otel_context.detach(token)
        assert exporter.spans == []
    assert "traceparent" not in server.requests[0].headers


# --- faults of ours --------------------------------------------------------------------------------
def everyday_use(client: openai.OpenAI, server: FakeOpenAI) -> Any:
    """A bit of everything."""
    server.reply(chat("one"), chat_stream("one two"), chat("three"), chat_stream("four"), error(401))
    chats = client.chat.completions
    results: list[Any] = [
        chats.create(model="m", messages=MESSAGES),
        list(chats.create(model="m", messages=MESSAGES, stream=True)),
        chats.with_raw_response.create(model="m", messages=MESSAGES).parse(),
        list(chats.with_raw_response.create(model="m", messages=MESSAGES, stream=True).parse()),
    ]
    with pytest.raises(openai.AuthenticationError) as caught:
        chats.create(model="m", messages=MESSAGES)
    results += [caught.value, client.embeddings.create(model="e", input="a")]
    return [plain(result) for result in results]


def broken(*_: Any) -> Any:
    raise RuntimeError("a bug of ours")


ROUTE_OF = routes.route_of
BROKEN_READERS: dict[str, Any] = dict.fromkeys(
    ("read_request", "read_response", "fold_chunk", "is_content", "read_error"), broken
)


def broken_route(method: str, url: str) -> Route | None:
    route = ROUTE_OF(method, url)
    if route is None:
        return None
    return route._replace(endpoint=dataclasses.replace(route.endpoint, **BROKEN_READERS))


@pytest.mark.parametrize(
    "part",
    [
        "snapshot",
        "body",
        "inject_headers",
        "is_stream",
        "get_iterator",
        "set_iterator",
        "stream.body",
        "readers",
    ],
)
def test_faults_of_the_adapter_change_nothing(
    server: FakeOpenAI, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Each function of the table made to raise in turn: the service notices nothing, and it is counted."""
    expected = observe("off", everyday_use, server).value
    method = OPENAI.methods[0]
    stream = method.stream
    assert stream is not None
    changes: dict[str, Any] = {part: broken}
    if part == "readers":
        changes = {}
        monkeypatch.setattr(routes, "route_of", broken_route)
        routes.POSTED.clear()
    elif part == "stream.body":
        changes = {"stream": dataclasses.replace(stream, body=broken)}
    elif part not in ("snapshot", "body", "inject_headers"):
        changes = {"stream": dataclasses.replace(stream, **{part: broken})}
    table = dataclasses.replace(OPENAI, methods=(dataclasses.replace(method, **changes),))
    ns.registry.register_adapter(table)
    GUARD.reraise = False
    try:
        outcome = observe("on", everyday_use, server)
    finally:
        ns.registry.unregister_adapter("openai")
        routes.POSTED.clear()  # of routes whose readers are broken
    assert outcome.value == expected
    assert GUARD.faults
    assert part in ("snapshot", "inject_headers") or len(outcome.spans) == 6


# --- privacy ---------------------------------------------------------------------------------------
def test_content_is_recorded_only_when_asked_for(server: FakeOpenAI) -> None:
    """The canary is in prompt, answer, tool, stop word and error."""

    def use(client: openai.OpenAI, server: FakeOpenAI) -> Any:
        server.reply(chat(CANARY), error(400, CANARY))
        tool: Any = {"type": "function", "function": {"name": "look_up", "description": CANARY}}
        client.chat.completions.create(model="m", messages=MESSAGES, stop=CANARY, tools=[tool])
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="m", messages=MESSAGES)
        client.embeddings.create(model="e", input=CANARY)

    on = observe("on", use, server)
    assert len(on.spans) == 3
    assert CANARY not in repr(on.spans)
    first = observe("content", use, server).spans[0].attributes
    assert json.loads(str(first[names.INPUT_MESSAGES])) == [
        {"role": "user", "parts": [{"type": "text", "content": CANARY}]}
    ]
    assert json.loads(str(first[names.OUTPUT_MESSAGES])) == [
        {"role": "assistant", "parts": [{"type": "text", "content": CANARY}], "finish_reason": "stop"}
    ]
    assert json.loads(str(first[names.TOOL_DEFINITIONS])) == [{"type": "function", "name": "look_up"}]
    assert first[names.REQUEST_STOP_SEQUENCES] == [CANARY]


def test_vectors_are_never_recorded(server: FakeOpenAI) -> None:
    """With content on neither."""

    def use(client: openai.OpenAI, server: FakeOpenAI) -> Any:
        client.embeddings.create(model="e", input="a", encoding_format="float")

    assert "0.25" not in repr(observe("content", use, server).spans)


# --- propagation -----------------------------------------------------------------------------------
def traceparents(server: FakeOpenAI) -> list[Any]:
    return [request.headers.get("traceparent") for request in server.requests]


def header(span: Any) -> str:
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def test_a_server_of_ones_own_gets_the_spans_id(server: FakeOpenAI) -> None:
    """On every kind of call, once."""
    with agent("on") as exporter, sync_client(server) as client:
        client.chat.completions.create(model="m", messages=MESSAGES)
        list(client.chat.completions.create(model="m", messages=MESSAGES, stream=True))
        client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
        client.embeddings.create(model="m", input="x", extra_headers={"x-mine": "1"})
        assert traceparents(server) == [[header(span)] for span in exporter.spans]
        assert server.requests[3].headers["x-mine"] == ["1"]


@pytest.mark.parametrize("name", ["traceparent", "Traceparent"])
def test_the_services_own_header_wins(server: FakeOpenAI, name: str) -> None:
    """Given with the call or with the client, in any case; never two."""
    own = "00-11111111111111111111111111111111-2222222222222222-01"
    headers = {name: own}
    with agent("on"), sync_client(server) as client:
        client.chat.completions.create(model="m", messages=MESSAGES, extra_headers=headers)
        client.with_options(default_headers=headers).chat.completions.create(model="m", messages=MESSAGES)
    assert headers == {name: own}
    assert traceparents(server) == [[own], [own]]


def test_one_header_beside_an_http_instrumentor(server: FakeOpenAI) -> None:
    """Its span is the child of ours, and the header names it."""

    class Instrumented(httpx2.HTTPTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            with trace.get_tracer("http").start_as_current_span("POST"):
                carrier: dict[str, str] = {}
                inject(carrier)
                request.headers.update(carrier)
                return super().handle_request(request)

    with agent("on") as exporter, httpx2.Client(transport=Instrumented()) as http:
        client = openai.OpenAI(base_url=server.base_url, api_key="x", http_client=http)
        client.chat.completions.create(model="m", messages=MESSAGES)
    post, ours = exporter.spans
    assert post.parent_span_id == ours.span_id
    assert traceparents(server) == [[header(post)]]


def test_third_parties_get_no_header(server: FakeOpenAI) -> None:
    """Nor does an absolute address, whatever the client's own is."""
    seen: list[httpx2.Headers] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers)
        return httpx2.Response(200, json=chat().body)

    with agent("on") as exporter, httpx2.Client(transport=httpx2.MockTransport(answer)) as http:
        client = openai.OpenAI(api_key="x", http_client=http)
        client.chat.completions.create(model="m", messages=MESSAGES)
        at_home = openai.OpenAI(base_url=server.base_url, api_key="x", http_client=http)
        at_home.post("https://api.groq.com/openai/v1/chat/completions", body={"model": "m"}, cast_to=object)
    assert not any("traceparent" in headers for headers in seen)
    assert [span.attributes[names.PROVIDER_NAME] for span in exporter.spans] == ["openai", "groq"]
    assert exporter.spans[1].attributes[names.SERVER_ADDRESS] == "api.groq.com"


def test_calls_in_worker_threads_stay_in_the_trace(server: FakeOpenAI) -> None:
    """With the context carried over, as by any tracing."""
    with agent("on") as exporter, sync_client(server) as client, ThreadPoolExecutor(2) as pool:
        with ns.Scope("request"):
            contexts = [contextvars.copy_context() for _ in range(4)]
            calls = [
                pool.submit(context.run, lambda: client.chat.completions.create(model="m", messages=MESSAGES))
                for context in contexts
            ]
            for call in calls:
                call.result()
        assert len({span.trace_id for span in exporter.spans}) == 1
        assert len(exporter.spans) == 5


# --- pipelines -------------------------------------------------------------------------------------
@pytest.mark.parametrize("mode", ["on", "content"])
def test_a_service_with_its_own_provider_gets_complete_spans_in_order(server: FakeOpenAI, mode: Mode) -> None:
    """Created, filled and ended inline: a call, a stream, a raw stream and an error."""
    theirs = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(theirs))
    trace.set_tracer_provider(provider)
    server.reply(chat(), chat_stream("one two"), chat_stream("one two"), error(401))
    with agent(mode) as exporter, sync_client(server) as client:
        with trace.get_tracer("app").start_as_current_span("request") as request:
            client.chat.completions.create(model="m1", messages=MESSAGES)
            assert len(theirs.get_finished_spans()) == 1
            stream = client.chat.completions.create(model="m2", messages=MESSAGES, stream=True)
            assert len(theirs.get_finished_spans()) == 1
            list(stream)
            list(
                client.chat.completions.with_raw_response.create(
                    model="m3", messages=MESSAGES, stream=True
                ).parse()
            )
            with pytest.raises(openai.AuthenticationError):
                client.chat.completions.create(model="m4", messages=MESSAGES)
            assert len(theirs.get_finished_spans()) == 4
        spans = theirs.get_finished_spans()
        assert [span.name for span in spans] == ["chat m1", "chat m2", "chat m3", "chat m4", "request"]
        for span in spans[:4]:
            assert span.parent is not None
            assert span.parent.span_id == request.get_span_context().span_id
        for span in spans[:3]:
            assert span.attributes is not None
            assert span.attributes[names.INPUT_TOKENS] == 11
            assert (names.INPUT_MESSAGES in span.attributes) is (mode == "content")
        assert spans[3].status.status_code is trace.StatusCode.ERROR
        assert [span.foreign for span in exporter.spans] == [True] * 4
        assert traceparents(server)[0] == [header(exporter.spans[0])]


# --- memory ----------------------------------------------------------------------------------------
def test_a_context_that_outlives_the_call_does_not_hold_its_vectors(server: FakeOpenAI) -> None:
    """A task or a pool's thread started during the call keeps its context; not the answer with it."""
    kept: list[contextvars.Context] = []

    class Transport(httpx2.HTTPTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            kept.append(contextvars.copy_context())
            return super().handle_request(request)

    exporter = InMemoryExporter()
    with ns.Platform(exporters=[exporter]), httpx2.Client(transport=Transport()) as http:
        ns.instrument("openai")
        client = openai.OpenAI(base_url=server.base_url, api_key="x", http_client=http)
        answer = weakref.ref(client.embeddings.create(model="e", input="x"))
        ENGINE.drain()
        gc.collect()
        assert kept
        assert answer() is None

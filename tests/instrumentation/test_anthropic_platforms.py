"""Anthropic's clients for Bedrock and Vertex, single clients, and the SDK's own tracing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import anthropic
import anthropic.lib.bedrock
import anthropic.lib.vertex
import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import neuronscope as ns
from client_anthropic import ASKED, MESSAGES, sync_client
from client_cases import CANARY, MODES, agent, facts_like
from neuronscope.signals import names
from neuronscope.testing.fake_anthropic import FakeAnthropic, error, message, message_stream
from neuronscope.testing.fake_provider import FakeProvider
from neuronscope_instrumentation.anthropic.peers import by_host, provider_for
from neuronscope_instrumentation.anthropic.requests import calls_model

integration = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[FakeAnthropic]:
    """One provider for the module."""
    with FakeAnthropic() as fake:
        yield fake


@pytest.fixture(autouse=True)
def forget_requests(server: FakeAnthropic) -> None:
    """Each test sees its own requests."""
    server.clear()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/messages", True),
        ("/v1/messages?beta=true", True),
        ("https://gateway.test/anthropic/v1/messages", True),
        ("/v1/messages/count_tokens", False),
        ("/v1/messages/batches", False),
        ("/v1/models", False),
    ],
)
def test_the_path_decides(path: str, expected: bool) -> None:
    """Paths that call no model are left alone."""
    assert calls_model(path) is expected


def test_the_provider_is_told_by_client_or_host() -> None:
    """Cloud platforms have names of their own."""
    assert by_host("api.anthropic.com") == "anthropic"
    assert by_host("bedrock-runtime.eu-west-1.amazonaws.com") == "aws.bedrock"
    assert by_host("europe-west1-aiplatform.googleapis.com") == "gcp.vertex_ai"
    assert provider_for(anthropic.Anthropic)("127.0.0.1") == "anthropic"

    class Mine(anthropic.lib.bedrock.AsyncAnthropicBedrock):
        """A service's own."""

    assert provider_for(Mine)("127.0.0.1") == "aws.bedrock"


@integration
@pytest.mark.parametrize("way", ["with_raw_response", "with_streaming_response"])
def test_bedrocks_frames_are_read_along(server: FakeAnthropic, way: str) -> None:
    """Where the service gets the response itself, its body is a binary event stream."""
    with agent("on", "anthropic") as exporter, httpx2.Client(verify=False) as http:
        client: Any = anthropic.lib.bedrock.AnthropicBedrock(
            api_key="k", aws_region="eu-west-1", base_url=server.base_url, http_client=http
        )
        asked: Any = {"model": "m", "max_tokens": 9, "messages": MESSAGES, "stream": True}
        if way == "with_raw_response":
            stream: Any = client.messages.with_raw_response.create(**asked).parse()
            assert len(list(stream)) == 10
        else:
            with client.messages.with_streaming_response.create(**asked) as response:
                assert b"".join(response.iter_bytes())
    (span,) = exporter.spans
    assert span.attributes[names.STREAM_END] == "complete"
    assert span.attributes[names.INPUT_TOKENS] == 11
    assert span.attributes[names.OUTPUT_TOKENS] == 5
    assert span.attributes[names.FINISH_REASONS] == ["end_turn"]


@integration
def test_vertex_goes_through_the_same_choke_point(server: FakeAnthropic) -> None:
    """The model is in the body when we look, in the path when it is sent; copies are observed too."""
    with agent("on", "anthropic") as exporter, httpx2.Client(verify=False) as http:
        client = anthropic.lib.vertex.AnthropicVertex(
            region="eu", project_id="p", access_token="t", base_url=server.base_url, http_client=http
        )
        client.messages.create(**ASKED)
        list(client.with_options(timeout=3).messages.create(**ASKED, stream=True))
    assert [request.path for request in server.requests] == [
        "/projects/p/locations/eu/publishers/anthropic/models/m:rawPredict",
        "/projects/p/locations/eu/publishers/anthropic/models/m:streamRawPredict",
    ]
    expected = {names.PROVIDER_NAME: "gcp.vertex_ai", names.REQUEST_MODEL: "m", names.INPUT_TOKENS: 11}
    assert [facts_like(span.attributes, expected) for span in exporter.spans] == [expected] * 2


@integration
def test_bedrock_goes_through_the_same_choke_point(server: FakeAnthropic) -> None:
    """With a bearer token no AWS library is needed."""
    with agent("on", "anthropic") as exporter, httpx2.Client(verify=False) as http:
        client: Any = anthropic.lib.bedrock.AnthropicBedrock(
            api_key="k", aws_region="eu-west-1", base_url=server.base_url, http_client=http
        )
        client.messages.create(**ASKED)
    assert [request.path for request in server.requests] == ["/model/m/invoke"]
    expected = {names.PROVIDER_NAME: "aws.bedrock", names.REQUEST_MODEL: "m", names.OUTPUT_TOKENS: 5}
    assert facts_like(exporter.spans[0].attributes, expected) == expected


@integration
def test_only_the_given_client_and_its_copies_are_observed(server: FakeAnthropic) -> None:
    """`with_options` and `copy` make clients that stand for the first."""
    with agent("on") as exporter, sync_client(server) as mine, sync_client(server) as other:
        ns.uninstrument()
        assert ns.hooks.instrument_anthropic(mine) is mine
        other.messages.create(**{**ASKED, "model": "other"})
        mine.messages.create(**{**ASKED, "model": "mine"})
        mine.with_options(timeout=9).copy().messages.create(**{**ASKED, "model": "copied"})
        assert [span.attributes[names.REQUEST_MODEL] for span in exporter.spans] == ["mine", "copied"]


# --- the SDK's own tracing --------------------------------------------------------------------------
def use(client: Any) -> None:
    client.messages.create(**ASKED)
    with client.messages.stream(**ASKED) as stream:
        stream.until_done()
    client.messages.count_tokens(model="m", messages=MESSAGES)


@integration
def test_our_provider_does_not_wake_the_sdks_own_tracing(server: FakeAnthropic) -> None:
    """Without us it would make no span and send no header: so it does not now."""
    with agent("on", "anthropic") as exporter, sync_client(server) as client:
        use(client)
        assert [span.name for span in exporter.spans] == ["chat m", "chat m"]
        assert ["traceparent" in request.headers for request in server.requests] == [True, True, False]


@pytest.mark.any_names  # the SDK's own tracing writes on our span
@integration
@pytest.mark.parametrize("mode", MODES[1:])
def test_a_services_own_pipeline_gets_one_span_a_call(server: FakeAnthropic, mode: Any) -> None:
    """What the SDK alone would have told is on our span, and its header is still sent."""
    theirs = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(theirs))
    trace.set_tracer_provider(provider)
    with agent(mode, "anthropic") as exporter, sync_client(server) as client:
        client.messages.create(**ASKED, thinking={"type": "adaptive"})
        list(client.messages.create(**ASKED, stream=True))
        server.reply(error(401, CANARY))
        with pytest.raises(anthropic.AuthenticationError):
            client.messages.create(**ASKED)
        client.messages.count_tokens(model="m", messages=MESSAGES)
        calls = exporter.spans
    spans = theirs.get_finished_spans()
    assert [span.name for span in spans] == ["chat m"] * 3 + ["anthropic.messages.count_tokens"]
    assert len([span for span in calls if names.INPUT_TOKENS in span.attributes]) == 2
    attributes = dict(spans[0].attributes or {})
    assert attributes["anthropic.thinking.type"] == "adaptive"
    assert attributes[names.INPUT_TOKENS] == 11
    assert dict(spans[2].attributes or {})[names.ERROR_TYPE] == "anthropic.AuthenticationError"
    assert spans[2].status.status_code is trace.StatusCode.ERROR
    assert (CANARY in repr([span.attributes for span in spans])) is (mode == "content")
    for span, request in zip(spans, server.requests, strict=True):
        assert span.context is not None
        flags = int(span.context.trace_flags)
        identity = f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{flags:02x}"
        assert request.headers["traceparent"] == [identity]


@integration
def test_a_provider_given_to_the_client_is_undisturbed(server: FakeAnthropic) -> None:
    """Spans that go elsewhere double nothing."""
    theirs = InMemorySpanExporter()
    private = TracerProvider()
    private.add_span_processor(SimpleSpanProcessor(theirs))
    option: Any = {"tracer_provider": private}
    with (
        agent("on", "anthropic") as exporter,
        sync_client(server, open_telemetry=option) as client,
    ):
        client.messages.create(**ASKED)
        assert [span.name for span in exporter.spans] == ["chat m"]
    (span,) = theirs.get_finished_spans()
    assert span.name == "anthropic.messages.create"


def test_what_headers_tell(server: FakeProvider) -> None:
    """The provider's id of a call, what its limits leave, and how often the SDK had to try."""
    told = {
        "request-id": "req-1",
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "49",
        "anthropic-ratelimit-tokens-remaining": "39000",
    }
    answers = (message("one"), message_stream("one two"), error(400, "no"))
    with agent("on", "anthropic") as exporter, sync_client(server, max_retries=1) as client:
        busy = error(529, "busy")
        server.reply(dataclasses.replace(busy, headers={"retry-after-ms": "1"}))
        server.reply(*[dataclasses.replace(answer, headers=told) for answer in answers])
        client.messages.create(**ASKED)
        list(client.messages.create(**ASKED, stream=True))
        with pytest.raises(anthropic.BadRequestError):
            client.messages.create(**ASKED)
    assert [span.attributes.get(names.HTTP_RESEND_COUNT) for span in exporter.spans] == [1, None, None]
    for span in exporter.spans:
        assert span.attributes[names.REQUEST_ID] == "req-1"
        assert span.attributes[names.RATE_LIMIT_REQUESTS] == 50
        assert span.attributes[names.RATE_LIMIT_REQUESTS_LEFT] == 49
        assert span.attributes[names.RATE_LIMIT_TOKENS_LEFT] == 39000

"""One service call seen three ways: without the agent, with it, and with content capture; for any client.

A `ClientCase` tells how a client library is used; the contract suite runs the same scenarios over all of them
(`tests/contract/test_client_contract.py`).
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import logging
from collections.abc import Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import pydantic

import neuronscope as ns
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from neuronscope.testing import InMemoryExporter
from neuronscope.testing.fake_provider import FakeProvider, Received, Reply

Mode = Literal["off", "on", "content"]
MODES: tuple[Mode, ...] = ("off", "on", "content")
CANARY = "zebra-canary-7731"
WORDS = "one two three four five"
# What asyncio may say at any time, agent or not: of the HTTP library's generators when a stream is dropped,
# and of gRPC's one poller, when it wakes a loop of an earlier test.
DROPPED_GENERATORS = "asyncio: an error occurred during closing of asynchronous generator"
LIBRARIES_OWN = (
    DROPPED_GENERATORS,
    "asyncio: Exception in callback PollerCompletionQueue.",
)
# Ours; and what differs between two runs anyway.
IGNORED_HEADERS = frozenset({"traceparent", "idempotency-key", "amz-sdk-invocation-id"})


@dataclass(frozen=True, kw_only=True)
class Call:
    """One way of calling one method, and what its span says.

    Attributes:
        name: for people.
        run: ``(client) -> value``: calls, reads a stream to its end, and returns what the service saw.
        arun: its asynchronous twin.
        replies: the provider's answers.
        facts: the span's; without tokens the call is no bill.
        opened: ``(client) -> stream``, where the result is one that can be left early.
        aopened: its asynchronous twin.
        content: does the span hold the canary when content is on?
    """

    name: str
    run: Callable[[Any], Any]
    arun: Callable[[Any], Coroutine[Any, Any, Any]]
    replies: Callable[[], tuple[Reply, ...]]
    facts: Mapping[str, Any]
    opened: Callable[[Any], Any] | None = None
    aopened: Callable[[Any], Coroutine[Any, Any, Any]] | None = None
    content: bool = True


@dataclass(frozen=True, kw_only=True)
class ClientCase:
    """How one client library is used.

    Attributes:
        name: the adapter's.
        variant: the client's class, where the library has several.
        distribution: what has to be installed.
        server: the fake of its provider.
        sync, aio: ``(server) -> context of a client`` that does not retry and gives up after `timeout_s`.
        errors: what the library raises.
        chat, stream: one call whose prompt, and tools, hold the canary.
        achat, astream: their asynchronous twins.
        reply, stream_reply: ``(text) -> answer``; `stream_reply` takes fields of `Reply` too.
        error: ``(status, message) -> answer``.
        operation: name of the operation.
        complete, streamed: facts that spans of the two have.
        unseen: events early in a stream that count as chunks, but that the service does not get.
        unauthorised: `error.type` of a 401.
        timeout: `error.type` of an answer that does not come.
        tells_status: errors carry the HTTP status.
        notices_cut: an answer that is cut off before its first byte is an error to the library.
        embed: a call whose vectors are made of 0.25; None if there is none.
        watched: ``module:Class.function`` that must be restored exactly.
        calls: every method in every variant; those above are the ones looked at closely.
    """

    name: str
    distribution: str
    server: Callable[[], FakeProvider]
    sync: Callable[[FakeProvider], AbstractContextManager[Any]]
    aio: Callable[[FakeProvider], AbstractAsyncContextManager[Any]]
    errors: tuple[type[BaseException], ...]
    chat: Callable[[Any], Any]
    stream: Callable[[Any], Any]
    achat: Callable[[Any], Coroutine[Any, Any, Any]]
    astream: Callable[[Any], Coroutine[Any, Any, Any]]
    reply: Callable[[str], Reply]
    stream_reply: Callable[..., Reply]
    error: Callable[[int, str], Reply]
    complete: Mapping[str, Any]
    streamed: Mapping[str, Any]
    unauthorised: str
    timeout: str
    watched: tuple[str, ...]
    operation: str = "chat"
    tells_status: bool = True
    notices_cut: bool = True
    unseen: int = 0
    embed: Callable[[Any], Any] | None = None
    aembed: Callable[[Any], Coroutine[Any, Any, Any]] | None = None
    embedding: Mapping[str, Any] = field(default_factory=dict[str, Any])
    calls: tuple[Call, ...] = ()
    variant: str = ""

    @property
    def label(self) -> str:
        """What the case is called in a list of tests."""
        return f"{self.name} {self.variant}".strip()


def with_calls(case: ClientCase) -> ClientCase:
    """The case, with the calls that it looks at closely where it has no table of all."""
    return case if case.calls else replace(case, calls=tuple(_calls(case)))


def _calls(case: ClientCase) -> Iterator[Call]:
    async def drain(client: Any) -> Any:
        return [chunk async for chunk in await case.astream(client)]

    yield Call(
        name="chat",
        run=case.chat,
        arun=case.achat,
        replies=lambda: (case.reply(CANARY),),
        facts={names.OPERATION_NAME: case.operation, **case.complete},
    )
    yield Call(
        name="stream",
        run=lambda client: list(case.stream(client)),
        arun=drain,
        replies=lambda: (case.stream_reply(f"{CANARY} two three four five"),),
        facts={names.OPERATION_NAME: case.operation, **case.streamed},
        opened=case.stream,
        aopened=case.astream,
    )
    if case.embed is not None and case.aembed is not None:
        yield Call(
            name="embed",
            run=case.embed,
            arun=case.aembed,
            replies=lambda: (),
            facts={names.OPERATION_NAME: "embeddings", **case.embedding},
            content=False,
        )


@dataclass(frozen=True)
class Outcome:
    """What the service and the provider saw of one run, and what we recorded."""

    value: Any
    requests: list[Any]
    logs: list[str]
    spans: list[SpanRecord] = field(compare=False)


@contextmanager
def agent(mode: Mode, *adapters: str) -> Generator[InMemoryExporter]:
    """The agent in one of the three modes, finishing spans in the caller's thread."""
    exporter = InMemoryExporter()
    if mode == "off":
        yield exporter
        return
    capture = "span_only" if mode == "content" else "no_content"
    with ns.Platform(exporters=[exporter], deferred=False, capture_content=capture):
        ns.instrument(*adapters)
        yield exporter


@contextmanager
def captured_logs() -> Generator[list[str]]:
    """Log records of every library at WARNING and above."""
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = f"{record.name}: {record.getMessage()}"
            if not message.startswith(LIBRARIES_OWN):
                messages.append(message)

    handler = Keep(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        yield messages
    finally:
        logging.getLogger().removeHandler(handler)


_TIMEOUT_S: ContextVar[float] = ContextVar("timeout_s", default=10.0)


def timeout_s() -> float:
    """How long clients made now wait for an answer."""
    return _TIMEOUT_S.get()


@contextmanager
def impatient(seconds: float = 0.08) -> Generator[None]:
    """Clients made inside give up soon: for answers that do not come."""
    token = _TIMEOUT_S.set(seconds)
    try:
        yield
    finally:
        _TIMEOUT_S.reset(token)


def observe(
    case: ClientCase, mode: Mode, scenario: Callable[[Any, FakeProvider], Any], server: FakeProvider
) -> Outcome:
    """Run a scenario once."""
    server.clear()
    with (
        captured_logs() as logs,
        agent(mode, case.name) as exporter,
        case.sync(server) as client,
    ):
        try:
            value = plain(scenario(client, server))
        except case.errors as error:
            value = plain(error)
        gc.collect()
    return Outcome(value, wire(server), logs, exporter.spans)


def observe_async(
    case: ClientCase,
    mode: Mode,
    scenario: Callable[[Any, FakeProvider], Coroutine[Any, Any, Any]],
    server: FakeProvider,
) -> Outcome:
    """Run an asynchronous scenario once, in an event loop of its own."""

    async def run() -> Any:
        async with case.aio(server) as client:
            try:
                return plain(await scenario(client, server))
            except case.errors as error:
                return plain(error)

    server.clear()
    with captured_logs() as logs, agent(mode, case.name) as exporter:
        value = asyncio.run(run())
        gc.collect()
    return Outcome(value, wire(server), logs, exporter.spans)


async def until_asked(server: FakeProvider) -> None:
    """Wait until a request has come, a minute at most."""
    for _ in range(6_000):
        if server.requests:
            return
        await asyncio.sleep(0.01)


def three_ways(run: Callable[[Mode], Outcome]) -> tuple[Outcome, Outcome]:
    """Run in all modes, require that the service and the provider saw the same; returns on and content."""
    off, on, content = (run(mode) for mode in MODES)
    if timeout_s() < 1.0 and not off == on == content:
        # A busy machine may be slower to connect than these clients wait: what we change is changed
        # for patient ones, too.
        with impatient(1.0):
            off, on, content = (run(mode) for mode in MODES)
    assert on == off
    assert content == off
    assert not off.spans
    assert CANARY not in repr(on.spans)
    return on, content


def plain(value: Any) -> Any:
    """A value together with its types, comparable between runs."""
    if isinstance(value, pydantic.BaseModel):
        return type(value).__qualname__, value.model_dump(warnings=False), sorted(vars(value))
    if isinstance(value, BaseException):
        status = getattr(value, "status_code", None)
        return type(value).__qualname__, str(value), status, plain(value.__cause__)
    if isinstance(value, list | tuple):
        return [plain(item) for item in cast("list[Any]", value)]
    if issubclass(type(value), dict):
        return {key: plain(item) for key, item in value.items()}
    return type(value).__qualname__, value


def wire(server: FakeProvider) -> list[Any]:
    """What the provider received, without what may differ."""
    return [_received(request) for request in server.requests]


def _received(request: Received) -> tuple[Any, ...]:
    headers = {name: value for name, value in request.headers.items() if name not in IGNORED_HEADERS}
    body = request.body
    form, _, boundary = "".join(headers.get("content-type", ())).partition("boundary=")
    if boundary:  # a form's parts are divided by a line that is made up each time
        headers["content-type"] = [form]
        body = body.replace(boundary.encode(), b"boundary")
    return request.method, request.path, body, headers


def facts_like(attributes: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes that `facts` names."""
    return {key: attributes.get(key) for key in facts}


def function_at(target: str) -> Any:
    """What ``module:Class.function`` holds now."""
    module, _, path = target.partition(":")
    owner: object = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    return inspect.getattr_static(owner, name)

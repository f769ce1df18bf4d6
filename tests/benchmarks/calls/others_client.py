"""What is called of further SDKs: Anthropic's, Google's and Cohere's, over transports in memory.

Hot, only the function that an instrumentation wraps is called, as the SDK did before: it answers at once.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from tests.benchmarks.calls.openai_client import ANSWER, CHUNKS, prompt

Call = Callable[[], Any]


@dataclass(slots=True)
class _Sent:
    """A call that a seam has seen: what it was given, and what it returned."""

    instance: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


class Seam:
    """A function of an SDK that can be made to answer at once; made before it is instrumented."""

    def __init__(self, owner: Any, name: str) -> None:
        self._name, self._ready = name, False
        self.answer: Call = lambda: None
        self.seen: _Sent | None = None
        original = getattr(owner, name)

        @functools.wraps(original)  # instrumentations read its signature
        def switch(instance: Any, *args: Any, **kwargs: Any) -> Any:
            if self._ready:
                return self.answer()
            result = original(instance, *args, **kwargs)
            self.seen = _Sent(instance, args, kwargs, result)
            return result

        setattr(owner, name, switch)

    def record(
        self, call: Call, fresh: Callable[[Any], Call] | None = None, again: Call | None = None
    ) -> Call:
        """Call for real, once; returns the same call of this function alone.

        Args:
            fresh: makes of what it has returned what gives a new answer each time; else it is the same.
            again: calls the function; else it is called as it was.
        """
        returned = call()
        seen, name = self.seen, self._name
        assert seen is not None
        result = seen.result if seen.result is not None else returned
        answer = (lambda: result) if fresh is None else fresh(result)

        def alone() -> Any:
            self.answer, self._ready = answer, True
            return getattr(seen.instance, name)(*seen.args, **seen.kwargs) if again is None else again()

        return alone

    def open(self) -> None:
        """Let it run again."""
        self._ready = False


class Others:
    """One SDK's client and its calls.

    Args:
        library: ``anthropic``, ``google_genai`` or ``cohere``.
        public: hot is the public method, which most peers wrap; else the function beneath, which we wrap.
    """

    def __init__(self, library: str, *, public: bool) -> None:
        self._calls: dict[str, Call] = {}
        self._hot: dict[str, Call] = {}
        self._seams: list[Seam] = []
        make: Callable[[bool], None] = getattr(self, f"_{library}")
        make(public)

    @property
    def names(self) -> tuple[str, ...]:
        """All calls."""
        return tuple(self._calls)

    def call(self, name: str, hot: bool) -> Call:
        """The call; hot: one function of it."""
        for seam in self._seams:
            seam.open()
        return self._hot.get(name, self._calls[name]) if hot else self._calls[name]

    def _seam(self, owner: Any, name: str) -> Seam:
        self._seams.append(Seam(owner, name))
        return self._seams[-1]

    # --- Anthropic -------------------------------------------------------------------------------------
    def _anthropic(self, public: bool) -> None:
        sdk, http = importlib.import_module("anthropic"), importlib.import_module("httpx2")
        base = importlib.import_module("anthropic._base_client")
        messages = importlib.import_module("anthropic.resources.messages")
        importlib.import_module("anthropic.resources.beta")  # what is loaded lazily would look like a patch
        owner, name = (messages.Messages, "create") if public else (base.SyncAPIClient, "request")
        seam = self._seam(owner, name)
        answer, events = json.dumps(_message()).encode(), _message_events()

        def respond(request: Any) -> Any:
            if b'"stream":true' in request.content:
                return http.Response(200, content=events, headers={"content-type": "text/event-stream"})
            return http.Response(200, content=answer, headers={"content-type": "application/json"})

        transport = http.Client(transport=http.MockTransport(respond))
        # Its own tracing is off on both sides: what is measured is what others add.
        client = sdk.Anthropic(
            api_key="x",
            base_url="http://sdk.bench",
            http_client=transport,
            open_telemetry=False,
            max_retries=0,
        )
        system, user = prompt()
        asked: dict[str, Any] = {
            "model": "claude-sonnet-4-5", "max_tokens": 512, "system": system["content"], "messages": [user],
        }  # fmt: skip

        def chat() -> Any:
            return client.messages.create(**asked)

        def stream() -> None:
            for _ in client.messages.create(**asked, stream=True):
                pass

        def helper() -> None:
            with client.messages.stream(**asked) as told:
                for _ in told:
                    pass

        self._calls = {"anthropic_chat": chat, "anthropic_stream": stream, "anthropic_helper": helper}
        self._hot["anthropic_chat"] = seam.record(chat)
        chunks: list[Any] = []

        def keep() -> None:
            chunks.extend(client.messages.create(**asked, stream=True))

        opened = seam.record(keep, lambda made: functools.partial(_stream, made, chunks))

        def read() -> None:
            for _ in opened():
                pass

        self._hot["anthropic_stream"] = read

    # --- Google ----------------------------------------------------------------------------------------
    def _google_genai(self, public: bool) -> None:
        sdk, http = importlib.import_module("google.genai"), importlib.import_module("httpx2")
        models = importlib.import_module("google.genai.models")
        api = importlib.import_module("google.genai._api_client")
        owner, name = (models.Models, "generate_content") if public else (api.BaseApiClient, "request")
        seam = self._seam(owner, name)
        answer = json.dumps(_generation()).encode()

        def respond(request: Any) -> Any:
            return http.Response(200, content=answer, headers={"content-type": "application/json"})

        client = sdk.Client(
            api_key="x",
            http_options={
                "base_url": "http://sdk.bench", "client_args": {"transport": http.MockTransport(respond)},
            },
        )  # fmt: skip
        system, user = prompt()
        config = {"system_instruction": system["content"], "temperature": 0.2, "max_output_tokens": 512}

        def generate() -> Any:
            return client.models.generate_content(
                model="gemini-2.5-flash", contents=user["content"], config=config
            )

        self._calls = {"gemini": generate}
        self._hot["gemini"] = seam.record(generate)

    # --- Cohere ----------------------------------------------------------------------------------------
    def _cohere(self, public: bool) -> None:
        sdk, http = importlib.import_module("cohere"), importlib.import_module("httpx")
        client_module = importlib.import_module("cohere.core.http_client")
        importlib.import_module("cohere.v2.client")
        owner, name = (sdk.ClientV2, "chat") if public else (client_module.HttpClient, "request")
        sdk.ClientV2.chat = sdk.ClientV2.chat  # inherited until here
        seam = self._seam(owner, name)
        answer = json.dumps(_chat()).encode()

        def respond(request: Any) -> Any:
            return http.Response(200, content=answer, headers={"content-type": "application/json"})

        # A client binds its methods as it is made: each instrumentation of the class gets one of its own.
        # By identity: a wrapper that stands for the function is equal to it.
        clients: dict[int, Any] = {}
        messages = prompt()

        def client() -> Any:
            bound = id(sdk.ClientV2.__dict__["chat"])
            made = clients.get(bound)
            if made is None:
                transport = http.Client(transport=http.MockTransport(respond))
                made = sdk.ClientV2(api_key="x", base_url="http://sdk.bench", httpx_client=transport)
                clients[bound] = made
            return made

        def chat() -> Any:
            return client().chat(
                model="command-a-03-2025", messages=messages, temperature=0.2, max_tokens=512
            )

        self._calls = {"cohere": chat}
        self._hot["cohere"] = seam.record(chat, again=chat if public else None)


def _stream(made: Any, chunks: list[Any]) -> Any:
    """A stream that is ready to be read, of the class of one that was."""
    kind = cast("Any", type(made))
    stream: Any = object.__new__(kind)
    # A generator, as its own; a response each, since instrumentations wrap its methods.
    stream.response, stream._iterator = _Response(made.response), (chunk for chunk in chunks)
    return stream


class _Response:
    """Stands for the HTTP response of a ready stream."""

    def __init__(self, real: Any) -> None:
        self.headers, self.request, self.status_code = real.headers, real.request, real.status_code

    def close(self) -> None:
        """Nothing to close."""


# --- answers -----------------------------------------------------------------------------------------------
_USAGE = {"input_tokens": 512, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}


def _message(**changes: Any) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5-20250929",
        "content": [{"type": "text", "text": ANSWER}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {**_USAGE, "output_tokens": 230},
        **changes,
    }


def _message_events() -> bytes:
    start = _message(content=[], stop_reason=None, usage={**_USAGE, "output_tokens": 1})
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": f" word{i}"}}
            for i in range(CHUNKS - 5)
        ),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 200},
        },
        {"type": "message_stop"},
    ]
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


def _generation() -> dict[str, Any]:
    candidate = {
        "index": 0,
        "content": {"role": "model", "parts": [{"text": ANSWER}]},
        "finishReason": "STOP",
    }
    usage = {"promptTokenCount": 512, "candidatesTokenCount": 230, "totalTokenCount": 742}
    return {
        "responseId": "gen-1",
        "modelVersion": "gemini-2.5-flash",
        "candidates": [candidate],
        "usageMetadata": usage,
    }


def _chat() -> dict[str, Any]:
    units = {"input_tokens": 512.0, "output_tokens": 230.0}
    return {
        "id": "chat-1",
        "finish_reason": "COMPLETE",
        "message": {"role": "assistant", "content": [{"type": "text", "text": ANSWER}]},
        "usage": {"billed_units": units, "tokens": units},
    }

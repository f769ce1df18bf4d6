"""What is called: the real openai SDK over a transport that answers at once from memory, or (hot) only the
SDK's function that an instrumentation wraps, answering at once: its own cost stands alone."""

from __future__ import annotations

import array
import base64
import functools
import importlib
import json
from collections.abc import Callable
from typing import Any, Literal

CHUNKS = 200
DIMENSION = 1536
QUESTION = "what does the fox do?"
Seam = Literal["create", "request"]
ANSWER = "The fox jumps over the lazy dog, as document 7 says. " * 19
MODEL = "gpt-4o-mini"


def prompt(characters: int = 2_300) -> list[dict[str, str]]:
    """Two messages of about this many characters together."""
    context = "The quick brown fox jumps over the lazy dog. " * (characters // 45 + 1)
    return [
        {"role": "system", "content": "You answer from the context. " + "Be short and cite. " * 8},
        {"role": "user", "content": f"Context:\n{context[:characters]}\nQuestion: {QUESTION}"},
    ]


def _chat_answer() -> bytes:
    usage = {
        "prompt_tokens": 512,
        "completion_tokens": 230,
        "total_tokens": 742,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }
    message: dict[str, Any] = {"role": "assistant", "content": ANSWER, "refusal": None, "annotations": []}
    return json.dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1760000000,
            "model": f"{MODEL}-2024-07-18",
            "service_tier": "default",
            "system_fingerprint": "fp_1",
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}],
            "usage": usage,
        }
    ).encode()


def _chunk(
    delta: dict[str, str] | None, finish: str | None = None, usage: dict[str, int] | None = None
) -> bytes:
    choices = (
        [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    )
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1760000000,
        "model": f"{MODEL}-2024-07-18",
        "service_tier": "default",
        "system_fingerprint": "fp_1",
        "choices": choices,
        "usage": usage,
    }
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _stream_answer(chunks: int) -> bytes:
    words = [_chunk({"content": f" word{i}"}) for i in range(chunks - 3)]
    usage = {"prompt_tokens": 512, "completion_tokens": 200, "total_tokens": 712}
    return (
        b"".join(
            [
                _chunk({"role": "assistant", "content": ""}),
                *words,
                _chunk({}, "stop"),
                _chunk(None, usage=usage),
            ]
        )
        + b"data: [DONE]\n\n"
    )


def _embeddings_answer() -> bytes:
    vector = base64.b64encode(array.array("f", [i / DIMENSION for i in range(DIMENSION)]).tobytes()).decode()
    return json.dumps(
        {
            "object": "list",
            "data": [{"object": "embedding", "index": 0, "embedding": vector}],
            "model": "text-embedding-3-small",
            "usage": {"prompt_tokens": 8, "total_tokens": 8},
        }
    ).encode()


class Sdk:
    """An openai client on a transport in memory, and the calls that are measured.

    Must be made before any instrumentation is switched on: it puts switches where instrumentations do.

    Args:
        characters: size of the prompt.
        chunks: length of a streamed answer.
    """

    def __init__(self, characters: int = 2_300, chunks: int = CHUNKS) -> None:
        self._stream_length = chunks
        self._openai: Any = importlib.import_module("openai")
        for name in (
            "resources.chat.completions",
            "resources.embeddings",
            "resources.responses",
            "resources.beta",
        ):
            importlib.import_module(f"openai.{name}")  # what is loaded lazily would look like a patch
        base = importlib.import_module("openai._base_client")
        # The HTTP library is httpx2 in new SDKs, httpx in older ones.
        self._http = importlib.import_module("httpx2" if hasattr(base, "httpx2") else "httpx")
        self._messages = prompt(characters)
        self._ready: Callable[[], Any] | None = None
        self._sent: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
        self._install_switch(base.SyncAPIClient, "request")
        self._install_switch(self._openai.resources.chat.completions.Completions, "create")
        self._install_switch(self._openai.resources.embeddings.Embeddings, "create")
        self.client = self.new_client()
        self._answers, self._requests_sent = dict[str, Any](), dict[str, Any]()
        for name, call in self._requests().items():
            self._answers[name] = call()
            self._requests_sent[name] = self._sent
        self._chunks = list(self._answers["stream"])

    def new_client(self) -> Any:
        """A further client; some peers patch clients as they are made."""
        chat, stream, embeddings = _chat_answer(), _stream_answer(self._stream_length), _embeddings_answer()
        http = self._http

        def respond(request: Any) -> Any:
            if request.url.path.endswith("/embeddings"):
                return http.Response(200, content=embeddings, headers={"content-type": "application/json"})
            if b'"stream":true' in request.content:
                return http.Response(200, content=stream, headers={"content-type": "text/event-stream"})
            return http.Response(200, content=chat, headers={"content-type": "application/json"})

        return self._openai.OpenAI(
            api_key="sk-bench",
            base_url="http://sdk.bench/v1",
            http_client=http.Client(transport=http.MockTransport(respond)),
            max_retries=0,
        )

    def call(self, name: str, seam: Seam | None = None) -> Callable[[], Any]:
        """The call ``chat``, ``stream`` (read to its end) or ``embeddings``.

        Args:
            seam: call this function of the SDK, and have it answer at once: an instrumentation that wraps it
                then stands alone.  None: the whole SDK runs, as in a service.
        """
        self._ready = None if seam is None else self._answer(name)
        request = self._requests()[name]
        if seam == "request":
            sent, client = self._requests_sent[name], self.client
            args, kwargs = sent

            def request() -> Any:
                return client.request(*args, **kwargs)

        if name != "stream":
            return request

        def stream() -> None:
            for _ in request():
                pass

        return stream

    def _answer(self, name: str) -> Callable[[], Any]:
        if name == "stream":
            return self._ready_stream
        answer = self._answers[name]
        return lambda: answer

    def _requests(self) -> dict[str, Callable[[], Any]]:
        messages = self._messages

        def chat() -> Any:
            return self.client.chat.completions.create(
                model=MODEL, messages=messages, temperature=0.2, max_tokens=512
            )

        def stream() -> Any:
            return self.client.chat.completions.create(
                model=MODEL,
                messages=messages,
                temperature=0.2,
                max_tokens=512,
                stream=True,
                stream_options={"include_usage": True},
            )

        def embeddings() -> Any:
            return self.client.embeddings.create(model="text-embedding-3-small", input=QUESTION)

        return {"chat": chat, "stream": stream, "embeddings": embeddings}

    def _ready_stream(self) -> Any:
        stream = object.__new__(self._openai.Stream)
        # A generator, as the SDK's own is.
        stream.response, stream._iterator = _NoResponse(), (chunk for chunk in self._chunks)
        return stream

    def _install_switch(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)  # instrumentations read its signature
        def switch(instance: Any, *args: Any, **kwargs: Any) -> Any:
            ready = self._ready
            if ready is not None:
                return ready()
            if name == "request":
                self._sent = args, kwargs
            return original(instance, *args, **kwargs)

        setattr(owner, name, switch)


class _NoResponse:
    """Stands for the HTTP response of a ready stream."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}

    def close(self) -> None:
        """Nothing to close."""

"""Every method of the OpenAI SDK that a model works for, in each of the SDK's variants.

Plain, raw (``with_raw_response``), unread (``with_streaming_response``), and streamed in each of these; sync
and async.  One table, from which the contract suite makes its calls.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from client_cases import CANARY, Call
from neuronscope.signals import names
from neuronscope.testing import fake_media, fake_openai, fake_responses
from neuronscope.testing.fake_provider import Reply


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method of a resource.

    Attributes:
        path: of the resource, and the method's name.
        asked: its arguments.
        reply: the provider's answer.
        facts: what its span says.
        streamed: the provider's answer to ``stream=True``; None: it does not stream.
        stream_facts: what the span of a stream says beside `facts`.
        content: does the span hold the canary when content is on?
    """

    path: str
    asked: Mapping[str, Any]
    reply: Callable[[], Reply]
    facts: Mapping[str, Any]
    streamed: Callable[[], Reply] | None = None
    stream_facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    content: bool = True

    def of(self, client: Any, variant: str = "") -> Callable[..., Any]:
        """The bound method, ready to be called."""
        *resource, name = self.path.split(".")
        owner = functools.reduce(getattr, resource, client)
        bound: Callable[..., Any] = getattr(getattr(owner, variant) if variant else owner, name)
        return bound


CHAT_FACTS: dict[str, Any] = {
    names.OPERATION_NAME: "chat",
    names.PROVIDER_NAME: "openai",
    names.REQUEST_MODEL: "m",
    names.RESPONSE_MODEL: "fake-model-1",
    names.INPUT_TOKENS: 11,
    names.CACHE_READ_TOKENS: 4,
    names.OUTPUT_TOKENS: 5,
    names.REASONING_TOKENS: 2,
    names.FINISH_REASONS: ["stop"],
    names.OPENAI_RESPONSE_SERVICE_TIER: "default",
    names.ERROR_TYPE: None,
}
TOKENS = {names.INPUT_TOKENS: 11, names.OUTPUT_TOKENS: 5}
IMAGE_FACTS: dict[str, Any] = {
    names.OPERATION_NAME: "generate_content",
    names.OUTPUT_TYPE: "image",
    names.IMAGE_INPUT_TOKENS: 4,
    names.TEXT_INPUT_TOKENS: 7,
    **TOKENS,
}
SPOKEN_FACTS: dict[str, Any] = {
    names.OPERATION_NAME: "generate_content",
    names.OUTPUT_TYPE: "text",
    **TOKENS,
}
FILE = ("a.bin", b"not really")
STREAM_FACTS = {names.REQUEST_STREAM: True, names.STREAM_END: "complete"}
MESSAGES = [{"role": "user", "content": CANARY}]
FUNCTION: dict[str, Any] = {
    "name": "look_up",
    "description": CANARY,
    "parameters": {"type": "object", "properties": {}},
}

METHODS: tuple[Method, ...] = (
    Method(
        path="chat.completions.create",
        asked={"model": "m", "messages": MESSAGES, "tools": [{"type": "function", "function": FUNCTION}]},
        reply=lambda: fake_openai.chat(CANARY),
        facts={**CHAT_FACTS, names.OPENAI_API_TYPE: "chat_completions", names.TOOLS_OFFERED: ["look_up"]},
        streamed=lambda: fake_openai.chat_stream(f"{CANARY} is not ours at"),
        stream_facts=STREAM_FACTS,
    ),
    Method(
        path="responses.create",
        asked={"model": "m", "input": CANARY, "tools": [{"type": "function", **FUNCTION}]},
        reply=lambda: fake_responses.response(CANARY),
        facts={**CHAT_FACTS, names.OPENAI_API_TYPE: "responses", names.TOOLS_OFFERED: ["look_up"]},
        streamed=lambda: fake_responses.response_stream(f"{CANARY} is not ours at"),
        stream_facts=STREAM_FACTS,
    ),
    Method(
        path="beta.responses.create",
        asked={"model": "m", "input": CANARY},
        reply=lambda: fake_responses.response(CANARY),
        facts={**CHAT_FACTS, names.OPENAI_API_TYPE: "responses"},
        streamed=lambda: fake_responses.response_stream(f"{CANARY} is not ours at"),
        stream_facts=STREAM_FACTS,
    ),
    *(
        Method(
            path=path,
            asked={"model": "m", "input": CANARY},
            reply=lambda: fake_responses.response(
                object="response.compaction", status=None, output=[fake_responses.message(CANARY)]
            ),
            facts={**CHAT_FACTS, names.FINISH_REASONS: None, names.CONVERSATION_COMPACTED: True},
        )
        for path in ("responses.compact", "beta.responses.compact")
    ),
    Method(
        path="responses.retrieve",
        asked={"response_id": "resp-fake"},
        reply=lambda: fake_responses.response(CANARY),
        facts={
            names.OPERATION_NAME: "fetch_response",
            names.RESPONSE_ID: "resp-fake",
            names.RESPONSE_STATUS: "completed",
            names.INPUT_TOKENS: None,
            names.OUTPUT_TOKENS: None,
            names.REASONING_TOKENS: None,
            names.FETCHED_INPUT_TOKENS: 11,
            names.FETCHED_OUTPUT_TOKENS: 5,
        },
        streamed=lambda: fake_responses.response_stream(f"{CANARY} is not ours at"),
        stream_facts=STREAM_FACTS,
    ),
    Method(
        path="completions.create",
        asked={"model": "m", "prompt": CANARY},
        reply=lambda: fake_media.text_completion(CANARY),
        facts={
            names.OPERATION_NAME: "text_completion",
            names.RESPONSE_ID: "cmpl-fake",
            names.FINISH_REASONS: ["stop"],
            **TOKENS,
        },
        streamed=lambda: fake_media.text_completion_stream(CANARY),
        stream_facts=STREAM_FACTS,
    ),
    Method(
        path="images.generate",
        asked={"model": "i", "prompt": CANARY},
        reply=lambda: fake_media.images(2),
        facts={**IMAGE_FACTS, names.OUTPUT_COUNT: 2},
        streamed=fake_media.image_stream,
        stream_facts={**STREAM_FACTS, names.OUTPUT_COUNT: 1},
    ),
    Method(
        path="images.edit",
        asked={"model": "i", "prompt": CANARY, "image": FILE},
        reply=fake_media.images,
        facts={**IMAGE_FACTS, names.OUTPUT_COUNT: 1},
        streamed=lambda: fake_media.image_stream("image_edit"),
        stream_facts=STREAM_FACTS,
    ),
    Method(
        path="images.create_variation",
        asked={"model": "i", "image": FILE},
        reply=fake_media.images,
        facts={**IMAGE_FACTS, names.OUTPUT_COUNT: 1},
        content=False,
    ),
    Method(
        path="audio.speech.create",
        asked={"model": "s", "input": CANARY, "voice": "alloy"},
        reply=fake_media.speech,
        facts={
            names.OPERATION_NAME: "generate_content",
            names.OUTPUT_TYPE: "speech",
            names.OUTPUT_BYTES: len(fake_media.SOUND),
        },
    ),
    Method(
        path="audio.transcriptions.create",
        asked={"model": "t", "file": FILE},
        reply=lambda: fake_media.transcription(CANARY),
        facts={**SPOKEN_FACTS, names.AUDIO_INPUT_TOKENS: 10},
        streamed=lambda: fake_media.transcription_stream(CANARY),
        stream_facts=STREAM_FACTS,
    ),
    Method(
        path="audio.translations.create",
        asked={"model": "t", "file": FILE},
        reply=lambda: fake_media.transcription(CANARY),
        facts=SPOKEN_FACTS,
    ),
    Method(
        path="moderations.create",
        asked={"input": CANARY},
        reply=lambda: fake_media.moderation(["violence", "self-harm/intent"]),
        facts={
            names.OPERATION_NAME: "moderation",
            names.INPUT_COUNT: 1,
            names.MODERATION_FLAGGED: True,
            names.MODERATION_CATEGORIES: ["self-harm/intent", "violence"],
        },
    ),
    Method(
        path="decisions.create",
        asked={"model": "d", "input": CANARY, "questions": [{"type": "predicate", "text": "?"}]},
        reply=lambda: fake_media.decision({"type": "predicate", "probability": 0.5}, {"type": "refusal"}),
        facts={names.OPERATION_NAME: "generate_content", names.REFUSED: True, **TOKENS},
    ),
    *(
        Method(
            path=f"videos.{name}",
            asked={"prompt": CANARY, **asked},
            reply=fake_media.video,
            facts={
                names.OPERATION_NAME: "generate_content",
                names.OUTPUT_TYPE: "video",
                names.RESPONSE_ID: "video-fake",
            },
        )
        for name, asked in (
            ("create", {"model": "v"}),
            ("edit", {"video": FILE}),
            ("extend", {"video": FILE, "seconds": "4"}),
            ("remix", {"video_id": "video-1"}),
        )
    ),
    Method(
        path="vector_stores.search",
        asked={"vector_store_id": "vs-1", "query": CANARY, "max_num_results": 5},
        reply=lambda: fake_media.search(CANARY, "b"),
        facts={
            names.OPERATION_NAME: "retrieval",
            names.DB_SYSTEM: "openai",
            names.DB_OPERATION: "search",
            names.DB_COLLECTION: "vs-1",
            names.RETRIEVAL_TOP_K: 5,
            names.RETRIEVAL_IDS: ["file-0", "file-1"],
            names.RETRIEVAL_TOP_SCORE: 0.9,
        },
    ),
    Method(
        path="embeddings.create",
        asked={"model": "e", "input": [CANARY, "b"]},
        reply=lambda: fake_openai.embeddings([[0.5, 0.25]] * 2, base64_encoded=True),
        facts={
            names.OPERATION_NAME: "embeddings",
            names.INPUT_COUNT: 2,
            names.INPUT_TOKENS: 3,
            names.EMBEDDING_DIMENSIONS: 2,
        },
        content=False,
    ),
)


def calls(client: Any = None) -> Iterator[Call]:
    """Each method in each variant; with a client of an older SDK, those that it has."""
    for method in METHODS if client is None else filter(None, (_as_in(client, each) for each in METHODS)):
        yield from _plain(method)
        yield from _raw(method)
        yield from _unread(method)


def _as_in(client: Any, method: Method) -> Method | None:
    """The method as an SDK has it, which may not stream yet; None if it lacks it."""
    try:
        bound = method.of(client)
    except AttributeError:
        return None
    return method if "stream" in inspect.signature(bound).parameters else replace(method, streamed=None)


def _call(method: Method, variant: str, run: Any, arun: Any, opened: Any = None, aopened: Any = None) -> Call:
    reply = method.reply
    facts = method.facts
    if "stream" in variant:
        assert method.streamed is not None
        reply = method.streamed
        facts = {**facts, **method.stream_facts}
    return Call(
        name=f"{method.path} {variant}".strip(),
        run=run,
        arun=arun,
        replies=lambda: (reply(),),
        facts=facts,
        opened=opened,
        aopened=aopened,
        content=method.content,
    )


def _plain(method: Method) -> Iterator[Call]:
    def run(client: Any) -> Any:
        return seen(method.of(client)(**method.asked))

    async def arun(client: Any) -> Any:
        return seen(await method.of(client)(**method.asked))

    def opened(client: Any) -> Any:
        return method.of(client)(**method.asked, stream=True)

    async def aopened(client: Any) -> Any:
        return await method.of(client)(**method.asked, stream=True)

    async def drain(client: Any) -> Any:
        return [chunk async for chunk in await aopened(client)]

    def read(client: Any) -> Any:
        return list(opened(client))

    yield _call(method, "", run, arun)
    if method.streamed is not None:
        yield _call(method, "stream", read, drain, opened, aopened)


def _raw(method: Method) -> Iterator[Call]:
    def run(client: Any) -> Any:
        response = method.of(client, "with_raw_response")(**method.asked)
        return response.headers["x-request-id"], response.status_code, seen(response.parse())

    async def arun(client: Any) -> Any:
        response = await method.of(client, "with_raw_response")(**method.asked)
        return response.headers["x-request-id"], response.status_code, seen(response.parse())

    def stream(client: Any) -> Any:
        response = method.of(client, "with_raw_response")(**method.asked, stream=True)
        return response.headers["x-request-id"], list(response.parse())

    async def astream(client: Any) -> Any:
        response = await method.of(client, "with_raw_response")(**method.asked, stream=True)
        return response.headers["x-request-id"], [chunk async for chunk in response.parse()]

    yield _call(method, "raw", run, arun)
    if method.streamed is not None:
        yield _call(method, "raw stream", stream, astream)


def _unread(method: Method) -> Iterator[Call]:
    def run(client: Any) -> Any:
        with method.of(client, "with_streaming_response")(**method.asked) as response:
            return response.headers["x-request-id"], response.read()

    async def arun(client: Any) -> Any:
        async with method.of(client, "with_streaming_response")(**method.asked) as response:
            return response.headers["x-request-id"], await response.read()

    def stream(client: Any) -> Any:
        with method.of(client, "with_streaming_response")(**method.asked, stream=True) as response:
            return list(response.iter_lines())

    async def astream(client: Any) -> Any:
        async with method.of(client, "with_streaming_response")(**method.asked, stream=True) as response:
            return [line async for line in response.iter_lines()]

    yield _call(method, "unread", run, arun)
    if method.streamed is not None:
        yield _call(method, "unread stream", stream, astream)


def seen(result: Any) -> Any:
    """What the service sees of a result: of sound its bytes."""
    return result.content if type(result).__name__ == "HttpxBinaryResponseContent" else result

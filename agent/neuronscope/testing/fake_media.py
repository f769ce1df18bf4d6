"""Answers of OpenAI's smaller APIs, for `FakeOpenAI`: completions, images, sound, moderations, searches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from neuronscope.testing.fake_provider import MODEL, NAMED_EVENTS, Reply

__all__ = [
    "decision",
    "image_stream",
    "images",
    "moderation",
    "search",
    "speech",
    "speech_events",
    "text_completion",
    "text_completion_stream",
    "transcription",
    "transcription_stream",
    "video",
]

SOUND: Final = b"ID3-not-really-sound"
PICTURE: Final = "iVBORw0KGgo="
_IMAGE_USAGE: Final[Mapping[str, Any]] = {
    "input_tokens": 11,
    "input_tokens_details": {"image_tokens": 4, "text_tokens": 7},
    "output_tokens": 5,
    "output_tokens_details": {"image_tokens": 5, "text_tokens": 0},
    "total_tokens": 16,
}
_TRANSCRIPT_USAGE: Final[Mapping[str, Any]] = {
    "type": "tokens",
    "input_tokens": 11,
    "input_token_details": {"audio_tokens": 10, "text_tokens": 1},
    "output_tokens": 5,
    "total_tokens": 16,
}


def text_completion(text: str = "Hello from the fake.", **changes: Any) -> Reply:
    """A legacy completion."""
    return Reply(body=_completion(text, "stop", **changes))


def text_completion_stream(text: str = "Hello from the fake.") -> Reply:
    """A streamed legacy completion, a word a chunk."""
    words = [_completion(f"{word} ", None, usage=None) for word in text.split(" ")]
    return Reply(events=[*words, _completion("", "stop")])


def _completion(text: str, reason: str | None, **changes: Any) -> dict[str, Any]:
    return {
        "id": "cmpl-fake",
        "object": "text_completion",
        "created": 1_700_000_000,
        "model": MODEL,
        "choices": [{"index": 0, "text": text, "finish_reason": reason, "logprobs": None}],
        "usage": {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16},
        **changes,
    }


def images(count: int = 1) -> Reply:
    """Pictures, as base64."""
    data = [{"b64_json": PICTURE}] * count
    return Reply(
        body={"created": 1_700_000_000, "data": data, "output_format": "png", "usage": dict(_IMAGE_USAGE)}
    )


def image_stream(kind: str = "image_generation") -> Reply:
    """A picture that gets better and better; `kind` is ``image_edit`` for edits."""
    head = {"b64_json": PICTURE, "created_at": 1_700_000_000, "output_format": "png", "size": "auto"}
    partial = {"type": f"{kind}.partial_image", **head, "partial_image_index": 0}
    done = {"type": f"{kind}.completed", **head, "usage": dict(_IMAGE_USAGE)}
    return Reply(events=[partial, done], framing=NAMED_EVENTS)


def speech() -> Reply:
    """Something that passes for sound."""
    return Reply(body=SOUND, headers={"content-type": "audio/mpeg"})


def speech_events() -> Reply:
    """Sound as events, which tell the tokens."""
    usage = {"input_tokens": 11, "output_tokens": 5, "total_tokens": 16}
    events: list[Any] = [{"type": "speech.audio.delta", "audio": PICTURE}] * 2
    return Reply(events=[*events, {"type": "speech.audio.done", "usage": usage}])


def transcription(text: str = "Hello from the fake.") -> Reply:
    """What was said."""
    return Reply(body={"text": text, "usage": dict(_TRANSCRIPT_USAGE)})


def transcription_stream(text: str = "Hello from the fake.") -> Reply:
    """What was said, a word an event."""
    events: list[Any] = [{"type": "transcript.text.delta", "delta": f"{word} "} for word in text.split(" ")]
    done = {"type": "transcript.text.done", "text": text, "usage": dict(_TRANSCRIPT_USAGE)}
    return Reply(events=[*events, done])


def moderation(flagged: Sequence[str] = ()) -> Reply:
    """A verdict on one input."""
    categories = {name: name in flagged for name in ("hate", "self-harm/intent", "violence")}
    result = {
        "flagged": bool(flagged),
        "categories": categories,
        "category_scores": {name: float(applies) for name, applies in categories.items()},
        "category_applied_input_types": {name: ["text"] for name in categories},
    }
    return Reply(body={"id": "modr-fake", "model": MODEL, "results": [result]})


def decision(*answers: Mapping[str, Any]) -> Reply:
    """Answers to questions."""
    usage = {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 16,
    }
    return Reply(body={"answers": list(answers), "model": MODEL, "usage": usage})


def video(status: str = "queued") -> Reply:
    """A job that makes a video."""
    return Reply(
        body={
            "id": "video-fake",
            "object": "video",
            "created_at": 1_700_000_000,
            "model": MODEL,
            "status": status,
            "progress": 0,
            "seconds": "4",
            "size": "720x1280",
            "error": None,
        }
    )


def search(*texts: str) -> Reply:
    """Hits in a vector store, each a little worse than the one before."""
    data = [
        {
            "file_id": f"file-{number}",
            "filename": f"{number}.txt",
            "score": 0.9 - 0.1 * number,
            "attributes": {"page": number},
            "content": [{"type": "text", "text": text}],
        }
        for number, text in enumerate(texts)
    ]
    body = {
        "object": "vector_store.search_results.page",
        "search_query": ["q"],
        "data": data,
        "has_more": False,
    }
    return Reply(body=body)


def answer(path: str, *, streams: bool) -> Reply | None:
    """What an unscripted request gets; None: the path is none of these."""
    for suffix, plain, stream in (
        ("/completions", text_completion, text_completion_stream),
        ("/images/edits", images, lambda: image_stream("image_edit")),
        ("/images/generations", images, image_stream),
        ("/images/variations", images, images),
        ("/audio/speech", speech, speech),
        ("/audio/transcriptions", transcription, transcription_stream),
        ("/audio/translations", transcription, transcription),
        ("/moderations", moderation, moderation),
        ("/decisions", decision, decision),
        ("/search", search, search),
    ):
        if path.endswith(suffix):
            return stream() if streams else plain()
    return video() if "/videos" in path else None

"""Sound: speech made of text, and text made of speech.  Sound itself is counted, never recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any, Final

from msgspec.structs import replace

from neuronscope.instrumentation import Endpoint, Message, Operation, Request, Response
from neuronscope.signals import names
from neuronscope_instrumentation.common.draft import is_done, start
from neuronscope_instrumentation.common.fields import count, document, field, number, text
from neuronscope_instrumentation.openai.answers import read_error
from neuronscope_instrumentation.openai.facts import known, modalities, read_headers
from neuronscope_instrumentation.openai.responses import usage

_TEXT: Final = "text"
_INSTRUCTIONS: Final = "instructions"


# --- text to speech --------------------------------------------------------------------------------
def keep_speech(kept: dict[str, Any], body: Mapping[str, Any], content: bool) -> None:
    """Add to `kept` what is to be said, and how."""
    if content:
        kept[_TEXT] = text(body.get("input"))
        kept[_INSTRUCTIONS] = text(body.get("instructions"))


def read_speech_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """A request for speech in our words."""
    said, how = arguments.get(_TEXT), arguments.get(_INSTRUCTIONS)
    return Request(
        model=text(arguments.get("model")),
        output_type="speech",
        messages=None if said is None else [Message("user", [{"type": "text", "content": said}])],
        system=None if how is None else [{"type": "text", "content": how}],
    )


def read_speech(result: Any, content: bool) -> Response:
    """Speech, as bytes: how much there is; events (``stream_format="sse"``) tell the tokens too."""
    sound = result if isinstance(result, bytes) else field(result, "content")
    if not isinstance(sound, bytes):
        return Response()
    if sound.startswith((b"data:", b"event:")):
        return reduce(
            lambda so_far, event: fold_speech_event(so_far, event, content), _events(sound), Response()
        )
    return Response(extra={names.OUTPUT_BYTES: len(sound)})


def speech_size(result: Any) -> int:
    """How many bytes of sound a result holds."""
    sound = field(result, "content")
    return len(sound) if isinstance(sound, bytes) else 0


def _events(body: bytes) -> Iterator[bytes]:
    for line in body.splitlines():
        if line.startswith(b"data:"):
            yield line[5:].strip()


def fold_speech_event(so_far: Response, event: Any, content: bool) -> Response:
    """The speech after one more event; of base64 four characters are three bytes."""
    event = document(event)
    streamed = start(so_far, content=False)
    sound = text(field(event, "audio"))
    if sound is not None:
        already = count(streamed.extra.get(names.OUTPUT_BYTES)) or 0
        extra = {**streamed.extra, names.OUTPUT_BYTES: already + len(sound) * 3 // 4 - sound[-2:].count("=")}
        return replace(streamed, extra=extra)
    if field(event, "type") != "speech.audio.done":
        return streamed
    return replace(streamed, **known(usage(field(event, "usage"))), done=True)


# --- speech to text --------------------------------------------------------------------------------
def keep_transcription(kept: dict[str, Any], body: Mapping[str, Any], content: bool) -> None:
    """Add to `kept` the hint that goes along with the sound."""
    if content:
        kept[_TEXT] = text(body.get("prompt"))


def read_transcription_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """A request for a transcription or translation in our words."""
    hint = arguments.get(_TEXT)
    return Request(
        model=text(arguments.get("model")),
        stream=arguments.get("stream") is True,
        temperature=number(arguments.get("temperature")),
        output_type="text",
        messages=None if hint is None else [Message("user", [{"type": "text", "content": hint}])],
    )


def read_transcription(result: Any, content: bool) -> Response:
    """A transcription in our words: an object, or (subtitles, plain text) the text itself."""
    answer = document(result)
    if answer is None and isinstance(result, bytes):
        answer = result.decode("utf-8", "replace")
    spoken = answer if isinstance(answer, str) else text(field(answer, "text"))
    return Response(
        messages=[Message("assistant", [{"type": "text", "content": spoken}])]
        if content and spoken
        else None,
        **_billed(answer),
    )


def _billed(answer: Any) -> dict[str, Any]:
    """Tokens, or seconds: models are billed by one or the other."""
    reported = field(answer, "usage")
    seconds = number(field(reported, "seconds"))
    if seconds is None:
        seconds = number(field(answer, "duration"))
    extra = {
        **known({names.AUDIO_SECONDS: seconds, names.LOGPROBS: bool(field(answer, "logprobs")) or None}),
        **modalities(field(reported, "input_token_details"), None),
    }
    return {**known(usage(reported)), "extra": extra}


def fold_transcription_event(so_far: Response, event: Any, content: bool) -> Response:
    """The transcription after one more event."""
    event = document(event)
    streamed = start(so_far, content)
    piece = text(field(event, "delta"))
    if piece is not None and streamed.drafts is not None:
        streamed.drafts.of().text.append(piece)
    if field(event, "type") != "transcript.text.done":
        return streamed
    return replace(streamed, **_billed(event), done=True)


def has_text(event: Any) -> bool:
    """Does an event carry text?"""
    event = document(event)
    return text(field(event, "delta")) is not None or field(event, "type") == "transcript.text.segment"


SPEECH: Final = Endpoint(
    operation=Operation.GENERATE_CONTENT,
    read_request=read_speech_request,
    read_response=read_speech,
    fold_chunk=fold_speech_event,
    is_complete=is_done,
    read_error=read_error,
    read_headers=read_headers,
    size=speech_size,
)
TRANSCRIPTION: Final = Endpoint(
    operation=Operation.GENERATE_CONTENT,
    read_request=read_transcription_request,
    read_response=read_transcription,
    fold_chunk=fold_transcription_event,
    is_content=has_text,
    is_complete=is_done,
    read_error=read_error,
    read_headers=read_headers,
)

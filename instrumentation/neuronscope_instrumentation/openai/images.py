"""Images: made, edited and varied; and videos, which a job makes.

Pictures are recorded by size and hash, and only where content may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from neuronscope.instrumentation import Endpoint, Message, Operation, Request, Response
from neuronscope.signals import names
from neuronscope_instrumentation.common.draft import is_done, start
from neuronscope_instrumentation.common.fields import count, document, field, items, text
from neuronscope_instrumentation.common.parts import Part, address, blob
from neuronscope_instrumentation.openai.answers import read_error
from neuronscope_instrumentation.openai.facts import known, modalities, read_headers
from neuronscope_instrumentation.openai.responses import failure, usage

_PROMPT: Final = "prompt"


def keep_prompt(kept: dict[str, Any], body: Mapping[str, Any], content: bool) -> None:
    """Add to `kept` the text that describes what is wanted."""
    if content:
        kept[_PROMPT] = text(body.get("prompt"))


def _request(output_type: str, arguments: Mapping[str, Any]) -> Request:
    prompt = arguments.get(_PROMPT)
    return Request(
        model=text(arguments.get("model")),
        stream=arguments.get("stream") is True,
        choice_count=count(arguments.get("n")),
        output_type=output_type,
        messages=None if prompt is None else [Message("user", [{"type": "text", "content": prompt}])],
    )


def read_image_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """A request for images in our words."""
    return _request("image", arguments)


def read_images(result: Any, content: bool) -> Response:
    """Images in our words."""
    answer = document(result)
    images = items(field(answer, "data"))
    reported = field(answer, "usage")
    kind = f"image/{text(field(answer, 'output_format')) or '*'}"
    return Response(
        **known(usage(reported)),
        messages=[Message("assistant", [_image(each, kind)]) for each in images]
        if content and images
        else None,
        extra={**known({names.OUTPUT_COUNT: len(images) or None}), **_modalities(reported)},
    )


def _modalities(reported: Any) -> dict[str, int]:
    return modalities(field(reported, "input_tokens_details"), field(reported, "output_tokens_details"))


def _image(image: Any, kind: str) -> Part:
    data = text(field(image, "b64_json"))
    return address("image", text(field(image, "url")) or "") if data is None else blob("image", kind, data)


def images_size(result: Any) -> int:
    """How many bytes the pictures of a result take, as base64."""
    return sum(len(text(field(image, "b64_json")) or "") for image in items(field(result, "data")))


def fold_image_event(so_far: Response, event: Any, content: bool) -> Response:
    """The images after one more event: partial ones only tell that there is something."""
    event = document(event)
    streamed = start(so_far, content)
    if not (text(field(event, "type")) or "").endswith(".completed"):
        return streamed
    if streamed.drafts is not None:
        streamed.drafts.of().part(_image(event, f"image/{text(field(event, 'output_format')) or '*'}"))
    reported = field(event, "usage")
    made = (count(streamed.extra.get(names.OUTPUT_COUNT)) or 0) + 1
    extra = {**streamed.extra, names.OUTPUT_COUNT: made, **_modalities(reported)}
    return replace(streamed, **known(usage(reported)), extra=extra, done=True)


def has_image(event: Any) -> bool:
    """Does an event carry a picture?"""
    return text(field(document(event), "b64_json")) is not None


def read_video_request(arguments: Mapping[str, Any], content: bool) -> Request:
    """A request for a video in our words."""
    return _request("video", arguments)


def read_video(result: Any, content: bool) -> Response:
    """The job that makes a video."""
    job = document(result)
    return Response(
        **known({"id": text(field(job, "id")), "model": text(field(job, "model"))}),
        extra=known({names.ERROR_TYPE: failure(job)}),
    )


IMAGES: Final = Endpoint(
    operation=Operation.GENERATE_CONTENT,
    read_request=read_image_request,
    read_response=read_images,
    fold_chunk=fold_image_event,
    is_content=has_image,
    is_complete=is_done,
    read_error=read_error,
    read_headers=read_headers,
    size=images_size,
)
VIDEOS: Final = Endpoint(
    operation=Operation.GENERATE_CONTENT,
    read_request=read_video_request,
    read_response=read_video,
    read_error=read_error,
    read_headers=read_headers,
)

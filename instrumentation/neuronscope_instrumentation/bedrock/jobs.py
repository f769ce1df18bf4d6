"""`StartAsyncInvoke`: a job that makes a film, or embeddings; the answer lies in a bucket later.

The span is that of the start: what was asked, and a film's id.  Nothing tells its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuronscope.instrumentation import Message, Operation, Request, Response
from neuronscope_instrumentation.bedrock.invoke import operation_of
from neuronscope_instrumentation.bedrock.metadata import with_metadata
from neuronscope_instrumentation.common.fields import count, field, mapping, text


def job_of(model: str) -> Operation:
    """What a job of a model does: what is no embedding is a film."""
    operation = operation_of(model)
    return operation if operation is Operation.EMBEDDINGS else Operation.GENERATE_CONTENT


def keep_job(kept: dict[str, Any], asked: Mapping[str, Any], content: bool) -> None:
    """Add to `kept` what is asked: a few words at most."""
    given = mapping(asked.get("modelInput")) or {}
    params = _params(given)
    kept["dimensions"] = count(params.get("embeddingDimension"))
    if content:
        kept["prompt"] = text(given.get("prompt")) or text(params.get("text"))


def _params(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Amazon's models have the parameters of each of their tasks under a name of its own."""
    for key, value in given.items():
        told = mapping(value) if key.endswith("Params") else None
        if told is not None:
            return told
    return {}


def read_video_request(kept: Mapping[str, Any], content: bool) -> Request:
    """A request for a film in our words."""
    prompt = text(kept.get("prompt")) if content else None
    return Request(
        model=text(kept.get("modelId")),
        output_type="video",
        messages=None if prompt is None else [Message("user", [{"type": "text", "content": prompt}])],
    )


def read_embeddings_request(kept: Mapping[str, Any], content: bool) -> Request:
    """A request for embeddings in our words; its texts are never told."""
    return Request(model=text(kept.get("modelId")), dimensions=count(kept.get("dimensions")))


def read_video(answer: Any, content: bool) -> Response:
    """The job that makes a film."""
    return _told(answer, Response(id=text(field(answer, "invocationArn"))))


def read_embeddings(answer: Any, content: bool) -> Response:
    """The job that embeds; spans of embeddings have no id of an answer."""
    return _told(answer, Response())


def _told(answer: Any, response: Response) -> Response:
    return with_metadata(response, mapping(field(answer, "ResponseMetadata")) or {})

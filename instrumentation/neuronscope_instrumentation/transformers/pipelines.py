"""transformers' pipelines: one span for each call, around the models and tokenizers that it runs.

A pipeline over a generator or a data set returns before it has run: its span ends there, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from neuronscope.instrumentation import (
    ClientIntegration,
    Endpoint,
    Kind,
    Operation,
    Peer,
    Request,
    Response,
    Snapshot,
    WrappedMethod,
)
from neuronscope.signals import names

PEER: Final = Peer("transformers")


def _snapshot(pipeline: Any, arguments: dict[str, Any], _content: bool) -> Snapshot:
    from neuronscope.modelnames import model_name

    kept = {
        "task": getattr(pipeline, "task", None),
        "count": input_count(arguments.get("inputs")),
        "batch": arguments.get("batch_size") or getattr(pipeline, "_batch_size", None),
    }
    return Snapshot(PIPELINE, model_name(pipeline.model), kept, PEER)


def input_count(inputs: Any) -> int | None:
    """How many inputs a call has; None for iterators and data sets, which are never touched."""
    if isinstance(inputs, str | bytes | Mapping):
        return 1
    if isinstance(inputs, list | tuple):
        items = cast(Sequence[Any], inputs)
        # A conversation, a list of messages, is one input.
        return 1 if items and isinstance(items[0], Mapping) and "role" in items[0] else len(items)
    return None


def read_request(kept: Mapping[str, Any], _content: bool) -> Request:
    """The task, and how much it was asked for."""
    extra = {names.PIPELINE_TASK: kept["task"], names.MODEL_BATCH: kept["batch"]}
    return Request(
        input_count=kept["count"], extra={key: value for key, value in extra.items() if value is not None}
    )


def _nothing(_result: Any) -> None:
    """What a pipeline says is content, or told by the model's own span."""


def read_response(_result: None, _content: bool) -> Response:
    """Nothing."""
    return Response()


PIPELINE: Final = Endpoint(
    operation=Operation.INFERENCE, read_request=read_request, read_response=read_response, called="pipeline"
)
PIPELINES: Final = ClientIntegration(
    name="pipelines",
    requires="transformers>=4.45",
    kind=Kind.FRAMEWORK,
    methods=(
        # Pipelines of all tasks come here by `super().__call__`.
        WrappedMethod(
            target="transformers.pipelines.base:Pipeline.__call__",
            snapshot=_snapshot,
            unwrap=_nothing,
            in_process=True,
        ),
    ),
)

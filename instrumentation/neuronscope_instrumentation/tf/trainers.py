"""Spans of Keras' `fit`, `evaluate` and `predict`: how long, how many batches, how it went; never a value.

Layers inside are recorded by probes, and their records belong to the span.  Layers are not watched by
themselves here: a `tf.function` is traced anew for each choice of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from neuronscope.signals.tensors import DTYPE_NAMES

PEER: Final = Peer("keras")
DEFAULT_BATCH: Final = 32  # Keras' own, for arrays
_TRAINERS: Final = {"tensorflow": "TensorFlowTrainer", "torch": "TorchTrainer", "jax": "JAXTrainer"}
_METHODS: Final = {"fit": Operation.TRAIN, "evaluate": Operation.EVALUATE, "predict": Operation.INFERENCE}
_MAX_ARRAYS: Final = 16  # that are described
_MAX_DEPTH: Final = 8


# --- the hot path -----------------------------------------------------------------------------------------
def _snapshot(operation: Operation) -> Callable[[Any, dict[str, Any], bool], Snapshot]:
    endpoint = Endpoint(operation=operation, read_request=read_request, read_response=read_response)

    def snapshot(model: Any, arguments: dict[str, Any], _content: bool) -> Snapshot:
        kept = {
            "inputs": describe(arguments.get("x")),
            "batch_size": arguments.get("batch_size"),
            "steps": arguments.get("steps", arguments.get("steps_per_epoch")),
            "epochs": arguments.get("epochs", 1),
        }
        return Snapshot(endpoint, str(model.name), kept, PEER)

    return snapshot


def describe(value: object) -> tuple[str, ...]:
    """Names, types and shapes of the arrays in an argument or a result: ``"left: F32[8,4]"``."""
    return tuple([text for text, _ in zip(_described("", value, 0), range(_MAX_ARRAYS), strict=False)])


def _described(name: str, value: object, depth: int) -> Iterator[str]:
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and shape is not None:
        kind = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
        text = f"{DTYPE_NAMES.get(kind, kind)}[{','.join(map(str, tuple(shape)))}]"
        yield f"{name}: {text}" if name else text
    elif depth < _MAX_DEPTH and isinstance(value, Mapping):
        for key, item in cast(Any, value).items():
            yield from _described(str(key), item, depth + 1)
    elif depth < _MAX_DEPTH and isinstance(value, list | tuple):
        for number, item in enumerate(cast("Sequence[Any]", value)):
            yield from _described(str(number), item, depth + 1)


def unwrap(result: Any) -> dict[str, Any]:
    """What is told of a result, which is let go of at once."""
    if isinstance(result, float):  # of `evaluate`
        return {names.MODEL_LOSS: result}
    epochs, history = getattr(result, "epoch", None), getattr(result, "history", None)
    if isinstance(epochs, list) and isinstance(history, dict):  # of `fit`
        ran = len(cast("list[int]", epochs))
        told: dict[str, Any] = {names.MODEL_EPOCHS: ran}
        losses = cast("dict[str, list[float]]", history).get("loss")
        if losses:
            told[names.MODEL_LOSS] = float(losses[-1])
        steps = cast("dict[str, Any]", getattr(result, "params", None) or {}).get("steps")
        if steps:
            told[names.MODEL_STEPS] = int(steps) * ran
        return told
    if (loss := _loss(result)) is not None:
        return {names.MODEL_LOSS: loss}
    outputs = describe(result)
    return {names.MODEL_OUTPUTS: list(outputs)} if outputs else {}


def _loss(result: Any) -> float | None:
    """What `evaluate` gives if there are metrics: the loss, first."""
    first: Any = None
    if type(result) is dict:
        first = cast(Any, result).get("loss")
    elif type(result) is list and result:
        first = cast(Any, result)[0]
    return first if isinstance(first, float) else None


# --- the worker -------------------------------------------------------------------------------------------
def read_request(kept: Mapping[str, Any], _content: bool) -> Request:
    """The shapes that were given, and how many batches they make."""
    facts: dict[str, Any] = {}
    inputs: tuple[str, ...] = kept["inputs"]
    if inputs:
        batch = int(kept["batch_size"] or DEFAULT_BATCH)
        rows = inputs[0].partition("[")[2].partition(",")[0].rstrip("]")
        steps = kept["steps"] or (math.ceil(int(rows) / batch) if rows.isdecimal() else 0)
        facts = {names.MODEL_INPUTS: list(inputs), names.MODEL_BATCH: batch}
        if steps:
            facts[names.MODEL_STEPS] = int(steps) * int(kept["epochs"])
    return Request(extra=facts)


def read_response(told: dict[str, Any], _content: bool) -> Response:
    """How it went: what really ran, where the result tells."""
    return Response(extra=told)


KERAS: Final = ClientIntegration(
    name="keras",
    requires="keras>=3.0",
    kind=Kind.FRAMEWORK,
    methods=tuple(
        WrappedMethod(
            target=f"keras.src.backend.{backend}.trainer:{trainer}.{method}",
            snapshot=_snapshot(operation),
            unwrap=unwrap,
            in_process=True,
            optional=True,  # Keras runs on one of its backends
        )
        for backend, trainer in _TRAINERS.items()
        for method, operation in _METHODS.items()
    ),
)

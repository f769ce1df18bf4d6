"""transformers: `generate`, a language model in this process, and `transformers serve`'s inference thread.

Sequential `generate` is what `transformers serve` does unless it is started with
``--continuous-batching``; that path schedules tokens of many requests itself and never calls `generate`:
see `batching`.  The prompt and the answer are never read: only shapes, and of sequences on the host where
they end.
"""

from __future__ import annotations

import marshal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, cast

from neuronscope.fingerprints import fingerprint
from neuronscope.instrumentation import (
    ClientIntegration,
    Endpoint,
    HandOff,
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
_SERVING: Final = "transformers.cli.serving.utils:InferenceThread"
# Parameters of sampling: without effect, and so not reported, in greedy decoding.
_SAMPLING: Final = ("temperature", "top_p", "top_k")
_OTHERS: Final = ("do_sample", "max_new_tokens", "max_length", "num_return_sequences", "stop_strings")
_BY_VALUE: Final = 2  # the last version of marshal's format in which equal values always have equal bytes
DEFAULT_NEW_TOKENS: Final = 20  # transformers' own limit where nobody sets one


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is known of a call before it runs: numbers only.

    Attributes:
        rows: prompts in the batch.
        tokens: tokens of all prompts, without padding; None if only the device knows.
        offset: positions of the returned sequences that were not generated.
        limit: new tokens allowed per sequence; None if unknown.
        stops: ids that end a sequence.
    """

    rows: int | None
    tokens: int | None
    offset: int | None
    limit: int | None
    stops: Collection[int]


@dataclass(frozen=True, slots=True)
class Output:
    """What was returned: the shape, and on the host a copy of the ids until the worker has read them."""

    rows: int
    length: int
    ids: Any


# --- the hot path -----------------------------------------------------------------------------------------
def _snapshot(instance: Any, arguments: dict[str, Any], _content: bool) -> Snapshot:
    from neuronscope.modelnames import model_name

    options = {name: option(instance, arguments, name) for name in (*_SAMPLING, *_OTHERS)}
    prompt = read_prompt(instance, arguments, options)
    kept = {
        "config": read_config(instance, arguments),
        "options": options,
        "prompt": prompt,
        "streamed": arguments.get("streamer") is not None,
    }
    # The result is read against this prompt: its length, its limit, its end.
    endpoint = Endpoint(
        operation=Operation.TEXT_COMPLETION,
        read_request=read_request,
        read_response=partial(read_response, prompt),
    )
    return Snapshot(endpoint, model_name(instance), kept, PEER)


def option(instance: Any, arguments: Mapping[str, Any], name: str) -> Any:
    """A generation option in force: the call's, else the given configuration's, else the model's."""
    value = arguments.get(name)
    for source in (arguments.get("generation_config"), getattr(instance, "generation_config", None)):
        if value is None:
            value = getattr(source, name, None)
    return value


def read_config(instance: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The generation configuration in force: the call's over the given one's, else the model's."""
    given = arguments.get("generation_config")
    config: Any = given if given is not None else getattr(instance, "generation_config", None)
    settings: dict[str, Any] = dict(getattr(config, "__dict__", {}))
    settings.update({key: value for key, value in arguments.items() if key in settings})
    return settings


def config_fingerprint(settings: Mapping[str, Any]) -> str:
    """A fingerprint of a configuration: equal settings, equal fingerprint, whichever way they were given."""
    try:
        plain = marshal.dumps(dict(settings), _BY_VALUE)
    except ValueError:  # a callable, a tensor: nothing that could be looked up
        return _fingerprint(settings)
    return _known_fingerprint(plain)


@lru_cache(maxsize=64)
def _known_fingerprint(plain: bytes) -> str:
    """Services ask with the same few configurations again and again, and each call is read twice."""
    return _fingerprint(marshal.loads(plain))  # noqa: S302 - bytes of our own


def _fingerprint(settings: Mapping[str, Any]) -> str:
    return fingerprint(
        {
            key: _plain(value)
            for key, value in settings.items()
            if value is not None and not key.startswith("_") and key != "transformers_version"
        }
    )


def _plain(value: Any) -> object:
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in cast("Sequence[Any]", value)]
    if isinstance(value, Mapping):
        items: Any = cast(Any, value).items()
        return {str(key): _plain(each) for key, each in items}
    return type(value).__qualname__  # a callable, a tensor: told apart by its kind alone


def read_prompt(instance: Any, arguments: Mapping[str, Any], options: Mapping[str, Any]) -> Prompt:
    """Shapes of the input; no device is asked for a value."""
    ids = _first(arguments, "input_ids", "inputs")
    embedded = arguments.get("inputs_embeds") if ids is None else None
    shape = tuple(getattr(ids if embedded is None else embedded, "shape", ()))
    rows, length = shape[:2] if len(shape) >= 2 else (None, None)
    if embedded is None and len(shape) != 2:
        length = None  # the input is a sound or an image
    taken, offset = length, length if embedded is None else 0
    config = getattr(instance, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        start = getattr(arguments.get("decoder_input_ids"), "shape", (rows, 1))
        taken = offset = int(start[-1])
    return Prompt(
        rows=rows,
        tokens=_count(rows, length, arguments.get("attention_mask")),
        offset=offset,
        limit=_limit(options, taken, getattr(config, "max_position_embeddings", None)),
        stops=_ids(option(instance, arguments, "eos_token_id")),
    )


def _first(arguments: Mapping[str, Any], *keys: str) -> Any:
    return next((arguments[key] for key in keys if arguments.get(key) is not None), None)


def _count(rows: int | None, length: int | None, mask: Any) -> int | None:
    if rows is None or length is None:
        return None
    if mask is None:
        return rows * length
    array = on_host(mask)
    if array is not None and array.ndim == 2:
        import numpy as np

        return int(np.count_nonzero(array[:, -length:]))  # a cache's positions come before
    # One prompt needs no padding; whether several do, only the device knows, and is not asked.
    return length if rows == 1 else None


def _limit(options: Mapping[str, Any], taken: int | None, positions: int | None) -> int | None:
    """New tokens allowed per sequence, by transformers' own rules; None if the prompt's length is unknown."""
    if options["max_new_tokens"] is not None:
        return int(options["max_new_tokens"])
    if taken is None:
        return None
    if options["max_length"] is not None:
        return int(options["max_length"]) - taken
    return DEFAULT_NEW_TOKENS if positions is None else min(DEFAULT_NEW_TOKENS, positions - taken)


def _ids(stops: Any) -> Collection[int]:
    if isinstance(stops, int):
        return (stops,)
    array = on_host(stops) if hasattr(stops, "shape") else stops
    return tuple(int(stop) for stop in array) if array is not None else ()


def on_host(tensor: Any) -> Any:
    """A view of a plain tensor of integers in host memory as an array; None for any other.

    Subclasses may compute, and fake ones have no values; numpy's view runs no operation of torch, so
    that no dispatch mode of the service sees one.
    """
    plain = type(tensor).__module__ == "torch" and type(tensor).__qualname__ == "Tensor"
    if not plain or tensor.device.type != "cpu" or tensor.dtype.is_floating_point:
        return None
    return tensor.numpy()


def unwrap(result: Any) -> Output | None:
    """Shape and ids of the sequences; caches, scores and hidden states of the result are let go."""
    sequences = getattr(result, "sequences", result)
    shape = tuple(getattr(sequences, "shape", ()))
    if len(shape) != 2:
        return None
    ids = on_host(sequences)
    return Output(int(shape[0]), int(shape[1]), None if ids is None else ids.copy())


# --- the worker -------------------------------------------------------------------------------------------
def read_request(kept: Mapping[str, Any], _content: bool) -> Request:
    """The options in force, and the size of the batch."""
    options, prompt = kept["options"], kept["prompt"]
    sampling = {key: options[key] for key in _SAMPLING} if options["do_sample"] else {}
    stops = options["stop_strings"]
    return Request(
        **sampling,
        max_tokens=prompt.limit,
        choice_count=options["num_return_sequences"],
        stop_sequences=[stops] if isinstance(stops, str) else stops,
        stream=kept["streamed"] or None,
        extra={
            names.GENERATION_CONFIG: config_fingerprint(kept["config"]),
            **({names.MODEL_BATCH: prompt.rows} if prompt.rows is not None else {}),
        },
    )


def read_response(prompt: Prompt, output: Output, _content: bool) -> Response:
    """Tokens of all sequences, and why each ended."""
    if prompt.offset is None or prompt.limit is None or output.length < prompt.offset:
        return Response(input_tokens=prompt.tokens)
    if output.ids is not None:
        rows = output.ids[:, prompt.offset :].tolist()
        ends = [sequence_end(row, prompt.stops, prompt.limit) for row in rows]
        return Response(
            input_tokens=prompt.tokens,
            output_tokens=sum(tokens for tokens, _ in ends),
            finish_reasons=[reason for _, reason in ends],
        )
    # On a device: a single sequence has no padding; if it is short of the limit, something stopped it.
    tokens, single = output.length - prompt.offset, output.rows == 1
    return Response(
        input_tokens=prompt.tokens,
        output_tokens=tokens if single else None,
        finish_reasons=["stop"] if single and tokens < prompt.limit else None,
    )


def sequence_end(generated: Sequence[int], stops: Collection[int], limit: int) -> tuple[int, str]:
    """How many tokens a sequence has up to its end, and why it ended; what follows the end is padding.

    A sequence that neither a stop token nor the limit ended was ended by a criterion: ``stop`` too.
    """
    for position, token in enumerate(generated):
        if token in stops:
            return position + 1, "stop"
    return len(generated), "length" if len(generated) >= limit else "stop"


TRANSFORMERS: Final = ClientIntegration(
    name="transformers",
    requires="transformers>=4.45",
    kind=Kind.LLM,
    methods=(
        WrappedMethod(
            target="transformers.generation.utils:GenerationMixin.generate",
            snapshot=_snapshot,
            unwrap=unwrap,
            in_process=True,
            model=lambda instance, _: instance,
        ),
    ),
    handoffs=(HandOff(f"{_SERVING}.submit", "fn"), HandOff(f"{_SERVING}.async_submit", "fn")),
)

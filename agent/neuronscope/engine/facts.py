"""From an adapter's words to OpenTelemetry's: requests and responses as attributes and metrics.

Only this file knows which attribute a fact becomes.  Pure functions, run by the worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from neuronscope import compiled
from neuronscope.engine.fit import fit_json
from neuronscope.instrumentation import Message, Operation, Peer, Request, Response
from neuronscope.signals import names

if TYPE_CHECKING:
    from neuronscope.engine.streams import StreamState

Pairs = Iterator[tuple[str, Any]]
Attributes = dict[str, Any]

_REQUEST: Final = (
    ("temperature", names.REQUEST_TEMPERATURE),
    ("top_p", names.REQUEST_TOP_P),
    ("top_k", names.REQUEST_TOP_K),
    ("max_tokens", names.REQUEST_MAX_TOKENS),
    ("seed", names.REQUEST_SEED),
    ("frequency_penalty", names.REQUEST_FREQUENCY_PENALTY),
    ("presence_penalty", names.REQUEST_PRESENCE_PENALTY),
    ("stop_sequences", names.REQUEST_STOP_SEQUENCES),
    ("output_type", names.OUTPUT_TYPE),
    ("encoding_formats", names.REQUEST_ENCODING_FORMATS),
    ("dimensions", names.EMBEDDING_DIMENSIONS),
    ("conversation_id", names.CONVERSATION_ID),
    ("message_count", names.INPUT_MESSAGE_COUNT),
    ("input_count", names.INPUT_COUNT),
    ("api_type", names.OPENAI_API_TYPE),
    ("k", names.RETRIEVAL_TOP_K),
    ("filtered", names.RETRIEVAL_FILTERED),
    ("namespace", names.DB_NAMESPACE),
    ("write_count", names.WRITE_COUNT),
    ("query_text", names.RETRIEVAL_QUERY_TEXT),
)
_RESPONSE: Final = (
    ("model", names.RESPONSE_MODEL),
    ("id", names.RESPONSE_ID),
    ("finish_reasons", names.FINISH_REASONS),
    ("input_tokens", names.INPUT_TOKENS),
    ("output_tokens", names.OUTPUT_TOKENS),
    ("cache_read_tokens", names.CACHE_READ_TOKENS),
    ("cache_write_tokens", names.CACHE_WRITE_TOKENS),
    ("reasoning_tokens", names.REASONING_TOKENS),
    ("service_tier", names.OPENAI_RESPONSE_SERVICE_TIER),
    ("system_fingerprint", names.OPENAI_FINGERPRINT),
    ("dimensions", names.EMBEDDING_DIMENSIONS),
)


@lru_cache(maxsize=1024)
def start_facts(operation: Operation, target: str | None, peer: Peer, method: str) -> Mapping[str, Any]:
    """What is known before the call, and what samplers may look at.  Remembered: most calls are alike."""
    return dict(_start_facts(operation, target, peer, method))


def _start_facts(operation: Operation, target: str | None, peer: Peer, method: str) -> Pairs:
    if operation in (Operation.RETRIEVAL, Operation.STORE):
        if operation is Operation.RETRIEVAL:
            yield names.OPERATION_NAME, operation.value
            if target:
                yield names.DATA_SOURCE_ID, target
        yield names.DB_SYSTEM, peer.provider
        yield names.DB_OPERATION, method
        if target:
            yield names.DB_COLLECTION, target
    else:
        yield names.OPERATION_NAME, operation.value
        yield names.PROVIDER_NAME, peer.provider
        if target:
            yield names.REQUEST_MODEL, target
    if peer.address:
        yield names.SERVER_ADDRESS, peer.address
        if peer.port:
            yield names.SERVER_PORT, peer.port


def add_request(attributes: Attributes, request: Request, limit: int) -> None:
    """Add the request's attributes; content as JSON of at most `limit` characters."""
    _add_fields(attributes, request, _REQUEST_FIELDS)
    if request.stream:
        attributes[names.REQUEST_STREAM] = True
    if request.choice_count is not None and request.choice_count != 1:
        attributes[names.REQUEST_CHOICE_COUNT] = request.choice_count
    if request.service_tier and request.service_tier != "auto":
        attributes[names.OPENAI_REQUEST_SERVICE_TIER] = request.service_tier
    if request.messages is not None:
        _add_content(attributes, names.INPUT_MESSAGES, list(map(message_dict, request.messages)), limit)
    if request.system is not None:
        _add_content(attributes, names.SYSTEM_INSTRUCTIONS, request.system, limit)
    if request.tools is not None:
        _add_content(attributes, names.TOOL_DEFINITIONS, request.tools, limit)
    if request.extra:
        attributes.update(request.extra)


def request_table(table: tuple[Any, ...]) -> tuple[Any, ...]:
    """A table of an adapter's whose facts are fields of `Request`: the same facts as attributes."""
    return _as_attributes(table, dict(_REQUEST))


def response_table(table: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same for fields of `Response`."""
    return _as_attributes(table, dict(_RESPONSE))


def _as_attributes(table: tuple[Any, ...], keys: Mapping[str, str]) -> tuple[Any, ...]:
    return tuple(
        (_as_attributes(cell, keys) if isinstance(cell, tuple) else keys.get(cell, cell))  # pyright: ignore[reportUnknownArgumentType]
        if place % 3 == 1
        else cell
        for place, cell in enumerate(table)
    )


def add_response(attributes: Attributes, response: Response, limit: int) -> None:
    """Add the response's attributes, but for what a search found (`neuronscope.engine.searches`)."""
    _add_fields(attributes, response, _RESPONSE_FIELDS)
    if response.messages is not None:
        _add_content(attributes, names.OUTPUT_MESSAGES, list(map(message_dict, response.messages)), limit)
    if response.returned is not None:
        attributes[names.DB_RETURNED_ROWS] = response.returned
    if response.extra:
        attributes.update(response.extra)


def stream_facts(operation: Operation, state: StreamState, start_perf_ns: int) -> Pairs:
    """How the stream went, in time; to rows of a store the conventions give no time of the first."""
    yield names.STREAM_CHUNKS, state.seen.count
    if state.end is not None:
        yield names.STREAM_END, state.end
    if state.consumer_ns is not None:
        yield names.STREAM_CONSUMER, state.consumer_ns / 1e9
    if state.first_content_ns is not None and operation not in (Operation.RETRIEVAL, Operation.STORE):
        yield names.TIME_TO_FIRST_CHUNK, (state.first_content_ns - start_perf_ns) / 1e9


def message_dict(message: Message) -> dict[str, Any]:
    """A message in OpenTelemetry's schema."""
    found = {"role": message.role, "parts": list(message.parts)}
    return found if message.finish_reason is None else {**found, "finish_reason": message.finish_reason}


def _add_content(attributes: Attributes, key: str, items: Any, limit: int) -> None:
    """Content attributes are JSON text: Python SDKs have no structured span attributes."""
    attributes[key], shortened = fit_json(items, limit)
    if shortened:
        attributes[names.TRUNCATED] = [*attributes.get(names.TRUNCATED, ()), key]


def add_fields_in_python(attributes: Attributes, facts: Request | Response, table: Sequence[str]) -> None:
    """Add the fields that become attributes as they are, if they are known.

    Args:
        table: field, key, field, key, …
    """
    fields = iter(table)
    for field, key in zip(fields, fields):  # noqa: B905 - pairs of the same iterator
        value = getattr(facts, field)
        if value is not None:
            attributes[key] = value


_add_fields: Final = compiled.choose("add_fields", add_fields_in_python)
_REQUEST_FIELDS: Final = tuple(chain.from_iterable(_REQUEST))
_RESPONSE_FIELDS: Final = tuple(chain.from_iterable(_RESPONSE))


@lru_cache(maxsize=1024)
def span_name(operation: Operation, target: str | None, method: str) -> str:
    """The span's name by the semantic conventions; a store call is named by its own method."""
    first = method if operation is Operation.STORE else operation
    return f"{first} {target}" if target else str(first)


def is_retrieval(attributes: Mapping[str, Any]) -> bool:
    """Is this span a similarity search?"""
    return attributes.get(names.OPERATION_NAME) == Operation.RETRIEVAL.value

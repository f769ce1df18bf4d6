"""Records to JSON and back, exactly: spans with OTLP's names, layer records, events, the manifest.

The documents below are the schema: they encode, they decode (and so validate), and their JSON Schema
is written into the file.  Values follow OTLP/JSON: 64-bit integers are decimal strings, ids are hex,
NaN and infinities are strings.  What JSON or OTLP cannot hold is replaced, never refused: lone
surrogates by U+FFFD, integers beyond 64 bits by their decimal text, unknown objects by `str`.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence, Set
from functools import cache
from typing import Any, Final, TypeVar, Union, cast

import msgspec
from opentelemetry.trace import SpanKind, StatusCode

from neuronscope.exceptions import NszError
from neuronscope.signals.records import (
    Attributes,
    AttributeValue,
    Fidelity,
    LayerRecord,
    SpanEvent,
    SpanLink,
    SpanRecord,
)
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary
from neuronscope_exporters.nsz.layout import MAX_RECORD_JSON

# Values within values: deeper ones are cut when written, refused when read (a level of values is up to
# four levels of JSON).
WRITTEN_DEPTH: Final = 12
READ_DEPTH: Final = 16
_I64_MIN, _I64_MAX = -(2**63), 2**63 - 1
_HAS_REMOTE, _IS_REMOTE = 0x100, 0x200  # OTLP's span flags above the eight of W3C
_NON_FINITE: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Document(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """Base of all documents: camelCase names, defaults left out, unknown fields ignored."""


class AnyValue(Document):
    """OTLP's AnyValue: exactly one field is set; none is null."""

    string_value: str | None = None
    int_value: str | int | None = None
    double_value: float | str | None = None
    bool_value: bool | None = None
    array_value: ArrayValue | None = None
    kvlist_value: KeyValueList | None = None
    bytes_value: str | None = None


class ArrayValue(Document):
    """A list of values."""

    values: list[AnyValue] = []


class KeyValue(Document):
    """An attribute."""

    key: str
    value: AnyValue


class KeyValueList(Document):
    """A mapping."""

    values: list[KeyValue] = []


class ScopeDocument(Document):
    """The instrumentation scope that made a span."""

    name: str
    version: str = ""


class StatusDocument(Document):
    """A span's status; a message that is absent is not an empty one."""

    code: int = 0
    message: str | None = None


class EventDocument(Document):
    """An event of a span, or of the agent itself."""

    time_unix_nano: str
    name: str
    attributes: list[KeyValue] = []
    dropped_attributes_count: int = 0


class LinkDocument(Document):
    """A link of a span."""

    trace_id: str
    span_id: str
    trace_state: str = ""
    attributes: list[KeyValue] = []
    dropped_attributes_count: int = 0
    flags: int = 0


class SpanDocument(Document):
    """A span under OTLP's names, with its scope; `resource` and `foreign` are ours."""

    trace_id: str
    span_id: str
    name: str
    kind: int
    start_time_unix_nano: str
    end_time_unix_nano: str
    attributes: list[KeyValue] = []
    parent_span_id: str | None = None
    flags: int = 0
    trace_state: str = ""
    scope: ScopeDocument | None = None
    status: StatusDocument | None = None
    events: list[EventDocument] = []
    links: list[LinkDocument] = []
    dropped_attributes_count: int = 0
    dropped_events_count: int = 0
    dropped_links_count: int = 0
    foreign: bool = False
    resource: int = 0


class SummaryDocument(Document):
    """Statistics of a tensor (see `neuronscope.signals.tensors.TensorSummary`)."""

    count: int
    mean: float | str
    std: float | str
    l2: float | str
    min: float | str
    max: float | str
    abs_max: float | str
    zero_count: int
    nan_count: int
    inf_count: int
    sampled_fraction: float | str = 1.0


class PartDocument(Document):
    """Where a part of a tensor is: its Chunk record's offset and length, and that chunk's CRC."""

    offset: int
    length: int
    crc: int


class TensorDocument(Document):
    """A full tensor that the file holds."""

    dtype: str
    shape: list[int]
    nbytes: int
    parts: list[PartDocument]


class LayerDocument(Document):
    """One observation of one layer; `tensor` is present in `nsz/tensor_ref` only."""

    model: str
    module: str
    step: int
    time_unix_nano: str
    shape: list[int]
    dtype: str
    role: str = "output"
    index: int = 0
    trace_id: str | None = None
    span_id: str | None = None
    fidelity: str = "summary"
    summary: SummaryDocument | None = None
    tensor: TensorDocument | None = None
    resource: int = 0


class ResourceDocument(Document):
    """An OTel resource."""

    attributes: list[KeyValue] = []


class ClockDocument(Document):
    """Both clocks read together, so that monotonic times can be placed."""

    wall_unix_nano: str
    monotonic_nano: str


class ManifestDocument(Document):
    """What the file is, repeated in every checkpoint."""

    version: str
    file_id: str
    created_unix_nano: str
    library: str
    pid: int = 0
    resources: list[ResourceDocument] = []
    clock: ClockDocument | None = None
    segment: int = 0
    previous_segment: str | None = None
    features_required: list[str] = []
    features_optional: list[str] = []


class IndexDocument(Document):
    """Chunks since the previous checkpoint: [offset, length, class, first time, last time, channels]."""

    previous: int
    chunks: list[tuple[int, int, int, int, int, list[int]]]


D = TypeVar("D", bound=Document)
_Json = Union[str, int, float, bool, None, list["_Json"], dict[str, "_Json"]]  # noqa: UP007 - recursive


def encode(document: Document) -> bytes:
    """JSON bytes of a document."""
    try:
        return _encode(document)
    except UnicodeEncodeError:
        return _encode(_replace_surrogates(msgspec.to_builtins(document)))


def decode(kind: type[D], data: bytes | memoryview) -> D:
    """A document from JSON bytes.

    Raises:
        NszError: too long, too deep, no JSON, or not of this kind.
    """
    if len(data) > MAX_RECORD_JSON:
        raise NszError(f"JSON record of {len(data)} bytes; at most {MAX_RECORD_JSON} are allowed")
    try:
        document: D = _decoder(kind).decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise NszError(f"not a {kind.__name__}: {error}") from None
    except RecursionError:
        raise NszError("JSON record is nested too deeply") from None
    return document


def json_schema(kind: type[Document]) -> bytes:
    """The JSON Schema of a kind of document, an object at its root as Foxglove wants it."""
    _, components = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    root = components.pop(kind.__name__)
    return _encode({**root, "$defs": components} if components else root)


_encode = msgspec.json.Encoder(enc_hook=str).encode


@cache
def _decoder(kind: type[D]) -> msgspec.json.Decoder[D]:
    return msgspec.json.Decoder(kind)


def _replace_surrogates(value: _Json) -> _Json:
    """A copy in which text is valid Unicode: pairs are joined, lone surrogates become U+FFFD."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {_text(key): _replace_surrogates(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace_surrogates(item) for item in value]
    return value


def _text(text: str) -> str:
    return str(_replace_surrogates(text))


# --- attributes ---------------------------------------------------------------------------------


def _to_any(value: object, depth: int = 0) -> AnyValue:
    kind = type(value)
    if kind is str:
        return AnyValue(cast(str, value))
    if kind is int:
        number = cast(int, value)
        if _I64_MIN <= number <= _I64_MAX:
            return AnyValue(None, str(number))
        return AnyValue(_decimal(number))
    if kind is float:
        return AnyValue(None, None, _finite(cast(float, value)))
    if kind is bool:
        return AnyValue(bool_value=cast(bool, value))
    if kind is tuple or kind is list:
        if depth >= WRITTEN_DEPTH:
            return AnyValue("…")
        items = cast(Sequence[object], value)
        return AnyValue(array_value=ArrayValue([_to_any(item, depth + 1) for item in items]))
    return _to_any_slowly(value, depth)


def _to_any_slowly(value: object, depth: int) -> AnyValue:
    """Subclasses, numpy values, mappings: turned into plain Python first."""
    if value is None:
        return AnyValue()
    if isinstance(value, str):
        return AnyValue(str(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return AnyValue(bytes_value=base64.b64encode(cast(bytes, value)).decode())
    if isinstance(value, bool | int):
        return _to_any(int(value), depth)
    if isinstance(value, float):
        return AnyValue(None, None, _finite(float(value)))
    if isinstance(value, Mapping):
        if depth >= WRITTEN_DEPTH:
            return AnyValue("…")
        return AnyValue(kvlist_value=KeyValueList(_to_pairs(cast(Attributes, value), depth + 1)))
    if isinstance(value, Sequence | Set):
        return _to_any(list(cast(Sequence[object], value)), depth)
    plain = getattr(value, "tolist", None)  # numpy scalars and arrays
    if callable(plain):
        converted = plain()
        if type(converted) is not type(value):
            return _to_any(converted, depth)
    try:
        return AnyValue(None, None, _finite(float(cast(Any, value))))  # numpy.longdouble
    except (TypeError, ValueError, OverflowError):
        return AnyValue(str(value))


def _decimal(number: int) -> str:
    """Decimal text; Python refuses it beyond 4,300 digits, where hexadecimal has to do."""
    try:
        return str(number)
    except ValueError:
        return hex(number)


def _finite(number: float) -> float | str:
    if math.isfinite(number):
        return number
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def _to_pairs(attributes: Attributes, depth: int = 0) -> list[KeyValue]:
    pairs: list[KeyValue] = []
    for key, value in attributes.items():
        if type(key) is not str:
            key = str(key)  # noqa: PLW2901 - foreign mappings only
        kind = type(value)
        if kind is str:  # the two common types, without a call
            pairs.append(KeyValue(key, AnyValue(cast(str, value))))
        elif kind is int and _I64_MIN <= cast(int, value) <= _I64_MAX:
            pairs.append(KeyValue(key, AnyValue(None, str(value))))
        else:
            pairs.append(KeyValue(key, _to_any(value, depth)))
    return pairs


def _number(value: float | str) -> float:
    if isinstance(value, float | int):
        return float(value)
    try:
        return _NON_FINITE[value]
    except KeyError:
        raise NszError("not a number") from None


def _from_any(value: AnyValue, depth: int = 0) -> Any:
    if value.string_value is not None:
        return value.string_value
    if value.int_value is not None:
        return _integer(value.int_value)
    if value.double_value is not None:
        return _number(value.double_value)
    if value.bool_value is not None:
        return value.bool_value
    if depth > READ_DEPTH:
        raise NszError("attribute is nested too deeply")
    if value.array_value is not None:
        return tuple([_from_any(item, depth + 1) for item in value.array_value.values])
    if value.kvlist_value is not None:
        return {item.key: _from_any(item.value, depth + 1) for item in value.kvlist_value.values}
    if value.bytes_value is not None:
        try:
            return base64.b64decode(value.bytes_value, validate=True)
        except binascii.Error:
            raise NszError("attribute bytes are not base64") from None
    return None


def _from_pairs(pairs: list[KeyValue]) -> dict[str, AttributeValue]:
    return {pair.key: _from_any(pair.value) for pair in pairs}


def _integer(text: str | int) -> int:
    if isinstance(text, int):
        return text
    if len(text) > 32:
        raise NszError("integer is too long")
    try:
        return int(text)
    except ValueError:
        raise NszError(f"not an integer: {text!r}") from None


def _identifier(text: str, digits: int) -> int:
    if len(text) != digits:
        raise NszError(f"an id must have {digits} hexadecimal digits; got {text[:40]!r}")
    try:
        return int.from_bytes(bytes.fromhex(text), "big")
    except ValueError:
        raise NszError(f"an id must be hexadecimal; got {text!r}") from None


# --- spans and events ---------------------------------------------------------------------------


def encode_span(span: SpanRecord, resource: int = 0) -> bytes:
    """JSON of a span; `resource` is its resource's position in the manifest."""
    status = None
    if span.status is not StatusCode.UNSET or span.status_message is not None:
        status = StatusDocument(span.status.value, span.status_message)
    remote = _IS_REMOTE if span.parent_is_remote else 0
    document = SpanDocument(
        f"{span.trace_id:032x}",
        f"{span.span_id:016x}",
        span.name,
        span.kind.value + 1,  # OTLP counts from "unspecified"
        str(span.start_unix_ns),
        str(span.end_unix_ns),
        _to_pairs(span.attributes),
        None if span.parent_span_id is None else f"{span.parent_span_id:016x}",
        int(span.trace_flags) & 0xFF | _HAS_REMOTE | remote,
        span.trace_state,
        ScopeDocument(span.library, span.library_version),
        status,
        [_event_document(event) for event in span.events] if span.events else [],
        [_link_document(link) for link in span.links] if span.links else [],
        span.dropped_attributes,
        span.dropped_events,
        span.dropped_links,
        span.foreign,
        resource,
    )
    return encode(document)


def decode_span(data: bytes | memoryview) -> tuple[SpanRecord, int]:
    """(span, position of its resource in the manifest).

    Raises:
        NszError: the JSON is no span.
    """
    document = decode(SpanDocument, data)
    status = document.status or StatusDocument()
    scope = document.scope or ScopeDocument("")
    parent = document.parent_span_id
    try:
        kind, code = SpanKind(document.kind - 1), StatusCode(status.code)
    except ValueError as error:
        raise NszError(f"span with an unknown kind or status: {error}") from None
    span = SpanRecord(
        trace_id=_identifier(document.trace_id, 32),
        span_id=_identifier(document.span_id, 16),
        name=document.name,
        kind=kind,
        start_unix_ns=_integer(document.start_time_unix_nano),
        end_unix_ns=_integer(document.end_time_unix_nano),
        attributes=_from_pairs(document.attributes),
        parent_span_id=_identifier(parent, 16) if parent else None,
        parent_is_remote=bool(document.flags & _IS_REMOTE),
        events=tuple([_event_record(event) for event in document.events]),
        links=tuple([_link_record(link) for link in document.links]),
        status=code,
        status_message=status.message,
        trace_state=document.trace_state,
        trace_flags=document.flags & 0xFF,
        library=scope.name,
        library_version=scope.version,
        dropped_attributes=document.dropped_attributes_count,
        dropped_events=document.dropped_events_count,
        dropped_links=document.dropped_links_count,
        foreign=document.foreign,
    )
    return span, document.resource


def encode_event(event: SpanEvent) -> bytes:
    """JSON of an event of the agent."""
    return encode(_event_document(event))


def decode_event(data: bytes | memoryview) -> SpanEvent:
    """An event of the agent.

    Raises:
        NszError: the JSON is no event.
    """
    return _event_record(decode(EventDocument, data))


def _event_document(event: SpanEvent) -> EventDocument:
    return EventDocument(
        str(event.time_unix_ns), event.name, _to_pairs(event.attributes), event.dropped_attributes
    )


def _event_record(document: EventDocument) -> SpanEvent:
    return SpanEvent(
        document.name,
        _integer(document.time_unix_nano),
        _from_pairs(document.attributes),
        document.dropped_attributes_count,
    )


def _link_document(link: SpanLink) -> LinkDocument:
    return LinkDocument(
        f"{link.trace_id:032x}",
        f"{link.span_id:016x}",
        link.trace_state,
        _to_pairs(link.attributes),
        link.dropped_attributes,
        int(link.trace_flags) & 0xFF,
    )


def _link_record(document: LinkDocument) -> SpanLink:
    return SpanLink(
        trace_id=_identifier(document.trace_id, 32),
        span_id=_identifier(document.span_id, 16),
        attributes=_from_pairs(document.attributes),
        trace_state=document.trace_state,
        trace_flags=document.flags & 0xFF,
        dropped_attributes=document.dropped_attributes_count,
    )


# --- layers -------------------------------------------------------------------------------------


def encode_layer(layer: LayerRecord, resource: int = 0, tensor: TensorDocument | None = None) -> bytes:
    """JSON of a layer record: a tensor summary, or with `tensor` a reference to its chunks."""
    document = LayerDocument(
        layer.model,
        layer.layer_id,
        int(layer.step),
        str(layer.time_unix_ns),
        [int(size) for size in layer.shape],
        layer.dtype,
        layer.role,
        int(layer.index),
        None if layer.trace_id is None else f"{layer.trace_id:032x}",
        None if layer.span_id is None else f"{layer.span_id:016x}",
        str(layer.fidelity),
        None if layer.summary is None else _summary_document(layer.summary),
        tensor,
        resource,
    )
    return encode(document)


def layer_record(document: LayerDocument, tensor: TensorSnapshot | None) -> LayerRecord:
    """The record that a document describes.

    Raises:
        NszError: a value that no layer record can have.
    """
    if any(size < 0 for size in document.shape):
        raise NszError("a shape cannot be negative")
    try:
        fidelity = Fidelity(document.fidelity)
    except ValueError as error:
        raise NszError(str(error)) from None
    return LayerRecord(
        model=document.model,
        layer_id=document.module,
        step=document.step,
        time_unix_ns=_integer(document.time_unix_nano),
        shape=tuple(document.shape),
        dtype=document.dtype,
        role=document.role,
        index=document.index,
        trace_id=None if document.trace_id is None else _identifier(document.trace_id, 32),
        span_id=None if document.span_id is None else _identifier(document.span_id, 16),
        fidelity=fidelity,
        summary=None if document.summary is None else _summary_record(document.summary),
        tensor=tensor,
    )


def _summary_document(summary: TensorSummary) -> SummaryDocument:
    return SummaryDocument(
        int(summary.count),
        _finite(float(summary.mean)),
        _finite(float(summary.std)),
        _finite(float(summary.l2)),
        _finite(float(summary.min)),
        _finite(float(summary.max)),
        _finite(float(summary.abs_max)),
        int(summary.zero_count),
        int(summary.nan_count),
        int(summary.inf_count),
        _finite(float(summary.sampled_fraction)),
    )


def _summary_record(document: SummaryDocument) -> TensorSummary:
    return TensorSummary(
        count=document.count,
        mean=_number(document.mean),
        std=_number(document.std),
        l2=_number(document.l2),
        min=_number(document.min),
        max=_number(document.max),
        abs_max=_number(document.abs_max),
        zero_count=document.zero_count,
        nan_count=document.nan_count,
        inf_count=document.inf_count,
        sampled_fraction=_number(document.sampled_fraction),
    )


# --- the manifest's resources -------------------------------------------------------------------


def resource_document(attributes: Attributes) -> ResourceDocument:
    """A resource for the manifest."""
    return ResourceDocument(_to_pairs(attributes))


def resource_attributes(document: ResourceDocument) -> dict[str, AttributeValue]:
    """The attributes of a resource of the manifest.

    Raises:
        NszError: a value that cannot be read.
    """
    return _from_pairs(document.attributes)

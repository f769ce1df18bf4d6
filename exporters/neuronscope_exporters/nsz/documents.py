"""The JSON documents of `.nsz`: what spans, layer and log records, events and the manifest look like.

These classes are the schema: they encode, they decode (and so validate), and their JSON Schema is
written into the file.  Names and conventions are OTLP/JSON's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar, Union

import msgspec

from neuronscope.exceptions import NszError
from neuronscope_exporters.nsz.layout import MAX_RECORD_JSON


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


class LogDocument(Document):
    """A log record under OTLP's names, with its scope; `resource` is ours."""

    time_unix_nano: str
    observed_time_unix_nano: str = ""
    severity_number: int = 0
    severity_text: str = ""
    body: AnyValue | None = None
    attributes: list[KeyValue] = []
    trace_id: str | None = None
    span_id: str | None = None
    flags: int = 0
    event_name: str = ""
    scope: ScopeDocument | None = None
    dropped_attributes_count: int = 0
    resource: int = 0


class LogHead(Document):
    """What selects a log record."""

    time_unix_nano: str
    trace_id: str | None = None
    span_id: str | None = None
    event_name: str = ""


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


class SpanHead(Document):
    """What a list of spans shows: read several times as fast as the whole span.

    Times are decimal text and ids hexadecimal, as in the file.
    """

    trace_id: str
    span_id: str
    name: str
    kind: int
    start_time_unix_nano: str
    end_time_unix_nano: str
    parent_span_id: str | None = None
    status: StatusDocument | None = None
    resource: int = 0


class LayerHead(Document):
    """What selects a layer record."""

    model: str
    module: str
    step: int
    time_unix_nano: str
    trace_id: str | None = None
    span_id: str | None = None


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
    histogram: list[int] = []
    sketch: list[float] = []


class PartDocument(Document):
    """Where a part of a tensor is: its Chunk record's offset and length, and that chunk's CRC."""

    offset: int
    length: int
    crc: int


class TensorDocument(Document):
    """A full tensor that the file holds; with `planes` the bytes of its elements are split."""

    dtype: str
    shape: list[int]
    nbytes: int
    parts: list[PartDocument]
    planes: bool = False


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
    attributes: list[KeyValue] = []


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
    decode_one: Callable[[bytes | memoryview], D] = _decoder(kind)
    return decode_one(data)


def decoder(kind: type[D]) -> Callable[[bytes | memoryview], D]:
    """`decode` for one kind of document, for many of them."""
    decode_one: Callable[[bytes | memoryview], D] = _decoder(kind)
    return decode_one


@cache
def _decoder(kind: type[Document]) -> Callable[[bytes | memoryview], Any]:
    read = msgspec.json.Decoder(kind).decode

    def decode_one(data: bytes | memoryview) -> Document:
        if len(data) > MAX_RECORD_JSON:
            raise NszError(f"JSON record of {len(data)} bytes; at most {MAX_RECORD_JSON} are allowed")
        try:
            return read(data)
        except (msgspec.MsgspecError, ValueError) as error:
            raise NszError(f"not a {kind.__name__}: {error}") from None
        except RecursionError:
            raise NszError("JSON record is nested too deeply") from None

    return decode_one


def json_schema(kind: type[Document]) -> bytes:
    """The JSON Schema of a kind of document, an object at its root as Foxglove wants it."""
    _, components = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    root = components.pop(kind.__name__)
    return _encode({**root, "$defs": components} if components else root)


_encode = msgspec.json.Encoder(enc_hook=str).encode


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

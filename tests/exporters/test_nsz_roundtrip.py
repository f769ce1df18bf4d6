"""What goes into an `.nsz` file comes out of it, exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from opentelemetry.trace import SpanKind, StatusCode

from neuronscope.exceptions import NszError
from neuronscope.signals.records import Fidelity, LayerRecord, SpanEvent, SpanLink, SpanRecord
from neuronscope.signals.tensors import DTYPE_NAMES, TensorSnapshot, TensorSummary
from neuronscope_exporters import nsz
from neuronscope_exporters.nsz import codec, documents, tensors

U64, U128 = st.integers(0, 2**64 - 1), st.integers(0, 2**128 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
TIMES = st.integers(0, 2**63 - 1)
COUNTS = st.integers(0, 2**31 - 1)
FLOATS = st.floats(allow_nan=True, allow_infinity=True)
SCALARS = st.one_of(TEXT, st.booleans(), st.integers(-(2**63), 2**63 - 1), FLOATS)
ATTRIBUTES = st.dictionaries(
    TEXT,
    st.one_of(
        SCALARS,
        st.lists(TEXT, max_size=3).map(tuple),
        st.lists(st.booleans(), max_size=3).map(tuple),
        st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3).map(tuple),
        st.lists(FLOATS, max_size=3).map(tuple),
    ),
    max_size=5,
)
EVENTS = st.builds(SpanEvent, TEXT, TIMES, ATTRIBUTES, COUNTS)
LINKS = st.builds(SpanLink, U128, U64, ATTRIBUTES, TEXT, st.integers(0, 255), COUNTS)
SPANS = st.builds(
    SpanRecord,
    trace_id=U128,
    span_id=U64,
    name=TEXT,
    kind=st.sampled_from(SpanKind),
    start_unix_ns=TIMES,
    end_unix_ns=TIMES,
    attributes=ATTRIBUTES,
    parent_span_id=st.none() | U64,
    parent_is_remote=st.booleans(),
    events=st.lists(EVENTS, max_size=2).map(tuple),
    links=st.lists(LINKS, max_size=2).map(tuple),
    status=st.sampled_from(StatusCode),
    status_message=st.none() | TEXT,
    trace_state=TEXT,
    trace_flags=st.integers(0, 255),
    library=TEXT,
    library_version=TEXT,
    dropped_attributes=COUNTS,
    dropped_events=COUNTS,
    dropped_links=COUNTS,
    foreign=st.booleans(),
)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
SUMMARIES = st.builds(
    TensorSummary, U64, FLOATS, FLOATS, FLOATS, FLOATS, FLOATS, FLOATS, U64, U64, U64, st.floats(0, 1),
    histogram=st.none() | st.lists(COUNTS, min_size=1, max_size=3).map(tuple),
    sketch=st.none() | st.lists(FINITE, min_size=1, max_size=3).map(tuple),
)  # fmt: skip
LAYERS = st.builds(
    LayerRecord,
    model=TEXT,
    layer_id=TEXT,
    step=COUNTS,
    time_unix_ns=TIMES,
    shape=st.lists(COUNTS, max_size=4).map(tuple),
    dtype=TEXT,
    role=TEXT,
    index=COUNTS,
    trace_id=st.none() | U128,
    span_id=st.none() | U64,
    fidelity=st.sampled_from(Fidelity),
    summary=st.none() | SUMMARIES,
    attributes=ATTRIBUTES,
)
SPAN = SpanRecord(1, 2, "chat", SpanKind.CLIENT, 10, 20, {})
LAYER = LayerRecord("m", "layers.0", 0, 1, (2,), "F32")
QUICK = settings(
    max_examples=150,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred files need not survive a power cut; `fsync` would take most of the time here."""

    def fsync(_fd: int) -> None:
        pass

    monkeypatch.setattr("os.fsync", fsync)


def exact(value: object) -> object:
    """A form in which equal means the same type and value: -0.0 is not 0.0, True not 1; NaN is NaN."""
    if isinstance(value, float):
        return ("float", "nan" if math.isnan(value) else (math.copysign(1.0, value), value))
    if isinstance(value, tuple | list):
        return ("sequence", tuple(exact(item) for item in cast(Sequence[object], value)))
    if isinstance(value, dict):
        return {key: exact(item) for key, item in cast(dict[str, object], value).items()}
    if isinstance(value, SpanRecord | SpanEvent | SpanLink | LayerRecord | TensorSummary):
        return {name: exact(getattr(value, name)) for name in value.__struct_fields__}
    return (type(value).__name__, value)


def write_one(tmp_path: Path, *records: SpanRecord | LayerRecord) -> nsz.Recording:
    path = tmp_path / "one.nsz"
    spans = [record for record in records if isinstance(record, SpanRecord)]
    layers = [record for record in records if isinstance(record, LayerRecord)]
    nsz.write(path, spans, layers, {"service.name": "test"})
    return nsz.read(path)


def stored_attribute(value: Any) -> object:
    """What becomes of an attribute's value."""
    span = replace(SPAN, attributes={"key": value})
    return codec.decode_span(codec.encode_span(span))[0].attributes["key"]


def attribute_after_file(tmp_path: Path, value: Any) -> object:
    return write_one(tmp_path, replace(SPAN, attributes={"key": value})).spans[0].attributes["key"]


@QUICK
@given(SPANS)
@example(replace(SPAN, attributes={"zero": -0.0, "yes": True, "one": 1, "big": 2**63 - 1, "none": ()}))
def test_every_field_of_a_span_comes_back_with_its_type(span: SpanRecord) -> None:
    """-0.0, NaN, bool against int, 64-bit integers, empty sequences, absent against empty text."""
    back, resource = codec.decode_span(codec.encode_span(span, 3))
    assert exact(back) == exact(span)
    assert resource == 3


@QUICK
@given(LAYERS)
def test_every_field_of_a_layer_record_comes_back_with_its_type(layer: LayerRecord) -> None:
    """Statistics may be NaN or infinite; ids may be absent."""
    document = documents.decode(documents.LayerDocument, codec.encode_layer(layer))
    assert exact(codec.layer_record(document, None)) == exact(layer)


@settings(QUICK, max_examples=30)
@given(st.lists(SPANS, max_size=5), st.lists(LAYERS, max_size=5), st.lists(EVENTS, max_size=3))
def test_a_file_returns_its_records_in_order_of_time(
    tmp_path_factory: pytest.TempPathFactory,
    spans: list[SpanRecord],
    layers: list[LayerRecord],
    events: list[SpanEvent],
) -> None:
    """Times beyond what MCAP sorts by are kept exactly in the records."""
    path = tmp_path_factory.mktemp("nsz") / "file.nsz"
    nsz.write(path, spans, layers, {"service.name": "test", "n": 1}, events)
    back = nsz.read(path)
    assert exact(back.spans) == exact(sorted(spans, key=lambda span: span.start_unix_ns))
    assert exact(back.layers) == exact(sorted(layers, key=lambda layer: layer.time_unix_ns))
    assert exact(back.events) == exact(sorted(events, key=lambda event: event.time_unix_ns))
    assert back.resource == {"service.name": "test", "n": 1}
    assert not back.damage
    assert back.finished


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.int64(-(2**63)), -(2**63)),
        (np.uint8(7), 7),
        (np.float32(0.5), 0.5),
        (np.float64("nan"), math.nan),
        (np.longdouble(1.5), 1.5),
        (np.bool_(True), True),
        (np.str_("text"), "text"),
        (np.array([1, 2]), (1, 2)),
        (np.array([], dtype="f4"), ()),
        (np.array(3), 3),
        ([1, 2], (1, 2)),
        (SpanKind.CLIENT, "SpanKind.CLIENT"),
        (Fidelity.FULL, "full"),
        (2**64, str(2**64)),
        (b"\x00\xff", b"\x00\xff"),
        ({"a": [1, {"b": None}]}, {"a": (1, {"b": None})}),
    ],
)
def test_foreign_values_become_plain_ones(value: object, expected: object) -> None:
    """numpy's scalars and arrays, enums, too large integers, mappings."""
    assert exact(stored_attribute(value)) == exact(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a\ud800b", "a\ufffdb"), ("\ud83d\ude00", "😀"), ("\udc80", "\ufffd"), ("\x00\u2028é", "\x00\u2028é")],
)
def test_lone_surrogates_are_replaced_everywhere(tmp_path: Path, text: str, expected: str) -> None:
    """In values, keys, names and layer ids; the rest of the record is untouched."""
    span = replace(SPAN, name=text, attributes={text: text, "n": 1}, events=(SpanEvent(text, 1),))
    layer = replace(LAYER, layer_id=text, tensor=TensorSnapshot.from_numpy(np.zeros(2, "f4")))
    back = write_one(tmp_path, span, layer)
    assert back.spans[0].name == back.spans[0].events[0].name == back.layers[0].layer_id == expected
    assert back.spans[0].attributes == {expected: expected, "n": 1}


def test_a_value_that_contains_itself_is_lost_not_raised(tmp_path: Path) -> None:
    """Nesting ends somewhere; the writer goes on."""
    loop: list[Any] = []
    loop.append(loop)
    assert "…" in repr(attribute_after_file(tmp_path, loop))


SPECIAL = {"bfloat16": "<u2", "float8_e4m3fn": "u1", "float8_e5m2": "u1"}


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 5)])
@pytest.mark.parametrize("numpy_name", [*DTYPE_NAMES, "complex128"])
def test_every_element_type_and_shape_comes_back_bit_by_bit(
    tmp_path: Path, numpy_name: str, shape: tuple[int, ...]
) -> None:
    """bfloat16 and float8 are handed over as raw integers under their name, as torch's adapter does."""
    dtype = np.dtype(SPECIAL.get(numpy_name, numpy_name))
    raw = np.random.default_rng(0).integers(0, 2, math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    values = np.frombuffer(raw.tobytes(), dtype=dtype, count=math.prod(shape)).reshape(shape)
    name = DTYPE_NAMES.get(numpy_name, numpy_name)
    layer = replace(LAYER, dtype=name, shape=shape, tensor=TensorSnapshot(shape, name, values))
    back = write_one(tmp_path, layer).layers[0].tensor
    assert back is not None
    array = back.numpy()
    assert (back.dtype, back.shape, back.nbytes) == (name, shape, values.nbytes)
    assert array.shape == shape
    assert array.tobytes() == values.tobytes()
    assert not array.flags.writeable


def test_ml_dtypes_arrays_come_back_with_their_type(tmp_path: Path) -> None:
    """With ml_dtypes installed, numpy knows bfloat16."""
    import ml_dtypes

    values = np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3)
    back = write_one(tmp_path, replace(LAYER, tensor=TensorSnapshot.from_numpy(values))).layers[0].tensor
    assert back is not None
    assert back.dtype == "BF16"
    assert back.numpy().dtype == values.dtype
    assert (back.numpy() == values).all()


def test_raw_bfloat16_is_summarised_as_the_numbers_it_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ml_dtypes the values are uint16, whose own statistics would be wrong."""
    monkeypatch.setitem(__import__("sys").modules, "ml_dtypes", None)
    assert tensors.numpy_dtype("BF16") == np.dtype("<u2")
    ones = np.full(4, 0x3F80, dtype="<u2")
    assert tensors.summarize(ones, "BF16") == TensorSummary.of(np.ones(4))
    with pytest.raises(NszError, match="ml_dtypes"):
        tensors.summarize(np.zeros(2, "u1"), "F8_E5M2")


@pytest.mark.parametrize(
    "values",
    [
        np.arange(12, dtype=">f4").reshape(3, 4),
        np.arange(24, dtype="f8").reshape(4, 6)[::2, ::-3],
        np.asfortranarray(np.arange(6, dtype="i4").reshape(2, 3)),
    ],
    ids=["big-endian", "strided", "fortran"],
)
def test_arrays_in_another_layout_are_put_in_order(tmp_path: Path, values: np.ndarray[Any, Any]) -> None:
    """Files are little-endian and contiguous whatever came in."""
    name = DTYPE_NAMES[values.dtype.newbyteorder("=").name]
    layer = replace(LAYER, tensor=TensorSnapshot(values.shape, name, values))
    back = write_one(tmp_path, layer).layers[0].tensor
    assert back is not None
    assert back.dtype == name
    assert (back.numpy() == values).all()


@pytest.mark.parametrize("values", [np.array(["a"]), np.array([object()]), np.zeros(2, "M8[s]")])
def test_elements_that_are_no_numbers_are_refused(tmp_path: Path, values: np.ndarray[Any, Any]) -> None:
    """The writer counts such a record as lost; `write` says so."""
    layer = replace(LAYER, tensor=TensorSnapshot(values.shape, "?", values))
    lost: list[tuple[str, str, int]] = []

    def lose(item: str, reason: str, n: int) -> None:
        lost.append((item, reason, n))

    writer = nsz.NszWriter(tmp_path / "a.nsz", on_lost=lose)
    writer.append_layer(layer)
    assert not writer.flush()
    assert lost == [("layer", "unencodable", 1)]
    with pytest.raises(NszError, match="layer, unencodable"):
        nsz.write(tmp_path / "b.nsz", [], [layer], {})
    assert not (tmp_path / "b.nsz").exists()


@pytest.mark.parametrize("part", [1, 7, 64, 4096])
def test_a_tensor_in_parts_is_put_together(tmp_path: Path, part: int) -> None:
    """A part holds whole elements, however small it is asked to be."""
    values = np.arange(130, dtype="f8").reshape(10, 13)
    writer = nsz.NszWriter(tmp_path / "parts.nsz", tensor_part_bytes=part)
    writer.append_layer(replace(LAYER, tensor=TensorSnapshot.from_numpy(values)))
    assert writer.close()
    back = nsz.read(tmp_path / "parts.nsz").layers[0].tensor
    assert back is not None
    assert (back.numpy() == values).all()
    assert not back.numpy().flags.writeable


def test_a_span_too_large_for_a_reader_is_lost_and_told(tmp_path: Path) -> None:
    """4 MiB of JSON is the limit; large but allowed records get a chunk of their own."""
    lost: list[tuple[str, str, int]] = []

    def lose(item: str, reason: str, n: int) -> None:
        lost.append((item, reason, n))

    writer = nsz.NszWriter(tmp_path / "a.nsz", on_lost=lose)
    writer.append_span(replace(SPAN, attributes={"x": "é" * (2 << 20)}))
    writer.append_span(replace(SPAN, attributes={"x": "é" * (1 << 20)}))
    writer.append_span(SPAN)
    assert not writer.close()
    back = nsz.read(tmp_path / "a.nsz")
    assert lost == [("span", "record_too_large", 1)]
    assert sorted(len(str(span.attributes.get("x", ""))) for span in back.spans) == [0, 1 << 20]
    assert [dict(event.attributes) for event in back.events] == [
        {"item": "span", "reason": "record_too_large", "count": 1}
    ]
    assert not back.damage

"""From one span or layer record to rows of a side's columns.  Pure but for the tables they add to.

A recording may come from a stranger: a value of another type than it should have is as good as none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, cast

from neuronscope.diagnosis.comparing.columns import UNKNOWN, Columns, LayerRows, Table
from neuronscope.signals import names
from neuronscope.signals.records import LayerRecord, SpanRecord
from neuronscope.signals.scores import scale_of
from neuronscope.signals.tensors import TensorSnapshot

MAX_RUNS: Final = 1_024  # of a model whose tensors are looked at
LARGEST: Final = 1e15  # what is more, or not finite, is a stranger's
MAX_LAYER_ROWS: Final = 4_000  # of a layer: more would make no threshold sharper
CALLS: Final = frozenset(
    {"chat", "text_completion", "generate_content", "embeddings", "rerank", "moderation"}
)
_PARAMETERS: Final = (
    ("temperature", names.REQUEST_TEMPERATURE),
    ("top_p", names.REQUEST_TOP_P),
    ("top_k", names.REQUEST_TOP_K),
    ("max_tokens", names.REQUEST_MAX_TOKENS),
    ("frequency_penalty", names.REQUEST_FREQUENCY_PENALTY),
    ("presence_penalty", names.REQUEST_PRESENCE_PENALTY),
    ("choices", names.REQUEST_CHOICE_COUNT),
    ("reasoning", names.REASONING_LEVEL),
    ("output", names.OUTPUT_TYPE),
    ("dimensions", names.EMBEDDING_DIMENSIONS),
)
_CALL_NUMBERS: Final = (
    ("input_tokens", names.INPUT_TOKENS),
    ("output_tokens", names.OUTPUT_TOKENS),
    ("cached", names.CACHE_READ_TOKENS),
    ("first_chunk", names.TIME_TO_FIRST_CHUNK),
    ("chunks", names.STREAM_CHUNKS),
    ("consumer", names.STREAM_CONSUMER),
    ("queue", names.MODEL_QUEUE),
    ("batch", names.MODEL_BATCH),
    ("resends", names.HTTP_RESEND_COUNT),
    ("status", names.HTTP_RESPONSE_STATUS_CODE),
    ("cost", names.COST),
    ("messages", names.INPUT_MESSAGE_COUNT),
    ("inputs", names.INPUT_COUNT),
    ("characters", names.PROMPT_CHARACTERS),
    ("system_characters", names.SYSTEM_CHARACTERS),
    ("documents", names.PROMPT_DOCUMENTS_RETRIEVED),
    ("documents_whole", names.PROMPT_DOCUMENTS_WHOLE),
    ("documents_cut", names.PROMPT_DOCUMENTS_CUT),
    ("returned", names.RETRIEVAL_RETURNED),
    ("rerank_shift", names.RERANK_SHIFT),
    ("top", names.RETRIEVAL_TOP_SCORE),
    ("non_finite", names.LAYERS_NON_FINITE),
    ("layer_records", names.LAYERS_RECORDS),
    ("checksum", names.PROMPT_CHECKSUM),
)
_CALL_TEXTS: Final = (
    ("provider", names.PROVIDER_NAME),
    ("model", names.REQUEST_MODEL),
    ("answered_by", names.RESPONSE_MODEL),
    ("backend", names.OPENAI_FINGERPRINT),
    ("address", names.SERVER_ADDRESS),
    ("end", names.STREAM_END),
    ("error", names.ERROR_TYPE),
    ("system", names.SYSTEM_FINGERPRINT),
    ("tools", names.TOOLS_FINGERPRINT),
    ("stored_as", names.MODEL_QUANTIZATION),
    ("weights", names.MODEL_WEIGHTS),
    ("dtype", names.MODEL_DTYPE),
    ("fidelity", names.FIDELITY),
    ("watched", names.MODEL_NAME),
    ("key", names.HASH_KEY),
)
_CALL_LISTS: Final = (
    ("finish", names.FINISH_REASONS),
    ("pieces", names.PROMPT_PIECES),
    ("wrapped", names.MODEL_WRAPPERS),
    ("adapters", names.MODEL_ADAPTERS),
    ("edits", names.EDITS),
    ("kernels", names.MODEL_KERNELS),
)
_CONTENT: Final = frozenset({names.INPUT_MESSAGES, names.OUTPUT_MESSAGES, names.RETRIEVAL_QUERY_TEXT})


def weight_of(attributes: Mapping[str, Any]) -> float:
    """How many traces this one of a sampled recording stands for."""
    value = _number(attributes.get(names.SAMPLING_WEIGHT))
    return value if 0 < value < math.inf else 1.0


def add_span(side: Columns, span: SpanRecord, trace: str) -> None:
    """Add a span to the tables it belongs to."""
    attributes: Mapping[str, Any] = span.attributes
    operation = _text(attributes.get(names.OPERATION_NAME))
    if not side.content and not _CONTENT.isdisjoint(attributes):
        side.content = True
    if operation == "retrieval":
        batch = [event for event in span.events if event.name == names.RETRIEVAL_QUERY]
        for event in batch:
            _add_search(side, span, {**attributes, **event.attributes}, trace)
        if not batch:
            _add_search(side, span, attributes, trace)
    elif operation in CALLS:
        _add_call(side.calls, span, attributes, trace, operation)
        _add_aggregates(side, attributes, trace)


def _add_search(side: Columns, span: SpanRecord, attributes: Mapping[str, Any], trace: str) -> None:
    add = side.searches.columns
    get = attributes.get
    metric = _text(get(names.RETRIEVAL_METRIC))
    normalised = scale_of(metric).normalised
    returned = _number(get(names.RETRIEVAL_RETURNED))
    for name, key in (("top", names.RETRIEVAL_TOP_SCORE), ("kth", names.RETRIEVAL_KTH_SCORE)):
        score = _number(get(key))
        add[name].append(_short(normalised(score)) if math.isfinite(score) else UNKNOWN)
    add["margin"].append(_short(_number(get(names.RETRIEVAL_MARGIN))) if returned >= 2 else UNKNOWN)
    add["norm"].append(_short(_number(get(names.QUERY_NORM))))
    add["returned"].append(returned)
    add["k"].append(_number(get(names.RETRIEVAL_TOP_K)))
    add["dimension"].append(_number(get(names.QUERY_DIMENSION)))
    add["duration"].append((span.end_unix_ns - span.start_unix_ns) / 1e9)
    add["start"].append(span.start_unix_ns / 1e9)
    add["weight"].append(weight_of(attributes))
    add["trace"].append(trace)
    add["store"].append(_text(get(names.DB_SYSTEM)))
    add["collection"].append(_text(get(names.DB_COLLECTION)))
    add["namespace"].append(_text(get(names.DB_NAMESPACE)))
    add["metric"].append(metric)
    add["filtered"].append(bool(get(names.RETRIEVAL_FILTERED)))
    add["fingerprint"].append(_text(get(names.QUERY_FINGERPRINT)))
    add["embedder"].append(_text(get(names.EMBEDDER_FINGERPRINT)))
    add["ids"].append(_list(get(names.RETRIEVAL_IDS)))
    add["scores"].append(tuple(map(_number, _list(get(names.RETRIEVAL_SCORES)))))
    stages = _list(get(names.RETRIEVAL_STAGES))
    add["stages"].append(
        tuple(zip(stages, _list(get(names.RETRIEVAL_STAGES_K)) or (0,) * len(stages), strict=False))
    )
    add["error"].append(_text(get(names.ERROR_TYPE)))
    add["route"].append("")


def _add_call(
    table: Table, span: SpanRecord, attributes: Mapping[str, Any], trace: str, operation: str
) -> None:
    add, get = table.columns, attributes.get
    for name, key in _CALL_NUMBERS:
        value = get(key)
        if value is None:
            add[name].append(UNKNOWN)
        else:
            add[name].append(_number(value))
    for name, key in _CALL_TEXTS:
        add[name].append(_text(get(key)))
    for name, key in _CALL_LISTS:
        add[name].append(_list(get(key)))
    add["parameters"].append(
        tuple(
            [(name, value) for name, key in _PARAMETERS if (value := get(key)) is not None and _said(value)]
        )
    )
    add["duration"].append((span.end_unix_ns - span.start_unix_ns) / 1e9)
    add["start"].append(span.start_unix_ns / 1e9)
    add["weight"].append(weight_of(attributes))
    add["trace"].append(trace)
    add["operation"].append(operation)
    add["in_process"].append(names.MODEL_NAME in attributes)
    add["route"].append("")


def _add_aggregates(side: Columns, attributes: Mapping[str, Any], trace: str) -> None:
    """What a span tells about the layers that ran in it."""
    layers = _list(attributes.get(names.LAYERS_IDS))
    if not layers:
        return
    model = str(attributes.get(names.MODEL_NAME) or "")
    columns = [
        tuple(map(_number, _list(attributes.get(key))))
        for key in (names.LAYERS_MEAN, names.LAYERS_STD, names.LAYERS_ABS_MAX)
    ]
    for layer, mean, std, most in zip(layers, *columns, strict=False):
        rows = side.aggregated.setdefault((model, layer, "call"), LayerRows())
        if len(rows.values) < MAX_LAYER_ROWS:
            rms = math.hypot(mean, std)
            rows.values.append((mean, std, most, rms, UNKNOWN, UNKNOWN, UNKNOWN))
            rows.traces.append(trace)


def add_layer(side: Columns, record: LayerRecord) -> None:
    """Add a layer record to its layer's rows."""
    side.layer_records += 1
    side.tensors += record.tensor is not None
    if record.role != "output" or record.index != 0:
        return
    trace = "" if record.trace_id is None else f"{record.trace_id:032x}"
    if record.tensor is not None:
        _add_snapshot(side, record, record.tensor, trace)
    summary = record.summary
    if summary is None:
        return
    run = "first" if record.step == 0 else "later"
    rows = side.layers.setdefault((record.model, record.layer_id, run), LayerRows())
    rows.dtypes[record.dtype] += 1
    bad = summary.nan_count + summary.inf_count
    if len(rows.values) >= MAX_LAYER_ROWS and not bad:
        return
    count = max(1, summary.count)
    rows.values.append(
        (
            summary.mean,
            summary.std,
            summary.abs_max,
            summary.l2 / math.sqrt(count),
            summary.zero_count / count,
            bad / count,
            float(count),
        )
    )
    rows.traces.append(trace)
    rows.times.append(record.time_unix_ns)
    if summary.sketch is not None and len(rows.sketches) < MAX_LAYER_ROWS // 4:
        rows.sketches.append(summary.sketch)


def _add_snapshot(side: Columns, record: LayerRecord, tensor: TensorSnapshot, trace: str) -> None:
    runs = side.snapshots.setdefault(record.model, {})
    key = (trace, record.span_id, record.step)
    if key in runs or len(runs) < MAX_RUNS:
        runs.setdefault(key, {}).setdefault(record.layer_id, tensor)


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or not -LARGEST < value < LARGEST:
        return UNKNOWN
    return float(value) if abs(value) > 1 / LARGEST else 0.0


def _said(value: Any) -> bool:
    """Is it a plain value that equals itself?"""
    return isinstance(value, str | int | float) and value == value  # noqa: PLR0124 - NaN does not


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        return ()
    items = tuple(cast("list[Any]", value))
    return items if all(isinstance(item, str | int | float) for item in items) else ()


def _short(value: float) -> float:
    """Five significant digits: what rounding does to a norm of one must not look like a change of it."""
    return float(f"{value:.5g}") if math.isfinite(value) else UNKNOWN

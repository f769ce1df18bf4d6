"""What a finished span contributes to metrics, each fact once.  Run by the worker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import SpanKind

from neuronscope.engine import searches
from neuronscope.engine.metrics import (
    MAX_SERIES,
    Aggregator,
    Counter,
    Histogram,
    Labels,
    Rows,
    Told,
    labels_of,
    new_labels,
)
from neuronscope.engine.retrieval_metrics import record_store
from neuronscope.signals import names
from neuronscope.signals.names import Metric

if TYPE_CHECKING:
    from neuronscope.engine.invocation import Invocation
    from neuronscope.signals.records import SpanRecord

# What every GenAI call may tell: metric, token type, and the attribute with the value; None: its duration.
_CALL: Final = (
    (names.OPERATION_DURATION, None, None),
    (names.FIRST_CHUNK, None, names.TIME_TO_FIRST_CHUNK),
    (names.TOKEN_USAGE, "input", names.INPUT_TOKENS),
    (names.TOKEN_USAGE, "output", names.OUTPUT_TOKENS),
)
_UNBILLED: Final = 2  # of these, what is recorded of a call whose tokens are counted elsewhere
# Spans around calls, and of fetching what an earlier call made: their tokens are counted there already.
_AGGREGATES: Final = frozenset(
    {"invoke_agent", "invoke_workflow", "create_agent", "execute_tool", "plan", "fetch_response"}
)
# Stages of a request, by what a call does; and by what a call tells of its own phases.
_STAGES: Final = {
    "embeddings": "embed",
    "retrieval": "search",
    "rerank": "rerank",
    "chat": "generate",
    "text_completion": "generate",
    "generate_content": "generate",
}
_PHASES: Final = (
    ("", None),  # the call itself
    ("first_chunk", names.TIME_TO_FIRST_CHUNK),
    ("queue", names.MODEL_QUEUE),
    ("prefill", names.MODEL_PREFILL),
    ("decode", names.MODEL_DECODE),
)
# All their labels: calls that agree in these go into the same series.
_LABELS: Final = names.OPERATION_DURATION.labels
_STAGE_LABELS: Final = (names.OPERATION_NAME, names.ERROR_TYPE)
Attributes = Mapping[str, Any]
TenantLabels = tuple[Labels, Labels, Labels]  # of its calls, and of its tokens: input, output


class SpanMetrics:
    """Feeds an aggregator.  For one thread."""

    def __init__(self, metrics: Aggregator) -> None:
        self._metrics = metrics
        self._known: dict[tuple[object, ...], Rows] = {}  # of calls, by their labels
        self._priced: dict[tuple[object, ...], Rows] = {}  # of calls whose cost is known, or would be
        self._stages: dict[tuple[object, ...], Rows] = {}
        self._requests: dict[tuple[object, ...], Rows] = {}
        self._tenants: dict[str, TenantLabels] = {}
        self._generation = metrics.generation  # of the series that are kept here

    def record(self, record: SpanRecord, call: Invocation | None) -> None:
        """Aggregate what a finished span tells."""
        given: Any = record.attributes
        attributes: dict[str, Any] = given if given.__class__ is dict else dict(given)
        if self._generation != self._metrics.generation:
            self._generation = self._metrics.generation
            for kept in (self._known, self._priced, self._stages, self._requests, self._tenants):
                kept.clear()
        seconds = (record.end_unix_ns - record.start_unix_ns) / 1e9
        exemplar = (record.trace_id, record.span_id) if record.trace_flags & 1 else None
        told: Told = (attributes, seconds, exemplar, record.end_unix_ns)
        is_call = names.PROVIDER_NAME in attributes
        if is_call:
            self._call(told, call)
        if names.DB_SYSTEM in attributes:
            self._observe(names.DB_DURATION, seconds, attributes, exemplar)
            for query in searches.measured(attributes, call.searches if call is not None else ()):
                record_store(query, self._metrics, exemplar)
        elif record.kind is SpanKind.SERVER and names.HTTP_REQUEST_METHOD in attributes:
            self._observe(names.HTTP_DURATION, seconds, attributes, exemplar)
            self._stage(self._requests, "request", told)
        if not is_call and names.OPERATION_NAME in attributes:
            self._stage(self._stages, None, told)
        if record.kind is not SpanKind.CLIENT:
            self._model_call(attributes, exemplar)

    def _stage(self, known: dict[tuple[object, ...], Rows], stage: str | None, told: Told) -> None:
        """The call as a stage of its request, with its phases; None: it depends on what the call does."""
        missing = self._metrics.fill_known(known, _STAGE_LABELS, told)
        if missing is None:
            return
        rows, row = missing
        attributes = told[0]
        operation, error = attributes.get(names.OPERATION_NAME), attributes.get(names.ERROR_TYPE)
        if stage is None:
            stage = _stage_of(operation)
        if rows is None:
            rows = _rows(phase[1] for phase in _PHASES) if stage is not None else []
            if _is_label(operation) and _is_label(error):
                known[operation, error] = rows
        self._metrics.fill_rows(rows, row, lambda row: self._phase(row // 2, str(stage), error), told)

    def _phase(self, position: int, stage: str, error: object) -> tuple[Histogram, bool]:
        """The series of one of a stage's phases."""
        labels: Labels = (("stage", _PHASES[position][0] or stage),)
        if isinstance(error, str):
            labels = (*labels, (names.ERROR_TYPE, error))
        return self._metrics.series(names.STAGE_DURATION, labels)

    def _model_call(self, attributes: Mapping[str, Any], exemplar: tuple[int, int] | None) -> None:
        """What is known of a model's call in this process."""
        self._observe(names.PREFILL_SECONDS, attributes.get(names.MODEL_PREFILL), attributes, exemplar)
        self._observe(names.DECODE_SECONDS, attributes.get(names.MODEL_DECODE), attributes, exemplar)
        non_finite = attributes.get(names.LAYERS_NON_FINITE)
        if isinstance(non_finite, int):
            self._metrics.add(names.NON_FINITE, non_finite, labels_of(names.NON_FINITE, attributes))

    def _observe(
        self, metric: Metric, value: Any, attributes: Mapping[str, Any], exemplar: tuple[int, int] | None
    ) -> None:
        if isinstance(value, int | float):
            self._metrics.observe(metric, value, labels_of(metric, attributes), exemplar)

    def _call(self, told: Told, call: Invocation | None) -> None:
        """A GenAI call, also as a stage of its request: its series are looked up together, by one key."""
        attributes = told[0]
        priced = names.COST_PRICES in attributes
        billed = attributes.get(names.OPERATION_NAME) not in _AGGREGATES
        known = self._priced if priced else self._known
        missing = self._metrics.fill_known(known, _LABELS, told)
        if missing is not None:
            self._find_series(known, missing, told, _rows_of_call(attributes, billed=billed, priced=priced))
        if priced and names.COST not in attributes:
            self._metrics.add(names.UNPRICED, 1, labels_of(names.UNPRICED, attributes))
        tenant = attributes.get(names.TENANT)
        if tenant is not None:
            self._tenant(tenant, attributes, billed=billed)
        if call is not None and call.stream is not None:
            gaps = ((later - earlier) / 1e9 for earlier, later in pairwise(call.stream.times))
            self._metrics.observe_all(names.PER_CHUNK, gaps, labels_of(names.PER_CHUNK, attributes), told[2])

    def _find_series(
        self,
        known: dict[tuple[object, ...], Rows],
        missing: tuple[Rows | None, int],
        told: Told,
        rows_of_call: Rows,
    ) -> None:
        """Record what could not be recorded in series that are known."""
        rows, row = missing
        attributes = given = told[0]
        if rows is None:
            rows, attributes = self._series_of(known, given, rows_of_call)
        phases = len(rows) // 2 - (len(_PHASES) if _stage_of(given.get(names.OPERATION_NAME)) else 0)

        def find(row: int) -> tuple[Histogram | Counter, bool]:
            position = row // 2
            if position < phases:
                return self._find(rows[row], position, attributes)
            stage = str(_stage_of(given.get(names.OPERATION_NAME)))
            return self._phase(position - phases, stage, given.get(names.ERROR_TYPE))

        self._metrics.fill_rows(rows, row, find, told)

    def _tenant(self, tenant: Any, attributes: Mapping[str, Any], *, billed: bool) -> None:
        """Who caused how much: by tenant alone, since its product with models would be too many series."""
        calls, received, sent = self._tenants.get(tenant) or self._labels_of_tenant(tenant)
        add = self._metrics.add
        add(names.TENANT_CALLS, 1, calls)
        if not billed:
            return
        for key, labels in ((names.INPUT_TOKENS, received), (names.OUTPUT_TOKENS, sent)):
            tokens = attributes.get(key)
            if isinstance(tokens, int):
                add(names.TENANT_TOKENS, tokens, labels)
        cost = attributes.get(names.COST)
        if isinstance(cost, float):
            add(names.TENANT_COST, cost, calls)

    def _labels_of_tenant(self, tenant: Any) -> TenantLabels:
        labels = new_labels(names.TENANT_CALLS, {names.TENANT: tenant})
        own = self._metrics.fold(names.TENANT_CALLS, labels)
        told = own, (*own, (names.TOKEN_TYPE, "input")), (*own, (names.TOKEN_TYPE, "output"))
        if own == labels:
            self._tenants[tenant] = told
        return told

    def _series_of(
        self, known: dict[tuple[object, ...], Rows], attributes: dict[str, Any], rows: Rows
    ) -> tuple[Rows, dict[str, Any]]:
        """The rows of a call whose labels are not known, and the attributes to find its series by.

        Those have `other` for each value that has no series of its own.
        """
        key = tuple(map(attributes.get, _LABELS))
        if not all(map(_is_label, key)):
            return rows, attributes
        labels = new_labels(names.OPERATION_DURATION, attributes)
        own = self._metrics.fold(names.OPERATION_DURATION, labels)
        if own != labels:
            attributes = {**attributes, **dict(own)}
            key = tuple(map(attributes.get, _LABELS))
        if key not in known and len(known) >= MAX_SERIES:
            known.clear()
        return known.setdefault(key, rows), attributes

    def _find(
        self, key: str | None, position: int, attributes: dict[str, Any]
    ) -> tuple[Histogram | Counter, bool]:
        if key == names.COST:
            return self._metrics.counter(names.COST_TOTAL, labels_of(names.COST_TOTAL, attributes))
        metric, token_type, _ = _CALL[position]
        if token_type is not None:
            attributes = {**attributes, names.TOKEN_TYPE: token_type}
        return self._metrics.series(metric, labels_of(metric, attributes))


def _rows(keys: Iterable[str | None]) -> Rows:
    """Rows whose series are not known yet."""
    return list(chain.from_iterable((key, None) for key in keys))


def _rows_of_call(attributes: Attributes, *, billed: bool, priced: bool) -> Rows:
    """What a call may tell, and at the end what it tells as a stage."""
    keys = [key for _, _, key in (_CALL if billed else _CALL[:_UNBILLED])]
    if priced:
        keys.append(names.COST)
    if _stage_of(attributes.get(names.OPERATION_NAME)) is not None:
        keys += [key for _, key in _PHASES]
    return _rows(keys)


def _stage_of(operation: object) -> str | None:
    """The stage of its request that a call is."""
    return _STAGES.get(operation) if isinstance(operation, str) else None


def _is_label(value: object) -> bool:
    """Can this be looked up?  A list cannot."""
    return value is None or isinstance(value, str | int | float)

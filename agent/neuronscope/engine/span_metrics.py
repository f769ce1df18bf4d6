"""What a finished span contributes to metrics, each fact once.  Run by the worker."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.trace import SpanKind

from neuronscope.engine import searches
from neuronscope.engine.metrics import MAX_SERIES, Aggregator, Histogram, Labels, labels_of, new_labels
from neuronscope.engine.retrieval_metrics import record_store
from neuronscope.signals import names
from neuronscope.signals.names import Metric

if TYPE_CHECKING:
    from neuronscope.engine.invocation import Invocation
    from neuronscope.signals.records import SpanRecord

# What every GenAI call may tell: metric, token type, and the attribute with the value.
_CALL: Final = (
    (names.FIRST_CHUNK, None, names.TIME_TO_FIRST_CHUNK),
    (names.TOKEN_USAGE, "input", names.INPUT_TOKENS),
    (names.TOKEN_USAGE, "output", names.OUTPUT_TOKENS),
)
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
    ("first_chunk", names.TIME_TO_FIRST_CHUNK),
    ("queue", names.MODEL_QUEUE),
    ("prefill", names.MODEL_PREFILL),
    ("decode", names.MODEL_DECODE),
)
# All their labels: calls that agree in these go into the same series.
_LABELS: Final = names.OPERATION_DURATION.labels
Attributes = Mapping[str, Any]
Slot = tuple[Metric, str | None]
TenantLabels = tuple[Labels, Labels, Labels]  # of its calls, and of its tokens: input, output
_DURATION: Final[Slot] = (names.OPERATION_DURATION, None)


class SpanMetrics:
    """Feeds an aggregator.  For one thread."""

    def __init__(self, metrics: Aggregator) -> None:
        self._metrics = metrics
        self._known: dict[tuple[object, ...], dict[Slot, Histogram]] = {}
        self._stages: dict[tuple[str, object], Histogram] = {}
        self._tenants: dict[str, TenantLabels] = {}
        self._generation = metrics.generation  # of the series that are kept here

    def record(self, record: SpanRecord, call: Invocation | None) -> None:
        """Aggregate what a finished span tells."""
        attributes = record.attributes
        if self._generation != self._metrics.generation:
            self._generation = self._metrics.generation
            self._known.clear()
            self._stages.clear()
            self._tenants.clear()
        seconds = (record.end_unix_ns - record.start_unix_ns) / 1e9
        exemplar = (record.trace_id, record.span_id) if record.trace_flags & 1 else None
        if names.PROVIDER_NAME in attributes:
            self._call(record, call, seconds, exemplar)
        if names.DB_SYSTEM in attributes:
            self._observe(names.DB_DURATION, seconds, attributes, exemplar)
            for query in searches.measured(attributes, call.searches if call is not None else ()):
                record_store(query, self._metrics, exemplar)
        elif record.kind is SpanKind.SERVER and names.HTTP_REQUEST_METHOD in attributes:
            self._observe(names.HTTP_DURATION, seconds, attributes, exemplar)
            self._stage("request", seconds, record, exemplar)
        self._stages_of(record, seconds, exemplar)
        if record.kind is not SpanKind.CLIENT:
            self._model_call(attributes, exemplar)

    def _stages_of(self, record: SpanRecord, seconds: float, exemplar: tuple[int, int] | None) -> None:
        """The call as a stage of its request, with its phases."""
        attributes = record.attributes
        operation = attributes.get(names.OPERATION_NAME)
        stage = _STAGES.get(operation) if isinstance(operation, str) else None
        if stage is None:
            return
        self._stage(stage, seconds, record, exemplar)
        for phase, key in _PHASES:
            value = attributes.get(key)
            if isinstance(value, float):
                self._stage(phase, value, record, exemplar)

    def _stage(
        self, stage: str, seconds: float, record: SpanRecord, exemplar: tuple[int, int] | None
    ) -> None:
        error = record.attributes.get(names.ERROR_TYPE)
        key = (stage, error if isinstance(error, str) else None)
        series = self._stages.get(key)
        if series is None:
            labels = (("stage", stage), *(((names.ERROR_TYPE, error),) if isinstance(error, str) else ()))
            series, own = self._metrics.series(names.STAGE_DURATION, labels)
            if own:
                self._stages[key] = series
        self._metrics.fill(((series, seconds),), exemplar, record.end_unix_ns)

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

    def _call(
        self, record: SpanRecord, call: Invocation | None, seconds: float, exemplar: tuple[int, int] | None
    ) -> None:
        """A GenAI call: its series are looked up together, by one key."""
        known, attributes = self._series_of(record.attributes)
        values = [(known.get(_DURATION) or self._find(known, _DURATION, attributes), seconds)]
        billed = attributes.get(names.OPERATION_NAME) not in _AGGREGATES
        for metric, token_type, key in _CALL if billed else _CALL[:1]:
            value = attributes.get(key)
            if isinstance(value, int | float):
                slot = (metric, token_type)
                values.append((known.get(slot) or self._find(known, slot, attributes), value))
        self._metrics.fill(values, exemplar, record.end_unix_ns)
        if names.COST_PRICES in attributes:
            cost = attributes.get(names.COST)
            metric = names.COST_TOTAL if isinstance(cost, float) else names.UNPRICED
            self._metrics.add(metric, cost if isinstance(cost, float) else 1, labels_of(metric, attributes))
        tenant = attributes.get(names.TENANT)
        if tenant is not None:
            self._tenant(tenant, attributes, billed=billed)
        if call is not None and call.stream is not None:
            gaps = ((later - earlier) / 1e9 for earlier, later in pairwise(call.stream.times))
            self._metrics.observe_all(names.PER_CHUNK, gaps, labels_of(names.PER_CHUNK, attributes), exemplar)

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

    def _series_of(self, attributes: Attributes) -> tuple[dict[Slot, Histogram], Attributes]:
        """The series of a call's metrics, as far as they are known, and the attributes to find more by.

        Those have `other` for each value that has no series of its own.
        """
        key = tuple(map(attributes.get, _LABELS))
        try:
            known = self._known.get(key)
        except TypeError:  # a label that is a list
            return {}, attributes
        if known is not None:
            return known, attributes
        labels = new_labels(names.OPERATION_DURATION, attributes)
        own = self._metrics.fold(names.OPERATION_DURATION, labels)
        if own != labels:
            attributes = {**attributes, **dict(own)}
            key = tuple(map(attributes.get, _LABELS))
            known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_SERIES:
                self._known.clear()
            known = self._known[key] = {}
        return known, attributes

    def _find(self, known: dict[Slot, Histogram], slot: Slot, attributes: Mapping[str, Any]) -> Histogram:
        metric, token_type = slot
        if token_type is not None:
            attributes = {**attributes, names.TOKEN_TYPE: token_type}
        labels = labels_of(metric, attributes)
        series, own = self._metrics.series(metric, labels)
        if own:
            known[slot] = series
        return series

"""The engine: how a call becomes a span.

One per process (`ENGINE`).  It owns the worker, the aggregator, the content policy and the pipeline
decision; wrappers, scopes and adapters with a seam of their own talk to it and to nothing else.

    service code → wrapper → Invocation (hot path) → queue → worker → exporters
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace
from opentelemetry.sdk.trace import ReadableSpan

from neuronscope import recording as recordings
from neuronscope.engine.calls import Calls, ModelWatcher
from neuronscope.engine.cardinality import Cardinality
from neuronscope.engine.content import ContentPolicy, Redactor
from neuronscope.engine.ending import Endings
from neuronscope.engine.events import Events
from neuronscope.engine.finish import light_record, sdk_record
from neuronscope.engine.guard import GUARD
from neuronscope.engine.layer_metrics import record_layers
from neuronscope.engine.logged import LogItem
from neuronscope.engine.metrics import Aggregator
from neuronscope.engine.opening import Opener
from neuronscope.engine.outside import Outside
from neuronscope.engine.provider import Pipeline
from neuronscope.engine.span import LightSpan
from neuronscope.engine.span_metrics import SpanMetrics
from neuronscope.engine.system_metrics import SystemMetrics
from neuronscope.engine.worker import Worker
from neuronscope.exporters import Exporter, ExporterContext
from neuronscope.governor import Budget
from neuronscope.governor.allowance import UNSETTLED
from neuronscope.governor.steward import Steward
from neuronscope.instrumentation import Snapshot
from neuronscope.prices import PRICES
from neuronscope.settings import Settings
from neuronscope.signals import names
from neuronscope.signals.records import LayerRecord, LogRecord, SpanEvent, SpanRecord

FORK_PAUSE_S: Final = 0.1
ExporterMaker = Callable[[ExporterContext], Sequence[Exporter]]


class Engine(Calls, Endings):
    """Makes, ends and ships spans.  Inactive until `start`; then every method is thread-safe.

    Attributes:
        active: False makes every wrapper a pass-through.
        settings: the settings in force.
        metrics: the process's aggregator.
        budget: the always-on agent's overhead budget.
        events: makes GenAI events of finished calls.
        steward: keeps that budget's accounts.
        watch_model: opens layer observation for an in-process model call (set by the platform).
        prepare_models: loads what that needs, before the first call (set by the platform).
        on_record: sees every finished span, and may return another in its place; in the worker's thread.
        on_embedder: told of calls that embed: ``(snapshot, instance, arguments)``; in the caller's thread.
    """

    def __init__(self) -> None:
        self._engine = self
        self.active = False
        self.settings = Settings()
        self.metrics = Aggregator()
        self._span_metrics = SpanMetrics(self.metrics)
        self.steward = Steward(self.settings, self.metrics, self._export_now, self.tell)
        self.budget: Budget = self.steward.budget
        self.watch_model: ModelWatcher | None = None
        self.prepare_models: Callable[[], None] | None = None
        self.on_record: Callable[[SpanRecord], SpanRecord] | None = None
        self.on_embedder: Callable[[Snapshot, Any, Mapping[str, Any]], None] | None = None
        self.exporters: Sequence[Exporter] = ()
        self._make_exporters: ExporterMaker | None = None
        self._policy = ContentPolicy(self.settings)
        self.events = Events(self.settings, self._policy, lambda _: None)
        self._redactor: Redactor | None = None
        self._pipeline = Pipeline(self.settings, self._take_user_span)
        self._opener = Opener(self._pipeline)
        self._shorten(self._pipeline)
        self._worker: Worker | None = None
        self._paused: Worker | None = None
        self._inherited: Sequence[Exporter] = ()
        self._begun = 0
        self._not_before = 0  # spans that began earlier are those of the process we were forked from

    # --- life ------------------------------------------------------------------------------------
    def start(
        self,
        settings: Settings,
        make_exporters: ExporterMaker | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        """Begin to observe with these settings; a running engine is stopped first."""
        PRICES.use(settings.prices)
        self.stop(settings.exit_timeout_s)
        self.settings = settings
        self._redactor = redactor
        self._make_exporters = make_exporters
        self._pipeline = Pipeline(settings, self._take_user_span)
        self._opener = Opener(self._pipeline, settings.tenant_baggage)
        self._build()
        self.active = settings.enabled

    def _build(self, *, in_child: bool = False) -> None:
        settings = self.settings
        self.metrics = Aggregator(
            cardinality=Cardinality(settings.label_values, dict(settings.label_values_of))
        )
        self._span_metrics = SpanMetrics(self.metrics)
        self._begun = time.time_ns()  # spans that began earlier were told to another budget
        self.steward = Steward(settings, self.metrics, self._export_now, self.tell)
        self.budget = self.steward.budget
        self._policy = ContentPolicy(settings, self._redactor)
        self.metrics.before_collect(self._observe_self)
        self._outside = Outside()
        self._system: SystemMetrics | None = None  # made when first asked: it loads libraries
        GUARD.on_fault = lambda site, kind: self.metrics.add(
            names.INTERNAL_ERRORS, 1, (("site", site), ("kind", kind))
        )
        resource: dict[str, Any] = dict(self.resource())
        make = self._make_exporters
        context = ExporterContext(settings, resource, self._collect, self.count_lost, self._count_exported)

        def exporters() -> Sequence[Exporter]:
            self.exporters = make(context) if make is not None else ()
            return self.exporters

        worker = Worker(
            self._finish_item,
            # In a child they are made when something is there for them: it may be about to become another
            # program, and a lock of an import may be held for ever there.
            exporters if in_child else exporters(),
            resource,
            interval_s=settings.export_interval_s,
            max_spans=settings.queue_max_spans,
            max_bytes=settings.queue_max_bytes,
            count_lost=self.count_lost,
            on_cpu=self.steward.worker_cpu,
            linger_s=self.steward.linger_s,
            inline=not settings.deferred,
        )
        self.events = Events(settings, self._policy, worker.add_log)
        self._worker = worker
        self._shorten(self._pipeline)

    def stop(self, timeout_s: float) -> None:
        """Stop observing, flush within `timeout_s` seconds."""
        self.active = False
        self.steward.stop()
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop(timeout_s)
        self.exporters = ()

    def restart_in_child(self) -> None:
        """After a fork: new queue, thread, exporters and metrics; nothing of the parent's is sent twice."""
        if self._worker is not None:
            self._worker = None
            self._paused = None
            # Kept: a transport that is finalised here might speak on its connection, which is the parent's.
            self._inherited = self.exporters
            self._not_before = time.time_ns()
            GUARD.reset()
            self._build(in_child=True)

    def before_fork(self) -> None:
        """Let the worker come to rest, so that the child inherits none of its locks while they are held."""
        worker = self._worker
        self._paused = worker if worker is not None and worker.pause(FORK_PAUSE_S) else None

    def after_fork(self) -> None:
        """In the parent: the worker goes on."""
        worker, self._paused = self._paused, None
        if worker is not None:
            worker.resume()

    def flush(self, timeout_s: float) -> bool:
        """Export everything recorded so far; True if it went within `timeout_s` seconds."""
        UNSETTLED.settle()
        return self._worker.flush(timeout_s) if self._worker is not None else True

    def drain(self, timeout_s: float = 5.0) -> bool:
        """Finish everything queued so far, without waiting for exporters."""
        UNSETTLED.settle()
        return self._worker.drain(timeout_s) if self._worker is not None else True

    @property
    def running(self) -> bool:
        """True between `start` and `stop`."""
        return self._worker is not None

    # --- what exporters and views ask -----------------------------------------------------------------
    @property
    def content(self) -> bool:
        """May content be read?"""
        return self._policy.content

    def resource(self) -> Mapping[str, Any]:
        """The process's OTel resource attributes."""
        return self._pipeline.own.resource.attributes

    def owns_pipeline(self) -> bool:
        """Do spans made now go to our provider?  It becomes the global one here if there is none."""
        return self._pipeline.foreign() is None

    def count_lost(self, item: str, reason: str, n: int) -> None:
        """Count items that will not arrive."""
        self.metrics.add(names.DROPPED, n, (("item", item), ("reason", reason)))

    def count_exported(self, exporter: str, item: str, n: int) -> None:
        """Count items handed over for good."""
        self.metrics.add(names.EXPORTED, n, (("item", item), ("exporter", exporter)))

    def _count_exported(self, item: str, n: int) -> None:
        self.count_exported("", item, n)

    def _collect(self) -> Any:
        return self.metrics.collect()

    def _observe_self(self) -> None:
        worker = self._worker
        self.metrics.set(names.QUEUE_SPANS, worker.pending if worker is not None else 0)
        self.metrics.set(names.QUEUE_BYTES, worker.pending_bytes if worker is not None else 0)
        self.steward.observe()
        edits = sys.modules.get("neuronscope.interventions.edits")
        if edits is not None:  # else there can be none
            edits.observe(self.metrics)
        if self.settings.system_metrics:
            if self._system is None:
                self._system = SystemMetrics(self.metrics)
            self._system.observe()

    def _export_now(self) -> None:
        if self._worker is not None:
            self._worker.export()

    def tell(self, event: SpanEvent) -> None:
        """Put an event of the agent itself on record."""
        if self._worker is not None:
            self._worker.put_event(event)

    def log(self, record: LogRecord) -> None:
        """Have an event of ours exported among the logs; for the worker's thread, see `later`."""
        if self._worker is not None:
            self._worker.add_log(record)

    # --- worker -----------------------------------------------------------------------------------------
    def later(self, work: Callable[[], None]) -> None:
        """Run `work` in the worker, in order with the spans that are handed to it."""
        worker = self._worker
        if worker is not None:
            worker.put(work if type(work) is functools.partial else functools.partial(work))

    def _take_user_span(self, span: ReadableSpan) -> None:
        worker = self._worker
        if worker is not None and self.active:
            worker.put((span, recordings.CURRENT.get()))

    def has_room(self, nbytes: int) -> bool:
        """May a full tensor of this size wait for the worker?"""
        worker = self._worker
        return worker is not None and worker.has_room(nbytes)

    def take_layer(
        self, record: LayerRecord, recording: recordings.Recording | None, probe: str = ""
    ) -> None:
        """Queue a layer record."""
        worker = self._worker
        if worker is not None:
            self.steward.ledger.layer(recording, probe, record.nbytes)
            worker.put_layer(record, recording)

    def take_summaries(
        self, records: Sequence[LayerRecord], recording: recordings.Recording | None, probe: str
    ) -> None:
        """Queue layer records without tensors."""
        worker = self._worker
        if worker is not None:
            self.steward.ledger.layers(recording, probe, len(records))
            worker.put_summaries(records, recording)

    def take_log(self, item: LogItem) -> None:
        """Queue what the service has logged."""
        worker = self._worker
        if worker is not None and self.active:
            worker.put_log(item)

    def _finish_item(self, item: Any) -> SpanRecord | LogRecord:
        kind = item.__class__
        policy = self._policy
        if kind is LogItem:
            self.steward.ledger.span(None, "logging", item.hot_ns)
            log = policy.apply_to_log(item.record())
            if item.recording is not None:
                item.recording.add_log(log)
            return log
        if kind is LightSpan:
            recording, call, hot_ns = item.recording, item.call, item.hot_ns
            self._outside.ended(item, recording)
            model_call = item.model_call
            if model_call is not None:
                if item.foreign is None:
                    item.own = {**(item.own or {}), **model_call.attributes()}
                record_layers(self.metrics, model_call)
            record = light_record(item, policy)
            if call is not None:
                if self.events.wanted:
                    GUARD.contain("events", self.events.of_call, item, record)
                item.release()
        else:
            span, recording = item
            record, call, hot_ns = sdk_record(span, policy), None, 0
        parent = record.parent_span_id
        if parent is not None and parent in self._pipeline.left_out:
            record = replace(record, parent_span_id=self._pipeline.left_out.parent(parent))
        if self.on_record is not None:
            record = GUARD.contain("diagnosis", self.on_record, record, default=record)
        self._span_metrics.record(record, call)
        self.steward.span_done(record, recording, hot_ns)
        if recording is not None:
            recording.add_span(record)
        return record


ENGINE: Final = Engine()

"""The diagnosis of retrieval beside a running service.

Finished spans pass through `Watch.on_record` in the worker; canaries, embedders and indexes are asked by
`Checks`, outside of requests (`asking`).  What both say comes together in `_conclude`: a finding is raised
when its evidence is complete, and cleared when it is gone (`places`).
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from neuronscope.diagnosis import embedders as embedding
from neuronscope.diagnosis.asking import Asking, Documents
from neuronscope.diagnosis.baseline import Baseline
from neuronscope.diagnosis.canaries import Canaries
from neuronscope.diagnosis.checks import LEAST_S, Checks
from neuronscope.diagnosis.drift import WindowReport
from neuronscope.diagnosis.embedders import EmbedderReport, EmbedTexts
from neuronscope.diagnosis.findings import Finding, explain
from neuronscope.diagnosis.known import Known
from neuronscope.diagnosis.places import NOWHERE, Name, Place, Places
from neuronscope.diagnosis.reports import Reporter
from neuronscope.diagnosis.samples import Collector, QuerySample, query_sample
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from neuronscope.signals.views import retrieval_spans

if TYPE_CHECKING:
    from neuronscope.engine import Engine
    from neuronscope.instrumentation import Snapshot
    from neuronscope.settings import Settings

LEARN: Final = 1_000  # distinct queries that a baseline is made of when its file is not there yet
MAX_WAIT_S: Final = 600.0  # for checks, before a conclusion is drawn without them
_MAX_TRACES: Final = 4_096
_OPERATION: Final = names.OPERATION_NAME
_log = logging.getLogger("neuronscope")


class Watch:
    """Watches over retrieval in this process.

    Args:
        settings: `baseline`, `drift_window`, `canary_interval_s` and so on.
        engine: gives metrics, and takes events.

    Raises:
        BaselineError: the baseline that the settings name cannot be read.
    """

    def __init__(
        self, settings: Settings, engine: Engine, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._clock = clock
        self._report = Reporter(engine)
        self.checks = Checks(
            threaded=settings.deferred,
            # Outside the budget: that is one of captures beside requests, and a fingerprint at the start of a
            # service would use it up.
            on_cpu=lambda ns: engine.metrics.add(names.CHECKS_CPU, ns / 1e9),
            clock=clock,
        )
        self._known = Known(self._report, self._done)
        self._asking = Asking(settings, self.checks, self._known, engine.later if settings.deferred else None)
        self._learning: Collector | None = None
        self._places = Places(settings, self._report, clock)
        self._traces: OrderedDict[int, str] = OrderedDict()  # embedder by trace
        self._load(settings.baseline)
        if settings.baseline or settings.embedder_probes in ("local", "all"):
            self._hook()

    @property
    def baseline(self) -> Baseline | None:
        """What traffic is compared with; None as long as there is nothing."""
        return self._known.baseline

    def _load(self, path: str) -> None:
        if not path:
            return
        if Path(path).exists():
            self._known.start_from(Baseline.read(path))
        else:
            self._learning = Collector()

    def _hook(self) -> None:
        self._engine.on_record = self.on_record
        wanted = self._settings.embedder_probes
        if wanted in {"local", "all"} or (wanted == "auto" and self._settings.baseline):
            self._engine.on_embedder = self.see_embedder

    def stop(self) -> None:
        """Stop watching."""
        self.checks.stop()
        self._engine.on_record = None
        self._engine.on_embedder = None

    # --- set-up: any thread --------------------------------------------------------------------------
    def add_canaries(self, canaries: Canaries) -> None:
        """Replay these canaries every `canary_interval_s`."""
        self._hook()
        self._asking.add_canaries(canaries)

    def add_embedder(
        self,
        name: str,
        embed: EmbedTexts,
        *,
        limit: float = embedding.SAME,
        alive: Callable[[], bool] = lambda: True,
    ) -> None:
        """Take the fingerprint of an embedder every `embedder_interval_s`, as long as it is alive."""
        self._hook()
        self._asking.add_embedder(name, embed, limit, alive)

    def add_index(self, name: str, documents: Documents, embed: EmbedTexts) -> None:
        """Embed stored documents again, every `embedder_interval_s`, and compare with the stored vectors."""
        self._hook()
        self._asking.add_index(name, documents, embed)

    def see_embedder(self, snapshot: Snapshot, instance: Any, arguments: Mapping[str, Any]) -> None:
        """A call embeds something: its embedder is to be fingerprinted, once it is at leisure."""
        found = self._asking.embedder_of(snapshot, instance, arguments)
        if found is not None:
            name, embed, alive = found
            self.add_embedder(name, embed, alive=alive)

    def current_baseline(self) -> Baseline:
        """The baseline in force, or what has been learned so far, with the present canaries and embedders."""
        known, baseline = self._known, self.baseline
        series = (
            baseline.series
            if baseline is not None
            else self._learning.queries()
            if self._learning is not None
            else {}
        )
        return Baseline(
            series,
            {**known.stored, **known.fingerprints} if baseline is None else dict(known.stored),
            dict(known.runs),
            source="live",
            created_unix_ns=time.time_ns(),
        )

    # --- the worker ----------------------------------------------------------------------------------
    def on_record(self, record: SpanRecord) -> SpanRecord:
        """See a finished span; one of a retrieval comes back with its embedder's fingerprint."""
        operation = record.attributes.get(_OPERATION)
        if operation == "embeddings":
            self._traces[record.trace_id] = str(record.attributes.get(names.REQUEST_MODEL, ""))
            if len(self._traces) > _MAX_TRACES:
                self._traces.popitem(last=False)
        elif operation == "retrieval":
            record = self._stamped(record)
            for view in retrieval_spans([record]):
                query = query_sample(view)
                if query is not None:
                    self._take_query(query)
        return record

    def _stamped(self, record: SpanRecord) -> SpanRecord:
        name = self._traces.get(record.trace_id)
        known = self._known.fingerprints
        if name is None and len(known) == 1:  # there is but one embedder, though its calls are not observed
            name = next(iter(known))
        made_by = known.get(name) if name is not None else None
        dimension = record.attributes.get(names.QUERY_DIMENSION)
        if made_by is None or dimension not in (None, made_by.dimension):
            return record
        return replace(record, attributes={**record.attributes, names.EMBEDDER_FINGERPRINT: made_by.hash})

    def _take_query(self, query: QuerySample) -> None:
        if self._learning is not None:
            self._learn(self._learning, query)
        place = self._places.find(query.series.place, self.baseline)
        if place is None:
            return
        if query.embedder is not None:
            self._places.take_embedder(place, query.embedder)
        if place.windows is not None:
            window = place.windows.add(query, self._clock())
            if window is not None:
                self._take_window(place, window)
        self.checks.ensure_thread()

    def _learn(self, learning: Collector, query: QuerySample) -> None:
        learning.add(query)
        if learning.distinct() < LEARN:
            return
        known = self._known
        known.baseline = Baseline(
            learning.queries(),
            {**known.stored, **known.fingerprints},
            dict(known.runs),
            "live",
            time.time_ns(),
        )
        self._learning = None
        try:
            known.baseline.save(self._settings.baseline)
        except OSError as error:
            _log.warning("the baseline cannot be written to %s: %s", self._settings.baseline, error)

    def _take_window(self, place: Place, window: WindowReport) -> None:
        place.window = window
        self._report.window(window)
        odd = bool(window.suspected or window.unknown)
        if odd and len(self.checks):
            place.waiting_since = self._clock()
            self.checks.request()
        self._conclude(place)

    # --- conclusions ---------------------------------------------------------------------------------
    def _done(self, check: str) -> None:
        self._asking.checked[check] = self._clock()
        for canaries in self._asking.canaries.values():  # a collection that only they have searched so far
            if canaries.collection and not any(_belongs(canaries, name) for name in self._places.names):
                self._places.find((canaries.store, canaries.collection), self.baseline)
        if not len(self._places):
            self._places.find(NOWHERE, self.baseline)
        for place in self._places:
            self._conclude(place)

    def _conclude(self, place: Place) -> None:
        since = place.waiting_since
        if (
            since is not None
            and self._clock() - since < MAX_WAIT_S
            and any(done < since - LEAST_S for done in self._asking.checked.values())
        ):
            return  # the checks that were asked for are still under way
        place.waiting_since = None
        known = self._known
        found = explain(
            place.window,
            [known.canaries[c.name] for c in self._asking.canaries.values() if self._counts(c, place.name)],
            [report for report in known.embedders.values() if _embeds(report, place)],
            list(known.indexes.values()),
        )
        self._places.settle(place, found)

    def _counts(self, canaries: Canaries, name: Name) -> bool:
        return canaries.name in self._known.canaries and _belongs(canaries, name)

    def findings(self) -> list[Finding]:
        """What is active now."""
        return self._places.findings()


def _embeds(report: EmbedderReport, place: Place) -> bool:
    """Does this embedder make the vectors that this collection is searched with?"""
    if place.embedders:
        return report.now.hash in place.embedders or report.before.hash in place.embedders
    return True


def _belongs(canaries: Canaries, name: Name) -> bool:
    store, collection = name
    return canaries.collection in ("", collection) and canaries.store in ("", store)

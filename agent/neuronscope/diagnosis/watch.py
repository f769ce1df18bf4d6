"""The diagnosis of retrieval beside a running service.

Finished spans pass through `Watch.on_record` in the worker; canaries, embedders and indexes are asked by
`Checks`, outside of requests.  What both say comes together in `_conclude`: a finding is raised when its
evidence is complete, and cleared when it is gone.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from neuronscope.diagnosis import canaries as canary_sets
from neuronscope.diagnosis import embedders as embedding
from neuronscope.diagnosis.baseline import Baseline
from neuronscope.diagnosis.canaries import Canaries, CanaryReport, CanaryRun
from neuronscope.diagnosis.checks import LEAST_S, Checks, pause
from neuronscope.diagnosis.drift import PlaceWindows, WindowReport
from neuronscope.diagnosis.embedders import EmbedderReport, EmbedTexts, Fingerprint, IndexReport
from neuronscope.diagnosis.findings import DIRECT, Evidence, Finding, explain
from neuronscope.diagnosis.kinds import Kind
from neuronscope.diagnosis.reports import Reporter
from neuronscope.diagnosis.samples import Collector, QuerySample, query_sample
from neuronscope.engine.guard import GUARD
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from neuronscope.signals.views import retrieval_spans

if TYPE_CHECKING:
    from neuronscope.engine import Engine
    from neuronscope.instrumentation import Snapshot
    from neuronscope.settings import Settings

LEARN: Final = 1_000  # distinct queries that a baseline is made of when its file is not there yet
MAX_PLACES: Final = 64
MAX_EMBEDDERS: Final = 16
SWITCHES: Final = 3  # times that a collection goes back to an embedder before the two count as mixed
MAX_WAIT_S: Final = 600.0  # for checks, before a conclusion is drawn without them
_MAX_TRACES: Final = 4_096
_OPERATION: Final = names.OPERATION_NAME
# Findings that live windows alone can raise: they last until a window is without suspicion.
_LIVE: Final = frozenset(
    {
        Kind.QUERIES_SHIFTED,
        Kind.QUERIES_OR_EMBEDDER,
        Kind.FILTER_CHANGED,
        Kind.SEARCH_CHANGED,
        Kind.UNEXPLAINED,
    }
)
_log = logging.getLogger("neuronscope")
Place = tuple[str, str]
NOWHERE: Final[Place] = ("", "")  # where findings are that come before any traffic
Documents = Callable[[], Sequence[tuple[str, Any]]]


@dataclass(slots=True)
class _Place:
    """What is known of one collection."""

    windows: PlaceWindows | None
    window: WindowReport
    active: dict[Kind, Finding] = field(default_factory=dict[Kind, Finding])
    embedders: OrderedDict[str, float] = field(default_factory=OrderedDict[str, float])  # last seen
    embedder: str = ""
    switches: int = 0
    waiting_since: float | None = None  # for checks, before a conclusion


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
        self._threaded = settings.deferred
        self.checks = Checks(
            threaded=settings.deferred,
            # Outside the budget: that is one of captures beside requests, and a fingerprint at the start of a
            # service would use it up.
            on_cpu=lambda ns: engine.metrics.add(names.CHECKS_CPU, ns / 1e9),
            clock=clock,
        )
        self.baseline: Baseline | None = None
        self._learning: Collector | None = None
        self._places: OrderedDict[Place, _Place] = OrderedDict()
        self._canaries: dict[str, Canaries] = {}
        self._runs: dict[str, CanaryRun] = {}  # what canaries are compared with
        self._canary_reports: dict[str, CanaryReport] = {}
        self._fingerprints: dict[str, Fingerprint] = {}  # of embedders, at present
        self._stored: dict[str, Fingerprint] = {}  # what they are compared with
        self._embedder_reports: dict[str, EmbedderReport] = {}
        self._index_reports: dict[str, IndexReport] = {}
        self._checked: dict[str, float] = {}  # when each check was last completed
        self._traces: OrderedDict[int, str] = OrderedDict()  # embedder by trace
        self._seen: set[tuple[int, str | None]] = set()  # embedders that were found in calls
        self._load(settings.baseline)
        if settings.baseline or settings.embedder_probes in ("local", "all"):
            self._hook()

    def _load(self, path: str) -> None:
        if not path:
            return
        if not Path(path).exists():
            self._learning = Collector()
            return
        self.baseline = Baseline.read(path)
        self._stored.update(self.baseline.embedders)
        self._runs.update(self.baseline.canaries)

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
        self._canaries[canaries.name] = canaries
        self._hook()
        name = f"canaries:{canaries.name}"
        self._checked.setdefault(name, 0.0)
        self.checks.add(name, self._settings.canary_interval_s, partial(self._replay, canaries, name))

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
        check = f"embedder:{name}"
        self._checked.setdefault(check, 0.0)
        run = partial(self._take_fingerprint, name, embed, limit, alive, check)
        self.checks.add(check, self._settings.embedder_interval_s, run)

    def add_index(self, name: str, documents: Documents, embed: EmbedTexts) -> None:
        """Embed stored documents again, every `embedder_interval_s`, and compare with the stored vectors."""
        check = f"index:{name}"
        self._hook()
        self._checked.setdefault(check, 0.0)
        run = partial(self._check_index, name, documents, embed, check)
        self.checks.add(check, self._settings.embedder_interval_s, run)

    def see_embedder(self, snapshot: Snapshot, instance: Any, arguments: Mapping[str, Any]) -> None:
        """A call embeds something: its embedder is to be fingerprinted, once it is at leisure."""
        key = (id(instance), snapshot.target)
        if key in self._seen or len(self._seen) >= MAX_EMBEDDERS:
            return
        self._seen.add(key)
        if snapshot.peer.address is not None and self._settings.embedder_probes != "all":
            return
        make = snapshot.endpoint.embedder
        embed = make(instance, arguments) if make is not None else None
        if embed is None:
            return
        name = snapshot.target or type(instance).__name__
        held = weakref.ref(instance)

        def embed_texts(texts: Sequence[str]) -> Any:
            model = held()
            if model is None:  # dropped between two texts
                raise ReferenceError(name)
            return embed(model, texts)

        self.add_embedder(name, embed_texts, alive=lambda: held() is not None)

    def current_baseline(self) -> Baseline:
        """The baseline in force, or what has been learned so far, with the present canaries and embedders."""
        known = self.baseline
        series = (
            known.series
            if known is not None
            else self._learning.queries()
            if self._learning is not None
            else {}
        )
        return Baseline(
            series,
            {**self._stored, **self._fingerprints} if known is None else dict(self._stored),
            dict(self._runs),
            source="live",
            created_unix_ns=time.time_ns(),
        )

    # --- checks: their own thread --------------------------------------------------------------------
    def _post(self, take: Callable[..., None], *results: Any) -> None:
        """Hand results to the worker, which alone concludes."""
        if self._threaded:
            self._engine.later(partial(take, *results))
        else:
            take(*results)

    def _pause(self) -> None:
        if self._threaded:
            pause()

    def _replay(self, canaries: Canaries, check: str) -> None:
        run = canary_sets.replay(canaries, self._pause)
        stored = self._runs.get(canaries.name)
        known = {found.query for found in stored.found} if stored is not None else set[str]()
        if stored is None or stored.k != canaries.k or not known & set(canaries.fingerprints):
            again = canary_sets.replay(canaries, self._pause)
            first = canary_sets.with_noise(run, again) if run is not None and again is not None else None
            self._post(self._take_first_run, canaries.name, first, check)
            return
        report = None if run is None else canary_sets.beside(stored, run, canaries)
        if report is not None and report.moved:  # once more: two in a row, as for windows
            run = canary_sets.replay(canaries, self._pause)
            again_report = None if run is None else canary_sets.beside(stored, run, canaries)
            report = again_report if again_report is None or again_report.moved else None
        self._post(self._take_canaries, canaries.name, report, check)

    def _take_fingerprint(
        self, name: str, embed: EmbedTexts, limit: float, alive: Callable[[], bool], check: str
    ) -> None:
        if not alive():
            self.checks.remove(check)
            self._checked.pop(check, None)
            return
        now = GUARD.contain("embedder.probes", embedding.take, name, embed, self._pause)
        if now is None:
            self._post(self._done, check)
        else:
            self._post(self._take_embedder, now, limit, check)

    def _check_index(self, name: str, documents: Documents, embed: EmbedTexts, check: str) -> None:
        report = GUARD.contain("index.documents", self._compare_index, name, documents, embed)
        if report is None:
            self._post(self._done, check)
        else:
            self._post(self._take_index, report, check)

    def _compare_index(self, name: str, documents: Documents, embed: EmbedTexts) -> IndexReport:
        stored: list[Any] = []
        fresh: list[Any] = []
        for text, vector in documents():
            stored.append(vector)
            fresh.append(embed([text]))
            self._pause()
        return embedding.index_report(name, stored, fresh)

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
        known = self._fingerprints
        if name is None and len(known) == 1:  # there is but one embedder, though its calls are not observed
            name = next(iter(known))
        made_by = known.get(name) if name is not None else None
        dimension = record.attributes.get(names.QUERY_DIMENSION)
        if made_by is None or dimension not in (None, made_by.dimension):
            return record
        return replace(record, attributes={**record.attributes, names.EMBEDDER_FINGERPRINT: made_by.hash})

    def _take_query(self, query: QuerySample) -> None:
        if self._learning is not None:
            self._learn(query)
        place = self._place(query.series.place)
        if place is None:
            return
        if query.embedder is not None:
            self._take_embedder_use(place, query.embedder)
        if place.windows is not None:
            window = place.windows.add(query, self._clock())
            if window is not None:
                self._take_window(place, window)
        self.checks.ensure_thread()

    def _place(self, name: Place) -> _Place | None:
        place = self._places.get(name)
        if place is None:
            if len(self._places) >= MAX_PLACES:
                return None
            store, collection = name
            place = _Place(None, WindowReport(store, collection, 0))
            for vaguely in (NOWHERE, ("", collection)):
                self._take_over(place, self._places.pop(vaguely, None))
            self._places[name] = place
        if place.windows is None and self.baseline is not None:
            settings = self._settings
            place.windows = PlaceWindows(*name, self.baseline, settings.drift_window, settings.drift_window_s)
        return place

    def _take_over(self, place: _Place, vaguely: _Place | None) -> None:
        """What was found before there was any traffic was found here."""
        if vaguely is None:
            return
        store, collection = place.window.store, place.window.collection
        moved = {
            kind: replace_fields(finding, store=store, collection=collection)
            for kind, finding in vaguely.active.items()
        }
        self._report.moved(vaguely.active.values(), moved.values())
        place.active.update(moved)

    def _learn(self, query: QuerySample) -> None:
        learning = self._learning
        assert learning is not None
        learning.add(query)
        if learning.distinct() < LEARN:
            return
        self._learning = None
        self.baseline = Baseline(
            learning.queries(),
            {**self._stored, **self._fingerprints},
            dict(self._runs),
            "live",
            time.time_ns(),
        )
        try:
            self.baseline.save(self._settings.baseline)
        except OSError as error:
            _log.warning("the baseline cannot be written to %s: %s", self._settings.baseline, error)

    def _take_embedder_use(self, place: _Place, name: str) -> None:
        """Vectors of two embedders in one collection: half of the searches mean nothing."""
        now = self._clock()
        if name != place.embedder:
            if name in place.embedders:
                place.switches += 1
            place.embedder = name
        place.embedders[name] = now
        for other in [h for h, seen in place.embedders.items() if now - seen > self._settings.drift_window_s]:
            del place.embedders[other]
        store, collection = place.window.store, place.window.collection
        self._report.embedders_seen(store, collection, len(place.embedders))
        if len(place.embedders) < 2:
            place.switches = 0
            self._clear(place, Kind.EMBEDDERS_MIXED)
        elif place.switches >= SWITCHES and Kind.EMBEDDERS_MIXED not in place.active:
            n = len(place.embedders)
            self._raise(
                place,
                Finding(
                    Kind.EMBEDDERS_MIXED,
                    store,
                    collection,
                    f"{n} different embedders query this collection by turns.",
                    1.0,
                    DIRECT,
                    (Evidence("embedders of one collection", n, 1, place.switches),),
                ),
            )

    def _take_window(self, place: _Place, window: WindowReport) -> None:
        place.window = window
        self._report.window(window)
        odd = bool(window.suspected or window.unknown)
        if odd and len(self.checks):
            place.waiting_since = self._clock()
            self.checks.request()
        self._conclude(place)

    def _take_first_run(self, name: str, run: CanaryRun | None, check: str) -> None:
        self._report.replayed(name, None if run is None else "stored")
        if run is not None:
            self._runs[name] = run
        self._done(check)

    def _take_canaries(self, name: str, report: CanaryReport | None, check: str) -> None:
        self._report.canaries(name, report)
        if report is None:
            self._canary_reports.pop(name, None)
        else:
            self._canary_reports[name] = report
        self._done(check)

    def _take_embedder(self, now: Fingerprint, limit: float, check: str) -> None:
        stored = self._stored
        now = embedding.adopted(now, [*stored.values(), *self._fingerprints.values()])
        earlier = self._fingerprints.get(now.name)
        self._fingerprints[now.name] = now
        before = stored.get(now.name)
        if before is None and self.baseline is not None and self.baseline.embedders:
            # Another name: by its answers it may be the same, or it has taken the other's place.
            before = max(
                self.baseline.embedders.values(), key=lambda other: embedding.beside(other, now).cosine
            )
        if before is None:
            before = stored[now.name] = now
        report = embedding.beside(before, now, limit=limit)
        self._embedder_reports[now.name] = report
        self._report.embedder(report, earlier)
        self._done(check)

    def _take_index(self, report: IndexReport, check: str) -> None:
        self._index_reports[report.name] = report
        self._report.index(report)
        self._done(check)

    # --- conclusions ---------------------------------------------------------------------------------
    def _done(self, check: str) -> None:
        self._checked[check] = self._clock()
        for canaries in self._canaries.values():  # a collection that only canaries have searched so far
            if canaries.collection and not self._places_of(canaries):
                self._place((canaries.store, canaries.collection))
        if not self._places:
            self._place(NOWHERE)
        for place in tuple(self._places.values()):
            self._conclude(place)

    def _places_of(self, canaries: Canaries) -> list[Place]:
        return [name for name in self._places if _belongs(canaries, name)]

    def _conclude(self, place: _Place) -> None:
        window = place.window
        since = place.waiting_since
        if (
            since is not None
            and self._clock() - since < MAX_WAIT_S
            and any(done < since - LEAST_S for done in self._checked.values())
        ):
            return  # the checks that were asked for are still under way
        place.waiting_since = None
        name = (window.store, window.collection)
        found = explain(
            window,
            [self._canary_reports[c.name] for c in self._canaries.values() if self._counts(c, name)],
            [report for report in self._embedder_reports.values() if self._embeds(report, place)],
            list(self._index_reports.values()),
        )
        kinds = {finding.kind for finding in found}
        uncertain = bool(window.suspected) and not window.drifted
        for kind in [*place.active]:
            lasts = kind is Kind.EMBEDDERS_MIXED or (uncertain and kind in _LIVE)
            if kind not in kinds and not lasts:
                self._clear(place, kind)
        for finding in found:
            if finding.kind not in place.active:
                self._raise(place, finding)

    def _counts(self, canaries: Canaries, name: Place) -> bool:
        return canaries.name in self._canary_reports and _belongs(canaries, name)

    def _embeds(self, report: EmbedderReport, place: _Place) -> bool:
        """Does this embedder make the vectors that this collection is searched with?"""
        if place.embedders:
            return report.now.hash in place.embedders or report.before.hash in place.embedders
        return True

    def _raise(self, place: _Place, finding: Finding) -> None:
        place.active[finding.kind] = finding
        self._report.raised(finding, any_active=True)

    def _clear(self, place: _Place, kind: Kind) -> None:
        finding = place.active.pop(kind, None)
        if finding is not None:
            self._report.cleared(finding, any_active=bool(self.findings()))

    def findings(self) -> list[Finding]:
        """What is active now."""
        return [finding for place in self._places.values() for finding in place.active.values()]


def _belongs(canaries: Canaries, name: Place) -> bool:
    store, collection = name
    return canaries.collection in ("", collection) and canaries.store in ("", store)

"""What is known of each collection: its windows, the embedders that query it, and its active findings.

For the worker's thread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from typing import TYPE_CHECKING, Final

from neuronscope.diagnosis.baseline import Baseline
from neuronscope.diagnosis.drift import PlaceWindows, WindowReport
from neuronscope.diagnosis.findings import DIRECT, Evidence, Finding
from neuronscope.diagnosis.kinds import Kind
from neuronscope.diagnosis.reports import Reporter

if TYPE_CHECKING:
    from neuronscope.settings import Settings

MAX_PLACES: Final = 64
SWITCHES: Final = 3  # times that a collection goes back to an embedder before the two count as mixed
Name = tuple[str, str]  # store and collection
NOWHERE: Final[Name] = ("", "")  # where findings are that come before any traffic
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


@dataclass(slots=True)
class Place:
    """What is known of one collection."""

    windows: PlaceWindows | None
    window: WindowReport
    active: dict[Kind, Finding] = field(default_factory=dict[Kind, Finding])
    embedders: OrderedDict[str, float] = field(default_factory=OrderedDict[str, float])  # last seen
    embedder: str = ""
    switches: int = 0
    waiting_since: float | None = None  # for checks, before a conclusion

    @property
    def name(self) -> Name:
        """Store and collection."""
        return self.window.store, self.window.collection


class Places:
    """All collections, bounded."""

    def __init__(self, settings: Settings, report: Reporter, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._report = report
        self._clock = clock
        self._places: OrderedDict[Name, Place] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Place]:
        """Those of this moment."""
        return iter(tuple(self._places.values()))

    @property
    def names(self) -> tuple[Name, ...]:
        """Which there are."""
        return tuple(self._places)

    def find(self, name: Name, baseline: Baseline | None) -> Place | None:
        """A collection, new or known; None where there are too many."""
        place = self._places.get(name)
        if place is None:
            if len(self._places) >= MAX_PLACES:
                return None
            store, collection = name
            place = Place(None, WindowReport(store, collection, 0))
            for vaguely in (NOWHERE, ("", collection)):
                self._take_over(place, self._places.pop(vaguely, None))
            self._places[name] = place
        if place.windows is None and baseline is not None:
            settings = self._settings
            place.windows = PlaceWindows(*name, baseline, settings.drift_window, settings.drift_window_s)
        return place

    def _take_over(self, place: Place, vaguely: Place | None) -> None:
        """What was found before there was any traffic was found here."""
        if vaguely is None:
            return
        store, collection = place.name
        moved = {
            kind: replace_fields(finding, store=store, collection=collection)
            for kind, finding in vaguely.active.items()
        }
        self._report.moved(vaguely.active.values(), moved.values())
        place.active.update(moved)

    def take_embedder(self, place: Place, name: str) -> None:
        """Vectors of two embedders in one collection: half of the searches mean nothing."""
        now = self._clock()
        if name != place.embedder:
            if name in place.embedders:
                place.switches += 1
            place.embedder = name
        place.embedders[name] = now
        for other in [h for h, seen in place.embedders.items() if now - seen > self._settings.drift_window_s]:
            del place.embedders[other]
        store, collection = place.name
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

    def settle(self, place: Place, found: Sequence[Finding]) -> None:
        """Raise what is found now, and clear what is gone."""
        kinds = {finding.kind for finding in found}
        uncertain = bool(place.window.suspected) and not place.window.drifted
        for kind in [*place.active]:
            lasts = kind is Kind.EMBEDDERS_MIXED or (uncertain and kind in _LIVE)
            if kind not in kinds and not lasts:
                self._clear(place, kind)
        for finding in found:
            if finding.kind not in place.active:
                self._raise(place, finding)

    def _raise(self, place: Place, finding: Finding) -> None:
        place.active[finding.kind] = finding
        self._report.raised(finding, any_active=True)

    def _clear(self, place: Place, kind: Kind) -> None:
        finding = place.active.pop(kind, None)
        if finding is not None:
            self._report.cleared(finding, any_active=bool(self.findings()))

    def findings(self) -> list[Finding]:
        """What is active now."""
        return [finding for place in self for finding in place.active.values()]

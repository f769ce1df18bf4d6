"""Canaries, embedders and indexes are asked, outside of requests.

Set up by any thread; asked in the checks' own one, which hands what it found to the worker.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from neuronscope.diagnosis import canaries as canary_sets
from neuronscope.diagnosis import embedders as embedding
from neuronscope.diagnosis.canaries import Canaries
from neuronscope.diagnosis.checks import Checks, pause
from neuronscope.diagnosis.embedders import EmbedTexts, IndexReport
from neuronscope.diagnosis.known import Known
from neuronscope.engine.guard import GUARD

if TYPE_CHECKING:
    from neuronscope.instrumentation import Snapshot
    from neuronscope.settings import Settings

MAX_EMBEDDERS: Final = 16
Documents = Callable[[], Sequence[tuple[str, Any]]]


class Asking:
    """Registers checks, and runs them.

    Args:
        later: takes a function that the worker is to call; None: it is called at once.

    Attributes:
        canaries: by name.
        checked: when each check was last completed.
    """

    def __init__(
        self,
        settings: Settings,
        checks: Checks,
        known: Known,
        later: Callable[[Callable[[], None]], object] | None,
    ) -> None:
        self._settings = settings
        self._checks = checks
        self._known = known
        self._later = later
        self.canaries: dict[str, Canaries] = {}
        self.checked: dict[str, float] = {}
        self._seen: set[tuple[int, str | None]] = set()  # embedders that were found in calls

    # --- set-up: any thread --------------------------------------------------------------------------
    def add_canaries(self, canaries: Canaries) -> None:
        """Replay these canaries every `canary_interval_s`."""
        self.canaries[canaries.name] = canaries
        check = f"canaries:{canaries.name}"
        run = partial(self._replay, canaries, check)
        self._add(check, self._settings.canary_interval_s, run)

    def add_embedder(self, name: str, embed: EmbedTexts, limit: float, alive: Callable[[], bool]) -> None:
        """Take the fingerprint of an embedder every `embedder_interval_s`, as long as it is alive."""
        check = f"embedder:{name}"
        run = partial(self._take_fingerprint, name, embed, limit, alive, check)
        self._add(check, self._settings.embedder_interval_s, run)

    def add_index(self, name: str, documents: Documents, embed: EmbedTexts) -> None:
        """Embed stored documents again, every `embedder_interval_s`, and compare with the stored vectors."""
        check = f"index:{name}"
        run = partial(self._check_index, name, documents, embed, check)
        self._add(check, self._settings.embedder_interval_s, run)

    def _add(self, check: str, every_s: float, run: Callable[[], None]) -> None:
        self.checked.setdefault(check, 0.0)
        self._checks.add(check, every_s, run)

    def embedder_of(
        self, snapshot: Snapshot, instance: Any, arguments: Mapping[str, Any]
    ) -> tuple[str, EmbedTexts, Callable[[], bool]] | None:
        """What a call embeds with: its name, itself, is it still there?  None: seen before, or not asked."""
        key = (id(instance), snapshot.target)
        if key in self._seen or len(self._seen) >= MAX_EMBEDDERS:
            return None
        self._seen.add(key)
        if snapshot.peer.address is not None and self._settings.embedder_probes != "all":
            return None
        make = snapshot.endpoint.embedder
        embed = make(instance, arguments) if make is not None else None
        if embed is None:
            return None
        name = snapshot.target or type(instance).__name__
        held = weakref.ref(instance)

        def embed_texts(texts: Sequence[str]) -> Any:
            model = held()
            if model is None:  # dropped between two texts
                raise ReferenceError(name)
            return embed(model, texts)

        return name, embed_texts, lambda: held() is not None

    # --- checks: their own thread --------------------------------------------------------------------
    def _post(self, take: Callable[..., None], *results: Any) -> None:
        """Hand results to the worker, which alone concludes."""
        if self._later is None:
            take(*results)
        else:
            self._later(partial(take, *results))

    def _pause(self) -> None:
        if self._later is not None:
            pause()

    def _replay(self, canaries: Canaries, check: str) -> None:
        run = canary_sets.replay(canaries, self._pause)
        stored = self._known.runs.get(canaries.name)
        found = {each.query for each in stored.found} if stored is not None else set[str]()
        if stored is None or stored.k != canaries.k or not found & set(canaries.fingerprints):
            again = canary_sets.replay(canaries, self._pause)
            first = canary_sets.with_noise(run, again) if run is not None and again is not None else None
            self._post(self._known.take_first_run, canaries.name, first, check)
            return
        report = None if run is None else canary_sets.beside(stored, run, canaries)
        if report is not None and report.moved:  # once more: two in a row, as for windows
            run = canary_sets.replay(canaries, self._pause)
            again_report = None if run is None else canary_sets.beside(stored, run, canaries)
            report = again_report if again_report is None or again_report.moved else None
        self._post(self._known.take_canaries, canaries.name, report, check)

    def _take_fingerprint(
        self, name: str, embed: EmbedTexts, limit: float, alive: Callable[[], bool], check: str
    ) -> None:
        if not alive():
            self._checks.remove(check)
            self.checked.pop(check, None)
            return
        now = GUARD.contain("embedder.probes", embedding.take, name, embed, self._pause)
        if now is None:
            self._post(self._known.nothing, check)
        else:
            self._post(self._known.take_embedder, now, limit, check)

    def _check_index(self, name: str, documents: Documents, embed: EmbedTexts, check: str) -> None:
        report = GUARD.contain("index.documents", self._compare_index, name, documents, embed)
        if report is None:
            self._post(self._known.nothing, check)
        else:
            self._post(self._known.take_index, report, check)

    def _compare_index(self, name: str, documents: Documents, embed: EmbedTexts) -> IndexReport:
        stored: list[Any] = []
        fresh: list[Any] = []
        for text, vector in documents():
            stored.append(vector)
            fresh.append(embed([text]))
            self._pause()
        return embedding.index_report(name, stored, fresh)

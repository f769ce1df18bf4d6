"""The faults between two recordings, and the changes that are none: what happened, and what may be named.

A fault changes a release, its traffic or its provider; nothing else differs but the seed of the traffic.
`expected` are the kinds of cause that name the truth: several only where the change itself has two names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from qdrant_client.models import Distance
from tests.faults.inside import smollm2
from tests.faults.provider import Behaviour
from tests.faults.rag import SYSTEM, Release
from tests.faults.texts import Traffic, former

from neuronscope.diagnosis.kinds import Kind

REQUESTS = 200
REQUESTS_INSIDE = 40


@dataclass
class Day:
    """One recording: everything that makes it what it is.

    Attributes:
        provider: which of the two servers is called.
        burn: threads of other work on the machine meanwhile.
        restarts: how often the process's agent ends and begins anew.
    """

    release: Release = field(default_factory=Release)
    traffic: Traffic = field(default_factory=lambda: Traffic(REQUESTS))
    behaviour: Behaviour = field(default_factory=Behaviour)
    provider: str = "provider"
    burn: int = 0
    restarts: int = 0


def plain() -> Day:
    """The demo's service: search, then the provider's model."""
    return Day()


def reranked() -> Day:
    """The same with a reranker."""
    return Day(Release(reranker="rerank-v3.5"))


def inside() -> Day:
    """The same with a language model in the process, asked about two topics."""
    mix = (("transformers", 1.0), ("numeric health", 1.0))
    return Day(Release(inside=smollm2()), Traffic(REQUESTS_INSIDE, mix, popular=0.9))


@dataclass(frozen=True, slots=True)
class Change:
    """Something that is otherwise after than before.

    Attributes:
        apply: changes the second day.
        expected: kinds of cause of which one must be named; none: nothing may be.
        start: what both days begin with.
        simulated: what is not the real thing, in words; empty if all is.
        level: what must be recorded for it to be named: spans alone, also prompts' structure, or layers; all
            three are by default.  Spans: it was named with structure and probes switched off.
    """

    name: str
    apply: Callable[[Day], None]
    expected: frozenset[Kind]
    start: Callable[[], Day] = plain
    simulated: str = ""
    level: str = "spans"


def _release(**changes: Any) -> Callable[[Day], None]:
    def apply(day: Day) -> None:
        day.release = replace(day.release, **changes)

    return apply


def _behaviour(**changes: Any) -> Callable[[Day], None]:
    def apply(day: Day) -> None:
        day.behaviour = replace(day.behaviour, **changes)

    return apply


# --- retrieval --------------------------------------------------------------------------------------------
def lose_documents(day: Day) -> None:
    """A tenth of the corpus is not in the index."""
    day.release.index = {n: text for n, text in day.release.index.items() if n % 10 != 3}


def restore_old_index(day: Day) -> None:
    """A backup was restored: every fourth document is as it was before it was last revised."""
    index = day.release.index
    day.release.index = {n: former(text) if n % 4 == 1 else text for n, text in index.items()}


def index_twice(day: Day) -> None:
    """The ingest ran twice and gave every document a second id."""
    index = day.release.index
    day.release.index = {**index, **{n + 1_000: text for n, text in index.items()}}


def shift_queries(day: Day) -> None:
    """Users begin to ask mostly about incidents and operations."""
    mix = (("incidents", 0.4), ("operations", 0.3), ("evaluation", 0.15), ("prompts", 0.15))
    day.traffic = replace(day.traffic, mix=mix)


# --- prompts, providers -----------------------------------------------------------------------------------
def switch_provider(day: Day) -> None:
    """Another address that serves another model."""
    day.provider = "other"
    day.release.model = "llama-3.3-70b"
    day.behaviour = replace(day.behaviour, fingerprint="", cached=0.0, verbosity=13.0)


def queue(day: Day) -> None:
    """The service has two threads where it had eight."""
    day.release.workers = 2


# --- inside the model ---------------------------------------------------------------------------------------
def _layers(change: Callable[[Any], None]) -> Callable[[Day], None]:
    def apply(day: Day) -> None:
        model = smollm2().copy()
        change(model.model)
        day.release.inside = model

    return apply


def retrain_a_layer(model: Any) -> None:
    """The weights of the third layer are those of another training run: 15 % of their size away."""
    import torch

    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.model.layers[2].parameters():
            if weight.ndim == 2:
                noise = torch.randn(weight.shape, generator=generator) * weight.std()
                weight.add_(0.15 * noise)


def scale_a_layer(model: Any) -> None:
    """The second layer's MLP writes half as much again."""
    import torch

    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(1.5)


def halve_precision(model: Any) -> None:
    """Everything in bfloat16."""
    import torch

    model.to(torch.bfloat16)


def _after(module: Any, change: Callable[[Any], Any]) -> None:
    """Let a module's kernel give something else; its weights stay as they are."""
    forward = module.forward

    def otherwise(*args: Any, **kwargs: Any) -> Any:
        return change(forward(*args, **kwargs))

    module.forward = otherwise


def noise_in_a_layer(model: Any) -> None:
    """A kernel of the third layer is wrong by a tenth, at random."""
    import torch

    generator = torch.Generator().manual_seed(2)

    def noisy(value: Any) -> Any:
        return value + 0.1 * value.std() * torch.randn(value.shape, generator=generator)

    _after(model.model.layers[2].mlp, noisy)


def nan_in_a_layer(model: Any) -> None:
    """One call in eight overflows in the second layer."""
    calls = 0

    def overflow(value: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls % 8 == 3:
            value = value.clone()
            value[..., 7] = float("nan")
        return value

    _after(model.model.layers[1].mlp, overflow)


def kill_units(model: Any) -> None:
    """From the second layer on, a kernel leaves a fifth of the units of the residual stream at zero."""

    def dead(value: Any) -> Any:
        value = value.clone()
        value[..., : value.shape[-1] // 5] = 0
        return value

    for layer in model.model.layers[1:]:
        _after(layer, dead)


_K = Kind


def _fault(name: str, apply: Callable[[Day], None], *expected: Kind, **more: Any) -> Change:
    return Change(name, apply, frozenset(expected), **more)


FAULTS = (
    _fault("embedder swapped", _release(embedder="halved"), _K.EMBEDDER_CHANGED, level="structure"),
    _fault(
        "embedder and index swapped",
        _release(embedder="halved", index_embedder="halved"),
        _K.EMBEDDER_CHANGED,
        level="structure",
    ),
    _fault("embedder prefix lost", _release(query_prefix=""), _K.EMBEDDER_CHANGED, level="structure"),
    _fault("embedder in eight bits", _release(embedder="eight bits"), _K.EMBEDDER_CHANGED, level="structure"),
    _fault("tenth of the corpus lost", lose_documents, _K.INDEX_LOST),
    _fault("old index restored", restore_old_index, _K.INDEX_STALE, _K.INDEX_REWRITTEN),
    _fault("documents duplicated", index_twice, _K.INDEX_DUPLICATED),
    _fault("search parameter degraded", _release(candidates=6), _K.SEARCH_CHANGED),
    _fault("k halved", _release(k=2), _K.SEARCH_CHANGED),
    _fault("metric changed", _release(metric=Distance.EUCLID), _K.SEARCH_CHANGED),
    _fault("filter broken", _release(status_field="state"), _K.FILTER_CHANGED),
    _fault("filter gone", _release(status=None), _K.FILTER_CHANGED),
    _fault("collection switched", _release(collection="handbook-2026"), _K.COLLECTION_SWITCHED),
    _fault("reranker changed", _release(reranker="rerank-v3.0"), _K.RERANKER_CHANGED, start=reranked),
    _fault("reranker off", _release(reranker=None), _K.RERANKER_CHANGED, start=reranked),
    _fault("query mix shifted", shift_queries, _K.QUERIES_SHIFTED),
    _fault(
        "prompt template changed",
        _release(template="Use this:\n\n{context}\n\nThe user asks: {question}\nAnswer:"),
        _K.PROMPT_CHANGED,
        level="structure",
    ),
    _fault("context truncated", _release(context_characters=500), _K.CONTEXT_DROPPED, level="structure"),
    _fault("context dropped", _release(context=0), _K.CONTEXT_DROPPED, level="structure"),
    _fault(
        "system prompt changed",
        _release(system=SYSTEM.replace("one short sentence", "plain words")),
        _K.SYSTEM_PROMPT_CHANGED,
        level="structure",
    ),
    _fault("model switched", _release(model="gpt-4o-mini"), _K.MODEL_CHANGED),
    _fault("model version behind the same name", _behaviour(fingerprint="fp_b0c1d2"), _K.MODEL_CHANGED),
    _fault("provider switched", switch_provider, _K.MODEL_CHANGED),
    _fault("temperature raised", _release(temperature=1.0), _K.SAMPLING_CHANGED),
    _fault("max_tokens lowered", _release(max_tokens=8), _K.SAMPLING_CHANGED, _K.OUTPUT_CUT),
    _fault("provider cuts answers", _behaviour(limit=8), _K.OUTPUT_CUT),
    _fault("tokenizer changed", _behaviour(tokenizer="wordpiece"), _K.TOKENIZER_CHANGED, level="structure"),
    _fault("cache hits lost", _behaviour(cached=0.1), _K.CACHE_LOST),
    _fault("provider slower", _behaviour(delay_s=0.06), _K.PROVIDER_SLOWER),
    _fault("rate limited", _behaviour(limited=0.15), _K.PROVIDER_LIMITED),
    _fault("queueing in the process", queue, _K.QUEUEING),
    _fault("consumer stalling", _release(stall_s=0.004), _K.CONSUMER_STALLING, level="structure"),
    _fault(
        "weights of a layer changed",
        _layers(retrain_a_layer),
        _K.WEIGHTS_CHANGED,
        start=inside,
        level="layers",
    ),
    _fault("layer scaled", _layers(scale_a_layer), _K.WEIGHTS_CHANGED, start=inside, level="layers"),
    _fault("noise in a layer", _layers(noise_in_a_layer), _K.LAYERS_DIVERGED, start=inside, level="layers"),
    _fault("precision changed", _layers(halve_precision), _K.PRECISION_CHANGED, start=inside, level="layers"),
    _fault("NaN born in a layer", _layers(nan_in_a_layer), _K.NON_FINITE, start=inside, level="layers"),
    _fault("dead units", _layers(kill_units), _K.DEAD_UNITS, start=inside, level="layers"),
    _fault(
        "batches instead of single prompts",
        _release(batch=4),
        _K.TRAFFIC_CHANGED,
        start=inside,
        level="layers",
    ),
    _fault(
        "library version changed",
        _release(libraries={"transformers": "5.25.1", "tokenizers": "0.24.0"}),
        _K.ENVIRONMENT_CHANGED,
        simulated="other versions are only said to be installed",
    ),
    _fault(
        "agent's fidelity changed", _release(settings={"probes": ("off",)}), _K.FIDELITY_CHANGED, start=inside
    ),
)


# --- no change ----------------------------------------------------------------------------------------------
def redeploy(day: Day) -> None:
    """A new version of the service, which changes none of this."""
    day.release.resource = "service.version=1.4.3,service.instance.id=b"


def restart(day: Day) -> None:
    """The process ends and begins anew in the middle of the day."""
    day.restarts = 1


def load(day: Day) -> None:
    """Something else computes on the same machine."""
    day.burn = 1


def quiet(day: Day) -> None:
    """A day with a fifth fewer requests, of the same mix."""
    day.traffic = replace(day.traffic, n=day.traffic.n * 4 // 5)


def nothing(day: Day) -> None:
    """Another day."""


CONTROLS = (
    Change("other seed", nothing, frozenset()),
    Change("redeploy", redeploy, frozenset()),
    Change("restart", restart, frozenset()),
    Change("other machine load", load, frozenset()),
    Change("fewer requests of the same mix", quiet, frozenset()),
    Change("other seed, reranked", nothing, frozenset(), start=reranked),
    Change("other seed, model inside", nothing, frozenset(), start=inside, level="layers"),
)

"""Comparisons made by hand: an embedder that was swapped, no change, and strings meant to do harm."""

from __future__ import annotations

import math
from typing import Final

from neuronscope.diagnosis.comparing.result import (
    Cause,
    Comparison,
    Effect,
    Evidence,
    Pairing,
    Plot,
    Power,
    Shape,
    Side,
    Symptom,
    Untold,
    Verdict,
)
from neuronscope.diagnosis.kinds import Kind
from strange import HOSTILE

START: Final = 1_790_000_000_000_000_000
HOUR: Final = 3_600_000_000_000


def side(name: str, start: int = START, **changes: object) -> Side:
    """What was read of a side."""
    fields: dict[str, object] = {
        "paths": (f"/var/lib/handbook/{name}",),
        "traces": 1_184,
        "spans": 5_920,
        "calls": {"chat": 1_184, "retrieval": 1_184, "embeddings": 1_184},
        "start_unix_ns": start,
        "end_unix_ns": start + HOUR,
        "services": ("handbook",),
        "layers": 4_736,
        "environment": {"process.runtime.version": "3.11.7", "os.type": "linux"},
    }
    return Side(**{**fields, **changes})  # type: ignore[arg-type]  # fields of any type, by name


def _scores() -> Plot:
    edges = tuple(round(0.1 * at, 1) for at in range(11))
    return Plot(
        Shape.HISTOGRAM,
        "best score of a search",
        before=(0, 0, 0, 0.01, 0.04, 0.12, 0.31, 0.33, 0.17, 0.02),
        after=(0, 0.03, 0.17, 0.35, 0.30, 0.11, 0.03, 0.01, 0, 0),
        edges=edges,
    )


def _layers() -> Plot:
    return Plot(
        Shape.LAYERS,
        "distance of each layer's output from the other side's",
        before=(0.01, 0.012, 0.011, 0.013, 0.015, 0.016),
        after=(0.012, 0.013, 0.38, 0.41, 0.46, 0.52),
        floor=(0.02, 0.02, 0.022, 0.024, 0.026, 0.03),
        labels=tuple(f"encoder.layer.{at}" for at in range(6)),
    )


def _times() -> Plot:
    return Plot(
        Shape.BARS,
        "where a request's time goes, mean",
        before=(0.004, 0.011, 0.034, 0.61),
        after=(0.004, 0.012, 0.036, 0.92),
        labels=("service", "embeddings", "retrieval", "chat gpt-4.1-mini"),
        unit="s",
    )


def swapped() -> Comparison:
    """An embedder was swapped: scores fell, and its layers differ from the third on."""
    embedder = Cause(
        Kind.EMBEDDER_CHANGED,
        "all-MiniLM-L6-v2",
        "all-MiniLM-L6-v2 gives other vectors: the same questions land 61° from where they were",
        effect=0.68,
        confidence=0.998,
        evidence=(
            Evidence(
                "the same question's vector", None, None, 0.68, "cosine", n_before=214, n_after=214, p=1e-40
            ),
            Evidence("best score of a search", 0.71, 0.33, 0.86, "ks", "", 1_184, 1_170, 3e-9, _scores()),
            Evidence("layers of the embedder", "as before", "from encoder.layer.2 on", 0.38, plot=_layers()),
        ),
        traces_before=("4bf92f3577b34da6a3ce929d0e0e4736", "a3ce929d0e0e47364bf92f3577b34da6"),
        traces_after=("0af7651916cd43dd8448eb211c80319c",),
        explains=(Effect.SCORES, Effect.RESULTS),
    )
    slower = Cause(
        Kind.PROVIDER_SLOWER,
        "gpt-4.1-mini",
        "gpt-4.1-mini takes 51 % longer to answer",
        effect=0.51,
        confidence=0.93,
        evidence=(
            Evidence("seconds to the first word", 0.41, 0.68, 0.51, "ratio", "s", 1_184, 1_170, 2e-8),
            Evidence("tokens asked", 512, 512, 0.0, "ratio", "{token}", 1_184, 1_170, 0.7),
        ),
        explains=(Effect.LATENCY, Effect.FIRST_CHUNK),
    )
    margin = Cause(
        Kind.QUERIES_OR_EMBEDDER,
        "handbook",
        "queries point elsewhere",
        effect=0.4,
        confidence=0.9,
        because=(Kind.EMBEDDER_CHANGED,),
    )
    return Comparison(
        before=side("monday"),
        after=side("tuesday", START + 24 * HOUR, traces=1_170, damage=("segment 3 ends within a chunk",)),
        pairing=Pairing({"query": 214, "canary": 50}, 0.22),
        verdict=Verdict.CHANGED,
        causes=(embedder, slower),
        consequences=(margin,),
        symptoms=(
            Symptom(Effect.SCORES, "handbook", "best scores of handbook fell from 0.71 to 0.33",
                    (Evidence("best score", 0.71, 0.33, 0.86, "ks"),), (Kind.EMBEDDER_CHANGED,)),
            Symptom(Effect.LATENCY, "POST /ask", "POST /ask takes 0.97 s instead of 0.66 s",
                    (Evidence("duration", 0.66, 0.97, 0.47, "ratio", "s", plot=_times()),),
                    (Kind.PROVIDER_SLOWER,)),
            Symptom(Effect.COST, "gpt-4.1-mini", "a call costs 4 % more", ()),
        ),
        power=(Power("best score of a search", 0.08, "ks", 1_184, 1_170),),
        untold=(Untold(Kind.SYSTEM_PROMPT_CHANGED, "prompts were not read", "structure = true"),),
        tests=84,
        seconds=0.41,
    )  # fmt: skip


def unchanged() -> Comparison:
    """Nothing changed, and how well that is known."""
    return Comparison(
        side("monday"),
        side("tuesday", START + 24 * HOUR),
        Pairing({"query": 380}, 0.32),
        Verdict.NO_CHANGE,
        power=(
            Power("best score of a search", 0.08, "ks", 1_184, 1_184),
            Power("input tokens of a call", 0.03, "ratio", 1_184, 1_184),
        ),
        tests=80,
        seconds=0.4,
    )


def hostile() -> Comparison:
    """Every text is one that would do harm if it were taken for markup; numbers are not finite."""
    texts = HOSTILE * 2
    nan, inf = math.nan, math.inf
    plots = (
        Plot(Shape.HISTOGRAM, texts[0], (0.5, nan, inf), (0.1, 0.2, 0.7), edges=(0, 1, inf, nan)),
        Plot(Shape.BARS, texts[1], (1, nan), (inf, 2), labels=(texts[2], texts[3]), unit=texts[4]),
        Plot(Shape.BARS, texts[2], (1, nan), (0.5, 2), labels=(texts[2], texts[3]), unit="s"),
        Plot(Shape.LAYERS, texts[5], (1, nan, 2), (1, inf, 3), labels=texts[:3], floor=(nan, 1, 1)),
        Plot(Shape.LAYERS, texts[6], (), ()),
    )
    evidence = tuple(
        Evidence(text, text, text, nan, text, text, 1, 2, p, plot)
        for text, p, plot in zip(texts, (None, nan, 0.0, 1.0, None), plots, strict=False)
    )
    cause = Cause(Kind.MODEL_CHANGED, texts[0], texts[1], inf, nan, evidence, texts, texts, (Effect.COST,))
    damaged = side("x", paths=texts, services=texts, damage=texts, environment=dict.fromkeys(texts, texts[0]))
    return Comparison(
        damaged,
        damaged,
        Pairing(dict.fromkeys(texts, 1), 0.5),
        Verdict.CHANGED,
        causes=(cause, cause),
        consequences=(cause,),
        symptoms=(Symptom(Effect.COST, texts[0], texts[1], evidence, (Kind.MODEL_CHANGED,)),),
        power=(Power(texts[2], nan, texts[3], 1, 1),),
        untold=(Untold(Kind.MODEL_CHANGED, texts[0], texts[1]),),
    )

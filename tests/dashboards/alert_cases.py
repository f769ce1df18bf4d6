"""For every alert a course of events: quiet, then it fires, then it resolves.  Read by promtool.

Times are in minutes.  A case's `series` are in promtool's notation, a sample each `step` minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

JOB = "shop"
HOUR = 60
DAY = 24 * HOUR


@dataclass(frozen=True)
class Case:
    """What happens, and when the alert must be firing and when not."""

    alert: str
    severity: str
    series: Mapping[str, str]
    quiet: tuple[int, ...]
    fires: tuple[int, ...]
    resolved: tuple[int, ...]
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    step: int = 1

    @property
    def name(self) -> str:
        return "-".join((self.alert.removeprefix("Neuronscope"), self.severity, *self.labels.values()))


def counter(*phases: tuple[float, int]) -> str:
    """A counter from 0 that grows by so much a sample, for so many samples, and so on."""
    parts, value = ["0"], 0.0
    for growth, samples in phases:
        parts.append(f"{value + growth:g}+{growth:g}x{samples - 1}")
        value += growth * samples
    return " ".join(parts)


def gauge(*phases: tuple[float | None, int]) -> str:
    """Values, each for so many samples; None: no sample."""
    # A gap of so many is written with that number, a value that is repeated so often with one less.
    return " ".join(f"_x{n}" if value is None else f"{value:g}x{n - 1}" for value, n in phases)


def named(metric: str, /, **labels: str) -> str:
    pairs = ",".join(f'{key}="{value}"' for key, value in {"job": JOB, "instance": "a:1", **labels}.items())
    return f"{metric}{{{pairs}}}"


# --- objectives ------------------------------------------------------------------------------------------


def traffic(slo: str, *phases: tuple[float, float, int]) -> dict[str, str]:
    """Series of an objective: so many good and so many bad events a sample, for so many samples."""
    good = counter(*((good, n) for good, _, n in phases))
    bad = counter(*((bad, n) for _, bad, n in phases))
    every = counter(*((good + bad, n) for good, bad, n in phases))
    stages = {"first_chunk": ("first_chunk", "2.0"), "retrieval": ("search", "0.3")}
    if slo in stages:
        stage, edge = stages[slo]
        metric = "neuronscope_stage_duration_seconds"
        return {
            named(f"{metric}_count", stage=stage): every,
            named(f"{metric}_bucket", stage=stage, le=edge): good,
        }
    if slo == "availability":
        metric = "http_server_request_duration_seconds_count"
        return {
            named(metric, http_response_status_code="200"): good,
            named(metric, http_response_status_code="503"): bad,
        }
    if slo == "non_empty":
        return {
            named("neuronscope_retrieval_queries_total"): every,
            named("neuronscope_retrieval_empty_total"): bad,
        }
    return {
        named("neuronscope_model_calls_total", outcome="finite"): good,
        named("neuronscope_model_calls_total", outcome="non_finite"): bad,
    }


BURNS = {
    "availability": "NeuronscopeAvailabilityBurn",
    "first_chunk": "NeuronscopeFirstChunkBurn",
    "retrieval": "NeuronscopeRetrievalLatencyBurn",
    "non_empty": "NeuronscopeEmptyRetrievalBurn",
    "finite": "NeuronscopeFiniteOutputsBurn",
}


def burns() -> Iterator[Case]:
    """Good, then all bad, then good again: the short window ends the alert."""
    for slo, alert in BURNS.items():
        yield Case(
            alert,
            "page",
            traffic(slo, (60, 0, 60), (0, 60, 55), (60, 0, 60)),
            quiet=(30, 60),
            fires=(112,),
            resolved=(125,),
            labels={"window": "1h"},
        )
        yield Case(
            alert,
            "page",
            traffic(slo, (120, 0, 180), (0, 120, 90), (120, 0, 60)),
            quiet=(6 * HOUR,),
            fires=(8 * HOUR + 30,),
            resolved=(9 * HOUR + 40,),
            labels={"window": "6h"},
            step=2,
        )
        yield Case(
            alert,
            "ticket",
            traffic(slo, (300, 0, 288), (150, 150, 576), (300, 0, 144)),
            quiet=(DAY,),
            fires=(2 * DAY,),
            resolved=(3 * DAY + 8 * HOUR,),
            labels={"window": "3d"},
            step=5,
        )


BUDGET = named("neuronscope_overhead_budget_ratio")
PLACE = {"db_system_name": "qdrant", "db_collection_name": "handbook"}

RETRIEVAL = (
    Case(
        "NeuronscopeRetrievalDrift",
        "page",
        {named("neuronscope_drift_active", kind="index_lost", **PLACE): gauge((0, 10), (1, 20), (0, 20))},
        quiet=(5,),
        fires=(15,),
        resolved=(35,),
    ),
    Case(
        "NeuronscopeRetrievalDrift",
        "ticket",
        {
            named("neuronscope_drift_active", kind="queries_shifted", **PLACE): gauge(
                (0, 10), (1, 20), (0, 20)
            )
        },
        quiet=(5,),
        fires=(15,),
        resolved=(35,),
    ),
    Case(
        "NeuronscopeEmbedderMismatch",
        "page",
        {
            named("neuronscope_drift_active", kind="embedder_changed", **PLACE): gauge(
                (0, 10), (1, 20), (0, 20)
            )
        },
        quiet=(5,),
        fires=(15,),
        resolved=(35,),
        labels={"cause": "finding"},
    ),
    Case(
        "NeuronscopeEmbedderMismatch",
        "page",
        {named("neuronscope_retrieval_embedders", **PLACE): gauge((1, 10), (2, 20), (1, 20))},
        quiet=(5,),
        fires=(15,),
        resolved=(35,),
        labels={"cause": "mixed"},
    ),
    Case(
        "NeuronscopeEmbedderMismatch",
        "page",
        {named("neuronscope_embedder_self_cosine", embedder="mini"): gauge((1, 10), (0.7, 20), (0.999, 20))},
        quiet=(5,),
        fires=(15,),
        resolved=(35,),
        labels={"cause": "changed"},
    ),
    Case(
        "NeuronscopeEmbedderMismatch",
        "page",
        {named("neuronscope_index_self_cosine", index="handbook"): gauge((1, 10), (0.7, 20), (1, 20))},
        quiet=(5,),
        fires=(15,),
        resolved=(35,),
        labels={"cause": "index"},
    ),
    Case(
        "NeuronscopeCanaryOverlap",
        "page",
        {
            named("neuronscope_canary_overlap_ratio", canary="c"): gauge((1, 10), (0.85, 30), (0.95, 20)),
            named("neuronscope_canary_limit_ratio", canary="c"): gauge((0.9, 60)),
        },
        quiet=(5, 15),
        fires=(25, 35),
        resolved=(45,),
    ),
    Case(
        "NeuronscopeCanariesFailing",
        "ticket",
        {
            named("neuronscope_canary_replays_total", canary="c", outcome="same"): counter(
                (1, 24), (0, 24), (1, 12)
            ),
            named("neuronscope_canary_replays_total", canary="c", outcome="failed"): counter(
                (0, 24), (1, 24), (0, 12)
            ),
        },
        quiet=(2 * HOUR,),
        fires=(3 * HOUR + 20,),
        resolved=(4 * HOUR + 15,),
        step=5,
    ),
    Case(
        "NeuronscopeCanariesSilent",
        "ticket",
        {
            named("neuronscope_canary_replays_total", canary="c", outcome="same"): counter(
                (1, 24), (0, 24), (1, 12)
            ),
            named("neuronscope_canary_overlap_ratio", canary="c"): gauge((1, 60)),
        },
        quiet=(2 * HOUR, 3 * HOUR),
        fires=(3 * HOUR + 45,),
        resolved=(4 * HOUR + 15,),
        step=5,
    ),
    Case(
        "NeuronscopeDriftUnwatched",
        "ticket",
        {
            named("neuronscope_drift_windows_total", **PLACE): counter((1, 312), (0, 312), (1, 24)),
            named("neuronscope_retrieval_queries_total", **PLACE): counter((100, 648)),
        },
        quiet=(26 * HOUR, 49 * HOUR),
        fires=(51 * HOUR + 30,),
        resolved=(52 * HOUR + 20,),
        step=5,
    ),
)

MODEL = {"neuronscope_model_name": "net"}
INSIDE = (
    Case(
        "NeuronscopeNonFinite",
        "page",
        # Absent until the first one, as it is in a process.
        {named("neuronscope_model_non_finite_total", **MODEL): gauge((None, 60)) + " 7+7x19 140x20"},
        quiet=(59, 62),
        fires=(70,),
        resolved=(90,),
    ),
    Case(
        "NeuronscopeRangeUsed",
        "ticket",
        {
            named("neuronscope_layer_range_used_ratio", layer="0", **MODEL): gauge(
                (0.1, 10), (0.9, 20), (0.1, 20)
            )
        },
        quiet=(5, 12),
        fires=(20,),
        resolved=(35,),
    ),
    Case(
        "NeuronscopeDeadUnits",
        "ticket",
        {named("neuronscope_layer_zeros_ratio", layer="0", **MODEL): gauge((0.2, 312), (0.5, 36), (0.2, 36))},
        quiet=(26 * HOUR,),
        fires=(28 * HOUR,),
        resolved=(30 * HOUR + 15,),
        step=5,
    ),
)

CALLS = "gen_ai_client_operation_duration_seconds_count"
LLM = {"gen_ai_provider_name": "openai", "gen_ai_request_model": "m"}
COST = named("neuronscope_cost_usd_total", **LLM)
COSTS = (
    Case(
        "NeuronscopeLlmErrors",
        "ticket",
        {
            named(CALLS, **LLM): counter((20, 100)),
            named(CALLS, error_type="RateLimitError", **LLM): counter((0, 30), (5, 30), (0, 40)),
        },
        quiet=(30,),
        fires=(55,),
        resolved=(75,),
    ),
    Case(
        "NeuronscopeCostHigh",
        "ticket",
        {COST: counter((0.1, 288), (1, 144), (0, 312))},
        quiet=(DAY,),
        fires=(35 * HOUR,),
        resolved=(61 * HOUR,),
        step=5,
    ),
    Case(
        "NeuronscopeCostSpike",
        "page",
        {COST: counter((0.1, 312), (1, 18), (0.1, 36))},
        quiet=(HOUR, 26 * HOUR),
        fires=(26 * HOUR + 50,),
        resolved=(28 * HOUR + 50,),
        step=5,
    ),
    Case(
        "NeuronscopeUnpriced",
        "ticket",
        {
            named("gen_ai_client_token_usage_count", gen_ai_token_type="input", **LLM): counter((10, 300)),
            named("neuronscope_cost_unpriced_total", **LLM): gauge((None, 60)) + " 5+5x119 600x120",
        },
        quiet=(59, 100),
        fires=(140,),
        resolved=(260,),
    ),
)

AGENT = (
    Case(
        "NeuronscopeObjectiveSilent",
        "ticket",
        {**traffic("availability", (50, 0, 312), (0, 0, 24), (50, 0, 24)), BUDGET: gauge((0.15, 360))},
        quiet=(26 * HOUR,),
        fires=(27 * HOUR + 45,),
        resolved=(28 * HOUR + 15,),
        step=5,
    ),
    Case(
        "NeuronscopeAgentSilent",
        "page",
        {BUDGET: gauge((0.15, 60), (None, 20), (0.15, 20))},
        quiet=(59, 66),
        fires=(75,),
        resolved=(85,),
    ),
    Case(
        "NeuronscopeAgentAbsent",
        "ticket",
        {BUDGET: gauge((None, 40), (0.15, 20))},
        quiet=(10,),
        fires=(20, 39),
        resolved=(45,),
    ),
    Case(
        "NeuronscopeAgentDropping",
        "ticket",
        {
            named("neuronscope_exported_total", item="span", exporter="otlp"): counter((100, 100)),
            named("neuronscope_dropped_total", item="span", reason="queue_full"): gauge((None, 30))
            + " 5+5x19 100x40",
        },
        quiet=(29,),
        fires=(45,),
        resolved=(65,),
    ),
    Case(
        "NeuronscopeAgentOverBudget",
        "ticket",
        {
            BUDGET: gauge((0.15, 60)),
            named("neuronscope_overhead_accounted_ratio"): gauge((0.1, 10), (0.2, 30), (0.1, 20)),
        },
        quiet=(9, 15),
        fires=(30,),
        resolved=(45,),
    ),
    Case(
        "NeuronscopeAgentFaults",
        "ticket",
        {named("neuronscope_internal_errors_total", site="s", kind="KeyError"): gauge((None, 20), (3, 100))},
        quiet=(19,),
        fires=(25,),
        resolved=(90,),
    ),
    Case(
        "NeuronscopeAgentOff",
        "info",
        {named("neuronscope_fidelity_state", neuronscope_fidelity="off"): gauge((0, 10), (1, 90), (0, 20))},
        quiet=(9, 60),
        fires=(80,),
        resolved=(110,),
    ),
    Case(
        "NeuronscopeSeriesFolded",
        "info",
        {named("neuronscope_series_folded_total", metric="m"): gauge((None, 20), (9, 100))},
        quiet=(19,),
        fires=(25,),
        resolved=(90,),
    ),
)

CASES = (*burns(), *RETRIEVAL, *INSIDE, *COSTS, *AGENT)

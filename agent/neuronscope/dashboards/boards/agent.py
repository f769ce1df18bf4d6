"""Agent health: what observation costs, what it sees, and what it loses."""

from __future__ import annotations

from typing import Final

from neuronscope.dashboards.promql import INSTANCE, equal, or_zero, ratio
from neuronscope.dashboards.sheet import SOURCE, Query, Sheet
from neuronscope.dashboards.thresholds import Thresholds
from neuronscope.signals import names
from neuronscope.signals.names import Metric

_THERE: Final = SOURCE.value(names.OVERHEAD_BUDGET)


def build(thresholds: Thresholds) -> str:
    """The dashboard as JSON."""
    sheet = Sheet(
        "agent", "Agent health", "What observation costs, what it sees, what it loses.", thresholds.links
    )
    _summary(sheet)
    _overhead(sheet)
    _fidelity(sheet)
    _flow(sheet)
    _process(sheet)
    _gpus(sheet)
    return sheet.build()


def _hour(metric: Metric, *by: str) -> str:
    return or_zero(SOURCE.over("1h").appeared(metric, *by), _THERE)


def _summary(sheet: Sheet) -> None:
    sheet.row("Now")
    sheet.stat(
        "Overhead, accounted",
        "Cost of observation over the time observed.",
        Query(SOURCE.value(names.OVERHEAD_ACCOUNTED)),
        "percentunit",
        decimals=2,
    )
    sheet.stat(
        "Overhead, measured",
        "By switching captures off and on; needs some minutes of traffic.",
        Query(SOURCE.value(names.OVERHEAD_MEASURED, where={"bound": equal("estimate")})),
        "percentunit",
        decimals=2,
    )
    sheet.stat("Budget", "What it may be.", Query(_THERE), "percentunit")
    sheet.stat(
        "Full fidelity",
        "Share of processes that may record in full.",
        Query(SOURCE.value(names.FIDELITY_STATE, how="avg", where={names.FIDELITY: equal("full")})),
        "percentunit",
        ((None, "orange"), (1, "green")),
    )
    sheet.stat(
        "Lost, last hour",
        "Records that will not arrive.",
        Query(_hour(names.DROPPED)),
        "none",
        ((None, "green"), (1, "red")),
    )
    sheet.stat(
        "Faults, last hour",
        "Of ours, that the guard caught.",
        Query(_hour(names.INTERNAL_ERRORS)),
        "none",
        ((None, "green"), (1, "red")),
    )


def _overhead(sheet: Sheet) -> None:
    sheet.row("Overhead")
    sheet.lines(
        "Accounted and measured",
        "Of the worst process. The measurement comes with its 95 % interval.",
        [
            Query(SOURCE.value(names.OVERHEAD_ACCOUNTED), "accounted"),
            Query(SOURCE.value(names.OVERHEAD_CAPTURES), "accounted, captures alone"),
            Query(SOURCE.value(names.OVERHEAD_MEASURED, "bound"), "measured, {{bound}}"),
            Query(_THERE, "budget"),
        ],
        "percentunit",
        bottom=None,
    )
    sheet.lines(
        "By probe",
        "Accounted cost, and where it arose: in the service's thread or in our worker.",
        [Query(SOURCE.rate(names.OVERHEAD_TIME, "probe", "place"), "{{probe}}, {{place}}")],
        "percentunit",
        stacked=True,
    )
    sheet.lines(
        "CPU of the worker",
        "Of one core.",
        [Query(SOURCE.rate(names.WORKER_CPU), "worker")],
        "percentunit",
        width=8,
    )
    sheet.lines(
        "Pairs of blocks measured",
        "A hundred or more make a narrow interval.",
        [Query(SOURCE.value(names.OVERHEAD_MEASURED_BLOCKS), "pairs")],
        "none",
        width=8,
    )
    sheet.lines(
        "Full tensors copied",
        "By probe.",
        [Query(SOURCE.rate(names.TENSOR_BYTES, "probe"), "{{probe}}")],
        "Bps",
        width=8,
    )


def _fidelity(sheet: Sheet) -> None:
    sheet.row("Fidelity and coverage")
    sheet.states(
        "Fidelity in force",
        "By process.",
        [
            Query(
                SOURCE.value(names.FIDELITY_STATE, "instance", names.FIDELITY) + " == 1",
                "{{neuronscope_fidelity}}, {{instance}}",
            )
        ],
        {"1": ("in force", "blue")},
    )
    runs = SOURCE.rate(names.LAYER_RUNS, "probe")
    sheet.lines(
        "Layers recorded",
        "Share of the runs of watched layers; the rest had no room in the budget.",
        [
            Query(
                ratio(SOURCE.rate(names.LAYER_RUNS, "probe", where={"outcome": equal("recorded")}), runs),
                "{{probe}}",
            )
        ],
        "percentunit",
        top=1,
    )


def _flow(sheet: Sheet) -> None:
    sheet.row("What comes in, goes out, and is lost")
    sheet.lines(
        "Exported",
        "A second, by exporter.",
        [Query(SOURCE.rate(names.EXPORTED, "item", "exporter"), "{{item}}, {{exporter}}")],
        "none",
    )
    sheet.lines(
        "Lost",
        "In the last hour, by reason.",
        [Query(_hour(names.DROPPED, "item", "reason"), "{{item}}: {{reason}}")],
        "none",
    )
    sheet.lines(
        "Waiting", "Spans in the queue.", [Query(SOURCE.value(names.QUEUE_SPANS), "spans")], "none", width=6
    )
    sheet.lines(
        "Waiting, bytes", "Of the queue.", [Query(SOURCE.value(names.QUEUE_BYTES), "bytes")], "bytes", width=6
    )
    sheet.lines(
        "Faults",
        "Of ours, in the last hour, by place.",
        [Query(_hour(names.INTERNAL_ERRORS, "site", "kind"), "{{site}} {{kind}}")],
        "none",
        width=6,
    )
    sheet.lines(
        "Folded into `other`",
        "Observations, in the last hour, of metrics with too many series.",
        [Query(_hour(names.SERIES_FOLDED, "metric"), "{{metric}}")],
        "none",
        width=6,
    )
    sheet.lines(
        "Series",
        "The ten metrics with the most.",
        [Query(f"topk(10, {SOURCE.value(names.SERIES, 'metric')})", "{{metric}}")],
        "none",
    )
    sheet.lines(
        "Series left out",
        "In the last hour, because they grew no more.",
        [Query(_hour(names.SERIES_DROPPED, "metric"), "{{metric}}")],
        "none",
    )


def _process(sheet: Sheet) -> None:
    sheet.row("Processes (psutil)")
    legend = "{{instance}}"
    by_mode = (names.PROCESS_CPU.labels[0],)
    sheet.lines(
        "CPU",
        "Of one core, by mode.",
        [Query(SOURCE.rate(names.PROCESS_CPU, INSTANCE, *by_mode), f"{legend} {{{{cpu_mode}}}}")],
        "percentunit",
        width=8,
    )
    sheet.lines(
        "Memory", "Resident.", [Query(SOURCE.value(names.PROCESS_MEMORY, INSTANCE), legend)], "bytes", width=8
    )
    sheet.lines(
        "Threads and files",
        "Of the process.",
        [
            Query(SOURCE.value(names.PROCESS_THREADS, INSTANCE), f"threads, {legend}"),
            Query(SOURCE.value(names.PROCESS_FILES, INSTANCE), f"files, {legend}"),
        ],
        "none",
        width=8,
    )


def _gpus(sheet: Sheet) -> None:
    sheet.row("GPUs (NVML, PyTorch)")
    gpu = (names.GPU_UTILIZATION.labels[0],)
    legend = "GPU {{hw_id}}"
    sheet.lines(
        "At work",
        "Share of time.",
        [Query(SOURCE.value(names.GPU_UTILIZATION, *gpu), legend)],
        "percentunit",
        width=8,
        top=1,
    )
    sheet.lines(
        "Memory",
        "In use, of all processes; and the limit.",
        [
            Query(SOURCE.value(names.GPU_MEMORY, *gpu), legend),
            Query(SOURCE.value(names.GPU_MEMORY_LIMIT, *gpu), f"limit of {legend}"),
        ],
        "bytes",
        width=8,
    )
    sheet.lines(
        "PyTorch's allocator",
        "Reserved far above allocated is memory in pieces: an allocation can fail on a half-empty GPU.",
        [Query(SOURCE.value(names.TORCH_MEMORY, *gpu, "state"), f"{legend}: {{{{state}}}}")],
        "bytes",
        width=8,
    )
    sheet.lines(
        "Allocations that had to wait or failed",
        "In the last hour.",
        [
            Query(SOURCE.over("1h").increase(names.TORCH_RETRIES, *gpu), f"emptied the cache, {legend}"),
            Query(SOURCE.over("1h").increase(names.TORCH_OOMS, *gpu), f"no memory, {legend}"),
        ],
        "none",
    )
    sheet.lines(
        "Power and temperature",
        "Watts, degrees Celsius.",
        [
            Query(SOURCE.value(names.POWER, *gpu), f"W, {legend}"),
            Query(SOURCE.value(names.TEMPERATURE, *gpu), f"°C, {legend}"),
        ],
        "none",
    )

"""The metrics: units, labels and buckets."""

from __future__ import annotations

from typing import Final

from neuronscope.signals import attributes as _span
from neuronscope.signals.kinds import Instrument, metric

# Bucket bounds of the semantic conventions v1.41.
SECONDS: Final = tuple(0.01 * 2**i for i in range(14))
TOKENS: Final = tuple(float(4**i) for i in range(14))
DB_SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
HTTP_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
SCORES: Final = tuple(round(0.05 * i, 2) for i in range(-20, 21))
RATIOS: Final = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

_GENAI = (
    _span.OPERATION_NAME,
    _span.PROVIDER_NAME,
    _span.REQUEST_MODEL,
    _span.RESPONSE_MODEL,
    _span.SERVER_ADDRESS,
    _span.SERVER_PORT,
)
_H, _C, _G = Instrument.HISTOGRAM, Instrument.COUNTER, Instrument.GAUGE
TOKEN_TYPE: Final = "gen_ai.token.type"

TOKEN_USAGE: Final = metric(
    "gen_ai.client.token.usage",
    _H,
    "{token}",
    "Tokens per call; not reported when unknown.",
    (
        _span.OPERATION_NAME,
        _span.PROVIDER_NAME,
        TOKEN_TYPE,
        _span.REQUEST_MODEL,
        _span.RESPONSE_MODEL,
        _span.SERVER_ADDRESS,
        _span.SERVER_PORT,
    ),
    TOKENS,
)
OPERATION_DURATION: Final = metric(
    "gen_ai.client.operation.duration",
    _H,
    "s",
    "Duration of a GenAI call.",
    (*_GENAI, _span.ERROR_TYPE),
    SECONDS,
)
FIRST_CHUNK: Final = metric(
    "gen_ai.client.operation.time_to_first_chunk", _H, "s", "Time to the first chunk.", _GENAI, SECONDS
)
PER_CHUNK: Final = metric(
    "gen_ai.client.operation.time_per_output_chunk", _H, "s", "Gaps between chunks.", _GENAI, SECONDS
)
COST_TOTAL: Final = metric(
    "neuronscope.cost.usd",
    _C,
    "{USD}",
    "US dollars for calls whose price is known.",
    (_span.PROVIDER_NAME, _span.REQUEST_MODEL, _span.RESPONSE_MODEL),
)
UNPRICED: Final = metric(
    "neuronscope.cost.unpriced",
    _C,
    "{call}",
    "Calls with tokens and without a known price.",
    (_span.PROVIDER_NAME, _span.REQUEST_MODEL, _span.RESPONSE_MODEL),
)
TENANT_CALLS: Final = metric(
    "neuronscope.tenant.calls", _C, "{call}", "GenAI calls by tenant.", (_span.TENANT,)
)
TENANT_TOKENS: Final = metric(
    "neuronscope.tenant.tokens", _C, "{token}", "Tokens by tenant, as billed.", (_span.TENANT, TOKEN_TYPE)
)
TENANT_COST: Final = metric(
    "neuronscope.tenant.cost.usd",
    _C,
    "{USD}",
    "US dollars by tenant, of calls with known price.",
    (_span.TENANT,),
)
DB_DURATION: Final = metric(
    "db.client.operation.duration",
    _H,
    "s",
    "Duration of a vector store call.",
    (
        _span.DB_SYSTEM,
        _span.DB_COLLECTION,
        _span.DB_OPERATION,
        _span.ERROR_TYPE,
        _span.SERVER_ADDRESS,
        _span.SERVER_PORT,
    ),
    DB_SECONDS,
)
HTTP_DURATION: Final = metric(
    "http.server.request.duration",
    _H,
    "s",
    "Duration of an HTTP request served.",
    (
        _span.HTTP_REQUEST_METHOD,
        _span.HTTP_ROUTE,
        _span.HTTP_RESPONSE_STATUS_CODE,
        _span.URL_SCHEME,
        _span.ERROR_TYPE,
    ),
    HTTP_SECONDS,
)
_RETRIEVAL = (_span.DB_SYSTEM, _span.DB_COLLECTION, _span.RETRIEVAL_METRIC, _span.RETRIEVAL_TOP_K)
NORMS: Final = (0.0, 0.5, 0.9, 0.99, 0.999, 1.001, 1.01, 1.1, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
TOP_SCORE: Final = metric(
    "neuronscope.retrieval.top_score", _H, "", "Best score of a query; more is better.", _RETRIEVAL, SCORES
)
KTH_SCORE: Final = metric(
    "neuronscope.retrieval.kth_score",
    _H,
    "",
    "Worst returned score of a query; more is better.",
    _RETRIEVAL,
    SCORES,
)
RETURNED_SHARE: Final = metric(
    "neuronscope.retrieval.returned.share", _H, "1", "Hits returned over hits asked for.", _RETRIEVAL, RATIOS
)
QUERY_NORM_METRIC: Final = metric(
    "neuronscope.query.norm", _H, "", "L2 norm of query vectors.", _RETRIEVAL, NORMS
)
MARGIN: Final = metric("neuronscope.retrieval.margin", _H, "", "Relative margin.", _RETRIEVAL, RATIOS)
RETRIEVALS: Final = metric("neuronscope.retrieval.queries", _C, "{query}", "Queries.", _RETRIEVAL)
RETRIEVALS_EMPTY: Final = metric(
    "neuronscope.retrieval.empty", _C, "{query}", "Queries without any hit.", _RETRIEVAL
)
POINTS_WRITTEN: Final = metric(
    "neuronscope.store.writes",
    _C,
    "{point}",
    "Points written or removed, by calls that tell.",
    (_span.DB_SYSTEM, _span.DB_COLLECTION, _span.DB_OPERATION),
)
_PLACE = (_span.DB_SYSTEM, _span.DB_COLLECTION)
DRIFT_ACTIVE: Final = metric(
    "neuronscope.drift.active", _G, "", "1 while a finding about a collection lasts.", (*_PLACE, "kind")
)
DRIFT_STATISTIC: Final = metric(
    "neuronscope.drift.statistic",
    _G,
    "",
    "How far the latest window is from the baseline.",
    (*_PLACE, "feature", "statistic"),
)
DRIFT_THRESHOLD: Final = metric(
    "neuronscope.drift.threshold",
    _G,
    "",
    "What that statistic may be, for samples of these sizes.",
    (*_PLACE, "feature", "statistic"),
)
DRIFT_WINDOW: Final = metric(
    "neuronscope.drift.window", _G, "{query}", "Distinct queries of the latest window.", _PLACE
)
DRIFT_WINDOWS: Final = metric(
    "neuronscope.drift.windows", _C, "{window}", "Windows compared with the baseline.", _PLACE
)
CANARY_OVERLAP: Final = metric(
    "neuronscope.canary.overlap", _G, "1", "Share of their stored hits that canaries find again.", ("canary",)
)
CANARY_LIMIT: Final = metric(
    "neuronscope.canary.limit", _G, "1", "The overlap below which it is no accident.", ("canary",)
)
CANARY_RBO: Final = metric(
    "neuronscope.canary.rbo", _G, "", "Mean rank-biased overlap of canaries with stored hits.", ("canary",)
)
CANARY_REPLAYS: Final = metric(
    "neuronscope.canary.replays", _C, "{replay}", "Replays of canaries, by outcome.", ("canary", "outcome")
)
EMBEDDER_COSINE: Final = metric(
    "neuronscope.embedder.self_cosine",
    _G,
    "",
    "Least cosine of a probe text's vector with its stored one.",
    ("embedder",),
)
EMBEDDER_INFO: Final = metric(
    "neuronscope.embedder.info",
    _G,
    "",
    "1 for an embedder's present fingerprint, 0 for earlier ones.",
    ("embedder", "fingerprint"),
)
EMBEDDERS_SEEN: Final = metric(
    "neuronscope.retrieval.embedders",
    _G,
    "{embedder}",
    "Embedders that query a collection: more than one is a fault.",
    _PLACE,
)
INDEX_COSINE: Final = metric(
    "neuronscope.index.self_cosine", _G, "", "Median cosine of stored vectors with fresh ones.", ("index",)
)
CHECKS_CPU: Final = metric(
    "neuronscope.checks.cpu.time", _C, "s", "CPU time of canaries and fingerprints; outside the budget."
)
# Edges where objectives are set, which the conventions' buckets do not have.
STAGE_SECONDS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0),
)
STAGE_DURATION: Final = metric(
    "neuronscope.stage.duration",
    _H,
    "s",
    "Duration of a stage: embed, search, rerank, first_chunk, generate, queue, prefill, decode or request.",
    ("stage", _span.ERROR_TYPE),
    STAGE_SECONDS,
)
PREFILL_SECONDS: Final = metric(
    "neuronscope.model.prefill.duration",
    _H,
    "s",
    "Prefill of an in-process model call.",
    (_span.MODEL_NAME,),
    SECONDS,
)
DECODE_SECONDS: Final = metric(
    "neuronscope.model.decode.duration",
    _H,
    "s",
    "Decoding of an in-process model call.",
    (_span.MODEL_NAME,),
    SECONDS,
)
NON_FINITE: Final = metric(
    "neuronscope.model.non_finite", _C, "{element}", "NaN and Inf seen in layers.", (_span.MODEL_NAME,)
)
MODEL_CALLS: Final = metric(
    "neuronscope.model.calls",
    _C,
    "{call}",
    "Calls whose layers were recorded, by outcome: finite, or non_finite if any number was not.",
    (_span.MODEL_NAME, "outcome"),
)
# Of the latest call that recorded the layer.
_LAYER = (_span.MODEL_NAME, "layer")
LAYER_SPREAD: Final = metric(
    "neuronscope.layer.std", _G, "", "Standard deviation of a layer's output, mean of its runs.", _LAYER
)
LAYER_RANGE: Final = metric(
    "neuronscope.layer.range.used",
    _G,
    "1",
    "Largest magnitude over the largest number its element type can hold: at 1 it overflows.",
    _LAYER,
)
LAYER_ZEROS: Final = metric(
    "neuronscope.layer.zeros", _G, "1", "Share of a layer's output elements that are zero.", _LAYER
)
LAYER_RECORDS: Final = metric(
    "neuronscope.layer.records", _C, "{record}", "Layer records taken.", (_span.MODEL_NAME, _span.FIDELITY)
)
# The process, and its GPUs: names of the semantic conventions for processes and hardware.
PROCESS_CPU: Final = metric("process.cpu.time", _C, "s", "CPU time of the process.", ("cpu.mode",))
PROCESS_MEMORY: Final = metric("process.memory.usage", _G, "By", "Resident memory of the process.")
PROCESS_VIRTUAL: Final = metric("process.memory.virtual", _G, "By", "Address space of the process.")
PROCESS_FILES: Final = metric(
    "process.unix.file_descriptor.count", _G, "{file_descriptor}", "Open file descriptors of the process."
)
PROCESS_THREADS: Final = metric("process.thread.count", _G, "{thread}", "Threads of the process.")
PROCESS_SWITCHES: Final = metric(
    "process.context_switches",
    _C,
    "{context_switch}",
    "Times that the process gave its processor away, or lost it.",
    ("process.context_switch.type",),
)
_GPU = ("hw.id",)
GPU_UTILIZATION: Final = metric(
    "hw.gpu.utilization", _G, "1", "Share of time in which a GPU was at work.", _GPU
)
GPU_MEMORY: Final = metric("hw.gpu.memory.usage", _G, "By", "Memory of a GPU that is in use.", _GPU)
GPU_MEMORY_LIMIT: Final = metric("hw.gpu.memory.limit", _G, "By", "Memory of a GPU.", _GPU)
TEMPERATURE: Final = metric("hw.temperature", _G, "Cel", "Temperature of a GPU.", (*_GPU, "hw.type"))
POWER: Final = metric("hw.power", _G, "W", "Power that a GPU draws.", (*_GPU, "hw.type"))
ENERGY: Final = metric("hw.energy", _C, "J", "Energy that a GPU has used.", (*_GPU, "hw.type"))
TORCH_MEMORY: Final = metric(
    "neuronscope.torch.memory",
    _G,
    "By",
    "Memory of PyTorch's allocator on a GPU: allocated, reserved, or inactive_split (free, but in pieces).",
    (*_GPU, "state"),
)
TORCH_RETRIES: Final = metric(
    "neuronscope.torch.alloc_retries", _C, "{retry}", "Allocations that needed the cache to be emptied.", _GPU
)
TORCH_OOMS: Final = metric(
    "neuronscope.torch.ooms", _C, "{error}", "Allocations for which a GPU had no memory.", _GPU
)
EDITS_ACTIVE: Final = metric(
    "neuronscope.edits.active", _G, "", "1 for a lasting edit that is on in a model, else 0.", ("edit",)
)
# The agent about itself.
OVERHEAD_ACCOUNTED: Final = metric(
    "neuronscope.overhead.accounted", _G, "1", "Accounted cost of observation over observed time."
)
OVERHEAD_BUDGET: Final = metric("neuronscope.overhead.budget", _G, "1", "The budget of the former.")
OVERHEAD_MEASURED: Final = metric(
    "neuronscope.overhead.measured",
    _G,
    "1",
    "Cost of captures over work, by switching them off and on: estimate, low and high end of 95 %.",
    ("bound",),
)
OVERHEAD_MEASURED_BLOCKS: Final = metric(
    "neuronscope.overhead.measured.blocks", _G, "{block}", "Pairs of blocks behind the measurement."
)
OVERHEAD_CAPTURES: Final = metric(
    "neuronscope.overhead.captures", _G, "1", "Accounted cost of captures alone, in the same blocks."
)
OVERHEAD_FACTOR: Final = metric(
    "neuronscope.overhead.factor", _G, "1", "What captures are charged over what their own clocks saw."
)
OVERHEAD_TIME: Final = metric(
    "neuronscope.overhead.time",
    _C,
    "s",
    "Accounted cost of observation, by probe or adapter and where it arose: service or worker.",
    ("probe", "place"),
)
LAYER_RUNS: Final = metric(
    "neuronscope.layer.runs", _C, "{run}", "Runs of watched layers, recorded or not.", ("probe", "outcome")
)
FIDELITY_STATE: Final = metric(
    "neuronscope.fidelity.state", _G, "", "1 for the fidelity in force, else 0.", (_span.FIDELITY,)
)
INTERNAL_ERRORS: Final = metric(
    "neuronscope.internal.errors", _C, "{error}", "Faults of ours that the guard caught.", ("site", "kind")
)
DROPPED: Final = metric(
    "neuronscope.dropped", _C, "{item}", "Items lost, by what and why.", ("item", "reason")
)
EXPORTED: Final = metric(
    "neuronscope.exported", _C, "{item}", "Items handed over for good.", ("item", "exporter")
)
WORKER_CPU: Final = metric("neuronscope.worker.cpu.time", _C, "s", "CPU time of the worker thread.")
QUEUE_BYTES: Final = metric("neuronscope.queue.bytes", _G, "By", "Bytes waiting for the worker.")
TENSOR_BYTES: Final = metric(
    "neuronscope.tensor.bytes", _C, "By", "Bytes of full tensors copied, by probe.", ("probe",)
)
QUEUE_SPANS: Final = metric("neuronscope.queue.spans", _G, "{span}", "Spans waiting for the worker.")
SERIES_FOLDED: Final = metric(
    "neuronscope.series.folded", _C, "{observation}", "Observations folded into `other`.", ("metric",)
)
SERIES: Final = metric("neuronscope.series", _G, "{series}", "Series of each metric.", ("metric",))
SERIES_DROPPED: Final = metric(
    "neuronscope.series.dropped", _C, "{series}", "Series left out because they grew no more.", ("metric",)
)

"""The registry of signals: every attribute, event, metric, unit, bucket list and label NeuronScope emits.

One table, many readers: the engine fills attributes by these constants, the aggregator takes buckets
and labels from here, the Prometheus page and OTLP metrics their names, the reference page its rows.
Whatever is not in this file is not emitted.

Profile: what OpenTelemetry's released GenAI packages emit today — metric names of the semantic
conventions v1.41, the latest span attributes.  Our own live under ``neuronscope.*``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Sensitivity(StrEnum):
    """What the content policy may do with a value.

    `PLAIN` is always recorded; `IDENTIFIER` is recorded, or hashed when the user asks for it;
    `CONTENT` is recorded only when content capture is on.
    """

    PLAIN = "plain"
    IDENTIFIER = "identifier"
    CONTENT = "content"


@dataclass(frozen=True, slots=True)
class Attribute:
    """A span attribute: its key, type, meaning, and how private its value is."""

    key: str
    type: str
    brief: str
    sensitivity: Sensitivity = Sensitivity.PLAIN


@dataclass(frozen=True, slots=True)
class Event:
    """A named log record: its severity as OpenTelemetry's number and word, and its meaning."""

    name: str
    severity: int
    severity_text: str
    brief: str


class Instrument(StrEnum):
    """OpenTelemetry's instrument kinds that we use."""

    HISTOGRAM = "histogram"
    COUNTER = "counter"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True, eq=False)  # one object a metric: looked up by identity, for every span
class Metric:
    """A metric: OTel name, instrument, UCUM unit, labels in order, bucket bounds if a histogram."""

    name: str
    instrument: Instrument
    unit: str
    brief: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def prometheus_name(self) -> str:
        """The family name on the Prometheus page, by OTel's translation rules.

        Source: OpenTelemetry specification, "Prometheus and OpenMetrics compatibility".
        """
        name = self.name.replace(".", "_")
        suffix = _PROMETHEUS_UNITS.get(self.unit, "")
        if suffix and not name.endswith(suffix):
            name += suffix
        return name

    @property
    def prometheus_sample(self) -> str:
        """What its samples are called: a counter's end in ``_total``."""
        return self.prometheus_name + ("_total" if self.instrument is Instrument.COUNTER else "")


def prometheus_label(key: str) -> str:
    """An attribute key as a label name: ``db.collection.name`` becomes ``db_collection_name``."""
    name = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in key)
    if name.startswith("__"):  # reserved by Prometheus
        name = "key" + name
    return name if name and not name[0].isdigit() else f"key_{name}"


_PROMETHEUS_UNITS: Final = {
    "s": "_seconds",
    "By": "_bytes",
    "1": "_ratio",
    "%": "_percent",
    "Cel": "_celsius",
    "W": "_watts",
    "J": "_joules",
}

ATTRIBUTES: dict[str, Attribute] = {}
EVENTS: dict[str, Event] = {}
METRICS: dict[str, Metric] = {}


def _attribute(key: str, type_: str, brief: str, sensitivity: Sensitivity = Sensitivity.PLAIN) -> str:
    ATTRIBUTES[key] = Attribute(key, type_, brief, sensitivity)
    return key


def _event(name: str, severity: int, severity_text: str, brief: str) -> Event:
    event = Event(name, severity, severity_text, brief)
    EVENTS[name] = event
    return event


def _metric(
    name: str,
    instrument: Instrument,
    unit: str,
    brief: str,
    labels: tuple[str, ...] = (),
    buckets: tuple[float, ...] = (),
) -> Metric:
    metric = Metric(name, instrument, unit, brief, labels, buckets)
    METRICS[name] = metric
    return metric


_ID = Sensitivity.IDENTIFIER
_CONTENT = Sensitivity.CONTENT

# --- OpenTelemetry: general ----------------------------------------------------------------------
ERROR_TYPE: Final = _attribute("error.type", "string", "Class of the error, low cardinality.")
SERVER_ADDRESS: Final = _attribute("server.address", "string", "Host of the server called.")
SERVER_PORT: Final = _attribute("server.port", "int", "Port of the server called.")
EXCEPTION_TYPE: Final = _attribute("exception.type", "string", "Type of a recorded exception.")
EXCEPTION_MESSAGE: Final = _attribute("exception.message", "string", "Its message.", _CONTENT)
EXCEPTION_STACKTRACE: Final = _attribute("exception.stacktrace", "string", "Its stack trace.", _CONTENT)

# --- OpenTelemetry: HTTP server ------------------------------------------------------------------
HTTP_REQUEST_METHOD: Final = _attribute("http.request.method", "string", "HTTP method.")
HTTP_ROUTE: Final = _attribute("http.route", "string", "Route template, never the path itself.")
HTTP_RESPONSE_STATUS_CODE: Final = _attribute("http.response.status_code", "int", "HTTP status.")
HTTP_RESEND_COUNT: Final = _attribute("http.request.resend_count", "int", "How often the SDK tried again.")
URL_SCHEME: Final = _attribute("url.scheme", "string", "http or https.")
NETWORK_PROTOCOL_VERSION: Final = _attribute("network.protocol.version", "string", "HTTP version.")

# --- OpenTelemetry: GenAI ------------------------------------------------------------------------
OPERATION_NAME: Final = _attribute("gen_ai.operation.name", "string", "chat, embeddings, retrieval, …")
PROVIDER_NAME: Final = _attribute("gen_ai.provider.name", "string", "Who serves the model.")
REQUEST_MODEL: Final = _attribute("gen_ai.request.model", "string", "Model asked for.")
RESPONSE_MODEL: Final = _attribute("gen_ai.response.model", "string", "Model that answered.")
RESPONSE_ID: Final = _attribute("gen_ai.response.id", "string", "The provider's id of the response.")
FINISH_REASONS: Final = _attribute("gen_ai.response.finish_reasons", "string[]", "Why each choice ended.")
TIME_TO_FIRST_CHUNK: Final = _attribute(
    "gen_ai.response.time_to_first_chunk", "double", "Seconds from the call to the first content chunk."
)
INPUT_TOKENS: Final = _attribute("gen_ai.usage.input_tokens", "int", "Input tokens, cached included.")
OUTPUT_TOKENS: Final = _attribute("gen_ai.usage.output_tokens", "int", "Output tokens, reasoning included.")
CACHE_READ_TOKENS: Final = _attribute(
    "gen_ai.usage.cache_read.input_tokens", "int", "Input tokens read from the provider's cache."
)
CACHE_WRITE_TOKENS: Final = _attribute(
    "gen_ai.usage.cache_write.input_tokens", "int", "Input tokens written to the provider's cache."
)
CACHE_WRITE_1H_TOKENS: Final = _attribute(
    "neuronscope.usage.cache_write_1h.input_tokens", "int", "Those of them that are kept for an hour: dearer."
)
REASONING_TOKENS: Final = _attribute(
    "gen_ai.usage.reasoning.output_tokens", "int", "Output tokens spent on reasoning."
)
REQUEST_STREAM: Final = _attribute("gen_ai.request.stream", "boolean", "Present and true when streaming.")
REQUEST_TEMPERATURE: Final = _attribute("gen_ai.request.temperature", "double", "Sampling temperature.")
REQUEST_TOP_P: Final = _attribute("gen_ai.request.top_p", "double", "Nucleus sampling mass.")
REQUEST_TOP_K: Final = _attribute("gen_ai.request.top_k", "int", "Top-k of decoding.")
REQUEST_MAX_TOKENS: Final = _attribute("gen_ai.request.max_tokens", "int", "Output token limit.")
REQUEST_SEED: Final = _attribute("gen_ai.request.seed", "int", "Sampling seed.")
REQUEST_FREQUENCY_PENALTY: Final = _attribute(
    "gen_ai.request.frequency_penalty", "double", "Penalty for tokens by how often they came already."
)
REQUEST_PRESENCE_PENALTY: Final = _attribute(
    "gen_ai.request.presence_penalty", "double", "Penalty for tokens that came already."
)
REQUEST_STOP_SEQUENCES: Final = _attribute(
    "gen_ai.request.stop_sequences", "string[]", "Texts at which decoding ends.", _CONTENT
)
REQUEST_CHOICE_COUNT: Final = _attribute("gen_ai.request.choice.count", "int", "Choices asked, if not 1.")
REQUEST_ENCODING_FORMATS: Final = _attribute(
    "gen_ai.request.encoding_formats", "string[]", "How vectors come: float, base64, …"
)
OUTPUT_TYPE: Final = _attribute("gen_ai.output.type", "string", "text, json, image or speech.")
EMBEDDING_DIMENSIONS: Final = _attribute("gen_ai.embeddings.dimension.count", "int", "Length of a vector.")
CONVERSATION_ID: Final = _attribute("gen_ai.conversation.id", "string", "Conversation, if given.", _ID)
SYSTEM_INSTRUCTIONS: Final = _attribute("gen_ai.system_instructions", "any", "System prompt.", _CONTENT)
INPUT_MESSAGES: Final = _attribute("gen_ai.input.messages", "any", "Messages sent.", _CONTENT)
OUTPUT_MESSAGES: Final = _attribute("gen_ai.output.messages", "any", "Messages received.", _CONTENT)
TOOL_DEFINITIONS: Final = _attribute("gen_ai.tool.definitions", "any", "Tools offered.", _CONTENT)
RETRIEVAL_QUERY_TEXT: Final = _attribute("gen_ai.retrieval.query.text", "string", "The query.", _CONTENT)
RETRIEVAL_DOCUMENTS: Final = _attribute("gen_ai.retrieval.documents", "any", "Hits with text.", _CONTENT)
DATA_SOURCE_ID: Final = _attribute("gen_ai.data_source.id", "string", "Collection searched.", _ID)
RETRIEVAL_TOP_K: Final = _attribute("gen_ai.retrieval.top_k", "int", "Hits asked for.")
OPENAI_API_TYPE: Final = _attribute("openai.api.type", "string", "chat_completions or responses.")
OPENAI_REQUEST_SERVICE_TIER: Final = _attribute("openai.request.service_tier", "string", "Tier asked.")
OPENAI_RESPONSE_SERVICE_TIER: Final = _attribute("openai.response.service_tier", "string", "Tier used.")
OPENAI_FINGERPRINT: Final = _attribute("openai.response.system_fingerprint", "string", "Backend id.")
WORKFLOW_NAME: Final = _attribute("gen_ai.workflow.name", "string", "A framework's chain or query engine.")
WORKFLOW_STEP: Final = _attribute(
    "neuronscope.workflow.step", "string", "The step of a workflow, or the node of a graph, that was run."
)
AGENT_NAME: Final = _attribute("gen_ai.agent.name", "string", "The agent's name.")
TOOL_NAME: Final = _attribute("gen_ai.tool.name", "string", "The tool that was run.")
TOOL_TYPE: Final = _attribute("gen_ai.tool.type", "string", "function, extension or datastore.")
TOOL_CALL_ID: Final = _attribute("gen_ai.tool.call.id", "string", "The model's id of its call of the tool.")
TOOL_ARGUMENTS: Final = _attribute("gen_ai.tool.call.arguments", "any", "What it was given.", _CONTENT)
TOOL_RESULT: Final = _attribute("gen_ai.tool.call.result", "any", "What it gave back.", _CONTENT)
DOCUMENTS_RETURNED: Final = _attribute(
    "neuronscope.documents.returned", "int", "Documents that a framework's retriever returned."
)
AWS_REQUEST_ID: Final = _attribute("aws.request_id", "string", "AWS's id of the request.")
BEDROCK_GUARDRAIL: Final = _attribute("aws.bedrock.guardrail.id", "string", "Guardrail in force.", _ID)
REASONING_LEVEL: Final = _attribute("gen_ai.request.reasoning.level", "string", "Effort asked for.")
PREVIOUS_RESPONSE_ID: Final = _attribute(
    "gen_ai.request.previous_response.id", "string", "The response that this request continues."
)
STREAM_CURSOR: Final = _attribute("gen_ai.request.stream_cursor", "string", "Where a stream is taken up.")
PROMPT_NAME: Final = _attribute("gen_ai.prompt.name", "string", "The provider's stored prompt.")
PROMPT_VERSION: Final = _attribute("gen_ai.prompt.version", "string", "Its version.")
CONVERSATION_COMPACTED: Final = _attribute(
    "gen_ai.conversation.compacted", "boolean", "Present and true when the provider shortened the history."
)
RESPONSE_STATUS: Final = _attribute(
    "gen_ai.response.status", "string", "State of a response that was fetched: queued, completed, …"
)
TEXT_INPUT_TOKENS: Final = _attribute("gen_ai.usage.text.input_tokens", "int", "Input tokens of text.")
IMAGE_INPUT_TOKENS: Final = _attribute("gen_ai.usage.image.input_tokens", "int", "Input tokens of images.")
AUDIO_INPUT_TOKENS: Final = _attribute("gen_ai.usage.audio.input_tokens", "int", "Input tokens of sound.")
TEXT_OUTPUT_TOKENS: Final = _attribute("gen_ai.usage.text.output_tokens", "int", "Output tokens of text.")
IMAGE_OUTPUT_TOKENS: Final = _attribute("gen_ai.usage.image.output_tokens", "int", "Output tokens of images.")
AUDIO_OUTPUT_TOKENS: Final = _attribute("gen_ai.usage.audio.output_tokens", "int", "Output tokens of sound.")

# --- OpenTelemetry: databases --------------------------------------------------------------------
DB_SYSTEM: Final = _attribute("db.system.name", "string", "The store: qdrant, chroma, …")
DB_COLLECTION: Final = _attribute("db.collection.name", "string", "Collection or table.", _ID)
DB_NAMESPACE: Final = _attribute("db.namespace", "string", "Database, namespace or tenant.", _ID)
DB_OPERATION: Final = _attribute("db.operation.name", "string", "The client's own method name.")
DB_QUERY_SUMMARY: Final = _attribute(
    "db.query.summary", "string", "Operation and target of a statement, nothing else of its text.", _ID
)
DB_BATCH_SIZE: Final = _attribute("db.operation.batch.size", "int", "Queries in one batch call.")
DB_RETURNED_ROWS: Final = _attribute("db.response.returned_rows", "int", "Rows returned.")

# --- NeuronScope ---------------------------------------------------------------------------------
SCOPE_NAME: Final = _attribute("neuronscope.scope.name", "string", "Name of the ns.Scope.")
STREAM_END: Final = _attribute(
    "neuronscope.stream.end", "string", "complete, client_closed, cancelled, error or abandoned."
)
STREAM_CHUNKS: Final = _attribute("neuronscope.stream.chunks", "int", "Chunks the service received.")
INPUT_MESSAGE_COUNT: Final = _attribute("neuronscope.input.messages.count", "int", "Messages sent.")
INPUT_COUNT: Final = _attribute("neuronscope.input.count", "int", "Inputs of one embedding call.")
OUTPUT_COUNT: Final = _attribute("neuronscope.output.count", "int", "Images or other things received.")
OUTPUT_BYTES: Final = _attribute("neuronscope.output.bytes", "int", "Bytes of sound received.")
AUDIO_SECONDS: Final = _attribute("neuronscope.audio.duration", "double", "Seconds of sound billed.")
TOOLS_OFFERED: Final = _attribute("neuronscope.tools.offered", "string[]", "Names of tools in the request.")
TOOLS_CALLED: Final = _attribute("neuronscope.tools.called", "string[]", "Names of tools the model called.")
REFUSED: Final = _attribute("neuronscope.response.refused", "boolean", "The model refused to answer.")
LOGPROBS: Final = _attribute("neuronscope.response.logprobs", "boolean", "The answer has log probabilities.")
BACKGROUND: Final = _attribute("neuronscope.request.background", "boolean", "The answer is fetched later.")
FETCHED_INPUT_TOKENS: Final = _attribute(
    "neuronscope.fetched.input_tokens", "int", "Input tokens of a fetched response; never in metrics."
)
FETCHED_OUTPUT_TOKENS: Final = _attribute(
    "neuronscope.fetched.output_tokens", "int", "Output tokens of a fetched response; never in metrics."
)
COST: Final = _attribute(
    "neuronscope.cost.usd", "double", "US dollars for the call, by the price table; absent if not known."
)
COST_PRICES: Final = _attribute("neuronscope.cost.prices", "string", "Version of the price table.")
MODERATION_FLAGGED: Final = _attribute("neuronscope.moderation.flagged", "boolean", "Any input was flagged.")
MODERATION_CATEGORIES: Final = _attribute(
    "neuronscope.moderation.categories", "string[]", "Categories that were flagged."
)
REQUEST_ID: Final = _attribute("neuronscope.response.request_id", "string", "The provider's id of the call.")
RATE_LIMIT_REQUESTS: Final = _attribute(
    "neuronscope.rate_limit.requests.limit", "int", "Requests allowed in the provider's current window."
)
RATE_LIMIT_REQUESTS_LEFT: Final = _attribute(
    "neuronscope.rate_limit.requests.remaining", "int", "Requests left in it."
)
RATE_LIMIT_TOKENS: Final = _attribute(
    "neuronscope.rate_limit.tokens.limit", "int", "Tokens allowed in the provider's current window."
)
RATE_LIMIT_TOKENS_LEFT: Final = _attribute(
    "neuronscope.rate_limit.tokens.remaining", "int", "Tokens left in it."
)
PROMPT_CHARACTERS: Final = _attribute(
    "neuronscope.prompt.characters", "int", "Characters of the messages, or of the inputs to embed."
)
PROMPT_CHECKSUM: Final = _attribute(
    "neuronscope.prompt.checksum", "int", "12 bits of a checksum of them: one text in 4,096 has the same."
)
PROMPT_PIECES: Final = _attribute(
    "neuronscope.prompt.pieces", "int[]", "Checksums of 12 bits of a prompt's lines and labels, in order."
)
HASH_KEY: Final = _attribute(
    "neuronscope.hash.key", "string", "Which key these checksums and fingerprints have; absent without one."
)
PROMPT_DOCUMENTS_RETRIEVED: Final = _attribute(
    "neuronscope.prompt.documents.retrieved", "int", "Documents that searches in the same trace had found."
)
PROMPT_DOCUMENTS_WHOLE: Final = _attribute(
    "neuronscope.prompt.documents.whole", "int", "Of those, how many the prompt holds."
)
PROMPT_DOCUMENTS_CUT: Final = _attribute(
    "neuronscope.prompt.documents.cut", "int", "And of how many the beginning without the end."
)
SYSTEM_FINGERPRINT: Final = _attribute(
    "neuronscope.system.fingerprint", "string", "The system prompt's, of 64 bits."
)
SYSTEM_CHARACTERS: Final = _attribute("neuronscope.system.characters", "int", "Characters of that prompt.")
TOOLS_FINGERPRINT: Final = _attribute(
    "neuronscope.tools.fingerprint", "string", "The tool definitions', of 64 bits."
)
STREAM_CONSUMER: Final = _attribute(
    "neuronscope.stream.consumer.duration",
    "double",
    "Seconds of a stream in which the service, not the provider, was waited for; from every so many chunks.",
)
TENANT: Final = _attribute(
    "neuronscope.tenant", "string", "For whom the call was made, if the service tells.", _ID
)
BACKGROUND_DURATION: Final = _attribute(
    "neuronscope.background.duration", "double", "Seconds of work after the answer had been sent."
)
FIDELITY: Final = _attribute("neuronscope.fidelity", "string", "Fidelity the governor allowed.")
FIDELITY_REASON: Final = _attribute("neuronscope.fidelity.reason", "string", "Why it is not full.")
RETRIEVAL_IDS: Final = _attribute("neuronscope.retrieval.ids", "string[]", "Document ids, best first.", _ID)
RETRIEVAL_SCORES: Final = _attribute("neuronscope.retrieval.scores", "double[]", "Scores as returned.")
RETRIEVAL_TOP_SCORE: Final = _attribute("neuronscope.retrieval.top_score", "double", "Best score.")
RETRIEVAL_KTH_SCORE: Final = _attribute("neuronscope.retrieval.kth_score", "double", "Worst returned score.")
RETRIEVAL_MARGIN: Final = _attribute(
    "neuronscope.retrieval.margin",
    "double",
    "How far the best hit stands out: (best - worst) / |best|; of distances, over the worst.",
)
RETRIEVAL_RETURNED: Final = _attribute("neuronscope.retrieval.returned", "int", "Hits returned.")
RETRIEVAL_EMPTY: Final = _attribute("neuronscope.retrieval.empty", "boolean", "No hit at all.")
RETRIEVAL_FILTERED: Final = _attribute("neuronscope.retrieval.filtered", "boolean", "A filter was given.")
RETRIEVAL_METRIC: Final = _attribute(
    "neuronscope.retrieval.metric", "string", "How scores read: cosine, cosine_distance, euclid, rrf, …"
)
RETRIEVAL_STAGES: Final = _attribute(
    "neuronscope.retrieval.stages", "string[]", "Steps of the search in order: dense, sparse:words, rrf, …"
)
RETRIEVAL_STAGES_K: Final = _attribute(
    "neuronscope.retrieval.stages.k", "int[]", "Hits that each step hands on; 0 if the request does not say."
)
RETRIEVAL_METADATA_KEYS: Final = _attribute(
    "neuronscope.retrieval.metadata.keys", "string[]", "Metadata keys of the hits, values never."
)
RERANK_TOP_WAS: Final = _attribute(
    "neuronscope.rerank.top_was", "int", "Rank that the best document had before the reranking, from 0."
)
RERANK_SHIFT: Final = _attribute(
    "neuronscope.rerank.shift", "double", "Mean number of ranks that documents moved; 0: order kept."
)
RERANK_ORDER: Final = _attribute(
    "neuronscope.rerank.order", "int[]", "Ranks that the documents returned had before, best first, from 0."
)
QUERY_DIMENSION: Final = _attribute("neuronscope.query.dimension", "int", "Length of the query vector.")
QUERY_NORM: Final = _attribute("neuronscope.query.norm", "double", "L2 norm of the query vector.")
QUERY_DTYPE: Final = _attribute("neuronscope.query.dtype", "string", "Element type of the query vector.")
QUERY_FINGERPRINT: Final = _attribute(
    "neuronscope.query.fingerprint",
    "string",
    "64-bit SimHash of the query vector: alike vectors, alike bits.",
)
QUERY_VECTOR: Final = _attribute("neuronscope.query.vector", "double[]", "The query vector.", _CONTENT)
QUERY_COUNT: Final = _attribute("neuronscope.query.count", "int", "Queries of one call.")
QUERY_INDEX: Final = _attribute("neuronscope.query.index", "int", "Position of a query in its batch, from 0.")
EMBEDDER_FINGERPRINT: Final = _attribute(
    "neuronscope.embedder.fingerprint", "string", "The embedder that made the query vector, by its answers."
)
WRITE_COUNT: Final = _attribute("neuronscope.write.count", "int", "Points written, if the call tells.")
MODEL_NAME: Final = _attribute("neuronscope.model.name", "string", "Name of the in-process model.")
MODEL_FORWARDS: Final = _attribute("neuronscope.model.forwards", "int", "Forward passes of the call.")
MODEL_QUEUE: Final = _attribute("neuronscope.model.queue.duration", "double", "Seconds waited to be run.")
MODEL_PREFILL: Final = _attribute("neuronscope.model.prefill.duration", "double", "Seconds of prefill.")
MODEL_DECODE: Final = _attribute("neuronscope.model.decode.duration", "double", "Seconds of decoding.")
MODEL_DECODE_RATE: Final = _attribute("neuronscope.model.decode.tokens_per_second", "double", "Decode speed.")
MODEL_BATCH: Final = _attribute("neuronscope.model.batch_size", "int", "Rows of the model call.")
MODEL_STEP_MEDIAN: Final = _attribute(
    "neuronscope.model.decode.step.median",
    "double",
    "Seconds of a generation's median step after its prefill.",
)
MODEL_STEP_MAX: Final = _attribute(
    "neuronscope.model.decode.step.max", "double", "Seconds of its slowest step after the prefill."
)
MODEL_STEP_SLOWEST: Final = _attribute(
    "neuronscope.model.decode.step.slowest", "int", "Which that is, from 1."
)
GENERATION_CONFIG: Final = _attribute(
    "neuronscope.generation.config.fingerprint", "string", "Of the generation settings in force."
)
PIPELINE_TASK: Final = _attribute("neuronscope.pipeline.task", "string", "What a pipeline is for.")
TOKENIZER_TOKENS: Final = _attribute(
    "neuronscope.tokenizer.tokens", "int", "Tokens that a tokenizer made or read, without padding it made."
)
MODEL_FINGERPRINT: Final = _attribute(
    "neuronscope.model.fingerprint", "string", "Of the file that the model was loaded from."
)
MODEL_PROVIDERS: Final = _attribute(
    "neuronscope.model.providers", "string[]", "What an ONNX Runtime session runs on, in order of preference."
)
MODEL_INPUTS: Final = _attribute(
    "neuronscope.model.inputs", "string[]", "Names, element types and shapes of a run's inputs, never values."
)
MODEL_OUTPUTS: Final = _attribute(
    "neuronscope.model.outputs", "string[]", "Names, element types and shapes of a run's outputs."
)
MODEL_EPOCHS: Final = _attribute("neuronscope.model.epochs", "int", "Epochs that a training call ran.")
MODEL_STEPS: Final = _attribute(
    "neuronscope.model.steps", "int", "Batches that a call of a trainer went through."
)
MODEL_LOSS: Final = _attribute(
    "neuronscope.model.loss", "double", "Loss of the last epoch, or of an evaluation."
)
EDITS: Final = _attribute("neuronscope.edits", "string[]", "Lasting edits that took part, as name@version.")
PLAN: Final = _attribute("neuronscope.plan", "string", "The intervention that was run, as JSON.")
LAYERS_OBSERVED: Final = _attribute("neuronscope.layers.observed", "int", "Layers that were recorded.")
LAYERS_RECORDS: Final = _attribute("neuronscope.layers.records", "int", "Layer records taken in this call.")
LAYERS_SKIPPED: Final = _attribute(
    "neuronscope.layers.skipped", "int", "Layer runs not recorded; neuronscope.fidelity.reason says why."
)
LAYERS_COVERAGE: Final = _attribute(
    "neuronscope.layers.coverage", "double[]", "Share of a layer's runs that was recorded, if not all were."
)
LAYERS_MEAN_ERROR: Final = _attribute(
    "neuronscope.layers.mean.error", "double[]", "Half the 95 % interval of each mean, if runs are missing."
)
LAYERS_NOT_RECORDED: Final = _attribute(
    "neuronscope.layers.not_recorded", "string[]", "Layers that ran and were never recorded in this call."
)
SAMPLING_WEIGHT: Final = _attribute(
    "neuronscope.sampling.weight", "double", "How many traces this one of the `.nsz` file stands for."
)
SAMPLING_REASON: Final = _attribute(
    "neuronscope.sampling.reason", "string", "Why the trace was kept: error, slow, …, or random."
)
LAYERS_NOT_VISITED: Final = _attribute(
    "neuronscope.layers.not_visited", "string[]", "Watched layers that never ran, with the reason."
)
LAYERS_IDS: Final = _attribute("neuronscope.layers.ids", "string[]", "Layers, in order, of the aggregates.")
LAYERS_MEAN: Final = _attribute("neuronscope.layers.mean", "double[]", "Mean per layer over the call.")
LAYERS_STD: Final = _attribute("neuronscope.layers.std", "double[]", "Standard deviation per layer.")
LAYERS_ABS_MAX: Final = _attribute("neuronscope.layers.abs_max", "double[]", "Largest modulus per layer.")
MODEL_ADAPTERS: Final = _attribute("neuronscope.model.adapters", "string[]", "Active PEFT adapters.")
MODEL_ADAPTERS_MERGED: Final = _attribute(
    "neuronscope.model.adapters.merged", "boolean", "Their weights have been added to the model's."
)
MODEL_WRAPPERS: Final = _attribute(
    "neuronscope.model.wrappers", "string[]", "What the model is distributed or compiled by, outermost first."
)
MODEL_WEIGHTS: Final = _attribute(
    "neuronscope.model.weights", "string", "Fingerprint of the weights, from a sample of each parameter."
)
MODEL_DTYPE: Final = _attribute("neuronscope.model.dtype", "string", "Element type of most of the weights.")
MODEL_QUANTIZATION: Final = _attribute("neuronscope.model.quantization", "string", "How weights are stored.")
MODEL_KERNELS: Final = _attribute(
    "neuronscope.model.kernels",
    "string[]",
    "What rounds differently: attention's kernel, threads, precision of products.",
)
SUMMARY_KERNEL: Final = _attribute(
    "neuronscope.summary.kernel", "string", "What computes tensor summaries here: compiled, or why not."
)
LAYERS_NON_FINITE: Final = _attribute("neuronscope.layers.non_finite", "int", "NaN and Inf, all layers.")
PACKAGES: Final = _attribute(
    "neuronscope.packages", "string[]", "Of the resource: installed libraries around models, with versions."
)
GPUS: Final = _attribute("neuronscope.gpus", "string[]", "Of the resource: graphics processors, by name.")
GPU_DRIVER: Final = _attribute("neuronscope.gpu.driver", "string", "Of the resource: their driver.")
HOST_CPUS: Final = _attribute("neuronscope.host.cpus", "int", "Of the resource: processors to run on.")
TRUNCATED: Final = _attribute("neuronscope.truncated", "string[]", "Attributes shortened to fit limits.")
MASKED: Final = _attribute("neuronscope.masked", "string[]", "Attributes that a redactor's failure masked.")
ATTRIBUTION: Final = _attribute("neuronscope.attribution", "string", "How an observation found its span.")

# --- Events --------------------------------------------------------------------------------------
INFERENCE_DETAILS: Final = _event(
    "gen_ai.client.inference.operation.details",
    5,
    "DEBUG",
    "A finished inference: the attributes of its span, content among them.",
)
OPERATION_EXCEPTION: Final = _event(
    "gen_ai.client.operation.exception", 13, "WARN", "The exception that a GenAI call raised."
)
DRIFT: Final = _event(
    "neuronscope.drift", 13, "WARN", "Retrieval is not as in its baseline: what changed, by which evidence."
)

# On the span of a batch, one for each of its queries: the attributes that the span of a single query has.
RETRIEVAL_QUERY: Final = "neuronscope.retrieval.query"

# --- Metrics -------------------------------------------------------------------------------------
# Bucket bounds of the semantic conventions v1.41.
SECONDS: Final = tuple(0.01 * 2**i for i in range(14))
TOKENS: Final = tuple(float(4**i) for i in range(14))
DB_SECONDS: Final = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
HTTP_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
SCORES: Final = tuple(round(0.05 * i, 2) for i in range(-20, 21))
RATIOS: Final = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)

_GENAI = (OPERATION_NAME, PROVIDER_NAME, REQUEST_MODEL, RESPONSE_MODEL, SERVER_ADDRESS, SERVER_PORT)
_H, _C, _G = Instrument.HISTOGRAM, Instrument.COUNTER, Instrument.GAUGE
TOKEN_TYPE: Final = "gen_ai.token.type"

TOKEN_USAGE: Final = _metric(
    "gen_ai.client.token.usage",
    _H,
    "{token}",
    "Tokens per call; not reported when unknown.",
    (OPERATION_NAME, PROVIDER_NAME, TOKEN_TYPE, REQUEST_MODEL, RESPONSE_MODEL, SERVER_ADDRESS, SERVER_PORT),
    TOKENS,
)
OPERATION_DURATION: Final = _metric(
    "gen_ai.client.operation.duration", _H, "s", "Duration of a GenAI call.", (*_GENAI, ERROR_TYPE), SECONDS
)
FIRST_CHUNK: Final = _metric(
    "gen_ai.client.operation.time_to_first_chunk", _H, "s", "Time to the first chunk.", _GENAI, SECONDS
)
PER_CHUNK: Final = _metric(
    "gen_ai.client.operation.time_per_output_chunk", _H, "s", "Gaps between chunks.", _GENAI, SECONDS
)
COST_TOTAL: Final = _metric(
    "neuronscope.cost.usd",
    _C,
    "{USD}",
    "US dollars for calls whose price is known.",
    (PROVIDER_NAME, REQUEST_MODEL, RESPONSE_MODEL),
)
UNPRICED: Final = _metric(
    "neuronscope.cost.unpriced",
    _C,
    "{call}",
    "Calls with tokens and without a known price.",
    (PROVIDER_NAME, REQUEST_MODEL, RESPONSE_MODEL),
)
TENANT_CALLS: Final = _metric("neuronscope.tenant.calls", _C, "{call}", "GenAI calls by tenant.", (TENANT,))
TENANT_TOKENS: Final = _metric(
    "neuronscope.tenant.tokens", _C, "{token}", "Tokens by tenant, as billed.", (TENANT, TOKEN_TYPE)
)
TENANT_COST: Final = _metric(
    "neuronscope.tenant.cost.usd", _C, "{USD}", "US dollars by tenant, of calls with known price.", (TENANT,)
)
DB_DURATION: Final = _metric(
    "db.client.operation.duration",
    _H,
    "s",
    "Duration of a vector store call.",
    (DB_SYSTEM, DB_COLLECTION, DB_OPERATION, ERROR_TYPE, SERVER_ADDRESS, SERVER_PORT),
    DB_SECONDS,
)
HTTP_DURATION: Final = _metric(
    "http.server.request.duration",
    _H,
    "s",
    "Duration of an HTTP request served.",
    (HTTP_REQUEST_METHOD, HTTP_ROUTE, HTTP_RESPONSE_STATUS_CODE, URL_SCHEME, ERROR_TYPE),
    HTTP_SECONDS,
)
_RETRIEVAL = (DB_SYSTEM, DB_COLLECTION, RETRIEVAL_METRIC, RETRIEVAL_TOP_K)
NORMS: Final = (0.0, 0.5, 0.9, 0.99, 0.999, 1.001, 1.01, 1.1, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
TOP_SCORE: Final = _metric(
    "neuronscope.retrieval.top_score", _H, "", "Best score of a query; more is better.", _RETRIEVAL, SCORES
)
KTH_SCORE: Final = _metric(
    "neuronscope.retrieval.kth_score",
    _H,
    "",
    "Worst returned score of a query; more is better.",
    _RETRIEVAL,
    SCORES,
)
RETURNED_SHARE: Final = _metric(
    "neuronscope.retrieval.returned.share", _H, "1", "Hits returned over hits asked for.", _RETRIEVAL, RATIOS
)
QUERY_NORM_METRIC: Final = _metric(
    "neuronscope.query.norm", _H, "", "L2 norm of query vectors.", _RETRIEVAL, NORMS
)
MARGIN: Final = _metric("neuronscope.retrieval.margin", _H, "", "Relative margin.", _RETRIEVAL, RATIOS)
RETRIEVALS: Final = _metric("neuronscope.retrieval.queries", _C, "{query}", "Queries.", _RETRIEVAL)
RETRIEVALS_EMPTY: Final = _metric(
    "neuronscope.retrieval.empty", _C, "{query}", "Queries without any hit.", _RETRIEVAL
)
POINTS_WRITTEN: Final = _metric(
    "neuronscope.store.writes",
    _C,
    "{point}",
    "Points written or removed, by calls that tell.",
    (DB_SYSTEM, DB_COLLECTION, DB_OPERATION),
)
_PLACE = (DB_SYSTEM, DB_COLLECTION)
DRIFT_ACTIVE: Final = _metric(
    "neuronscope.drift.active", _G, "", "1 while a finding about a collection lasts.", (*_PLACE, "kind")
)
DRIFT_STATISTIC: Final = _metric(
    "neuronscope.drift.statistic",
    _G,
    "",
    "How far the latest window is from the baseline.",
    (*_PLACE, "feature", "statistic"),
)
DRIFT_THRESHOLD: Final = _metric(
    "neuronscope.drift.threshold",
    _G,
    "",
    "What that statistic may be, for samples of these sizes.",
    (*_PLACE, "feature", "statistic"),
)
DRIFT_WINDOW: Final = _metric(
    "neuronscope.drift.window", _G, "{query}", "Distinct queries of the latest window.", _PLACE
)
DRIFT_WINDOWS: Final = _metric(
    "neuronscope.drift.windows", _C, "{window}", "Windows compared with the baseline.", _PLACE
)
CANARY_OVERLAP: Final = _metric(
    "neuronscope.canary.overlap", _G, "1", "Share of their stored hits that canaries find again.", ("canary",)
)
CANARY_LIMIT: Final = _metric(
    "neuronscope.canary.limit", _G, "1", "The overlap below which it is no accident.", ("canary",)
)
CANARY_RBO: Final = _metric(
    "neuronscope.canary.rbo", _G, "", "Mean rank-biased overlap of canaries with stored hits.", ("canary",)
)
CANARY_REPLAYS: Final = _metric(
    "neuronscope.canary.replays", _C, "{replay}", "Replays of canaries, by outcome.", ("canary", "outcome")
)
EMBEDDER_COSINE: Final = _metric(
    "neuronscope.embedder.self_cosine",
    _G,
    "",
    "Least cosine of a probe text's vector with its stored one.",
    ("embedder",),
)
EMBEDDER_INFO: Final = _metric(
    "neuronscope.embedder.info",
    _G,
    "",
    "1 for an embedder's present fingerprint, 0 for earlier ones.",
    ("embedder", "fingerprint"),
)
EMBEDDERS_SEEN: Final = _metric(
    "neuronscope.retrieval.embedders",
    _G,
    "{embedder}",
    "Embedders that query a collection: more than one is a fault.",
    _PLACE,
)
INDEX_COSINE: Final = _metric(
    "neuronscope.index.self_cosine", _G, "", "Median cosine of stored vectors with fresh ones.", ("index",)
)
CHECKS_CPU: Final = _metric(
    "neuronscope.checks.cpu.time", _C, "s", "CPU time of canaries and fingerprints; outside the budget."
)
# Edges where objectives are set, which the conventions' buckets do not have.
STAGE_SECONDS: Final = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0),
)
STAGE_DURATION: Final = _metric(
    "neuronscope.stage.duration",
    _H,
    "s",
    "Duration of a stage: embed, search, rerank, first_chunk, generate, queue, prefill, decode or request.",
    ("stage", ERROR_TYPE),
    STAGE_SECONDS,
)
PREFILL_SECONDS: Final = _metric(
    "neuronscope.model.prefill.duration",
    _H,
    "s",
    "Prefill of an in-process model call.",
    (MODEL_NAME,),
    SECONDS,
)
DECODE_SECONDS: Final = _metric(
    "neuronscope.model.decode.duration",
    _H,
    "s",
    "Decoding of an in-process model call.",
    (MODEL_NAME,),
    SECONDS,
)
NON_FINITE: Final = _metric(
    "neuronscope.model.non_finite", _C, "{element}", "NaN and Inf seen in layers.", (MODEL_NAME,)
)
MODEL_CALLS: Final = _metric(
    "neuronscope.model.calls",
    _C,
    "{call}",
    "Calls whose layers were recorded, by outcome: finite, or non_finite if any number was not.",
    (MODEL_NAME, "outcome"),
)
# Of the latest call that recorded the layer.
_LAYER = (MODEL_NAME, "layer")
LAYER_SPREAD: Final = _metric(
    "neuronscope.layer.std", _G, "", "Standard deviation of a layer's output, mean of its runs.", _LAYER
)
LAYER_RANGE: Final = _metric(
    "neuronscope.layer.range.used",
    _G,
    "1",
    "Largest magnitude over the largest number its element type can hold: at 1 it overflows.",
    _LAYER,
)
LAYER_ZEROS: Final = _metric(
    "neuronscope.layer.zeros", _G, "1", "Share of a layer's output elements that are zero.", _LAYER
)
LAYER_RECORDS: Final = _metric(
    "neuronscope.layer.records", _C, "{record}", "Layer records taken.", (MODEL_NAME, FIDELITY)
)
# The process, and its GPUs: names of the semantic conventions for processes and hardware.
PROCESS_CPU: Final = _metric("process.cpu.time", _C, "s", "CPU time of the process.", ("cpu.mode",))
PROCESS_MEMORY: Final = _metric("process.memory.usage", _G, "By", "Resident memory of the process.")
PROCESS_VIRTUAL: Final = _metric("process.memory.virtual", _G, "By", "Address space of the process.")
PROCESS_FILES: Final = _metric(
    "process.unix.file_descriptor.count", _G, "{file_descriptor}", "Open file descriptors of the process."
)
PROCESS_THREADS: Final = _metric("process.thread.count", _G, "{thread}", "Threads of the process.")
PROCESS_SWITCHES: Final = _metric(
    "process.context_switches",
    _C,
    "{context_switch}",
    "Times that the process gave its processor away, or lost it.",
    ("process.context_switch.type",),
)
_GPU = ("hw.id",)
GPU_UTILIZATION: Final = _metric(
    "hw.gpu.utilization", _G, "1", "Share of time in which a GPU was at work.", _GPU
)
GPU_MEMORY: Final = _metric("hw.gpu.memory.usage", _G, "By", "Memory of a GPU that is in use.", _GPU)
GPU_MEMORY_LIMIT: Final = _metric("hw.gpu.memory.limit", _G, "By", "Memory of a GPU.", _GPU)
TEMPERATURE: Final = _metric("hw.temperature", _G, "Cel", "Temperature of a GPU.", (*_GPU, "hw.type"))
POWER: Final = _metric("hw.power", _G, "W", "Power that a GPU draws.", (*_GPU, "hw.type"))
ENERGY: Final = _metric("hw.energy", _C, "J", "Energy that a GPU has used.", (*_GPU, "hw.type"))
TORCH_MEMORY: Final = _metric(
    "neuronscope.torch.memory",
    _G,
    "By",
    "Memory of PyTorch's allocator on a GPU: allocated, reserved, or inactive_split (free, but in pieces).",
    (*_GPU, "state"),
)
TORCH_RETRIES: Final = _metric(
    "neuronscope.torch.alloc_retries", _C, "{retry}", "Allocations that needed the cache to be emptied.", _GPU
)
TORCH_OOMS: Final = _metric(
    "neuronscope.torch.ooms", _C, "{error}", "Allocations for which a GPU had no memory.", _GPU
)
EDITS_ACTIVE: Final = _metric(
    "neuronscope.edits.active", _G, "", "1 for a lasting edit that is on in a model, else 0.", ("edit",)
)
# The agent about itself.
OVERHEAD_ACCOUNTED: Final = _metric(
    "neuronscope.overhead.accounted", _G, "1", "Accounted cost of observation over observed time."
)
OVERHEAD_BUDGET: Final = _metric("neuronscope.overhead.budget", _G, "1", "The budget of the former.")
OVERHEAD_MEASURED: Final = _metric(
    "neuronscope.overhead.measured",
    _G,
    "1",
    "Cost of captures over work, by switching them off and on: estimate, low and high end of 95 %.",
    ("bound",),
)
OVERHEAD_MEASURED_BLOCKS: Final = _metric(
    "neuronscope.overhead.measured.blocks", _G, "{block}", "Pairs of blocks behind the measurement."
)
OVERHEAD_CAPTURES: Final = _metric(
    "neuronscope.overhead.captures", _G, "1", "Accounted cost of captures alone, in the same blocks."
)
OVERHEAD_FACTOR: Final = _metric(
    "neuronscope.overhead.factor", _G, "1", "What captures are charged over what their own clocks saw."
)
OVERHEAD_TIME: Final = _metric(
    "neuronscope.overhead.time",
    _C,
    "s",
    "Accounted cost of observation, by probe or adapter and where it arose: service or worker.",
    ("probe", "place"),
)
LAYER_RUNS: Final = _metric(
    "neuronscope.layer.runs", _C, "{run}", "Runs of watched layers, recorded or not.", ("probe", "outcome")
)
FIDELITY_STATE: Final = _metric(
    "neuronscope.fidelity.state", _G, "", "1 for the fidelity in force, else 0.", (FIDELITY,)
)
INTERNAL_ERRORS: Final = _metric(
    "neuronscope.internal.errors", _C, "{error}", "Faults of ours that the guard caught.", ("site", "kind")
)
DROPPED: Final = _metric(
    "neuronscope.dropped", _C, "{item}", "Items lost, by what and why.", ("item", "reason")
)
EXPORTED: Final = _metric(
    "neuronscope.exported", _C, "{item}", "Items handed over for good.", ("item", "exporter")
)
WORKER_CPU: Final = _metric("neuronscope.worker.cpu.time", _C, "s", "CPU time of the worker thread.")
QUEUE_BYTES: Final = _metric("neuronscope.queue.bytes", _G, "By", "Bytes waiting for the worker.")
TENSOR_BYTES: Final = _metric(
    "neuronscope.tensor.bytes", _C, "By", "Bytes of full tensors copied, by probe.", ("probe",)
)
QUEUE_SPANS: Final = _metric("neuronscope.queue.spans", _G, "{span}", "Spans waiting for the worker.")
SERIES_FOLDED: Final = _metric(
    "neuronscope.series.folded", _C, "{observation}", "Observations folded into `other`.", ("metric",)
)
SERIES: Final = _metric("neuronscope.series", _G, "{series}", "Series of each metric.", ("metric",))
SERIES_DROPPED: Final = _metric(
    "neuronscope.series.dropped", _C, "{series}", "Series left out because they grew no more.", ("metric",)
)

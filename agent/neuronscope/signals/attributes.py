"""The attributes of spans, by whose convention they are of."""

from __future__ import annotations

from typing import Final

from neuronscope.signals.kinds import Sensitivity, attribute

_ID = Sensitivity.IDENTIFIER
_CONTENT = Sensitivity.CONTENT

# --- OpenTelemetry: general ----------------------------------------------------------------------
ERROR_TYPE: Final = attribute("error.type", "string", "Class of the error, low cardinality.")
SERVER_ADDRESS: Final = attribute("server.address", "string", "Host of the server called.")
SERVER_PORT: Final = attribute("server.port", "int", "Port of the server called.")
EXCEPTION_TYPE: Final = attribute("exception.type", "string", "Type of a recorded exception.")
EXCEPTION_MESSAGE: Final = attribute("exception.message", "string", "Its message.", _CONTENT)
EXCEPTION_STACKTRACE: Final = attribute("exception.stacktrace", "string", "Its stack trace.", _CONTENT)

# --- OpenTelemetry: HTTP server ------------------------------------------------------------------
HTTP_REQUEST_METHOD: Final = attribute("http.request.method", "string", "HTTP method.")
HTTP_ROUTE: Final = attribute("http.route", "string", "Route template, never the path itself.")
HTTP_RESPONSE_STATUS_CODE: Final = attribute("http.response.status_code", "int", "HTTP status.")
HTTP_RESEND_COUNT: Final = attribute("http.request.resend_count", "int", "How often the SDK tried again.")
URL_SCHEME: Final = attribute("url.scheme", "string", "http or https.")
NETWORK_PROTOCOL_VERSION: Final = attribute("network.protocol.version", "string", "HTTP version.")

# --- OpenTelemetry: GenAI ------------------------------------------------------------------------
OPERATION_NAME: Final = attribute("gen_ai.operation.name", "string", "chat, embeddings, retrieval, …")
PROVIDER_NAME: Final = attribute("gen_ai.provider.name", "string", "Who serves the model.")
REQUEST_MODEL: Final = attribute("gen_ai.request.model", "string", "Model asked for.")
RESPONSE_MODEL: Final = attribute("gen_ai.response.model", "string", "Model that answered.")
RESPONSE_ID: Final = attribute("gen_ai.response.id", "string", "The provider's id of the response.")
FINISH_REASONS: Final = attribute("gen_ai.response.finish_reasons", "string[]", "Why each choice ended.")
TIME_TO_FIRST_CHUNK: Final = attribute(
    "gen_ai.response.time_to_first_chunk", "double", "Seconds from the call to the first content chunk."
)
INPUT_TOKENS: Final = attribute("gen_ai.usage.input_tokens", "int", "Input tokens, cached included.")
OUTPUT_TOKENS: Final = attribute("gen_ai.usage.output_tokens", "int", "Output tokens, reasoning included.")
CACHE_READ_TOKENS: Final = attribute(
    "gen_ai.usage.cache_read.input_tokens", "int", "Input tokens read from the provider's cache."
)
CACHE_WRITE_TOKENS: Final = attribute(
    "gen_ai.usage.cache_write.input_tokens", "int", "Input tokens written to the provider's cache."
)
CACHE_WRITE_1H_TOKENS: Final = attribute(
    "neuronscope.usage.cache_write_1h.input_tokens", "int", "Those of them that are kept for an hour: dearer."
)
REASONING_TOKENS: Final = attribute(
    "gen_ai.usage.reasoning.output_tokens", "int", "Output tokens spent on reasoning."
)
REQUEST_STREAM: Final = attribute("gen_ai.request.stream", "boolean", "Present and true when streaming.")
REQUEST_TEMPERATURE: Final = attribute("gen_ai.request.temperature", "double", "Sampling temperature.")
REQUEST_TOP_P: Final = attribute("gen_ai.request.top_p", "double", "Nucleus sampling mass.")
REQUEST_TOP_K: Final = attribute("gen_ai.request.top_k", "int", "Top-k of decoding.")
REQUEST_MAX_TOKENS: Final = attribute("gen_ai.request.max_tokens", "int", "Output token limit.")
REQUEST_SEED: Final = attribute("gen_ai.request.seed", "int", "Sampling seed.")
REQUEST_FREQUENCY_PENALTY: Final = attribute(
    "gen_ai.request.frequency_penalty", "double", "Penalty for tokens by how often they came already."
)
REQUEST_PRESENCE_PENALTY: Final = attribute(
    "gen_ai.request.presence_penalty", "double", "Penalty for tokens that came already."
)
REQUEST_STOP_SEQUENCES: Final = attribute(
    "gen_ai.request.stop_sequences", "string[]", "Texts at which decoding ends.", _CONTENT
)
REQUEST_CHOICE_COUNT: Final = attribute("gen_ai.request.choice.count", "int", "Choices asked, if not 1.")
REQUEST_ENCODING_FORMATS: Final = attribute(
    "gen_ai.request.encoding_formats", "string[]", "How vectors come: float, base64, …"
)
OUTPUT_TYPE: Final = attribute("gen_ai.output.type", "string", "text, json, image or speech.")
EMBEDDING_DIMENSIONS: Final = attribute("gen_ai.embeddings.dimension.count", "int", "Length of a vector.")
CONVERSATION_ID: Final = attribute("gen_ai.conversation.id", "string", "Conversation, if given.", _ID)
SYSTEM_INSTRUCTIONS: Final = attribute("gen_ai.system_instructions", "any", "System prompt.", _CONTENT)
INPUT_MESSAGES: Final = attribute("gen_ai.input.messages", "any", "Messages sent.", _CONTENT)
OUTPUT_MESSAGES: Final = attribute("gen_ai.output.messages", "any", "Messages received.", _CONTENT)
TOOL_DEFINITIONS: Final = attribute("gen_ai.tool.definitions", "any", "Tools offered.", _CONTENT)
RETRIEVAL_QUERY_TEXT: Final = attribute("gen_ai.retrieval.query.text", "string", "The query.", _CONTENT)
RETRIEVAL_DOCUMENTS: Final = attribute("gen_ai.retrieval.documents", "any", "Hits with text.", _CONTENT)
DATA_SOURCE_ID: Final = attribute("gen_ai.data_source.id", "string", "Collection searched.", _ID)
RETRIEVAL_TOP_K: Final = attribute("gen_ai.retrieval.top_k", "int", "Hits asked for.")
OPENAI_API_TYPE: Final = attribute("openai.api.type", "string", "chat_completions or responses.")
OPENAI_REQUEST_SERVICE_TIER: Final = attribute("openai.request.service_tier", "string", "Tier asked.")
OPENAI_RESPONSE_SERVICE_TIER: Final = attribute("openai.response.service_tier", "string", "Tier used.")
OPENAI_FINGERPRINT: Final = attribute("openai.response.system_fingerprint", "string", "Backend id.")
WORKFLOW_NAME: Final = attribute("gen_ai.workflow.name", "string", "A framework's chain or query engine.")
WORKFLOW_STEP: Final = attribute(
    "neuronscope.workflow.step", "string", "The step of a workflow, or the node of a graph, that was run."
)
AGENT_NAME: Final = attribute("gen_ai.agent.name", "string", "The agent's name.")
TOOL_NAME: Final = attribute("gen_ai.tool.name", "string", "The tool that was run.")
TOOL_TYPE: Final = attribute("gen_ai.tool.type", "string", "function, extension or datastore.")
TOOL_CALL_ID: Final = attribute("gen_ai.tool.call.id", "string", "The model's id of its call of the tool.")
TOOL_ARGUMENTS: Final = attribute("gen_ai.tool.call.arguments", "any", "What it was given.", _CONTENT)
TOOL_RESULT: Final = attribute("gen_ai.tool.call.result", "any", "What it gave back.", _CONTENT)
DOCUMENTS_RETURNED: Final = attribute(
    "neuronscope.documents.returned", "int", "Documents that a framework's retriever returned."
)
AWS_REQUEST_ID: Final = attribute("aws.request_id", "string", "AWS's id of the request.")
BEDROCK_GUARDRAIL: Final = attribute("aws.bedrock.guardrail.id", "string", "Guardrail in force.", _ID)
REASONING_LEVEL: Final = attribute("gen_ai.request.reasoning.level", "string", "Effort asked for.")
PREVIOUS_RESPONSE_ID: Final = attribute(
    "gen_ai.request.previous_response.id", "string", "The response that this request continues."
)
STREAM_CURSOR: Final = attribute("gen_ai.request.stream_cursor", "string", "Where a stream is taken up.")
PROMPT_NAME: Final = attribute("gen_ai.prompt.name", "string", "The provider's stored prompt.")
PROMPT_VERSION: Final = attribute("gen_ai.prompt.version", "string", "Its version.")
CONVERSATION_COMPACTED: Final = attribute(
    "gen_ai.conversation.compacted", "boolean", "Present and true when the provider shortened the history."
)
RESPONSE_STATUS: Final = attribute(
    "gen_ai.response.status", "string", "State of a response that was fetched: queued, completed, …"
)
TEXT_INPUT_TOKENS: Final = attribute("gen_ai.usage.text.input_tokens", "int", "Input tokens of text.")
IMAGE_INPUT_TOKENS: Final = attribute("gen_ai.usage.image.input_tokens", "int", "Input tokens of images.")
AUDIO_INPUT_TOKENS: Final = attribute("gen_ai.usage.audio.input_tokens", "int", "Input tokens of sound.")
TEXT_OUTPUT_TOKENS: Final = attribute("gen_ai.usage.text.output_tokens", "int", "Output tokens of text.")
IMAGE_OUTPUT_TOKENS: Final = attribute("gen_ai.usage.image.output_tokens", "int", "Output tokens of images.")
AUDIO_OUTPUT_TOKENS: Final = attribute("gen_ai.usage.audio.output_tokens", "int", "Output tokens of sound.")

# --- OpenTelemetry: databases --------------------------------------------------------------------
DB_SYSTEM: Final = attribute("db.system.name", "string", "The store: qdrant, chroma, …")
DB_COLLECTION: Final = attribute("db.collection.name", "string", "Collection or table.", _ID)
DB_NAMESPACE: Final = attribute("db.namespace", "string", "Database, namespace or tenant.", _ID)
DB_OPERATION: Final = attribute("db.operation.name", "string", "The client's own method name.")
DB_QUERY_SUMMARY: Final = attribute(
    "db.query.summary", "string", "Operation and target of a statement, nothing else of its text.", _ID
)
DB_BATCH_SIZE: Final = attribute("db.operation.batch.size", "int", "Queries in one batch call.")
DB_RETURNED_ROWS: Final = attribute("db.response.returned_rows", "int", "Rows returned.")

# --- NeuronScope ---------------------------------------------------------------------------------
SCOPE_NAME: Final = attribute("neuronscope.scope.name", "string", "Name of the ns.Scope.")
SCOPE_CALLS_OUTSIDE: Final = attribute(
    "neuronscope.scope.calls_outside",
    "int",
    "Calls of no scope and no span that were made meanwhile: perhaps its own, in threads.",
)
STREAM_END: Final = attribute(
    "neuronscope.stream.end", "string", "complete, client_closed, cancelled, error or abandoned."
)
STREAM_CHUNKS: Final = attribute("neuronscope.stream.chunks", "int", "Chunks the service received.")
INPUT_MESSAGE_COUNT: Final = attribute("neuronscope.input.messages.count", "int", "Messages sent.")
INPUT_COUNT: Final = attribute("neuronscope.input.count", "int", "Inputs of one embedding call.")
OUTPUT_COUNT: Final = attribute("neuronscope.output.count", "int", "Images or other things received.")
OUTPUT_BYTES: Final = attribute("neuronscope.output.bytes", "int", "Bytes of sound received.")
AUDIO_SECONDS: Final = attribute("neuronscope.audio.duration", "double", "Seconds of sound billed.")
TOOLS_OFFERED: Final = attribute("neuronscope.tools.offered", "string[]", "Names of tools in the request.")
TOOLS_CALLED: Final = attribute("neuronscope.tools.called", "string[]", "Names of tools the model called.")
REFUSED: Final = attribute("neuronscope.response.refused", "boolean", "The model refused to answer.")
LOGPROBS: Final = attribute("neuronscope.response.logprobs", "boolean", "The answer has log probabilities.")
BACKGROUND: Final = attribute("neuronscope.request.background", "boolean", "The answer is fetched later.")
FETCHED_INPUT_TOKENS: Final = attribute(
    "neuronscope.fetched.input_tokens", "int", "Input tokens of a fetched response; never in metrics."
)
FETCHED_OUTPUT_TOKENS: Final = attribute(
    "neuronscope.fetched.output_tokens", "int", "Output tokens of a fetched response; never in metrics."
)
COST: Final = attribute(
    "neuronscope.cost.usd", "double", "US dollars for the call, by the price table; absent if not known."
)
COST_PRICES: Final = attribute("neuronscope.cost.prices", "string", "Version of the price table.")
MODERATION_FLAGGED: Final = attribute("neuronscope.moderation.flagged", "boolean", "Any input was flagged.")
MODERATION_CATEGORIES: Final = attribute(
    "neuronscope.moderation.categories", "string[]", "Categories that were flagged."
)
REQUEST_ID: Final = attribute("neuronscope.response.request_id", "string", "The provider's id of the call.")
RATE_LIMIT_REQUESTS: Final = attribute(
    "neuronscope.rate_limit.requests.limit", "int", "Requests allowed in the provider's current window."
)
RATE_LIMIT_REQUESTS_LEFT: Final = attribute(
    "neuronscope.rate_limit.requests.remaining", "int", "Requests left in it."
)
RATE_LIMIT_TOKENS: Final = attribute(
    "neuronscope.rate_limit.tokens.limit", "int", "Tokens allowed in the provider's current window."
)
RATE_LIMIT_TOKENS_LEFT: Final = attribute(
    "neuronscope.rate_limit.tokens.remaining", "int", "Tokens left in it."
)
PROMPT_CHARACTERS: Final = attribute(
    "neuronscope.prompt.characters", "int", "Characters of the messages, or of the inputs to embed."
)
PROMPT_CHECKSUM: Final = attribute(
    "neuronscope.prompt.checksum", "int", "12 bits of a checksum of them: one text in 4,096 has the same."
)
PROMPT_PIECES: Final = attribute(
    "neuronscope.prompt.pieces", "int[]", "Checksums of 12 bits of a prompt's lines and labels, in order."
)
HASH_KEY: Final = attribute(
    "neuronscope.hash.key", "string", "Which key these checksums and fingerprints have; absent without one."
)
PROMPT_DOCUMENTS_RETRIEVED: Final = attribute(
    "neuronscope.prompt.documents.retrieved", "int", "Documents that searches in the same trace had found."
)
PROMPT_DOCUMENTS_WHOLE: Final = attribute(
    "neuronscope.prompt.documents.whole", "int", "Of those, how many the prompt holds."
)
PROMPT_DOCUMENTS_CUT: Final = attribute(
    "neuronscope.prompt.documents.cut", "int", "And of how many the beginning without the end."
)
SYSTEM_FINGERPRINT: Final = attribute(
    "neuronscope.system.fingerprint", "string", "The system prompt's, of 64 bits."
)
SYSTEM_CHARACTERS: Final = attribute("neuronscope.system.characters", "int", "Characters of that prompt.")
TOOLS_FINGERPRINT: Final = attribute(
    "neuronscope.tools.fingerprint", "string", "The tool definitions', of 64 bits."
)
STREAM_CONSUMER: Final = attribute(
    "neuronscope.stream.consumer.duration",
    "double",
    "Seconds of a stream in which the service, not the provider, was waited for; from every so many chunks.",
)
TENANT: Final = attribute(
    "neuronscope.tenant", "string", "For whom the call was made, if the service tells.", _ID
)
BACKGROUND_DURATION: Final = attribute(
    "neuronscope.background.duration", "double", "Seconds of work after the answer had been sent."
)
FIDELITY: Final = attribute("neuronscope.fidelity", "string", "Fidelity the governor allowed.")
FIDELITY_REASON: Final = attribute("neuronscope.fidelity.reason", "string", "Why it is not full.")
RETRIEVAL_IDS: Final = attribute("neuronscope.retrieval.ids", "string[]", "Document ids, best first.", _ID)
RETRIEVAL_SCORES: Final = attribute("neuronscope.retrieval.scores", "double[]", "Scores as returned.")
RETRIEVAL_TOP_SCORE: Final = attribute("neuronscope.retrieval.top_score", "double", "Best score.")
RETRIEVAL_KTH_SCORE: Final = attribute("neuronscope.retrieval.kth_score", "double", "Worst returned score.")
RETRIEVAL_MARGIN: Final = attribute(
    "neuronscope.retrieval.margin",
    "double",
    "How far the best hit stands out: (best - worst) / |best|; of distances, over the worst.",
)
RETRIEVAL_RETURNED: Final = attribute("neuronscope.retrieval.returned", "int", "Hits returned.")
RETRIEVAL_EMPTY: Final = attribute("neuronscope.retrieval.empty", "boolean", "No hit at all.")
RETRIEVAL_FILTERED: Final = attribute("neuronscope.retrieval.filtered", "boolean", "A filter was given.")
RETRIEVAL_METRIC: Final = attribute(
    "neuronscope.retrieval.metric", "string", "How scores read: cosine, cosine_distance, euclid, rrf, …"
)
RETRIEVAL_STAGES: Final = attribute(
    "neuronscope.retrieval.stages", "string[]", "Steps of the search in order: dense, sparse:words, rrf, …"
)
RETRIEVAL_STAGES_K: Final = attribute(
    "neuronscope.retrieval.stages.k", "int[]", "Hits that each step hands on; 0 if the request does not say."
)
RETRIEVAL_METADATA_KEYS: Final = attribute(
    "neuronscope.retrieval.metadata.keys", "string[]", "Metadata keys of the hits, values never."
)
RERANK_TOP_WAS: Final = attribute(
    "neuronscope.rerank.top_was", "int", "Rank that the best document had before the reranking, from 0."
)
RERANK_SHIFT: Final = attribute(
    "neuronscope.rerank.shift", "double", "Mean number of ranks that documents moved; 0: order kept."
)
RERANK_ORDER: Final = attribute(
    "neuronscope.rerank.order", "int[]", "Ranks that the documents returned had before, best first, from 0."
)
QUERY_DIMENSION: Final = attribute("neuronscope.query.dimension", "int", "Length of the query vector.")
QUERY_NORM: Final = attribute("neuronscope.query.norm", "double", "L2 norm of the query vector.")
QUERY_DTYPE: Final = attribute("neuronscope.query.dtype", "string", "Element type of the query vector.")
QUERY_FINGERPRINT: Final = attribute(
    "neuronscope.query.fingerprint",
    "string",
    "64-bit SimHash of the query vector: alike vectors, alike bits.",
)
QUERY_VECTOR: Final = attribute("neuronscope.query.vector", "double[]", "The query vector.", _CONTENT)
QUERY_COUNT: Final = attribute("neuronscope.query.count", "int", "Queries of one call.")
QUERY_INDEX: Final = attribute("neuronscope.query.index", "int", "Position of a query in its batch, from 0.")
EMBEDDER_FINGERPRINT: Final = attribute(
    "neuronscope.embedder.fingerprint", "string", "The embedder that made the query vector, by its answers."
)
WRITE_COUNT: Final = attribute("neuronscope.write.count", "int", "Points written, if the call tells.")
MODEL_NAME: Final = attribute("neuronscope.model.name", "string", "Name of the in-process model.")
MODEL_FORWARDS: Final = attribute("neuronscope.model.forwards", "int", "Forward passes of the call.")
MODEL_QUEUE: Final = attribute("neuronscope.model.queue.duration", "double", "Seconds waited to be run.")
MODEL_PREFILL: Final = attribute("neuronscope.model.prefill.duration", "double", "Seconds of prefill.")
MODEL_DECODE: Final = attribute("neuronscope.model.decode.duration", "double", "Seconds of decoding.")
MODEL_DECODE_RATE: Final = attribute("neuronscope.model.decode.tokens_per_second", "double", "Decode speed.")
MODEL_BATCH: Final = attribute("neuronscope.model.batch_size", "int", "Rows of the model call.")
MODEL_STEP_MEDIAN: Final = attribute(
    "neuronscope.model.decode.step.median",
    "double",
    "Seconds of a generation's median step after its prefill.",
)
MODEL_STEP_MAX: Final = attribute(
    "neuronscope.model.decode.step.max", "double", "Seconds of its slowest step after the prefill."
)
MODEL_STEP_SLOWEST: Final = attribute(
    "neuronscope.model.decode.step.slowest", "int", "Which that is, from 1."
)
GENERATION_CONFIG: Final = attribute(
    "neuronscope.generation.config.fingerprint", "string", "Of the generation settings in force."
)
PIPELINE_TASK: Final = attribute("neuronscope.pipeline.task", "string", "What a pipeline is for.")
TOKENIZER_TOKENS: Final = attribute(
    "neuronscope.tokenizer.tokens", "int", "Tokens that a tokenizer made or read, without padding it made."
)
MODEL_FINGERPRINT: Final = attribute(
    "neuronscope.model.fingerprint", "string", "Of the file that the model was loaded from."
)
MODEL_PROVIDERS: Final = attribute(
    "neuronscope.model.providers", "string[]", "What an ONNX Runtime session runs on, in order of preference."
)
MODEL_INPUTS: Final = attribute(
    "neuronscope.model.inputs", "string[]", "Names, element types and shapes of a run's inputs, never values."
)
MODEL_OUTPUTS: Final = attribute(
    "neuronscope.model.outputs", "string[]", "Names, element types and shapes of a run's outputs."
)
MODEL_EPOCHS: Final = attribute("neuronscope.model.epochs", "int", "Epochs that a training call ran.")
MODEL_STEPS: Final = attribute(
    "neuronscope.model.steps", "int", "Batches that a call of a trainer went through."
)
MODEL_LOSS: Final = attribute(
    "neuronscope.model.loss", "double", "Loss of the last epoch, or of an evaluation."
)
EDITS: Final = attribute("neuronscope.edits", "string[]", "Lasting edits that took part, as name@version.")
PLAN: Final = attribute("neuronscope.plan", "string", "The intervention that was run, as JSON.")
LAYERS_OBSERVED: Final = attribute("neuronscope.layers.observed", "int", "Layers that were recorded.")
LAYERS_RECORDS: Final = attribute("neuronscope.layers.records", "int", "Layer records taken in this call.")
LAYERS_SKIPPED: Final = attribute(
    "neuronscope.layers.skipped", "int", "Layer runs not recorded; neuronscope.fidelity.reason says why."
)
LAYERS_COVERAGE: Final = attribute(
    "neuronscope.layers.coverage", "double[]", "Share of a layer's runs that was recorded, if not all were."
)
LAYERS_MEAN_ERROR: Final = attribute(
    "neuronscope.layers.mean.error", "double[]", "Half the 95 % interval of each mean, if runs are missing."
)
LAYERS_PREFILL_MEAN: Final = attribute(
    "neuronscope.layers.prefill.mean",
    "double[]",
    "Mean per layer of a generation's prefill, if runs are missing; NaN where just that one is.",
)
LAYERS_DECODE_MEAN: Final = attribute(
    "neuronscope.layers.decode.mean",
    "double[]",
    "Mean per layer over the decoding, if runs are missing; NaN where nothing of it was recorded.",
)
LAYERS_DECODE_ERROR: Final = attribute(
    "neuronscope.layers.decode.mean.error",
    "double[]",
    "Half the 95 % interval of each mean over the decoding; infinite where too little is known.",
)
LAYERS_NOT_RECORDED: Final = attribute(
    "neuronscope.layers.not_recorded", "string[]", "Layers that ran and were never recorded in this call."
)
SAMPLING_WEIGHT: Final = attribute(
    "neuronscope.sampling.weight", "double", "How many traces this one of the `.nsz` file stands for."
)
SAMPLING_REASON: Final = attribute(
    "neuronscope.sampling.reason", "string", "Why the trace was kept: error, slow, …, or random."
)
LAYERS_NOT_VISITED: Final = attribute(
    "neuronscope.layers.not_visited", "string[]", "Watched layers that never ran, with the reason."
)
LAYERS_IDS: Final = attribute("neuronscope.layers.ids", "string[]", "Layers, in order, of the aggregates.")
LAYERS_MEAN: Final = attribute("neuronscope.layers.mean", "double[]", "Mean per layer over the call.")
LAYERS_STD: Final = attribute("neuronscope.layers.std", "double[]", "Standard deviation per layer.")
LAYERS_ABS_MAX: Final = attribute("neuronscope.layers.abs_max", "double[]", "Largest modulus per layer.")
MODEL_ADAPTERS: Final = attribute("neuronscope.model.adapters", "string[]", "Active PEFT adapters.")
MODEL_ADAPTERS_MERGED: Final = attribute(
    "neuronscope.model.adapters.merged", "boolean", "Their weights have been added to the model's."
)
MODEL_WRAPPERS: Final = attribute(
    "neuronscope.model.wrappers", "string[]", "What the model is distributed or compiled by, outermost first."
)
MODEL_WEIGHTS: Final = attribute(
    "neuronscope.model.weights", "string", "Fingerprint of the weights, from a sample of each parameter."
)
MODEL_DTYPE: Final = attribute("neuronscope.model.dtype", "string", "Element type of most of the weights.")
MODEL_QUANTIZATION: Final = attribute("neuronscope.model.quantization", "string", "How weights are stored.")
MODEL_KERNELS: Final = attribute(
    "neuronscope.model.kernels",
    "string[]",
    "What rounds differently: attention's kernel, threads, precision of products.",
)
SUMMARY_KERNEL: Final = attribute(
    "neuronscope.summary.kernel", "string", "What computes tensor summaries here: compiled, or why not."
)
LAYERS_NON_FINITE: Final = attribute("neuronscope.layers.non_finite", "int", "NaN and Inf, all layers.")
PACKAGES: Final = attribute(
    "neuronscope.packages", "string[]", "Of the resource: installed libraries around models, with versions."
)
GPUS: Final = attribute("neuronscope.gpus", "string[]", "Of the resource: graphics processors, by name.")
GPU_DRIVER: Final = attribute("neuronscope.gpu.driver", "string", "Of the resource: their driver.")
HOST_CPUS: Final = attribute("neuronscope.host.cpus", "int", "Of the resource: processors to run on.")
TRUNCATED: Final = attribute("neuronscope.truncated", "string[]", "Attributes shortened to fit limits.")
MASKED: Final = attribute("neuronscope.masked", "string[]", "Attributes that a redactor's failure masked.")
ATTRIBUTION: Final = attribute("neuronscope.attribution", "string", "How an observation found its span.")

"""transformers: `generate`, continuous batching, pipelines and tokenizers, in this process."""

from neuronscope_instrumentation.transformers.adapter import ADAPTER
from neuronscope_instrumentation.transformers.batching import BATCHING
from neuronscope_instrumentation.transformers.generation import (
    TRANSFORMERS,
    Output,
    Prompt,
    on_host,
    read_prompt,
    read_response,
    sequence_end,
    unwrap,
)
from neuronscope_instrumentation.transformers.pipelines import PIPELINES
from neuronscope_instrumentation.transformers.tokenizers import TOKENIZERS

__all__ = [
    "ADAPTER",
    "BATCHING",
    "PIPELINES",
    "TOKENIZERS",
    "TRANSFORMERS",
    "Output",
    "Prompt",
    "on_host",
    "read_prompt",
    "read_response",
    "sequence_end",
    "unwrap",
]

"""A language model in the service's own process: the first layers of SmolLM2, with its real weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

LAYERS = 4
PROMPT_TOKENS = 96
NEW_TOKENS = 4


@dataclass(frozen=True)
class Inside:
    """A model and its tokenizer."""

    model: Any
    tokenizer: Any

    def write(self, prompts: Sequence[str]) -> str:
        """The beginning of an answer to each prompt."""
        import torch

        inputs = self.tokenizer(
            list(prompts), return_tensors="pt", padding=True, truncation=True, max_length=PROMPT_TOKENS
        )
        with torch.no_grad():
            output = self.model.generate(
                **inputs, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=self.tokenizer.eos_token_id
            )
        return str(self.tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :]))

    def copy(self) -> Inside:
        """Another that faults may break."""
        return Inside(copy.deepcopy(self.model), self.tokenizer)


@lru_cache(maxsize=1)
def smollm2() -> Inside:
    """The model as it should be; nobody may change it."""
    import transformers

    from neuronscope.demo.models import prepare_smollm2

    folder = prepare_smollm2()
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, num_hidden_layers=LAYERS)
    model.eval()
    tokenizer: Any = cast(Any, transformers).AutoTokenizer.from_pretrained(
        folder, padding_side="left", truncation_side="left"
    )
    tokenizer.pad_token = tokenizer.eos_token
    return Inside(model, tokenizer)

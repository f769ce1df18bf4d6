"""Turn a GGUF file into a plain Hugging Face model folder: `python _convert.py FILE FOLDER`.

A program of its own, so that its 1.5 GB of memory and its libraries' chatter leave with it.
The weights are stored as float32: they are dequantized exactly, and a CPU computes in that type.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedTokenizerBase


def convert(gguf: Path, folder: Path) -> None:
    """Write configuration, weights, tokenizer and chat template of `gguf` into `folder`."""
    tokenizer = cast(
        "PreTrainedTokenizerBase", AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    )
    # Without `dequantize` the model keeps its packed weights, and those cannot be saved.
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))

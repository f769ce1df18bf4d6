"""Small real models of the frameworks, made from a configuration: no download, milliseconds to run."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "how", "do", "heat", "pumps", "work", "in", "the", "cold")


@contextmanager
def one_thread() -> Generator[None]:
    """One thread of torch's: more than one waits for the others of a busy machine at every layer."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def llama(layers: int = 4, **config: Any) -> Any:
    """A Llama of 32 channels and a vocabulary of 128, always with the same weights.

    Typed as Any: transformers declares `generate` for a protocol that its own models do not fulfil.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        settings: dict[str, Any] = {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 128,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **config,
        }
        model: Any = LlamaForCausalLM(LlamaConfig(**settings))
        model.train(False)
        return model


def cross_encoder(folder: Path, labels: int = 1) -> CrossEncoder:
    """A reranker of three blocks whose vocabulary is `WORDS`."""
    _save_tokenizer(folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(WORDS),
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=64,
        )
        config.num_labels = labels
        BertForSequenceClassification(config).save_pretrained(folder)
    make: Any = CrossEncoder  # its decorators are untyped
    model: CrossEncoder = make(str(folder), device="cpu", max_length=32)
    return model


def tokenizer(folder: Path) -> Any:
    """A tokenizer whose vocabulary is `WORDS`."""
    _save_tokenizer(folder)
    load: Any = PreTrainedTokenizerFast  # untyped
    return load.from_pretrained(folder)


def _save_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    make_tokenizer: Any = PreTrainedTokenizerFast  # untyped
    make_tokenizer(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)


def sentence_transformer(folder: Path, layers: int = 3) -> SentenceTransformer:
    """An embedder of 32 dimensions whose vocabulary is `WORDS`."""
    _save_tokenizer(folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(WORDS),
            hidden_size=32,
            num_hidden_layers=layers,
            num_attention_heads=4,
            intermediate_size=64,
        )
        BertModel(config).save_pretrained(folder)
    transformer = Transformer(str(folder))
    return SentenceTransformer(modules=[transformer, Pooling(32)], device="cpu").eval()

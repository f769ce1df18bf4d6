"""On every family of models: an untouched trace is bit-equal, an absurd edit changes the output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

import neuronscope as ns
from tracednets import left_on

SMALL: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 64, "max_position_embeddings": 64, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
IDS = torch.tensor([[5, 6, 7, 8, 9]])
PIXELS = torch.linspace(-1, 1, 3 * 32 * 32).view(1, 3, 32, 32)

Case = tuple[Callable[[], Any], dict[str, Any], str]


def causal(kind: str, **config: Any) -> Callable[[], Any]:
    """A causal language model of a family."""

    def make() -> Any:
        settings = getattr(transformers, f"{kind}Config")(**{**SMALL, **config})
        return getattr(transformers, f"{kind}ForCausalLM")(settings)

    return make


def model(kind: str, name: str, **config: Any) -> Callable[[], Any]:
    """Any other class."""

    def make() -> Any:
        return getattr(transformers, name)(getattr(transformers, f"{kind}Config")(**config))

    return make


GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64, "n_positions": 64,
                        "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
T5: dict[str, Any] = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 64,
                      "decoder_start_token_id": 0}  # fmt: skip
BART: dict[str, Any] = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "vocab_size": 64,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
}  # fmt: skip
VIT: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                       "num_attention_heads": 4, "image_size": 32, "patch_size": 8}  # fmt: skip

CASES: dict[str, Case] = {
    "llama": (causal("Llama"), {"input_ids": IDS}, "model.layers.0"),
    "mistral": (causal("Mistral"), {"input_ids": IDS}, "model.layers.0"),
    "qwen2": (causal("Qwen2"), {"input_ids": IDS}, "model.layers.0"),
    "qwen3": (causal("Qwen3", head_dim=8), {"input_ids": IDS}, "model.layers.0"),
    "gemma": (causal("Gemma", head_dim=8), {"input_ids": IDS}, "model.layers.0"),
    "gemma2": (causal("Gemma2", head_dim=8), {"input_ids": IDS}, "model.layers.0"),
    "phi3": (causal("Phi3"), {"input_ids": IDS}, "model.layers.0"),
    "mixtral": (causal("Mixtral", num_local_experts=4), {"input_ids": IDS}, "model.layers.0"),
    "gpt2": (model("GPT2", "GPT2LMHeadModel", **GPT2), {"input_ids": IDS}, "transformer.h.0"),
    "gpt-neox": (causal("GPTNeoX"), {"input_ids": IDS}, "gpt_neox.layers.0"),
    "opt": (causal("OPT", word_embed_proj_dim=32, ffn_dim=64), {"input_ids": IDS}, "model.decoder.layers.0"),
    "bloom": (causal("Bloom", n_layer=2, n_head=4), {"input_ids": IDS}, "transformer.h.0"),
    "falcon": (causal("Falcon"), {"input_ids": IDS}, "transformer.h.0"),
    "mamba": (causal("Mamba", state_size=8), {"input_ids": IDS}, "backbone.layers.0"),
    "bert": (model("Bert", "BertModel", **SMALL), {"input_ids": IDS}, "encoder.layer.0"),
    "distilbert": (
        model("DistilBert", "DistilBertModel", dim=32, hidden_dim=64, n_layers=2, n_heads=4, vocab_size=64),
        {"input_ids": IDS},
        "transformer.layer.0",
    ),
    "roberta": (
        model("Roberta", "RobertaForMaskedLM", **SMALL),
        {"input_ids": IDS},
        "roberta.encoder.layer.0",
    ),
    "t5": (
        model("T5", "T5ForConditionalGeneration", **T5),
        {"input_ids": IDS, "decoder_input_ids": IDS[:, :3]},
        "encoder.block.0",
    ),
    "bart": (
        model("Bart", "BartForConditionalGeneration", **BART),
        {"input_ids": IDS, "decoder_input_ids": IDS[:, :3]},
        "model.decoder.layers.0",
    ),
    "vit": (model("ViT", "ViTModel", **VIT), {"pixel_values": PIXELS}, "layers.0"),
}


def made(name: str) -> tuple[Any, dict[str, Any], str]:
    """The model of a case, with the weights of a seed."""
    make, inputs, site = CASES[name]
    torch.manual_seed(0)
    return make().eval(), inputs, site


@pytest.mark.filterwarnings("ignore")  # transformers', about kernels that are not installed
@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_untouched_is_bit_equal_and_absurd_changes_everything(name: str) -> None:
    """For one forward; reading every module changes nothing, doubling one block does."""
    net, inputs, site = made(name)
    plain = net(**inputs)[0]
    handle = ns.Model.wrap(net)
    with handle.trace(**inputs) as t:
        cache = t.cache("**", clone=True)
    assert torch.equal(t.result[0], plain)
    visited = [path for path, calls in cache.items() if calls]
    assert site in visited
    with handle.trace(**inputs) as t:
        for path in visited[:1]:
            _ = t[path].input
        hidden = t[site].first
    assert torch.equal(t.result[0], plain)
    with handle.trace(**inputs) as t:
        t[site].first = torch.full_like(hidden, 100.0) * torch.sign(hidden)
    assert not torch.equal(t.result[0], plain)
    assert t.result[0].shape == plain.shape
    assert not left_on(net)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["llama", "gpt2", "bloom", "t5", "bart", "mamba"])
@torch.no_grad()
def test_generation_is_equal_untouched_and_steps_follow_it(name: str) -> None:
    """nnsight #350: encoder-decoders included."""
    net, _, site = made(name)
    asked: dict[str, Any] = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    plain = net.generate(IDS, **asked)
    handle = ns.Model.wrap(net)
    with handle.generate(IDS, **asked) as t:
        steps = sum(1 for _ in t.steps)
    assert torch.equal(t.result, plain)
    assert steps == 4
    decoder = site.replace("encoder.block", "decoder.block")
    with handle.generate(IDS, **asked) as t:
        for _ in t.steps:
            t[decoder].first = t[decoder].first * -50
    assert t.result.shape == plain.shape
    assert not left_on(net)

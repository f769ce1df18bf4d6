"""Which layers a model has, what patterns name, and why a layer was not visited."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5EncoderModel,
    T5Model,
)

from neuronscope.exceptions import LayerNotFoundError
from neuronscope.instrumentation import ObservingBackend
from neuronscope_instrumentation.torch import ADAPTER
from torchnets import watch


def tiny_llama(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=None,
        bos_token_id=1,
    )
    model = LlamaForCausalLM(config)
    model.train(mode=False)
    return model


def test_importing_the_adapter_imports_no_torch() -> None:
    """Neither does asking whether it matches."""
    code = (
        "import sys; from neuronscope_instrumentation.torch import ADAPTER\n"
        "assert not ADAPTER.matches(object())\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    paths = [path for path in sys.path if path]
    subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}\n{code}"], check=True, timeout=250
    )


def test_it_matches_modules_only() -> None:
    """By class, also of subclasses; not tensors, functions or classes."""
    assert ADAPTER.matches(nn.Linear(1, 1))
    assert ADAPTER.matches(torch.jit.ScriptModule())
    assert not any(map(ADAPTER.matches, (torch.ones(1), nn.Linear, print, None)))
    assert isinstance(ADAPTER, ObservingBackend)


def test_layers_of_a_llama_are_its_computing_leaves() -> None:
    """Dotted paths in order, class names, own parameters; the same each time."""
    model = tiny_llama()
    layers = ADAPTER.list_layers(model)
    assert layers == ADAPTER.list_layers(model)
    assert layers[0].id == "model.embed_tokens"
    assert layers[-1].id == "lm_head"
    per_block = Counter(layer.id.split(".")[2] for layer in layers if layer.id.startswith("model.layers."))
    assert per_block == {"0": 10, "1": 10, "2": 10}  # seven projections, activation, two norms
    by_id = {layer.id: layer for layer in layers}
    assert by_id["model.layers.1.mlp.up_proj"].name == "Linear"
    assert by_id["model.layers.1.mlp.up_proj"].parameters == 32 * 48


def test_shared_modules_are_listed_once_and_watched_by_any_path() -> None:
    """The first path names it."""
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    assert [layer.id for layer in ADAPTER.list_layers(model)] == ["0", "1"]
    seen: list[str] = []
    ADAPTER.observe_layer(model, "2", lambda _: seen.append("2"))
    model(torch.ones(1, 2))
    assert seen == ["2", "2"]


def test_containers_run_only_if_they_compute() -> None:
    """A block can be watched; a list of blocks says what to watch instead."""
    model = tiny_llama()
    seen: list[tuple[int, ...]] = []
    ADAPTER.observe_layer(model, "model.layers.1", lambda snapshot: seen.append(snapshot.shape))
    model(torch.tensor([[1, 2, 3]]))
    assert seen == [(1, 3, 32)]
    with pytest.raises(LayerNotFoundError, match=r"Watch what it holds: model\.layers\.\*"):
        ADAPTER.observe_layer(model, "model.layers", lambda _: None)


def test_an_unknown_layer_is_refused_with_close_names() -> None:
    """The message helps to correct a slip."""
    with pytest.raises(LayerNotFoundError, match=r"model\.layers\.0\.mlp"):
        ADAPTER.observe_layer(tiny_llama(), "model.layer.0.mlp", lambda _: None)
    with pytest.raises(LayerNotFoundError, match="no layers inside"):
        ADAPTER.match_layers(nn.ReLU(), "x.*")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("model.layers.*", ["model.layers.0", "model.layers.1", "model.layers.2"]),
        ("model.layers.1", ["model.layers.1"]),
        ("*.layers.1.mlp", ["model.layers.1.mlp"]),
        ("**.mlp", ["model.layers.0.mlp", "model.layers.1.mlp", "model.layers.2.mlp"]),
        ("**.layers.*.?", []),
        ("model.layers.2.self_attn.*_proj", [f"model.layers.2.self_attn.{x}_proj" for x in "qkvo"]),
        ("lm_*", ["lm_head"]),
        ("*", ["model", "lm_head"]),
    ],
)
def test_patterns_name_paths(pattern: str, found: list[str]) -> None:
    """`*` stays within a part, `**` crosses them; nothing else is special."""
    if found:
        assert ADAPTER.match_layers(tiny_llama(), pattern) == found
    else:
        with pytest.raises(LayerNotFoundError):
            ADAPTER.match_layers(tiny_llama(), pattern)


def test_double_star_reaches_every_depth() -> None:
    """Below a prefix, and everything."""
    model = tiny_llama()
    below = ADAPTER.match_layers(model, "model.layers.0.**")
    assert below[0] == "model.layers.0"
    assert "model.layers.0.mlp.act_fn" in below
    everything = ADAPTER.match_layers(model, "**")
    assert len(everything) > 30
    assert "" not in everything


def test_a_module_under_several_paths_is_named_once_by_the_first_that_matches() -> None:
    """Also by a pattern that names a later path only; a module that holds itself ends the search."""
    shared = nn.Linear(2, 2)
    model = nn.ModuleDict({"first": nn.Sequential(shared), "second": nn.Sequential(nn.ReLU(), shared)})
    model["second"].register_module("itself", model["second"])
    assert ADAPTER.match_layers(model, "**") == ["first", "first.0", "second", "second.0"]
    assert ADAPTER.match_layers(model, "second.*") == ["second.0", "second.1"]


def blocks_of_t5(model_class: Any) -> list[str]:
    config = T5Config(d_model=16, d_kv=4, d_ff=16, num_layers=2, num_heads=2, vocab_size=32)
    return ADAPTER.block_paths(model_class(config))


def test_blocks_are_the_repeated_parts() -> None:
    """Of decoders, encoders, both, plain torch, and models without any."""
    assert ADAPTER.block_paths(tiny_llama()) == [f"model.layers.{n}" for n in range(3)]
    config = BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16
    )
    assert ADAPTER.block_paths(nn.Sequential(BertModel(config))) == [
        "0.encoder.layer.0",
        "0.encoder.layer.1",
    ]
    assert blocks_of_t5(T5EncoderModel) == ["encoder.block.0", "encoder.block.1"]
    assert blocks_of_t5(T5Model) == [
        "encoder.block.0",
        "encoder.block.1",
        "decoder.block.0",
        "decoder.block.1",
    ]
    residual = nn.Sequential(*[nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(3)])
    assert ADAPTER.block_paths(nn.Sequential(residual, nn.Linear(2, 2))) == ["0.0", "0.1", "0.2"]
    assert ADAPTER.block_paths(nn.Sequential(nn.Linear(2, 2), nn.ReLU())) == ["0", "1"]
    assert ADAPTER.block_paths(nn.Linear(2, 2)) == []


def test_blocks_leave_out_experts_and_small_side_lists() -> None:
    """The outermost list counts, and one of a tenth of its size at least."""

    class Block(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(size, size)) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.side = nn.ModuleList(Block(1) for _ in range(2))
            self.blocks = nn.ModuleList(Block(8) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    assert ADAPTER.block_paths(Model()) == ["blocks.0", "blocks.1", "blocks.2"]


def test_generate_is_unchanged_and_seen_step_by_step() -> None:
    """The same tokens; one record per block and step, the prefill first."""
    model = tiny_llama()
    prompt = torch.tensor([[1, 5, 9]])
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": True, "top_k": 8}
    torch.manual_seed(3)
    plain = model.generate(prompt, **options)
    shapes: dict[str, list[tuple[int, ...]]] = {}

    def record(path: str) -> None:
        ADAPTER.install_observer_hook(
            model, path, lambda snapshot: shapes.setdefault(path, []).append(snapshot.shape)
        )

    for path in ("", *ADAPTER.block_paths(model)):
        record(path)
    torch.manual_seed(3)
    observed = model.generate(prompt, **options)
    ADAPTER.remove_hooks(model)
    assert torch.equal(plain, observed)
    assert shapes["model.layers.2"] == [(1, 3, 32)] + [(1, 1, 32)] * 5
    assert len(shapes) == 4
    assert len(shapes[""]) == 6


def test_a_fused_encoder_stays_fused_and_says_so() -> None:
    """Bit-equal output by the same kernel; its children are told as not visited."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 5, 16)
    watched = ["layers.0", "layers.0.linear1", "layers.1.self_attn"]
    with torch.inference_mode():
        plain = model(x)
        names, _ = watch(model, *watched)
        observed = model(x)
    assert torch.equal(plain, observed)
    assert names == ["layers.0"]
    assert ADAPTER.not_visited(model, watched, names) == {
        "layers.0.linear1": "fused",
        "layers.1.self_attn": "fused",
    }


def test_a_layer_that_no_call_reached_did_not_run() -> None:
    """The plain reason."""
    assert ADAPTER.not_visited(tiny_llama(), ["lm_head", "model"], ["model"]) == {"lm_head": "not run"}


def test_the_fingerprint_follows_architecture_and_weights_only() -> None:
    """Not identity, mode, gradients or being watched; but any weight, buffer or hyperparameter."""
    model = tiny_llama()
    base = ADAPTER.fingerprint_model(model)
    ADAPTER.observe_layer(model, "model.layers.0", lambda _: None)
    model.train().requires_grad_(requires_grad=False)
    assert ADAPTER.fingerprint_model(model) == base == ADAPTER.fingerprint_model(tiny_llama())
    assert ADAPTER.fingerprint_model(tiny_llama(1)) != base
    with torch.no_grad():
        model.model.layers[2].mlp.up_proj.weight[3, 7] += 1e-3
    assert ADAPTER.fingerprint_model(model) != base
    assert ADAPTER.fingerprint_model(nn.Conv1d(2, 2, 3, stride=1)) != ADAPTER.fingerprint_model(
        nn.Conv1d(2, 2, 3, stride=2)
    )


def test_one_bit_of_a_large_weight_changes_the_fingerprint() -> None:
    """Large tensors are sampled for the hash, and summed in full."""
    model = nn.Linear(1024, 1031, bias=False)
    base = ADAPTER.fingerprint_model(model)
    changed: set[str] = set()
    for position in (0, 5, 524_287, 1024 * 1031 - 1):
        words = model.weight.data.view(-1).view(torch.int32)
        words[position] ^= 1
        changed.add(ADAPTER.fingerprint_model(model))
        words[position] ^= 1
    assert len(changed | {base}) == 5
    assert ADAPTER.fingerprint_model(model) == base
    offset = torch.zeros(1 + model.weight.numel())[1:].view_as(model.weight)
    model.weight = nn.Parameter(offset.copy_(model.weight.data))
    assert ADAPTER.fingerprint_model(model) == base


def test_models_without_weights_in_memory_have_a_fingerprint() -> None:
    """Meta, lazy, sparse and quantised tensors count by what there is of them."""
    with torch.device("meta"):
        meta = nn.Linear(2, 2)
    sparse = nn.Module()
    sparse.register_buffer("matrix", torch.eye(3).to_sparse())
    models: list[nn.Module] = [meta, nn.Linear(2, 2), nn.LazyLinear(2), sparse, nn.Module()]
    names = [ADAPTER.fingerprint_model(model) for model in models]
    assert len(set(names)) == len(models)
    assert all(name.startswith("ns1:") for name in names)

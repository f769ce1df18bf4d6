"""Attention weights of PyTorch models: the model's own, or again from the arguments of a fused kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import neuronscope as ns
import tinymodels
from probed import FULL, array_of, records, skipped
from torchnets import INPUT, make_net

IDS = torch.tensor([[5, 9, 17, 3], [0, 4, 8, 2]])
MASK = torch.tensor([[1, 1, 1, 1], [0, 1, 1, 1]])


def eager_weights(**config: Any) -> list[Any]:
    model = tinymodels.llama(2, attn_implementation="eager", **config)
    with torch.no_grad():
        output = model(IDS, attention_mask=MASK, output_attentions=True)
    return [weights.numpy() for weights in output.attentions]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("heads", [None, (3, 0)])
def test_attention_of_a_llama(implementation: str, heads: tuple[int, ...] | None) -> None:
    """From eager weights, or again from grouped queries and keys with a padding mask; output bit-equal."""
    model = tinymodels.llama(2, attn_implementation=implementation)
    with torch.no_grad():
        plain = model(IDS, attention_mask=MASK).logits
    outputs: list[torch.Tensor] = []

    def run(_: ns.Model) -> None:
        with torch.no_grad():
            outputs.append(model(IDS, attention_mask=MASK).logits)

    probe = ns.probes.AttentionMaps(heads=heads)
    found = records(run, model, layers="model.layers.*.self_attn", kind=probe)
    assert torch.equal(outputs[0], plain)
    expected = eager_weights()
    for number, record in enumerate(found):
        wanted = expected[number] if heads is None else expected[number][:, list(heads)]
        visible = MASK.numpy().astype(bool)  # what a padded query attends to, kernels fill in as they like
        for row in range(2):
            got, want = (maps[row][:, visible[row]] for maps in (array_of(record), wanted))
            np.testing.assert_allclose(got, want, atol=2e-6)
        assert record.role == "attention"
        source = "model" if implementation == "eager" else "recomputed from q and k"
        assert record.attributes.get("source") == source
        assert record.attributes.get("heads") == heads
    assert len(found) == 2


def test_attention_maps_of_each_step_of_a_generation() -> None:
    """The prefill's square, then a row a token; the tokens are the same."""
    model = tinymodels.llama(1, eos_token_id=None)
    plain = model.generate(IDS[:1], max_new_tokens=3, do_sample=False)
    outputs: list[torch.Tensor] = []

    def run(_: ns.Model) -> None:
        outputs.append(model.generate(IDS[:1], max_new_tokens=3, do_sample=False))

    found = records(run, model, layers="model.layers.0.self_attn", kind=ns.probes.AttentionMaps(heads=[1]))
    assert torch.equal(outputs[0], plain)
    assert [record.shape for record in found] == [(1, 1, 4, 4), (1, 1, 1, 5), (1, 1, 1, 6)]
    for record in found:
        np.testing.assert_allclose(array_of(record).sum(-1), 1.0, rtol=1e-5)


def test_decoding_of_a_padded_batch_has_maps_by_head() -> None:
    """There the kernel gets the queries that share a key as if they were a sequence."""
    options: dict[str, Any] = {"max_new_tokens": 3, "do_sample": False, "attention_mask": MASK}
    found: dict[str, list[Any]] = {}
    for kind in ("eager", "sdpa"):
        model = tinymodels.llama(1, eos_token_id=None, attn_implementation=kind)

        def run(_: ns.Model, model: Any = model) -> None:
            model.generate(IDS, **options)

        for heads in (None, (3, 1)):
            probe = ns.probes.AttentionMaps(heads=heads)
            maps = [array_of(r) for r in records(run, model, layers="model.layers.0.self_attn", kind=probe)]
            found[f"{kind} {heads}"] = maps
    shapes = [(2, 4, 4, 4), (2, 4, 1, 5), (2, 4, 1, 6)]
    assert [maps.shape for maps in found["sdpa None"]] == shapes
    for step, eager in enumerate(found["eager None"]):
        rows = np.s_[:] if step else np.s_[0]  # what a padded query attends to, kernels fill in as they like
        np.testing.assert_allclose(found["sdpa None"][step][rows], eager[rows], atol=2e-6)
        np.testing.assert_allclose(found["sdpa (3, 1)"][step][rows], eager[:, [3, 1]][rows], atol=2e-6)
        np.testing.assert_array_equal(found["eager (3, 1)"][step], eager[:, [3, 1]])


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("separate", [True, False])
def test_attention_of_torch_s_own_module(batch_first: bool, separate: bool) -> None:
    """Its fast path stays on, so the weights come from its inputs and projections, masks included."""
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(16, 4, batch_first=batch_first, kdim=12 if separate else None)
    attention = attention.eval()
    query, key = torch.randn(2, 5, 16), torch.randn(2, 6, 12 if separate else 16)
    value = torch.randn(2, 6, 16)
    padding = torch.zeros(2, 6, dtype=torch.bool)
    padding[1, 4:] = True
    mask = torch.randn(8, 5, 6)
    if not batch_first:
        query, key, value = (part.transpose(0, 1) for part in (query, key, value))
    options: dict[str, Any] = {
        "key_padding_mask": padding.float().masked_fill(padding, -math.inf),
        "attn_mask": mask,
    }
    with torch.no_grad():
        expected = attention(query, key, value, average_attn_weights=False, **options)[1]
        plain = attention(query, key, value, need_weights=False, **options)[0]
        outputs: list[torch.Tensor] = []

        def run(_: ns.Model) -> None:
            outputs.append(attention(query, key, value, need_weights=False, **options)[0])

        (record,) = records(run, attention, layers="", kind=ns.probes.AttentionMaps)
    np.testing.assert_allclose(array_of(record), expected.numpy(), atol=1e-6)
    assert torch.equal(outputs[0], plain)


def test_a_layer_without_attention_says_so() -> None:
    """Counted with its reason."""
    model = make_net()
    with ns.Scope("none", max_overhead_pct=FULL, overhead_action="warn") as scope:
        ns.Model.wrap(model).attach_probe("first", ns.probes.AttentionMaps)
        model(INPUT)
    assert skipped(scope) == (1, "no attention")

"""What rounds differently is told as what it is, never as other weights or other layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch

import neuronscope as ns
import tinymodels
from neuronscope.artifact import Artifact
from neuronscope.demo.models import prepare_smollm2
from neuronscope.diagnosis.comparing.result import Comparison
from neuronscope.diagnosis.kinds import Kind

CALLS = 24


@pytest.fixture(autouse=True)
def observed() -> Iterator[None]:
    """Generations are observed, on one thread unless a test says so."""
    with tinymodels.one_thread():
        ns.instrument("transformers")
        yield
        ns.uninstrument("transformers")


def answered(
    dtype: torch.dtype = torch.float32,
    attention: str = "sdpa",
    *,
    threads: int = 1,
    batch: int = 1,
    full: bool = True,
    calls: int = CALLS,
) -> Artifact:
    """Prompts of some lengths, answered by one model; layers with tensors, or with summaries alone."""
    torch.set_num_threads(threads)
    model: Any = tinymodels.llama(layers=8, hidden_size=64, attn_implementation=attention).to(dtype)
    watched = ns.Model.wrap(model)
    kind = ns.probes.LayerActivations if full else ns.probes.NumericHealth
    with ns.Scope("day", max_overhead_pct=1000) as scope, torch.no_grad():
        watched.attach_probe(layers=["model.embed_tokens", "model.layers.*", "lm_head"], kind=kind)
        for call in range(calls):
            draw = torch.Generator().manual_seed(call % (calls // 2))
            tokens = torch.randint(3, 90, (1, 6 + call % 3), generator=draw).repeat(batch, 1)
            mask = torch.ones_like(tokens)
            model.generate(tokens, attention_mask=mask, max_new_tokens=6, do_sample=False, eos_token_id=None)
    return scope.artifact


@pytest.fixture(scope="module")
def before() -> Artifact:
    """The earlier side: float32, fused attention, one thread, one prompt at a time."""
    ns.instrument("transformers")
    return answered()


def environment(comparison: Comparison) -> str:
    """What the only cause says of kernels."""
    assert comparison.kinds == (Kind.ENVIRONMENT_CHANGED,), comparison
    assert not comparison.consequences, comparison
    return comparison.causes[0].summary


@pytest.mark.parametrize("full", [True, False])
def test_another_kernel_of_attention_is_told_as_that(before: Artifact, full: bool) -> None:
    """And its rounding is no divergence, with tensors and repeats on both sides as with summaries."""
    earlier = before if full else answered(full=False)
    told = environment(ns.compare(earlier, answered(attention="eager", full=full)))
    assert "attention of LlamaForCausalLM eager (it was sdpa)" in told


def test_another_number_of_threads_is_told_as_that() -> None:
    """Sums are made in another order."""
    # Two threads wait for each other at every layer, longer on a busy machine: a few calls will do.
    told = environment(ns.compare(answered(calls=6), answered(threads=2, calls=6)))
    assert "threads of LlamaForCausalLM 2 (it was 1)" in told


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_another_precision_is_told_as_that(before: Artifact, dtype: torch.dtype) -> None:
    """Other weights follow from it: they are the same ones, rounded."""
    comparison = ns.compare(before, answered(dtype))
    assert comparison.kinds == (Kind.PRECISION_CHANGED,), comparison
    assert "weights_changed" in {item.kind.value for item in comparison.consequences}
    assert comparison.of(Kind.LAYERS_DIVERGED) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_kernels_of_short_types_round_more_and_are_told_as_kernels(dtype: torch.dtype) -> None:
    """Both sides in the same short type, with another attention."""
    told = environment(ns.compare(answered(dtype), answered(dtype, "eager")))
    assert "attention of LlamaForCausalLM" in told


def test_other_batches_are_told_as_traffic(before: Artifact) -> None:
    """Four prompts a call: the kernels are others, the model is not."""
    comparison = ns.compare(before, answered(batch=4))
    assert comparison.kinds == (Kind.TRAFFIC_CHANGED,), comparison
    assert "rows of a model call 4 on average; it was 1" in comparison.causes[0].summary
    assert comparison.of(Kind.LAYERS_DIVERGED) is None


def test_the_same_again_is_no_change(before: Artifact) -> None:
    """The control."""
    assert ns.compare(before, answered()).kinds == ()


@pytest.mark.integration
@pytest.mark.timeout(300)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_real_model_rounds_within_what_is_allowed(dtype: torch.dtype) -> None:
    """SmolLM2's thirty layers through two kernels of attention, prefill and answer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = prepare_smollm2()
    tokenizer = cast("Any", AutoTokenizer).from_pretrained(folder)
    sides: list[Artifact] = []
    for attention in ("sdpa", "eager"):
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention)
        watched = ns.Model.wrap(model)
        with ns.Scope("answers", max_overhead_pct=1000) as scope, torch.no_grad():
            layers = ["model.embed_tokens", "model.layers.*", "lm_head"]
            watched.attach_probe(layers=layers, kind=ns.probes.LayerActivations)
            for text in ("The capital of France is", "Water boils at a temperature of"):
                model.generate(**tokenizer(text, return_tensors="pt"), max_new_tokens=5, do_sample=False)
        sides.append(scope.artifact)
    assert all(side.telemetry.layer_snapshots for side in sides)
    comparison = ns.compare(*sides)
    assert comparison.of(Kind.LAYERS_DIVERGED) is None, comparison
    assert comparison.of(Kind.WEIGHTS_CHANGED) is None, comparison

"""Generations step by step: compared while both sides wrote the same tokens, and told where they part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import neuronscope as ns
import tinymodels
from neuronscope.artifact import Artifact, Telemetry
from neuronscope.demo.models import prepare_smollm2
from neuronscope.diagnosis.comparing.result import Cause, Comparison
from neuronscope.diagnosis.kinds import Kind
from neuronscope.signals.records import LayerRecord
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary

LAYERS = 4
NEW = 10
PROMPTS = range(3)
WATCHED = [
    "model.embed_tokens",
    *(f"model.layers.{n}{part}" for n in range(LAYERS) for part in (".self_attn", ".mlp.down_proj", "")),
    "lm_head",
]
Change = Callable[[Any], object]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """On one thread, unless a test says so."""
    with tinymodels.one_thread():
        yield


def written(
    change: Change | None = None,
    *,
    model: Any = None,
    watched: Sequence[str] = WATCHED,
    prompts: Sequence[int] = PROMPTS,
    keep: Callable[[int], bool] = lambda step: True,
    one_trace: bool = True,
    **options: Any,
) -> Artifact:
    """Generations of a model, its layers in full; by hooks of torch's, so that no budget cuts any."""
    model = tinymodels.llama(layers=LAYERS) if model is None else model
    records: list[LayerRecord] = []
    steps: dict[str, int] = {}
    call = [0]

    def take(layer: str, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        step = steps[layer] = steps.get(layer, -1) + 1
        if not keep(step):
            return
        values: NDArray[Any] = tensor.float().numpy().copy()
        name = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}[tensor.dtype]
        records.append(
            LayerRecord(
                "llama",
                layer,
                step,
                10**18 + len(records),
                values.shape,
                name,
                trace_id=1 if one_trace else call[0],
                span_id=call[0],
                summary=TensorSummary.of(values),
                tensor=TensorSnapshot(values.shape, name, values),
            )
        )

    def hook(layer: str) -> Callable[[torch.nn.Module, Any, Any], None]:
        return lambda module, inputs, output: take(layer, output)

    with torch.no_grad():
        undo = change(model) if change is not None else None
    handles = [model.get_submodule(layer).register_forward_hook(hook(layer)) for layer in watched]
    options = {"do_sample": False, "eos_token_id": None, **options}
    with torch.no_grad():
        for seed in prompts:
            call[0] += 1
            steps.clear()
            tokens = torch.randint(3, 90, (1, 6), generator=torch.Generator().manual_seed(seed))
            torch.manual_seed(options.pop("seed", seed))
            model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=NEW, **options)
    for handle in handles:
        handle.remove()
    if callable(undo):
        undo()
    return Artifact(Telemetry([], records))


def from_step(first: int, layer: str = "model.layers.2.mlp.down_proj", factor: float = 1.01) -> Change:
    """A layer whose numbers are larger from a step of a generation on: as of a cache that fails late."""

    def change(model: Any) -> Callable[[], None]:
        seen = [0]

        def scale(module: torch.nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            seen[0] = 0 if output.shape[-2] > 1 else seen[0] + 1
            return output * factor if seen[0] >= first else output

        handle = model.get_submodule(layer).register_forward_hook(scale)
        return cast("Callable[[], None]", handle.remove)

    return change


def diverged(comparison: Comparison) -> Cause:
    """The finding about layers."""
    cause = comparison.of(Kind.LAYERS_DIVERGED)
    assert cause is not None, comparison
    return cause


@pytest.mark.parametrize("step", [1, 4, 8])
def test_a_layer_that_differs_from_a_step_on_is_named_with_the_step(step: int) -> None:
    """The prefill is as before; which step it is shows in no summary of a whole call."""
    cause = diverged(ns.compare(written(), written(from_step(step))))
    assert cause.subject.endswith(": model.layers.2.mlp.down_proj")
    assert f"The first {step} steps of generations are as before" in cause.summary
    assert "full tensors of 3 runs with the same input" in cause.summary


def test_a_change_of_the_prefill_tells_where_the_answers_part() -> None:
    """Numbers are others at once; the first other token comes later."""

    def rewrite(model: Any) -> None:
        model.get_submodule("model.layers.1.mlp.down_proj").weight.mul_(1.5)

    before, after = written(), written(rewrite)
    cause = diverged(ns.compare(before, after))
    assert cause.subject.endswith(": model.layers.1.mlp.down_proj")
    assert "The first" not in cause.summary
    assert "Of 3 generations that began alike" in cause.summary
    first = min(_first_other(before, after))
    assert f"token {first} of the answer" in cause.summary


def _first_other(before: Artifact, after: Artifact) -> Iterator[int]:
    """The step at which each generation reads another token, by its embedding."""
    sides = [
        {
            (record.span_id, record.step): record.tensor.numpy()
            for record in artifact.telemetry.layer_snapshots
            if record.layer_id == "model.embed_tokens" and record.tensor is not None
        }
        for artifact in (before, after)
    ]
    for call in {call for call, _ in sides[0]}:
        for step in range(1, NEW):
            if not np.array_equal(sides[0][call, step], sides[1][call, step]):
                yield step
                break


def test_answers_that_stay_the_same_are_told_as_such() -> None:
    """A change that no token shows."""
    cause = diverged(ns.compare(written(), written(from_step(3, factor=1.001))))
    assert f"all {NEW} known steps read the same tokens" in cause.summary


def test_the_sides_mirror_each_other() -> None:
    """The same layer and step, whichever side is called the first."""
    before, after = written(), written(from_step(4))
    forth, back = diverged(ns.compare(before, after)), diverged(ns.compare(after, before))
    assert forth.subject == back.subject
    assert "The first 4 steps" in back.summary


def test_the_same_generations_are_no_change() -> None:
    """The control, each on another number of threads, in traces of their own on one side."""
    before = written()
    torch.set_num_threads(2)
    assert ns.compare(before, written(one_trace=False)).kinds == ()


@pytest.mark.parametrize("seeds", [(11, 12), (13, 14), (15, 16)])
def test_other_samples_of_the_same_model_are_no_change(seeds: tuple[int, int]) -> None:
    """Tokens part by chance; from there on nothing is compared."""
    sides = [written(do_sample=True, temperature=5.0, seed=seed) for seed in seeds]
    assert list(_first_other(*sides)), "the samples must differ"
    assert ns.compare(*sides).of(Kind.LAYERS_DIVERGED) is None


def test_what_follows_a_step_that_is_missing_is_not_compared() -> None:
    """Which token was read in it is not known; a later one alone does not tell the past."""
    before, after = written(keep=lambda step: step != 2), written(from_step(4), keep=lambda step: step != 2)
    assert ns.compare(before, after).of(Kind.LAYERS_DIVERGED) is None


def test_layers_that_do_not_tell_tokens_apart_are_compared_by_equal_numbers_alone() -> None:
    """Where no layer before the change is recorded, no step after it can be known to have the same past."""
    watched = ["model.layers.2.mlp.down_proj", "lm_head"]
    comparison = ns.compare(written(watched=watched), written(from_step(4, factor=0.1), watched=watched))
    assert comparison.of(Kind.LAYERS_DIVERGED) is None


def test_another_precision_is_no_divergence_of_steps() -> None:
    """Rounding of the coarser type goes on from step to step."""
    model = tinymodels.llama(layers=LAYERS).to(torch.bfloat16)
    assert ns.compare(written(), written(model=model)).kinds == (Kind.PRECISION_CHANGED,)


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_a_real_model_is_compared_step_by_step() -> None:
    """SmolLM2 through the agent's own probes: a layer that fails from the third token on; and the control."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = prepare_smollm2()
    tokenizer = cast("Any", AutoTokenizer).from_pretrained(folder)
    tokens = tokenizer("The capital of France is", return_tensors="pt")
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ns.instrument("transformers")
    watched = ns.Model.wrap(model)

    def record(change: Change | None = None) -> Artifact:
        undo = change(model) if change is not None else None
        with ns.Scope("answers", max_overhead_pct=1000) as scope, torch.no_grad():
            layers = ["model.embed_tokens", "model.layers.9.mlp.down_proj", "model.layers.12.mlp.down_proj"]
            watched.attach_probe(layers=layers, kind=ns.probes.LayerActivations)
            model.generate(**tokens, max_new_tokens=6, do_sample=False)
        if callable(undo):
            undo()
        return scope.artifact

    try:
        before = record()
        assert ns.compare(before, record()).kinds == ()
        cause = diverged(ns.compare(before, record(from_step(3, "model.layers.12.mlp.down_proj"))))
    finally:
        ns.uninstrument("transformers")
    assert cause.subject.endswith(": model.layers.12.mlp.down_proj")
    assert "The first 3 steps of generations are as before" in cause.summary

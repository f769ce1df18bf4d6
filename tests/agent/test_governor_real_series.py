"""The stated error of layers' means, with series as real layers make them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import pytest
import torch

import tinymodels
from neuronscope.governor import series
from neuronscope.governor.series import Series

GENERATIONS: Final = 64
TOKENS: Final = 48
# Steps that scopes of 20 and 40 % have captured of generations of as many tokens: some late, and then only
# where the layers had settled.
CAPTURED: Final = (
    (9, 10, 11, 12, 13, 21, 25, 33, 37, 43, 45),
    (10, 13, 15, 19, 30, 33, 39, 40, 46),
    (12, 13, 14, 15, 16, 38),
    (13, 19, 28, 30, 31, 39, 47),
    (14, 15, 16, 23, 30, 37, 45),
    (15, 16, 22, 23, 24, 30, 36, 43),
)


@pytest.fixture(scope="module")
def means() -> list[list[float]]:
    """The mean of each layer's output, step by step, of greedy generations by a Llama of four layers."""
    model = tinymodels.llama(
        layers=4, hidden_size=128, intermediate_size=256, vocab_size=512, eos_token_id=None
    )
    steps: list[list[list[float]]] = [[] for _ in model.model.layers]

    def keep(layer: int) -> Callable[[Any, Any, Any], None]:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            tensor: torch.Tensor = output if isinstance(output, torch.Tensor) else output[0]
            steps[layer].append(cast(list[float], tensor.double().mean(dim=(1, 2)).tolist()))

        return hook

    for number, layer in enumerate(model.model.layers):
        layer.register_forward_hook(keep(number))
    prompts = torch.randint(3, 500, (GENERATIONS, 24), generator=torch.Generator().manual_seed(1))
    model.generate(prompts, max_new_tokens=TOKENS, do_sample=False)
    return [[step[row] for step in layer[1:]] for layer in steps for row in range(GENERATIONS)]


def held(means: Sequence[Sequence[float]], captured: Sequence[int]) -> float:
    """Of how many of the series that were captured so does the truth lie within the stated error?"""
    within = 0
    for values in means:
        seen = Series()
        for step in captured:
            seen.add(step, values[step - 1])
        margin = seen.margin(len(values))
        assert math.isfinite(margin)
        within += abs(seen.mean(len(values)) - sum(values) / len(values)) <= margin + 1e-9
    return within / len(means)


@pytest.mark.parametrize("captured", CAPTURED, ids=lambda steps: f"from {steps[0]}")
def test_the_truth_lies_within_the_stated_error_whichever_steps_were_captured(
    means: list[list[float]], captured: Sequence[int]
) -> None:
    """Also where nothing was captured while the layers settled after the prefill."""
    assert held(means, captured) >= 0.91


def test_what_settles_is_not_judged_by_how_calm_it_is_later(
    means: list[list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the steps before the first capture taken to be like those after it, more intervals would miss."""
    late = CAPTURED[2:]
    settling = [held(means, captured) for captured in late]
    monkeypatch.setattr(series, "SETTLING", 1.0)
    calm = [held(means, captured) for captured in late]
    assert sum(settling) / len(late) >= 0.94
    assert sum(calm) / len(late) < sum(settling) / len(late) - 0.01

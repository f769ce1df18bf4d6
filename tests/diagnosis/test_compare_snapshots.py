"""Full tensors of the same inputs: what summaries cannot see is located, layer and channel; noise is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import neuronscope as ns
import tinymodels
from neuronscope.artifact import Artifact, Telemetry
from neuronscope.diagnosis.comparing.result import Cause, Comparison
from neuronscope.diagnosis.kinds import Kind
from neuronscope.signals.records import LayerRecord
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary

LAYERS = 4
RUNS = 10
TOKENS = 12
CHANNEL = 5
WATCHED = [
    "model.embed_tokens",
    *(f"model.layers.{n}{part}" for n in range(LAYERS) for part in ("", ".self_attn", ".mlp.down_proj")),
    "model.norm",
    "lm_head",
]


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """On one thread, unless a test says so."""
    with tinymodels.one_thread():
        yield


def recorded(
    change: Callable[[Any], object] | None = None,
    *,
    inputs: Sequence[int] = range(RUNS),
    dtype: torch.dtype = torch.float32,
) -> Artifact:
    """A tiny transformer's runs, its layers in full; by hooks of torch's, so that no budget cuts any."""
    model = tinymodels.llama(layers=LAYERS).to(dtype)
    records: list[LayerRecord] = []

    def take(layer: str, step: int, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        values: NDArray[Any] = tensor.float().numpy().copy()
        name = "F32" if dtype == torch.float32 else "BF16"
        records.append(
            LayerRecord(
                "llama",
                layer,
                step,
                10**18 + len(records),
                values.shape,
                name,
                trace_id=7,
                summary=TensorSummary.of(values),
                tensor=TensorSnapshot(values.shape, name, values),
            )
        )

    def hook(layer: str, step: int) -> Callable[[torch.nn.Module, Any, Any], None]:
        return lambda module, inputs, output: take(layer, step, output)

    with torch.no_grad():
        if change is not None:
            change(model)
        for step, seed in enumerate(inputs):
            hooks = [model.get_submodule(layer).register_forward_hook(hook(layer, step)) for layer in WATCHED]
            model(tokens(seed))
            for handle in hooks:
                handle.remove()
    return Artifact(Telemetry([], records))


def tokens(seed: int) -> torch.Tensor:
    """An input of two rows."""
    return torch.randint(3, 90, (2, TOKENS), generator=torch.Generator().manual_seed(seed))


def nudge(model: Any) -> None:
    """One channel of the third block's MLP writes a thousandth more."""
    model.get_submodule("model.layers.2.mlp.down_proj").weight[CHANNEL] *= 1.001


def without_tensors(artifact: Artifact) -> Artifact:
    """The same recording with summaries alone."""
    records = [msgspec.structs.replace(record, tensor=None) for record in artifact.telemetry.layer_snapshots]
    return Artifact(Telemetry(artifact.telemetry.spans, records), artifact.resources)


def diverged(comparison: Comparison) -> Cause:
    """The finding about layers."""
    cause = comparison.of(Kind.LAYERS_DIVERGED)
    assert cause is not None, comparison
    return cause


def test_a_change_that_summaries_cannot_see_is_located_with_layer_and_channel() -> None:
    """A thousandth of one channel of one block, from tensors; from summaries there is no change at all."""
    before, after = recorded(), recorded(nudge)
    assert ns.compare(without_tensors(before), without_tensors(after)).of(Kind.LAYERS_DIVERGED) is None
    cause = diverged(ns.compare(before, after))
    assert cause.subject.endswith(": model.layers.2.mlp.down_proj")
    assert f"in 1 of 32 channels: {CHANNEL}" in cause.summary
    assert f"full tensors of {RUNS} runs with the same input" in cause.summary
    told = next(item for item in cause.evidence if item.statistic == "snapshots")
    assert told.effect < 1e-2
    assert told.before is not None


@pytest.mark.parametrize("changed", [False, True])
def test_files_of_the_agent_are_read_like_live_recordings(tmp_path: Path, changed: bool) -> None:
    """Tensors of a file are read while it is open."""
    for name, change in (("a.nsz", None), ("b.nsz", nudge if changed else None)):
        model = tinymodels.llama(layers=LAYERS)
        watched = ns.Model.wrap(model)
        with ns.Scope("runs", max_overhead_pct=1000) as scope, torch.no_grad():
            if change is not None:
                change(model)
            layers = ["model.embed_tokens", "model.layers.2.mlp.down_proj"]
            watched.attach_probe(layers=layers, kind=ns.probes.LayerActivations)
            model(tokens(1))
            model(tokens(2))
        scope.save(tmp_path / name)
    comparison = ns.compare(tmp_path / "a.nsz", tmp_path / "b.nsz")
    if changed:
        assert diverged(comparison).subject.endswith(": model.layers.2.mlp.down_proj")
    else:
        assert comparison.of(Kind.LAYERS_DIVERGED) is None


def test_the_sides_mirror_each_other() -> None:
    """The same layer and channel, whichever side is called the first."""
    before, after = recorded(), recorded(nudge)
    forth, back = diverged(ns.compare(before, after)), diverged(ns.compare(after, before))
    assert forth.subject == back.subject
    assert forth.effect == pytest.approx(back.effect)


def test_inputs_need_not_come_in_the_same_order_nor_all_be_the_same() -> None:
    """Runs are paired by what the first layer wrote."""
    cause = diverged(ns.compare(recorded(), recorded(nudge, inputs=[91, 3, 92, 0, 7])))
    assert "full tensors of 3 runs" in cause.summary


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_another_recording_of_the_same_model_has_no_change(dtype: torch.dtype) -> None:
    """The control: same weights and inputs, on another number of threads."""
    before = recorded(inputs=range(4), dtype=dtype)
    torch.set_num_threads(2)
    after = recorded(inputs=range(4), dtype=dtype)
    assert ns.compare(before, after).kinds == ()


def test_another_precision_is_no_divergence_of_layers() -> None:
    """Rounding of the coarser type is noise; that it is another type is told."""
    comparison = ns.compare(recorded(), recorded(dtype=torch.bfloat16))
    assert comparison.kinds == (Kind.PRECISION_CHANGED,)


def test_a_change_beneath_another_precision_is_still_found() -> None:
    """Far beyond rounding: the layer is told, as a consequence at most."""

    def rewrite(model: Any) -> None:
        model.get_submodule("model.layers.1.mlp.down_proj").weight.mul_(-1.0)

    cause = diverged(ns.compare(recorded(), recorded(rewrite, dtype=torch.bfloat16)))
    assert cause.subject.endswith(": model.layers.1.mlp.down_proj")


# --- noise of repeats, with built tensors ------------------------------------------------------------------
@dataclass(frozen=True)
class Kernel:
    """A model of five layers whose kernels are noisy.

    Attributes:
        noise: relative, of every run.
        shift: relative, of one layer from the third on.
    """

    seed: int
    noise: float
    shift: float = 0.0

    def recorded(self, runs: int = 6, repeats: int = 2) -> Artifact:
        """Each input so many times."""
        random, drift = np.random.default_rng(self.seed), np.random.default_rng(9)
        moved = [drift.normal(size=(8, 64)) for _ in range(runs)]
        records: list[LayerRecord] = []
        for run in range(runs * repeats):
            values = np.random.default_rng(run % runs).normal(size=(8, 64))
            for place in range(5):
                if place:
                    values = values + self.noise * random.normal(size=values.shape)
                if place == 2:
                    values = values + self.shift * moved[run % runs]
                records.append(self._record(run, place, values.astype(np.float32)))
        return Artifact(Telemetry([], records))

    def _record(self, run: int, place: int, values: NDArray[Any]) -> LayerRecord:
        return LayerRecord(
            "m",
            f"block.{place}",
            0,
            10**18 + run * 1_000 + place,
            values.shape,
            "F32",
            trace_id=run + 1,
            summary=TensorSummary.of(values),
            tensor=TensorSnapshot.from_numpy(values),
        )


@pytest.mark.parametrize("seed", range(2, 7))
def test_noise_of_repeats_is_no_divergence(seed: int) -> None:
    """What two runs of an input on one side differ by, two sides may differ by."""
    assert ns.compare(Kernel(1, 1e-3).recorded(), Kernel(seed, 1e-3).recorded()).kinds == ()


def test_what_is_beyond_the_noise_of_repeats_is_found_where_it_begins() -> None:
    """Noise in every layer from the second on; the change begins in the third."""
    cause = diverged(ns.compare(Kernel(1, 1e-3).recorded(), Kernel(2, 1e-3, shift=0.02).recorded()))
    assert cause.subject == "m: block.2"
    assert "repeats of" in cause.summary
    assert "channels" not in cause.summary, "it is in all of them"


def test_a_kernel_that_became_noisy_does_not_excuse_itself() -> None:
    """The steadier side's repeats are the noise."""
    before, after = Kernel(1, 0).recorded(), Kernel(2, 1e-2).recorded()
    assert diverged(ns.compare(before, after)).subject == "m: block.1"
    assert diverged(ns.compare(after, before)).subject == "m: block.1"


def test_without_repeats_rounding_is_the_noise() -> None:
    """And it is said that no run was repeated."""
    cause = diverged(
        ns.compare(Kernel(1, 0).recorded(repeats=1), Kernel(2, 0, shift=1e-3).recorded(repeats=1))
    )
    assert cause.subject == "m: block.2"
    assert "no run was repeated" in cause.summary


def test_layers_before_it_without_tensors_are_told() -> None:
    """Nobody may take the first layer with tensors for the first that differs."""
    before, after = Kernel(1, 0).recorded(), Kernel(2, 0, shift=1e-3).recorded()
    for artifact in (before, after):
        records = artifact.telemetry.layer_snapshots
        records[:] = [  # type: ignore[index]
            msgspec.structs.replace(record, tensor=None)
            if record.layer_id in {"block.1", "block.2"}
            else record
            for record in records
        ]
    cause = diverged(ns.compare(before, after))
    assert cause.subject == "m: block.3"
    assert "Of 2 layers before it only summaries are known" in cause.summary

"""Models spread over processes: records of each rank, and the whole merged exactly from them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import torch_ranks
from collectors import free_port
from neuronscope.signals.tensors import TensorSummary
from neuronscope.summaries import merge_summaries

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
WORLD = 2
Records = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    """What each of the processes saw, by way of distributing."""
    port = str(free_port())
    path = [str(ROOT / name) for name in ("agent", "instrumentation", "exporters", "tests/support")]
    start = "import torch_ranks as t; t.main(sys.argv[1], *map(int, sys.argv[2:]))"
    code = f"import sys; sys.path[:0] = {path!r}; {start}"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, port, str(rank), str(WORLD)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(WORLD)
    ]  # fmt: skip
    told: list[dict[str, Any]] = []
    try:
        for child in children:
            out, err = child.communicate(timeout=250)
            assert child.returncode == 0, err
            told.append(json.loads(out))
    finally:
        for child in children:
            child.kill()
    return told


def whole() -> dict[str, TensorSummary]:
    """The summaries of an undivided model on the whole batch."""
    model = torch_ranks.make()
    found: dict[str, TensorSummary] = {}

    def keep(path: str) -> Any:
        def hook(_: object, __: object, output: torch.Tensor) -> None:
            found[path] = TensorSummary.of(output.detach().numpy())

        return hook

    for path, module in cast(Any, model).named_modules():
        if path.startswith("blocks."):
            module.register_forward_hook(keep(path))
    model(torch_ranks.BATCH)
    return found


def plain_path(path: str) -> str:
    """A layer's path without what wrappers put into it."""
    return ".".join(part for part in path.split(".") if part not in {"module", "_fsdp_wrapped_module"})


def of_layer(records: Records, path: str, role: str = "output") -> Records:
    return [record for record in records if plain_path(record["layer"]) == path and record["role"] == role]


def close(got: TensorSummary, wanted: TensorSummary) -> None:
    assert (got.count, got.zero_count) == (wanted.count, wanted.zero_count)
    for name in ("mean", "std", "l2", "min", "max", "abs_max"):
        assert getattr(got, name) == pytest.approx(getattr(wanted, name), rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize("way", torch_ranks.WAYS)
def test_outputs_and_gradients_are_bit_equal_on_every_rank(ranks: list[dict[str, Any]], way: str) -> None:
    """A training step under probes of every layer."""
    assert [told[way]["equal"] for told in ranks] == [True] * WORLD


@pytest.mark.parametrize("way", ["plain", "ddp", "fsdp2", "fsdp1"])
def test_summaries_of_the_ranks_merge_to_that_of_the_whole_batch(
    ranks: list[dict[str, Any]], way: str
) -> None:
    """Each rank records its rows, under its number; moments merge exactly."""
    for path, wanted in whole().items():
        parts: list[TensorSummary] = []
        for rank, told in enumerate(ranks):
            found = of_layer(told[way]["records"], path)
            assert found, path
            assert {record["attributes"]["rank"] for record in found} == {rank}
            parts.append(TensorSummary(*found[0]["summary"]))
        close(merge_summaries(parts), wanted)


def test_tensor_parallel_activations_are_told_as_shards(ranks: list[dict[str, Any]]) -> None:
    """Of a DTensor each rank summarises its part, says how it is placed, and the parts merge."""
    expected = whole()
    for path in ("blocks.0.up", "blocks.0.act", "blocks.1.act"):
        parts = [of_layer(told["tensor_parallel"]["records"], path)[0] for told in ranks]
        assert all(part["attributes"]["placements"] == ["S(1)"] for part in parts)
        assert all(part["attributes"]["global_shape"] == [6, 16] for part in parts)
        assert all(part["shape"] == [6, 8] for part in parts)
        close(merge_summaries(TensorSummary(*part["summary"]) for part in parts), expected[path])
    for told in ranks:  # the sum over ranks has been made: each of them holds all of it
        (record,) = of_layer(told["tensor_parallel"]["records"], "blocks.1")
        close(TensorSummary(*record["summary"]), expected["blocks.1"])


@pytest.mark.parametrize("way", ["plain", "ddp", "fsdp2", "fsdp1", "tensor_parallel"])
def test_gradients_are_recorded_on_every_rank(ranks: list[dict[str, Any]], way: str) -> None:
    """One for each activation."""
    for told in ranks:
        for block in range(2):
            (record,) = of_layer(told[way]["records"], f"blocks.{block}.act", "gradient")
            assert record["summary"][0] > 0


def test_the_world_is_not_needed_by_the_test() -> None:
    """This process has no process group, so its records name no rank."""
    assert not torch.distributed.is_initialized()

"""Measures interventions, ours and nnsight's, in one process."""

# nnsight reads the source of these blocks: what looks unused is what it saves.
# pyright: reportUnusedVariable=false
from __future__ import annotations

import copy
import importlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from tests.benchmarks.children import serve
from torch import nn

import neuronscope as ns
from neuronscope.demo.models import prepare_smollm2

try:
    nnsight: Any = importlib.import_module("nnsight")
except ImportError:  # told by the parent
    nnsight = None

Variants = Mapping[str, Callable[[], Any]]


@torch.no_grad()
def answer(command: str, **asked: Any) -> dict[str, Any]:
    """What the parent asks for."""
    commands: Mapping[str, Callable[..., dict[str, Any]]] = {
        "stack": stack,
        "others": others,
        "smollm2": smollm2,
    }
    return commands[command](**asked)


def stack(size: int, rounds: float) -> dict[str, Any]:
    """What each module of a stack costs, by kind of touching, over the plain call."""
    net = nn.Sequential(*[nn.Linear(8, 8) for _ in range(size)]).eval()
    x = torch.randn(1, 8)
    ours = _ours(net, x, size)
    theirs: Variants = _nnsight(copy.deepcopy(net), x) if nnsight is not None else {}
    times = measure(
        {"plain": lambda: net(x), **_named("ours", ours), **_named("nnsight", theirs)}, int(rounds)
    )
    return {
        "rounds": int(rounds),
        **{
            side: {kind: (times[f"{side} {kind}"] - times["plain"]) / size for kind in variants}
            for side, variants in _sides(ours, theirs)
        },
    }


def _sides(ours: Variants, theirs: Variants) -> list[tuple[str, Variants]]:
    return [("ours", ours), ("nnsight", theirs)]


def _ours(net: nn.Module, x: torch.Tensor, size: int) -> Variants:
    model = ns.Model.wrap(net)
    paths = [str(number) for number in range(size)]
    constant = torch.zeros(1, 8)

    def untouched() -> None:
        with model.trace(x) as t:
            t.root.output  # noqa: B018

    def read() -> list[Any]:
        with model.trace(x) as t:
            return [t[path].output for path in paths]

    def tree() -> list[Any]:
        with model.trace(x) as t:
            return [t[number].output for number in range(size)]

    def edit() -> None:
        with model.trace(x) as t:
            for path in paths:
                t[path].output = constant

    def read_write() -> None:
        with model.trace(x) as t:
            for path in paths:
                site = t[path]
                site.output = site.output

    def input_output() -> None:
        with model.trace(x) as t:
            for path in paths:
                site = t[path]
                site.input  # noqa: B018
                site.output  # noqa: B018

    def cache() -> Any:
        with model.trace(x) as t:
            return t.cache("*")

    return {
        "idle": lambda: net(x), "untouched": untouched, "read": read, "tree": tree, "edit": edit,
        "read_write": read_write, "input_output": input_output, "cache": cache,
    }  # fmt: skip


def _nnsight(net: nn.Module, x: torch.Tensor) -> Variants:
    model: Any = nnsight.NNsight(net)
    layers = list(model)
    size = len(layers)
    constant = torch.zeros(1, 8)

    def untouched() -> None:
        with model.trace(x):
            out = model.output.save()  # noqa: F841  how it is written there

    def read() -> None:
        with model.trace(x):
            outs = nnsight.save([])
            for layer in layers:
                outs.append(layer.output)

    def tree() -> None:
        with model.trace(x):
            outs = nnsight.save([])
            for number in range(size):
                outs.append(model[number].output)

    def edit() -> None:
        with model.trace(x):
            for layer in layers:
                layer.output = constant

    def read_write() -> None:
        with model.trace(x):
            for layer in layers:
                layer.output = layer.output

    def input_output() -> None:
        with model.trace(x):
            for layer in layers:
                layer.input  # noqa: B018
                layer.output  # noqa: B018

    def cache() -> None:
        with model.trace(x) as tracer:
            kept = tracer.cache(device=None)  # noqa: F841

    return {
        "idle": lambda: net(x), "untouched": untouched, "read": read, "tree": tree, "edit": edit,
        "read_write": read_write, "input_output": input_output, "cache": cache,
    }  # fmt: skip


class Loop(nn.Module):
    """A module that is run repeatedly, with a torch function inside."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, steps: int = 1) -> torch.Tensor:
        """The part, several times."""
        for _ in range(steps):
            x = torch.relu(self.part(x))
        return x


def others(rounds: float) -> dict[str, Any]:
    """Fixed cost of a trace, of a read of an operation, and of a step of a repeated run."""
    net, x, steps = Loop().eval(), torch.randn(1, 8), 50
    model = ns.Model.wrap(net)

    def fixed() -> None:
        with model.trace(x):
            pass

    def ops() -> None:
        with model.trace(x) as t:
            t.root.ops["relu"][0].output  # noqa: B018

    def generation() -> None:
        with model.trace(x, steps) as t:
            for _ in t.steps_of("part"):
                t.part.output = t.part.output

    ours: Variants = {"fixed": fixed, "ops": ops, "generation": generation}
    theirs: Variants = _nnsight_others(copy.deepcopy(net), x, steps) if nnsight is not None else {}
    plain: Variants = {"plain": lambda: net(x), "plain loop": lambda: net(x, steps)}
    times = measure({**plain, **_named("ours", ours), **_named("nnsight", theirs)}, 5 * int(rounds))
    told: dict[str, Any] = {"rounds": 5 * int(rounds)}
    for side in ("ours", "nnsight") if theirs else ("ours",):
        told[side] = {
            "fixed": times[f"{side} fixed"] - times["plain"],
            "ops": times[f"{side} ops"] - times[f"{side} fixed"],
            "generation": (times[f"{side} generation"] - times["plain loop"]) / steps,
        }
    return {"nnsight": {}, **told}


def _nnsight_others(net: nn.Module, x: torch.Tensor, steps: int) -> Variants:
    model: Any = nnsight.NNsight(net)

    def fixed() -> None:
        with model.trace(x):
            pass

    def ops() -> None:
        with model.trace(x):
            out = model.source.torch_relu_0.output.save()  # noqa: F841

    def generation() -> None:
        with model.trace(x, steps) as tracer:
            for _ in tracer.iter[:steps]:
                model.part.output = model.part.output

    return {"fixed": fixed, "ops": ops, "generation": generation}


def smollm2(rounds: float) -> dict[str, Any]:
    """What a read and a write in each layer add to a forward of SmolLM2, in percent of it, pair by pair."""
    library: Any = importlib.import_module("transformers")
    net = library.AutoModelForCausalLM.from_pretrained(prepare_smollm2()).eval()
    ids = torch.arange(100, 116).unsqueeze(0)
    model = ns.Model.wrap(net)
    paths = [f"model.layers.{number}" for number in range(net.config.num_hidden_layers)]

    def ours() -> None:
        with model.trace(ids) as t:
            for path in paths:
                site = t[path]
                site.output = site.output

    variants: dict[str, Callable[[], Any]] = {"ours": ours}
    if nnsight is not None:
        other: Any = nnsight.NNsight(net)

        def theirs() -> None:
            with other.trace(ids):
                for layer in other.model.layers:
                    layer.output = layer.output

        variants["nnsight"] = theirs
    told: dict[str, Any] = {
        "layers": len(paths),
        "tokens": ids.numel(),
        "nnsight": None,
    }
    for side, call in variants.items():  # one after the other, since nnsight leaves something on the model
        told["plain_ms"], told[side] = _pairs(lambda: net(ids), call, int(rounds))
    # What the same pairs say of a second plain call.
    _, told["noise"] = _pairs(lambda: net(ids), lambda: net(ids), int(rounds))
    return told


def _pairs(plain: Callable[[], Any], call: Callable[[], Any], rounds: int) -> tuple[float, list[float]]:
    """Thread CPU time of a plain call in ms, and what the other adds to the one beside it, in percent.

    They take turns in being first: the second of two calls is not the same as the first.
    """
    plain()
    call()
    times: list[tuple[int, int]] = []
    for number in range(rounds):
        first, second = (plain, call) if number % 2 == 0 else (call, plain)
        start = time.thread_time_ns()
        first()
        between = time.thread_time_ns()
        second()
        one, other = between - start, time.thread_time_ns() - between
        times.append((one, other) if number % 2 == 0 else (other, one))
    plain_ns = statistics.median(one for one, _ in times)
    return plain_ns / 1e6, [100 * (other - one) / plain_ns for one, other in times]


def _named(side: str, variants: Variants) -> Variants:
    return {f"{side} {kind}": call for kind, call in variants.items()}


def measure(variants: Variants, rounds: int) -> dict[str, float]:
    """Median thread CPU time of each, in µs, taken in turns; each timed call follows one that is not."""
    times: dict[str, list[int]] = {name: [] for name in variants}
    for number in range(rounds):
        order = list(variants) if number % 2 == 0 else list(variants)[::-1]
        for name in order:
            call = variants[name]
            call()
            start = time.thread_time_ns()
            call()
            times[name].append(time.thread_time_ns() - start)
    return {name: statistics.median(taken) / 1e3 for name, taken in times.items()}


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(answer)

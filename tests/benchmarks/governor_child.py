"""A service for the governor's benchmark: a 12-layer model under a load pattern, with or without the agent.

``python -m tests.benchmarks.governor_child BUDGET|off|idle``.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from statistics import fmean
from typing import Any, Final, cast

from tests.benchmarks.children import serve
from tests.benchmarks.governor_arms import ON, Arms, there_and_back

LAYERS: Final = 12
THREADS: Final = 4
BLOCK_S: Final = 0.5  # of one arm; shorter ones would be charged for more flushes than a service makes
EXPERIMENT_S: Final = 60.0
EXPERIMENT_BLOCK_S: Final = 0.7  # a request takes a tenth of it, four at once less than half
PATTERNS: Final = ("steady", "bursts", "long", "threads")
# Everything, in full: far more than any of the budgets pays for.
PROBES: Final = ("**:full",)
# Per cent, in turn, of the generations whose layers' means are compared: of 10 all errors would be infinite.
ESTIMATED: Final = (20.0, 40.0, 80.0)
STRATA: Final = ("prefill", "decode", "call")


def model() -> Any:
    """A Llama of 12 layers and 256 channels, about 10 million parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
        vocab_size=1024,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
    )
    made: Any = LlamaForCausalLM(config)
    return made.train(False)


def loads() -> dict[str, Callable[[], int]]:
    """The loads: each serves some requests, and says how many."""
    import torch

    llama = model()
    short, long_ = torch.arange(3, 19)[None], torch.arange(3, 259)[None]

    def ask(prompt: Any = short, tokens: int = 6) -> None:
        llama.generate(prompt, max_new_tokens=tokens, do_sample=False)

    def steady() -> int:
        ask()
        return 1

    def bursts() -> int:
        for _ in range(6):
            ask()
        time.sleep(0.15)
        return 6

    def long() -> int:
        ask(long_, 2)
        return 1

    pool = ThreadPoolExecutor(THREADS)

    def one(_: int) -> None:
        ask()

    def threads() -> int:
        list(pool.map(one, range(THREADS)))
        return THREADS

    return {"steady": steady, "bursts": bursts, "long": long, "threads": threads}


def estimates(rounds: int) -> dict[str, Any]:
    """What spans tell of generations that were captured in part, against the truth from hooks of our own.

    The truth is taken from the same generation before, so that what the hooks cost earns no captures.

    Returns:
        For the prefill, the decoding and the whole call: by generation, of how many layers' means an error
        was told (of a prefill that was captured: none), and of how many of these the truth lay within it.
        By generation, since the layers of one err alike.  Besides, how many layers a span can tell of in
        all generations, and the share of runs that was captured of those that an error was told of.
    """
    import torch

    import neuronscope as ns
    from neuronscope.modelcall import MAX_AGGREGATED
    from neuronscope.signals import names

    llama = model()
    layers = {name: layer for name, layer in llama.named_modules() if name}
    truth: dict[str, list[float]] = {name: [] for name in layers}

    def keep(name: str) -> Callable[[Any, Any, Any], None]:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            tensor = output if isinstance(output, torch.Tensor) else cast(torch.Tensor, output[0])
            truth[name].append(float(tensor.double().mean()))

        return hook

    told = {stratum: [0] * rounds for stratum in STRATA}
    within = {stratum: [0] * rounds for stratum in STRATA}
    shares: list[float] = []
    for turn in range(rounds):
        for values in truth.values():
            values.clear()
        prompt = torch.randint(3, 1000, (1, 16 + turn))
        hooks = [layer.register_forward_hook(keep(name)) for name, layer in layers.items()]
        llama.generate(prompt, max_new_tokens=48, do_sample=False)
        for hook in hooks:
            hook.remove()
        budget = ESTIMATED[turn % len(ESTIMATED)]
        # A scope as short as this may cost more than twice its budget, and says so; its data is kept.
        with suppress(ns.OverheadBudgetExceeded), ns.Scope("estimates", max_overhead_pct=budget) as scope:
            llama.generate(prompt, max_new_tokens=48, do_sample=False)
        spans = [span for span in scope.artifact.telemetry.spans if names.LAYERS_MEAN in span.attributes]
        if not spans:
            continue  # nothing was affordable
        of: dict[str, Any] = dict(spans[0].attributes)
        for place, layer in enumerate(of[names.LAYERS_IDS]):
            first, *later = truth[layer]
            prefill = of[names.LAYERS_PREFILL_MEAN][place]
            estimated = {
                "prefill": (prefill, math.inf if math.isnan(prefill) else 0.0, first),
                "decode": (
                    of[names.LAYERS_DECODE_MEAN][place], of[names.LAYERS_DECODE_ERROR][place], fmean(later)
                ),
                "call": (
                    of[names.LAYERS_MEAN][place], of[names.LAYERS_MEAN_ERROR][place], fmean(truth[layer])
                ),
            }  # fmt: skip
            for stratum, (mean, error, true) in estimated.items():
                if math.isfinite(error):  # else told as unknown: nothing to be held to
                    told[stratum][turn] += 1
                    within[stratum][turn] += abs(mean - true) <= error + 1e-6 * max(1.0, abs(true))
            if math.isfinite(estimated["decode"][1]):
                shares.append(of[names.LAYERS_COVERAGE][place])
    return {
        "told": told,
        "within": within,
        "layers": rounds * min(MAX_AGGREGATED, len(layers)),
        "captured": sum(shares) / max(1, len(shares)),
    }


class Service:
    """The loads, and the agent switched between the arms of a comparison.

    Args:
        mode: the budget in per cent; ``idle``: the agent without captures; ``off``: no agent at all.
    """

    def __init__(self, mode: str) -> None:
        self._arms: Arms | None = None
        if mode != "off":
            import neuronscope as ns

            idle = mode == "idle"
            ns.Platform(
                max_overhead_pct=15.0 if idle else float(mode),
                probes=("off",) if idle else PROBES,
                overhead_block_s=EXPERIMENT_BLOCK_S,
            )
            instrument, uninstrument = (
                partial(do, "transformers") for do in (ns.instrument, ns.uninstrument)
            )
            instrument()
            self._arms = Arms(instrument, uninstrument)
        self._patterns = loads()
        self._calls: dict[str, int] = {}

    def serve(self, pattern: str, seconds: float) -> int:
        """Serve for so long; returns how many times the load was run."""
        run = self._patterns[pattern]
        end, calls = time.monotonic() + seconds, 0
        while time.monotonic() < end:
            run()
            calls += 1
        self._calls[pattern] = max(1, round(calls * BLOCK_S / seconds))
        return calls

    def calls(self, pattern: str, calls: int) -> int:
        """Have a block run the load so often, whatever `serve` found."""
        self._calls[pattern] = calls
        return calls

    def turn(self, pattern: str, arms: Sequence[str]) -> dict[str, float]:
        """One block of each arm, and then one of each in the opposite order; CPU by arm in µs.

        All blocks serve the same requests, and end when the worker has emptied its queue.
        """
        run, calls = self._patterns[pattern], self._calls[pattern]
        cpu = dict.fromkeys(arms, 0.0)
        for arm in there_and_back(arms):
            if self._arms is not None:
                self._arms.switch(arm)
            start = time.process_time_ns()
            for _ in range(calls):
                run()
            if self._arms is not None:
                self._arms.flush()
            cpu[arm] += (time.process_time_ns() - start) / 1e3
        if self._arms is not None:
            self._arms.switch(ON)
        return cpu

    def measure(self, pattern: str) -> list[float] | None:
        """The agent's own experiment under this load: estimate, interval, accounted figure, in per cent."""
        assert self._arms is not None
        run = self._patterns[pattern]
        self._arms.start_experiment()
        end = time.monotonic() + EXPERIMENT_S
        while not self._arms.experiment_ended and time.monotonic() < end:
            run()
        return self._arms.end_experiment()

    def tell(self) -> dict[str, Any]:
        """The accounts."""
        assert self._arms is not None
        return self._arms.accounts()


def main() -> None:
    """Do what the parent says."""
    service = Service(sys.argv[1])
    service.serve("steady", 0.1)

    def answer(command: str, pattern: str = "steady", **arguments: Any) -> Any:
        if command == "estimates":
            return estimates(**arguments)
        if command == "tell":
            return service.tell()
        do: dict[str, Callable[..., Any]] = {
            "serve": service.serve,
            "calls": service.calls,
            "turn": service.turn,
            "measure": service.measure,
        }
        return do[command](pattern, **arguments)

    serve(answer)


if __name__ == "__main__":
    main()

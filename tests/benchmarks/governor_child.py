"""A service for the governor's benchmark: a 12-layer model under a load pattern, with or without the agent.

``python -m tests.benchmarks.governor_child BUDGET|off|idle``; ``idle`` is the agent without captures.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, cast

from tests.benchmarks.children import serve

LAYERS: Final = 12
THREADS: Final = 4
PATTERNS: Final = ("steady", "bursts", "long", "threads")
# Everything, in full: far more than any of the budgets pays for.
PROBES: Final = ("**:full",)


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
    short, long_ = torch.arange(3, 19)[None], torch.arange(3, 515)[None]

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
    """Aggregates of generations that were captured in part, against the truth from hooks of our own.

    Returns:
        How many layers of how many spans were estimated, and for how many the truth lay within the error
        that the span told; the share of runs that was captured.
    """
    import torch

    import neuronscope as ns
    from neuronscope.signals import names

    llama = model()
    blocks = {f"model.layers.{n}": block for n, block in enumerate(llama.model.layers)}
    truth: dict[str, list[float]] = {name: [] for name in blocks}

    def keep(name: str) -> Callable[[Any, Any, Any], None]:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            tensor = output if isinstance(output, torch.Tensor) else cast(torch.Tensor, output[0])
            truth[name].append(float(tensor.double().mean()))

        return hook

    hooks = [block.register_forward_hook(keep(name)) for name, block in blocks.items()]
    estimated = within = 0
    shares: list[float] = []
    for turn in range(rounds):
        for values in truth.values():
            values.clear()
        with ns.Scope("estimates", max_overhead_pct=(10.0, 20.0, 40.0)[turn % 3]) as scope:
            llama.generate(torch.randint(3, 1000, (1, 16 + turn)), max_new_tokens=48, do_sample=False)
        spans = [span for span in scope.artifact.telemetry.spans if names.LAYERS_MEAN in span.attributes]
        if not spans:
            continue  # nothing was affordable
        told = spans[0].attributes
        ids: Any = told[names.LAYERS_IDS]
        errors: Any = told.get(names.LAYERS_MEAN_ERROR, [0.0] * len(ids))
        means: Any = told[names.LAYERS_MEAN]
        coverage: Any = told.get(names.LAYERS_COVERAGE, [1.0] * len(ids))
        for layer, mean, error, share in zip(ids, means, errors, coverage, strict=True):
            if layer not in truth or not math.isfinite(error):
                continue  # an error that is unknown is told as infinite: nothing to be held to
            true = sum(truth[layer]) / len(truth[layer])
            estimated += 1
            shares.append(share)
            within += abs(mean - true) <= error + 1e-6 * max(1.0, abs(true))
    for hook in hooks:
        hook.remove()
    return {"estimated": estimated, "within": within, "captured": sum(shares) / max(1, len(shares))}


def main() -> None:
    """Serve a block of a load whenever the parent says so."""
    mode, *rest = sys.argv[1:]
    engine: Any = None
    if mode != "off":
        import neuronscope as ns
        from neuronscope.engine import ENGINE

        measure: dict[str, Any] = {"overhead_block_s": float(rest[0]), "overhead_rest_s": 1.0} if rest else {}
        ns.Platform(
            max_overhead_pct=15.0 if mode == "idle" else float(mode),
            probes=("off",) if mode == "idle" else PROBES,
            overhead_measure=bool(rest),
            **measure,
        )
        ns.instrument("transformers")
        engine = ENGINE
    patterns = loads()
    patterns["steady"]()

    def answer(
        command: str, seconds: float = 1.0, rounds: int = 0, pattern: str = "steady"
    ) -> dict[str, Any]:
        if command == "estimates":
            return estimates(rounds)
        if command == "block":
            requests = patterns[pattern]
            cpu, start, served = time.process_time_ns(), time.monotonic(), 0
            while time.monotonic() - start < seconds:
                served += requests()
            if engine is not None:
                engine.flush(10)
            return {"cpu_us": (time.process_time_ns() - cpu) / served / 1e3, "requests": served}
        budget = engine.budget
        measured = engine.steward.measured
        return {
            "accounted": budget.overhead_pct,
            "skipped": budget.skipped,
            "captured": sum(layer.captured for layer in budget.coverage),
            "least": min((layer.captured for layer in budget.coverage), default=0),
            "layers": len(budget.coverage),
            "spent_ms": {name: round(account.spent_ns / 1e6, 1) for name, account in budget.accounts.items()},
            "measured": None
            if measured is None or measured.estimate is None
            else [measured.estimate, measured.low, measured.high, measured.accounted],
        }

    serve(answer)


if __name__ == "__main__":
    main()

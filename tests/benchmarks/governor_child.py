"""A service for the governor's benchmark: a 12-layer model under a load pattern, with or without the agent.

``python -m tests.benchmarks.governor_child PATTERN BUDGET|off|idle``; ``idle`` is the agent without captures.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

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


def load(pattern: str) -> Callable[[], int]:
    """The load: serves some requests, and says how many."""
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

    return {"steady": steady, "bursts": bursts, "long": long, "threads": threads}[pattern]


def main() -> None:
    """Serve a block of the load whenever the parent says so."""
    pattern, mode, *rest = sys.argv[1:]
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
    requests = load(pattern)
    requests()

    def answer(command: str, seconds: float = 1.0) -> dict[str, Any]:
        if command == "block":
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

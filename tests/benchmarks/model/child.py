"""One way of looking into a model, in a process of its own.

    python -m tests.benchmarks.model.child WAY SIZE [SITE]

SITE is a folder with packages that the way needs beside this environment's own; torch is always this one's.
Answers ``round``: thread CPU time of a forward without and with, in ms; and ``kernel``: see `kernel`.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

import torch
from tests.benchmarks.children import serve
from tests.benchmarks.measure import loop_us, median_us
from tests.benchmarks.model import network
from tests.benchmarks.venvs import CACHE
from torch import nn

Forward = Callable[[], Any]
SAMPLED: Final = 16

_STATISTICS: Final = "[min, max, mean, std, l1_norm]"
_INSPECT: Final = f"""stats:
  enabled: True
  layers:
    layer_name_regex_pattern: .*
  base:
    LogTensorStats:
      enabled: True
      tensors: [activation]
      stats: {_STATISTICS}
      freq: 1
      start_step: 0
      end_step: 100000000
"""


def computing(model: nn.Module) -> list[str]:
    """Paths of all modules that run."""
    modules = cast(Any, model).named_modules()
    return [path for path, module in modules if path and type(module).forward is not nn.Module.forward]


# --- ours ---------------------------------------------------------------------------------------------
@contextmanager
def platform(model: Any, forward: Forward) -> Generator[Forward, None, None]:
    """The whole way: scope, probe on every module, records handed to the worker."""
    import neuronscope as ns

    with ns.Scope("bench", max_overhead_pct=1000, overhead_action="warn"):
        probe = ns.probes.LayerActivations(ns.Fidelity.SUMMARY)
        ns.Model.wrap(model).attach_probe("**", probe)
        yield forward


@contextmanager
def adapter(model: Any, forward: Forward) -> Generator[Forward, None, None]:
    """Slots and summaries of every module, kept in a list."""
    with ExitStack() as stack:
        kept: list[Any] = []
        _observe(model, stack, kept)

        def run() -> None:
            kept.clear()
            forward()

        yield run


@contextmanager
def sampled(model: Any, forward: Forward) -> Generator[Forward, None, None]:
    """The same in one forward of 16, put in and taken out for it; times are of all 16."""

    def run() -> None:
        watch_once(model, forward)
        for _ in range(SAMPLED - 1):
            forward()

    yield run


def watch_once(model: Any, forward: Forward) -> None:
    """Come to all modules, summarise one forward, and leave."""
    with ExitStack() as stack:
        _observe(model, stack, [])
        forward()


@contextmanager
def idle(model: Any, forward: Forward) -> Generator[Forward, None, None]:
    """After everybody who watched has gone."""
    watch_once(model, forward)
    yield forward


def _observe(model: Any, stack: ExitStack, kept: list[Any]) -> None:
    from neuronscope_instrumentation.torch import ADAPTER

    def take(snapshot: Any) -> None:
        kept.append(snapshot.summarize())

    for path in computing(model):
        stack.callback(ADAPTER.observe_layer(model, path, take))


# --- peers --------------------------------------------------------------------------------------------
@contextmanager
def naive(model: Any, forward: Forward) -> Generator[Forward, None, None]:
    """Forward hooks that take mean, deviation and norm."""
    kept: list[Any] = []

    def hook(_: Any, __: Any, output: torch.Tensor) -> None:
        kept.append((output.mean().item(), output.std().item(), output.norm().item()))

    handles = [model.get_submodule(path).register_forward_hook(hook) for path in computing(model)]

    def run() -> None:
        kept.clear()
        forward()

    yield run
    for handle in handles:
        handle.remove()


@contextmanager
def profiler(_: Any, forward: Forward) -> Generator[Forward, None, None]:
    """torch.profiler around each forward: times of operators, no statistics."""
    from torch.profiler import ProfilerActivity, profile

    def run() -> None:
        with profile(activities=[ProfilerActivity.CPU]):
            forward()

    yield run


@contextmanager
def inspect(model: Any, forward: Forward) -> Generator[Forward, None, None]:
    """nvdlfw-inspect's LogTensorStats on each module."""
    api = _inspect_api()
    api.infer_and_assign_layer_names(model)

    def hooked(path: str) -> Any:
        def hook(_: Any, __: Any, output: torch.Tensor) -> None:
            api.log_tensor_stats(layer_name=path, tensor=output, tensor_name="activation", iteration=0)

        return hook

    handles = [model.get_submodule(path).register_forward_hook(hooked(path)) for path in computing(model)]

    def run() -> None:
        forward()
        api.step()

    yield run
    for handle in handles:
        handle.remove()


def _inspect_api() -> Any:
    api: Any = import_module("nvdlfw_inspect.api")
    if not _initialized:
        folder = _folder("-".join(["inspect", *sys.argv[1:2]]).replace(" ", "-"))
        (folder / "config.yaml").write_text(_INSPECT)
        api.initialize(
            config_file=str(folder / "config.yaml"), log_dir=str(folder), statistics_logger=None,
            init_training_step=0,
        )  # fmt: skip
        _initialized.append(True)
    return api


_initialized: list[bool] = []


def _folder(name: str) -> Path:
    """An empty folder: the same in each run, since a child ends without clean-up."""
    folder = CACHE / "logs" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


@contextmanager
def torchlens(model: Any, _: Forward) -> Generator[Forward, None, None]:
    """torchlens' log of a forward: everything, in full."""
    lens: Any = import_module("torchlens")
    _, ids = network.make("small")
    yield lambda: lens.trace(model, ids)


@contextmanager
def transformer_lens(model: Any, _: Forward) -> Generator[Forward, None, None]:
    """TransformerLens' run_with_cache, of a GPT-2 of the same size; times are beside its own forward."""
    from transformers import GPT2Config, GPT2LMHeadModel

    channels, tokens = next(sizes for sizes in network.SIZES.values() if sizes[0] == model.emb.embedding_dim)
    config = GPT2Config(
        n_layer=12,
        n_embd=channels,
        n_head=8,
        vocab_size=1000,
        n_positions=tokens,
        bos_token_id=0,
        eos_token_id=0,
    )
    hugging_face: Any = GPT2LMHeadModel(config).train(False)
    boot: Any = import_module("transformer_lens.model_bridge").TransformerBridge.boot_transformers
    with tempfile.TemporaryDirectory() as folder:
        hugging_face.save_pretrained(folder)
        bridge: Any = boot(folder, hf_model=hugging_face, device="cpu", tokenizer=None)
    ids = torch.randint(0, 1000, (1, tokens))

    def plain() -> Any:
        return hugging_face(ids, use_cache=False)

    _other_base.append(plain)

    def cached() -> Any:
        return bridge.run_with_cache(ids)

    yield cached


_other_base: list[Forward] = []  # what a way's forward is compared with, if not the plain model

WAYS: Final[dict[str, Callable[[Any, Forward], Any]]] = {
    "platform": platform, "adapter": adapter, "sampled": sampled, "idle": idle, "naive torch": naive,
    "torch.profiler": profiler, "nvdlfw-inspect": inspect, "torchlens": torchlens,
    "TransformerLens": transformer_lens,
}  # fmt: skip


class Side:
    """A way on one model."""

    def __init__(self, way: str, size: str) -> None:
        self._way = WAYS[way]
        self._per_call = SAMPLED if way == "sampled" else 1
        self._model, ids = network.make(size)
        self._forward: Forward = lambda: self._model(ids)

    def round(self, forwards: int) -> list[float]:
        """Thread CPU time of a forward in ms, without and with: the least of some, taken in turn."""
        base = _other_base[-1] if _other_base else self._forward
        without: list[float] = []
        with_: list[float] = []
        with torch.no_grad():
            for _ in range(2):
                base()
                without += [self._time(base, self._per_call) for _ in range(forwards)]
                with self._way(self._model, self._forward) as watched:
                    watched()
                    with_ += [self._time(watched) / self._per_call for _ in range(forwards)]
        return [self._low(without), self._low(with_)]

    @staticmethod
    def _low(times: list[float]) -> float:
        """The lower quartile: other processes only ever add."""
        return sorted(times)[len(times) // 4]

    @staticmethod
    def _time(forward: Forward, times: int = 1) -> float:
        """Of one forward, of some in a row: the lower ones of single forwards are below any mean."""
        started = time.thread_time_ns()
        for _ in range(times):
            forward()
        return (time.thread_time_ns() - started) / 1e6 / times


def kernel(way: str, elements: int) -> float:
    """A summary of one tensor in multiples of `torch.sum`, taken in turn with it."""
    values = torch.randn(elements, generator=torch.Generator().manual_seed(0))
    calls: dict[str, Callable[[], Any]] = {"sum": values.sum}
    if way == "ours":
        from neuronscope_instrumentation.torch.summary import summarize

        calls[way] = lambda: summarize(values)
    elif way == "numpy":
        from neuronscope.summaries.arrays import by_numpy

        array = values.numpy()
        calls[way] = lambda: by_numpy(array)
    elif way == "naive torch":
        calls[way] = lambda: (
            values.mean().item(), values.std().item(), values.norm().item(), values.min().item(),
            values.max().item(), values.abs().max().item(), torch.isnan(values).sum().item(),
            torch.isinf(values).sum().item(), (values == 0).sum().item(),
        )  # fmt: skip
    else:
        api = _inspect_api()
        calls[way] = lambda: api.log_tensor_stats(
            layer_name="layer", tensor=values, tensor_name="activation", iteration=0
        )
    measure = loop_us if elements <= 100_000 else median_us
    n = max(3, min(2000, 4_000_000 // elements))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(3):
        for name in list(calls) if turn % 2 else reversed(list(calls)):
            calls[name]()
            times[name].append(measure(calls[name], n))
    return min(times[way]) / min(times["sum"])


def main() -> None:
    """Answer the parent."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    way, size, *site = sys.argv[1:]
    sys.path.extend(site)
    side = Side(way, size) if way in WAYS else None

    def answer(command: str, **arguments: Any) -> Any:
        if command == "kernel":
            return kernel(arguments["way"], arguments["elements"])
        assert side is not None
        return side.round(arguments["forwards"])

    serve(answer)


if __name__ == "__main__":
    main()

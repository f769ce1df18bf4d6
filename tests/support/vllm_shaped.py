"""A module of vLLM's shape: the real one needs gigabytes and a PyTorch of its own.

The classes have the names, signatures and fields of vLLM 0.32's.
"""

from __future__ import annotations

import asyncio
import enum
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class RequestOutputKind(enum.Enum):
    """What a streamed request's outputs hold."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class SamplingParams:
    """How to sample."""

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: Any = None
    max_tokens: int | None = 16
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    structured_outputs: Any = None


@dataclass
class RequestStateStats:
    """Clock readings of a request."""

    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0


@dataclass
class CompletionOutput:
    """One answer."""

    index: int
    text: str
    token_ids: Sequence[int]
    finish_reason: str | None = None


@dataclass
class RequestOutput:
    """What came of a request."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int] | None
    outputs: Any
    finished: bool
    metrics: RequestStateStats | None = None
    num_cached_tokens: int | None = None


REFUSED = "the model does not take this"
WORDS = ["one ", "two ", "three"]


def answered(prompt: str, delay: float = 0.0) -> RequestOutput:
    """A finished request of four prompt tokens and three answered ones."""
    clock = RequestStateStats(10.0 + delay, 10.5 + delay, 11.0 + delay, 12.0 + delay)
    said = CompletionOutput(0, "".join(WORDS), [1, 2, 3], "length")
    return RequestOutput("r", prompt, [1, 2, 3, 4], [said], True, clock, num_cached_tokens=1)


def as_list(value: Any) -> list[Any]:
    several: list[Any] = [value] if isinstance(value, str) else value
    return several


class PoolingOfflineMixin:
    """What models of numbers and verdicts have."""

    def embed(self, prompts: Any, *, use_tqdm: bool = True) -> list[RequestOutput]:
        several = as_list(prompts)
        vector = SimpleNamespace(embedding=[0.25] * 6)
        return [RequestOutput("e", None, [1, 2, 3], vector, True) for _ in several]

    def encode(self, prompts: Any, pooling_params: Any = None, *, pooling_task: Any = None) -> Any:
        """Not observed."""

    def classify(self, prompts: Any, *, pooling_params: Any = None) -> Any:
        """Not observed."""

    def reward(self, prompts: Any, /, *, pooling_params: Any = None) -> Any:
        """Not observed."""

    def score(self, data_1: Any, data_2: Any, /, *, pooling_params: Any = None) -> Any:
        """Not observed."""


class LLM(PoolingOfflineMixin):
    """The engine that waits."""

    def __init__(self) -> None:
        config = SimpleNamespace(model="/models/smol", served_model_name=["smol"])
        self.llm_engine = SimpleNamespace(model_config=config)

    def generate(
        self, prompts: Any, sampling_params: Any = None, *, use_tqdm: bool = True
    ) -> list[RequestOutput]:
        if prompts == "":
            raise ValueError(REFUSED)
        several = as_list(prompts)
        return [answered(str(each), float(position)) for position, each in enumerate(several)]

    def chat(
        self, messages: Any, sampling_params: Any = None, use_tqdm: bool = True, *, tools: Any = None
    ) -> list[RequestOutput]:
        return self.generate("a prompt", sampling_params, use_tqdm=use_tqdm)

    def beam_search(self, prompts: Any, params: Any) -> Any:
        """Not observed."""

    def enqueue(self, prompts: Any, sampling_params: Any = None) -> Any:
        """Not observed."""


@dataclass
class AsyncLLM:
    """The asynchronous engine."""

    model_config: Any = field(default_factory=lambda: SimpleNamespace(model="smol", served_model_name=None))
    aborted: int = 0

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, *, priority: int = 0
    ) -> AsyncIterator[RequestOutput]:
        kind, said = sampling_params.output_kind, ""
        try:
            for position, word in enumerate(WORDS):
                await asyncio.sleep(0)
                said += word
                last = position == len(WORDS) - 1
                if kind is RequestOutputKind.FINAL_ONLY and not last:
                    continue
                delta = kind is RequestOutputKind.DELTA
                tokens = [position] if delta else list(range(position + 1))
                piece = CompletionOutput(0, word if delta else said, tokens, "length" if last else None)
                clock = answered("").metrics if last else None
                yield RequestOutput(request_id, prompt, [1, 2, 3, 4], [piece], last, clock, 1)
        except GeneratorExit:
            self.aborted += 1
            raise

    async def add_request(self, request_id: str, prompt: Any, params: Any) -> Any:
        """Called by `generate`."""

    async def encode(self, prompt: Any, pooling_params: Any, request_id: str) -> Any:
        """Not observed."""


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the modules of vLLM that the adapter looks for among the imported ones."""
    modules: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.entrypoints": {},
        "vllm.entrypoints.llm": {"LLM": LLM},
        "vllm.entrypoints.pooling": {},
        "vllm.entrypoints.pooling.offline": {"PoolingOfflineMixin": PoolingOfflineMixin},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.async_llm": {"AsyncLLM": AsyncLLM},
    }
    for name, members in modules.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    LLM.__module__ = "vllm.entrypoints.llm"
    AsyncLLM.__module__ = "vllm.v1.engine.async_llm"

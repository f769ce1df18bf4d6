"""The compared service's provider: OpenAI's wire format on a loopback socket, with tokens really counted."""

from __future__ import annotations

import json
import threading
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import neuronscope as ns
from neuronscope.testing.fake_openai import delta, error
from neuronscope.testing.fake_provider import Received, Reply

WORDS = (
    "the", "index", "answers", "with", "what", "it", "holds", "and", "a", "model", "writes", "from", "that",
)  # fmt: skip


@dataclass
class Behaviour:
    """What faults of the provider change.

    Attributes:
        delay_s: before the first chunk, median; it varies.
        per_token_s: more of that for every token of the prompt.
        limited: share of requests that are told to come again.
        cached: share of prompts whose beginning is in the provider's cache.
        verbosity: words of an answer, median.
        limit: words that an answer may have, whatever was asked.
        fingerprint: of the backend.
        tokenizer: how tokens are counted: ``smollm2`` or ``wordpiece``.
    """

    delay_s: float = 0.012
    per_token_s: float = 0.0
    limited: float = 0.0
    cached: float = 0.8
    verbosity: float = 9.0
    limit: int = 1_000
    fingerprint: str = "fp_44709d6fcb"
    tokenizer: str = "smollm2"
    seed: int = 0


@lru_cache(maxsize=4)
def counter(tokenizer: str) -> Callable[[str], int]:
    """Counts tokens of a text, by a real tokenizer; remembers texts."""
    from tokenizers import Tokenizer

    model = Tokenizer.from_file(str(_folder(tokenizer) / "tokenizer.json"))
    model.no_padding()
    model.no_truncation()

    @lru_cache(maxsize=20_000)
    def count(text: str) -> int:
        return len(model.encode(text, add_special_tokens=False).ids)

    return count


def _folder(tokenizer: str) -> Path:
    from neuronscope.demo.models import prepare_minilm, prepare_smollm2

    return prepare_smollm2() if tokenizer == "smollm2" else prepare_minilm()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model would write, before it is cut."""

    words: list[str]
    cut: bool


class Provider(ns.testing.FakeOpenAI):
    """Answers every chat with a length that depends on the question, the model and the temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.behaviour = Behaviour()
        self._random = np.random.default_rng(0)
        self._turn = threading.Lock()

    def begin(self, behaviour: Behaviour) -> None:
        """Behave like this from now on, and forget the requests so far."""
        self.clear()
        self.behaviour = behaviour
        self._random = np.random.default_rng([5, behaviour.seed])

    def unscripted(self, request: Received) -> Reply:
        """A streamed chat."""
        now = self.behaviour
        with self._turn:
            refused, cached, wait, chance = (*self._random.random(2), *self._random.normal(size=2))
        if refused < now.limited:
            return error(429, "slow down", retry_after_s=0.005)
        asked = json.loads(request.body)
        count = counter(now.tokenizer)
        messages = [str(message["content"]) for message in asked["messages"]]
        n_input = 4 * len(messages) + sum(count(part) for text in messages for part in text.split("\n\n"))
        answer = _answer(asked, now, float(chance))
        usage = {
            "prompt_tokens": n_input,
            "completion_tokens": (n_output := sum(map(count, answer.words))),
            "total_tokens": n_input + n_output,
            "prompt_tokens_details": {"cached_tokens": n_input // 2 if cached < now.cached else 0},
        }
        head = {
            "id": f"chatcmpl-{zlib.crc32(request.body):08x}",
            "object": "chat.completion.chunk",
            "created": 1_700_000_000,
            "model": asked["model"],
            "system_fingerprint": now.fingerprint,
        }
        # Two words a chunk, as providers send them when they are quick.
        pieces = [" ".join(answer.words[at : at + 2]) + " " for at in range(0, len(answer.words), 2)]
        choices = [
            delta({"role": "assistant", "content": ""}),
            *(delta({"content": text}) for text in pieces),
        ]
        choices.append(delta({}, finish_reason="length" if answer.cut else "stop"))
        events = [{**head, "choices": [choice]} for choice in choices]
        self.wait((now.delay_s + now.per_token_s * n_input) * float(np.exp(0.25 * wait)))
        return Reply(events=[*events, {**head, "choices": [], "usage": usage}])


def _answer(asked: dict[str, Any], now: Behaviour, chance: float) -> Answer:
    text = str(asked["messages"][-1]["content"])
    own = np.random.default_rng(zlib.crc32(f"{asked['model']}{text}".encode())).normal()
    heat = float(asked.get("temperature", 1.0))
    n = max(2, round(now.verbosity * float(np.exp(0.3 * own + 0.3 * heat * chance))))
    limit = min(now.limit, int(asked.get("max_tokens") or 1_000))
    return Answer([WORDS[at % len(WORDS)] for at in range(min(n, limit))], n > limit)

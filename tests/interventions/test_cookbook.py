"""The pages about interventions run, in their order: on a tiny Llama, the cookbook on SmolLM2 as well."""

# What a trace gives is Any, and so are lambdas over it; torch leaves parts of itself untyped.
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

import neuronscope as ns
from neuronscope.demo.models import prepare_smollm2
from tinymodels import llama
from tracednets import left_on

DOCS = Path(__file__).resolve().parents[2] / "docs" / "how-to"
WORDS = [
    "[PAD]",
    "[UNK]",
    "[EOS]",
    "The",
    "capital",
    "of",
    "France",
    "Italy",
    "is",
    "How",
    "do",
    "heat",
    "pumps",
    "work",
    "in",
    "the",
    "cold",
    "Paris",
    "user",
    "assistant",
]


def blocks_of(page: str, *kinds: str) -> Iterator[tuple[int, str]]:
    """The page's code: line and text of each fenced block of these kinds."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for match in re.finditer(r"^```(python[^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if match[1] in kinds:
            yield text[: match.start()].count("\n") + 2, match[2]


def run(page: str, kinds: tuple[str, ...], space: dict[str, Any]) -> int:
    """Run the blocks in one namespace; errors show the page's own lines."""
    module = types.ModuleType("page")  # classes that the page defines need one
    module.__dict__.update(space)
    sys.modules["page"] = module
    count = 0
    try:
        for line, code in blocks_of(page, *kinds):
            exec(compile("\n" * (line - 1) + code, str(DOCS / page), "exec"), module.__dict__)
            count += 1
    finally:
        del sys.modules["page"]
    return count


def tiny() -> dict[str, Any]:
    """A Llama of a few thousand weights, and a tokenizer of a few words."""
    words = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    make: Any = PreTrainedTokenizerFast
    fast = make(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]")
    fast.chat_template = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
    model = llama(layers=4, initializer_range=0.3)
    return {"model": model, "tokenizer": fast}


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same numbers every time."""
    torch.manual_seed(0)


def test_the_cookbook_on_a_tiny_model() -> None:
    """Every recipe's check holds."""
    space = tiny()
    assert run("intervene-cookbook.md", ("python",), space) >= 20
    assert not left_on(space["model"])


@pytest.mark.integration
@pytest.mark.timeout(600)
def test_the_cookbook_on_smollm2() -> None:
    """And on a model that has learned something."""
    folder = prepare_smollm2()
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.train(False)
    space = {"model": model, "tokenizer": AutoTokenizer.from_pretrained(folder)}
    assert run("intervene-cookbook.md", ("python", "python smollm2"), space) >= 21
    assert not left_on(model)


def test_the_guide() -> None:
    """The how-to page."""
    space = tiny()
    assert run("intervene.md", ("python",), {**space, "model": llama(layers=4)}) >= 9


def test_the_page_beside_nnsight() -> None:
    """Ours of each pair of snippets, and what becomes of each gotcha."""
    model = llama(layers=4)
    space = {
        "torch": torch,
        "ns": ns,
        "model": model,
        "x": torch.tensor([[3, 4, 5]]),
        "ns_model": ns.Model.wrap(model),
    }
    assert run("../reference/interventions-beside-nnsight.md", ("python",), space) >= 39
    assert not left_on(model)

"""One prompt's rows of a batch, as if it had been alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import neuronscope as ns
from neuronscope.interventions import WrongValueError
from tinymodels import llama, tokenizer

PROMPTS = ([5, 6, 7, 8, 9], [10, 11, 12])


class Positioned(nn.Module):
    """Learned absolute positions, counted by the mask: wrong positions would show."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens, self.places = nn.Embedding(32, 8), nn.Embedding(16, 8)
        self.mix = nn.Linear(8, 8)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Token by token."""
        positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        return self.mix(self.tokens(input_ids) + self.places(positions))  # type: ignore[no-any-return]


def padded(side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The prompts in one batch."""
    ids, mask = torch.zeros(2, 5, dtype=torch.long), torch.zeros(2, 5, dtype=torch.long)
    for row, prompt in enumerate(PROMPTS):
        where = slice(5 - len(prompt), 5) if side == "left" else slice(0, len(prompt))
        ids[row, where], mask[row, where] = torch.tensor(prompt), 1
    return ids, mask


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_row_alone_gives_the_same_values_as_in_the_batch(side: str) -> None:
    """nnsight #672: absolute positions in a left-padded batch."""
    model = ns.Model.wrap(Positioned())
    ids, mask = padded(side)
    for row, prompt in enumerate(PROMPTS):
        alone = torch.tensor([prompt])
        with model.trace(alone, torch.ones_like(alone)) as one:
            expected = one.mix.output
        with model.trace(input_ids=ids, attention_mask=mask) as t:
            got = t.rows(row)["mix"].output
        assert torch.equal(got, expected)
        assert torch.equal(t.rows(row).result(), expected)


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_of_a_transformer(side: str) -> None:
    """The same on a Llama, given its positions."""
    model = ns.Model.wrap(llama())
    ids, mask = padded(side)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    for row, prompt in enumerate(PROMPTS):
        with torch.no_grad():
            with model.trace(torch.tensor([prompt])) as one:
                expected = one["model.layers.2"].first
            with model.trace(input_ids=ids, attention_mask=mask, position_ids=positions) as t:
                got = t.rows(row)["model.layers.2"].first
        assert torch.allclose(got, expected, atol=1e-5)


def test_writes_reach_their_rows_only() -> None:
    """By assignment, and in place."""
    net = Positioned()
    model = ns.Model.wrap(net)
    ids, mask = padded("left")
    plain = net(ids, mask)
    with model.trace(input_ids=ids, attention_mask=mask) as t:
        row = t.rows(1)["tokens"]
        row.output = row.output * 0
        assert row.output.shape == (1, 3, 8)
    assert torch.equal(t.result[0], plain[0])
    assert torch.equal(t.result[1, 2:], net.mix(net.places.weight[:3]))
    assert torch.equal(t.result[1, :2], plain[1, :2])
    with torch.no_grad(), model.trace(input_ids=ids, attention_mask=mask) as t:
        t.rows(1)["mix"].output[:, 0] = 7
    assert (t.result[1, 2] == 7).all()
    assert torch.equal(t.result[0], plain[0])
    with (
        pytest.raises(WrongValueError, match=r"\(1, 3, 8\)"),
        model.trace(input_ids=ids, attention_mask=mask) as t,
    ):
        t.rows(1)["mix"].output = torch.ones(1, 5, 8)


def test_inputs_firsts_several_rows_and_patterns() -> None:
    """Everything a site has, narrowed."""
    net: Any = llama(layers=2)
    ids, mask = padded("right")
    with torch.no_grad(), ns.Model.wrap(net).trace(input_ids=ids, attention_mask=mask) as t:
        both, one = t.rows(slice(0, 2)), t.rows(-1)
        assert one["model.embed_tokens"].input.tolist() == [PROMPTS[1]]
        sites = one["model.layers.*"]
        assert len(sites) == 2
        sites[0].input = sites[0].input * 0
        assert both["model.layers.0"].input.shape == (2, 5, 32)
        sites[0].first = sites[0].first * 0
        assert not sites[1].input.any()
        assert both["model.layers.1"].input[0].any()


def test_rows_are_had_by_the_tree_of_modules() -> None:
    """As sites are: by attribute, number and path."""
    net: Any = llama(layers=2)
    ids, mask = padded("left")
    with torch.no_grad(), ns.Model.wrap(net).trace(input_ids=ids, attention_mask=mask) as t:
        row = t.rows(1)
        first = row.model.layers[0].first
        assert torch.equal(first, t["model.layers.0"].first[1:, 2:])
        row.model.layers[1].mlp.output = row["model.layers"][1]["mlp"].output * 0
        assert row.output.logits.shape == (1, 3, 128)
    assert not torch.equal(t.result.logits[1, 2:], net(ids, attention_mask=mask).logits[1, 2:])
    assert torch.equal(t.result.logits[0], net(ids, attention_mask=mask).logits[0])


def test_without_a_mask_rows_are_whole() -> None:
    """And tensors that have no batch are given as they are."""
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with ns.Model.wrap(net).trace(torch.ones(3, 8)) as t:
        assert t.rows(1)[0].output.shape == (1, 8)
        assert t.rows(1, mask=torch.ones(3, 8))[1].output.shape == (1, 8)


@pytest.mark.parametrize("number", [2, -3])
def test_a_row_that_the_batch_has_not_is_told(number: int) -> None:
    """No empty tensors instead."""
    net: Any = llama(layers=2)
    ids, mask = padded("right")
    with ns.Model.wrap(net).trace(input_ids=ids, attention_mask=mask) as t:
        with pytest.raises(IndexError, match=f"has 2 rows, no number {number}"):
            t.rows(number)
        t.stop()


@pytest.mark.parametrize("side", ["left", "right"])
def test_each_of_several_chats_is_answered_as_if_it_were_alone(side: str, tmp_path: Path) -> None:
    """Whichever side the tokenizer pads on: a model that generates goes on after the last token."""
    tok = tokenizer(tmp_path)
    tok.padding_side = side
    tok.chat_template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
    model = ns.Model.wrap(llama())
    model.tokenizer = tok
    chats = [[{"role": "user", "content": text}] for text in ("how do heat pumps work", "the cold")]
    with model.generate(chats, max_new_tokens=3, do_sample=False) as t:
        pass
    for number, chat in enumerate(chats):
        with model.generate(chat, max_new_tokens=3, do_sample=False) as alone:
            pass
        assert torch.equal(t.result[number, -3:], alone.result[0, -3:])
    assert tok.padding_side == side

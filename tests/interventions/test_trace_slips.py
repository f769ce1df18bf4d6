"""Slips of those who intervene: each is told at its line, with what to write instead."""

# What a trace gives is Any.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import neuronscope as ns
from neuronscope.interventions.errors import OutOfOrderError, SiteNotReachedError, WrongValueError
from tinymodels import llama
from tracednets import Blocks, X, blocks, left_on


@pytest.fixture
def net() -> Blocks:
    """A stack of three blocks."""
    return blocks()


def test_a_site_asked_for_after_the_model_had_finished(net: Blocks) -> None:
    """Since the result was asked for first; no other reason is made up."""
    with ns.Model.wrap(net).trace(X) as t:
        _ = t.result
        with pytest.raises(OutOfOrderError, match=r"'h\.0'.*had finished before.*t\.result"):
            _ = t["h.0"].output
    assert not left_on(net)


def test_a_list_of_modules_never_runs(net: Blocks) -> None:
    """It is no matter of other threads."""
    with (
        pytest.raises(SiteNotReachedError, match="a ModuleList holds modules and never runs itself"),
        ns.Model.wrap(net).trace(X) as t,
    ):
        _ = t.h.output
    assert not left_on(net)


SLIPS: dict[str, tuple[Callable[[Any], object], type[Exception], str]] = {
    "pattern.output": (
        lambda t: t["h.*"].output,
        AttributeError,
        r"'h\.\*' names 3 sites.*t\.cache\('h\.\*'\)",
    ),
    "pattern.other": (lambda t: t["h.*"].size, AttributeError, "a list of sites has no 'size'"),
    "t[…] = value": (lambda t: t.__setitem__("head", X), TypeError, r"t\['head'\]\.output = value"),
    "rows([0, 1])": (lambda t: t.rows([0, 1]), TypeError, "cannot be interpreted as an integer"),
    "rows(2)": (lambda t: t.rows(2)["head"].output, IndexError, "has 2 rows, no number 2"),
    "rows.heads": (lambda t: t.rows(0).h[1].heads, AttributeError, r"the whole batch's: t\['h\.1'\]\.heads"),
    "steps[1]": (lambda t: t.steps[1], TypeError, r"for step in t\.steps\[2:3\]"),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_what_is_no_site_is_not_taken_for_one(slip: str, net: Blocks) -> None:
    """And the model goes on as if nothing had been asked."""
    write, kind, says = SLIPS[slip]
    with ns.Model.wrap(net).trace(X) as t, pytest.raises(kind, match=says):
        write(t)
    assert torch.equal(t.result, net(X))


def test_a_cache_is_asked_by_aliases_and_names_what_it_has(net: Blocks) -> None:
    """By the names that the pattern had."""
    model = ns.Model.wrap(net)
    model.alias("blocks", "h")
    with model.trace(X) as t:
        cache = t.cache("blocks.*")
    assert torch.equal(cache.output("blocks.1")[0], cache.output("h.1")[0])
    with pytest.raises(KeyError, match=r"'h\.3' was not kept.*Close to it: h\.2"):
        _ = cache["h.3"]
    assert cache.get("h.3") is None


@pytest.mark.parametrize(
    "given", ["how do heat pumps work", ["how", "do"], [{"role": "user", "content": "how"}]]
)
def test_text_without_a_tokenizer_is_told(given: object) -> None:
    """Before the model is called with it; models that are no language models may take what they like."""
    model = ns.Model.wrap(llama(layers=1))
    for call in (model.trace, model.generate, model.scan):
        with pytest.raises(WrongValueError, match=r"set ns_model\.tokenizer"):
            call(given)

    class Counts(nn.Module):
        def forward(self, text: Any) -> torch.Tensor:
            return torch.tensor(len(text))

    with ns.Model.wrap(Counts()).trace(given) as t:
        pass
    assert t.result == Counts()(given)


def test_a_view_over_nothing_that_sites_have_is_refused(net: Blocks) -> None:
    """When it is defined, not when it is read."""
    over: Any = "inptu"
    with pytest.raises(ValueError, match=r"'heads' is over one of output, input, inputs, not 'inptu'"):
        ns.Model.wrap(net).view("heads", "h.*", lambda value, _: value, on=over)

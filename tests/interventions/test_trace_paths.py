"""Paths of sites: what they lead to while models change, and what is around a site."""

# What a trace gives is Any.
# pyright: reportUnknownMemberType=false
from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import neuronscope as ns
from tracednets import Blocks, X, blocks, left_on


@pytest.fixture
def net() -> Blocks:
    """A stack of three blocks."""
    return blocks()


def test_a_site_is_cached_once_however_often_it_is_named(net: Blocks) -> None:
    """By patterns that overlap, an alias, or another path of a module with two."""
    model = ns.Model.wrap(net)
    model.alias("blocks", "h")
    net.tail = net.head
    with model.trace(X) as t:
        _ = t.head
        cache = t.cache("h.*", "h.**", "blocks.1", "tail")
    assert [len(cache[path]) for path in ("h.0", "h.0.lin", "h.1", "blocks.1", "head", "tail")] == [1] * 6
    assert cache["blocks.1"][0].output is cache["h.1"][0].output
    assert torch.equal(cache.output("tail"), t.result)


def test_a_pattern_finds_a_module_by_each_of_its_paths(net: Blocks) -> None:
    """Once, as a shared module is one; a cache has it under every name that it was asked for by."""
    net.again = nn.ModuleList([net.h[1], nn.Linear(8, 8)])
    model = ns.Model.wrap(net)
    with model.trace(X) as t:
        assert [site.path for site in t.sites("again.*")] == ["again.0", "again.1"]
        assert [site.path for site in t.sites("h.*")] == ["h.0", "again.0", "h.2"]
        t.stop()
    with model.trace(X) as t:
        _ = t["h.1"]
        cache = t.cache("again.*", "**")
    assert len(cache["again.0"]) == 1
    assert cache["again.0"][0].output is cache["h.1"][0].output
    with model.trace(X) as t:
        assert [site.path for site in t.sites("**.0.lin")] == ["h.0.lin", "again.0.lin"]
        t.stop()


def test_patterns_name_the_modules_that_are_there_now() -> None:
    """Also once one has gone and another has come."""
    net = nn.Sequential()
    net.first = nn.Linear(8, 8)
    net.last = nn.Linear(8, 8)
    model = ns.Model.wrap(net)
    with model.trace(X) as t:
        assert [site.path for site in t.sites("*")] == ["first", "last"]
    del net.first
    net.extra = nn.Linear(8, 8)
    with model.trace(X) as t:
        assert [site.path for site in t.sites("*")] == ["last", "extra"]


def test_what_is_around_a_site_can_be_had_after_it(net: Blocks) -> None:
    """It began earlier, and ends later: by path as by the tree, in a first trace and in later ones."""
    model = ns.Model.wrap(net)
    for _ in range(2):
        with model.trace(X, 2, method="rollout") as t:
            _ = t["h.1.lin"].output
            around = t["h.1"].first
        assert torch.equal(around, net.h[1](net.h[0](X)[0])[0])
    assert not left_on(net)


def test_what_a_module_is_attached_to_can_be_had_after_it(net: Blocks) -> None:
    """It runs at the end of its host's call."""
    model = ns.Model.wrap(net)
    detach = model.attach("double", nn.Sequential(nn.Identity()), at="h.1")
    for _ in range(2):
        with model.trace(X) as t:
            t.double[0].output = t.double[0].output * 2
            hidden = t["h.1"].first
        assert torch.equal(hidden, net.h[1](net.h[0](X)[0])[0] * 2)
    detach()
    assert not left_on(net)


@pytest.mark.parametrize("path", ["h", "h.0", "h.0.lin"])
def test_a_site_is_where_its_path_leads_now(path: str, net: Blocks) -> None:
    """Also once something on the way to it is another one."""
    model = ns.Model.wrap(net)
    with model.trace(X) as t:
        _ = t["h.0.lin"].output
    parent, _, name = path.rpartition(".")
    setattr(net.get_submodule(parent), name, copy.deepcopy(net.get_submodule(path)))
    now = net.get_submodule("h.0.lin")
    for parameter in now.parameters():
        nn.init.ones_(parameter)
    with model.trace(X) as t:
        value = t["h.0.lin"].output
    assert torch.equal(value, now(X))

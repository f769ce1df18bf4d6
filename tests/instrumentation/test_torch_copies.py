"""Copies of a watched module, in every way, are plain ones that compute with their own weights."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from neuronscope_instrumentation.torch.internals import CALL
from torchnets import INPUT, PATHS, Net, make_net, watch, watched_entries


def copies() -> dict[str, Callable[[Net], Net]]:
    def torch_save(model: Net) -> Net:
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        return torch.load(buffer, weights_only=False)  # type: ignore[no-any-return]

    def replicate(model: Any) -> Net:
        replica: Any = model._replicate_for_data_parallel()
        for name, child in model.named_children():
            replica._modules[name] = copy.deepcopy(child)
        replica._parameters = {}
        return replica  # type: ignore[no-any-return]

    def shallow(model: Net) -> Net:
        twin: Any = copy.copy(model)
        twin._modules = {name: copy.deepcopy(child) for name, child in model.named_children()}
        return twin  # type: ignore[no-any-return]

    return {
        "deepcopy": copy.deepcopy,
        "copy": shallow,
        "pickle": lambda model: pickle.loads(pickle.dumps(model)),
        "torch.save": torch_save,
        "replica": replicate,
    }


@pytest.mark.parametrize("way", copies())
def test_copies_are_plain_and_compute_with_their_own_weights(way: str) -> None:
    """A copy of a watched model, given other weights, answers by these, unobserved."""
    model = make_net()
    seen, _ = watch(model)
    twin = copies()[way](model)
    assert watched_entries(twin) == []
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.copy_(torch.full_like(parameter, 0.5))
        reference = make_net()
        for parameter in reference.parameters():
            parameter.fill_(0.5)
    assert torch.equal(twin(INPUT), reference(INPUT))
    assert seen == []
    model(INPUT)
    assert len(seen) == len(PATHS)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
def test_a_leaf_copied_alone_uses_its_own_weights(way: Callable[[nn.Linear], nn.Linear]) -> None:
    """The watched module itself is what is copied."""
    layer = nn.Linear(4, 4)
    watch(layer, "")
    twin: Any = way(layer)
    twin._parameters = {
        "weight": nn.Parameter(torch.zeros(4, 4)),
        "bias": nn.Parameter(torch.full((4,), 3.0)),
    }
    assert torch.equal(twin(torch.ones(4)), torch.full((4,), 3.0))


def test_pickles_of_watched_models_need_no_neuronscope() -> None:
    """Also those of classes that reduce themselves, as fx.GraphModule does."""
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(8, 8)))
    for model, layer in ((make_net(), "first"), (traced, "0")):
        watch(model, "", layer)
        assert b"neuronscope" not in pickle.dumps(model)
        assert torch.equal(pickle.loads(pickle.dumps(model))(INPUT), model(INPUT))
        assert torch.equal(copy.deepcopy(model)(INPUT), model(INPUT))


def test_a_slot_in_a_dictionary_copied_by_hand_leaves_it() -> None:
    """A deep copy of the bare instance dictionary still computes with its own weights."""
    layer = nn.Linear(4, 4)
    watch(layer, "")
    twin = nn.Linear(4, 4)
    vars(twin).update(copy.deepcopy(vars(layer)))
    with torch.no_grad():
        twin.weight.zero_()
        twin.bias.fill_(2.0)
    assert torch.equal(twin(torch.ones(4)), torch.full((4,), 2.0))
    assert CALL not in vars(twin)


def test_state_dict_and_loading_are_unharmed() -> None:
    """Keys are those of the plain model; strict loading works."""
    model = make_net()
    watch(model)
    assert model.state_dict().keys() == make_net().state_dict().keys()
    model.load_state_dict(make_net(1).state_dict(), strict=True)
    assert torch.equal(model(INPUT), make_net(1)(INPUT))

"""Reading and changing a model's inside from an ordinary block of code."""

# What a trace gives is Any, and so are lambdas over it; torch leaves parts of itself untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportPossiblyUnboundVariable=false
from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

import neuronscope as ns
from tracednets import Blocks, X, blocks, left_on


@pytest.fixture
def net() -> Blocks:
    """A stack of three blocks."""
    return blocks()


def test_no_access_gives_the_plain_result_bit_for_bit(net: Blocks) -> None:
    """A trace that touches nothing is the plain call."""
    with ns.Model.wrap(net).trace(X) as t:
        pass
    assert torch.equal(t.result, net(X))


def test_values_are_real_at_once_and_reading_changes_nothing(net: Blocks) -> None:
    """What is read is the tensor itself, within the block."""
    with ns.Model.wrap(net).trace(X) as t:
        first = t["h.0"].output
        assert torch.equal(first[0], net.h[0](X)[0])
        assert t["h.0"].output is first
        assert t["head"].input.shape == (2, 8)
    assert torch.equal(t.result, net(X))


def test_paths_patterns_numbers_and_the_tree_name_the_same_sites(net: Blocks) -> None:
    """Four ways to say where."""
    with ns.Model.wrap(net).trace(X) as t:
        assert t["h.1"] is t.h[1] is t["h"][1] is t.h["1"] is t[0][1]
        assert [site.path for site in t["h.*.lin"]] == ["h.0.lin", "h.1.lin", "h.2.lin"]
        assert t.h[-1].lin.path == "h.2.lin"
        assert [site.path for site in t.h[1:]] == ["h.1", "h.2"]
        assert [site.path for site in t.h] == ["h.0", "h.1", "h.2"]
        assert len(t.h) == 3
        assert t.root.path == ""


def test_assigned_outputs_reach_the_rest_of_the_model(net: Blocks) -> None:
    """An assignment replaces what the next module gets."""
    with ns.Model.wrap(net).trace(X) as t:
        hidden, rest = t.h[2].output
        t.h[2].output = (hidden * 0, rest)
    assert torch.equal(t.result, net.head(torch.zeros(2, 8)))


def test_changes_in_place_reach_the_model(net: Blocks) -> None:
    """The tensors read are the model's own."""
    with torch.no_grad(), ns.Model.wrap(net).trace(X) as t:
        t.h[2].output[0][:] = 0
    assert torch.equal(t.result, net.head(torch.zeros(2, 8)))


def test_replace_first_keeps_the_rest_of_a_structure(net: Blocks) -> None:
    """Tuples stay tuples."""
    with ns.Model.wrap(net).trace(X) as t:
        before = t.h[2].output
        t.h[2].replace_first(torch.ones(2, 8))
        assert type(t.h[2].output) is tuple
        assert t.h[2].output[1] is before[1]
        t.h[2].first = t.h[2].first * 2
    assert torch.equal(t.result, net.head(torch.full((2, 8), 2.0)))


def test_replace_first_works_in_dictionaries_named_tuples_and_lists() -> None:
    """Whatever kind of structure it is, it stays that kind."""

    class Pair(NamedTuple):
        label: str
        value: torch.Tensor

    class Maker(nn.Module):
        def forward(self, kind: str, x: torch.Tensor) -> Any:
            return {"dict": {"n": 1, "x": x}, "pair": Pair("a", x), "list": [None, [x]]}[kind]

    model = ns.Model.wrap(Maker())
    results: dict[str, Any] = {}
    for kind in ("dict", "pair", "list"):
        with model.trace(kind, X) as t:
            t.root.replace_first(X + 1)
        results[kind] = t.result
    assert torch.equal(results["dict"]["x"], X + 1)
    assert results["pair"] == ("a", results["pair"].value)
    assert isinstance(results["pair"], Pair)
    assert torch.equal(results["list"][1][0], X + 1)


def test_inputs_are_read_and_replaced_positional_or_by_name(net: Blocks) -> None:
    """`input` is the first argument, however it was given."""
    with ns.Model.wrap(net).trace(x=X) as t:
        assert t.root.input is X
        t.root.input = X * 0
        assert t.h[0].inputs == ((t.h[0].input,), {})
        t.h[0].inputs = ((t.h[0].input,), {"scale": 2.0})
    expected = net.head(net.h[2](net.h[1](net.h[0](X * 0, scale=2.0)[0])[0])[0])
    assert torch.equal(t.result, expected)


def test_without_arguments_there_is_no_input_to_assign() -> None:
    """The arguments as a whole can be."""

    class Constant(nn.Module):
        def forward(self, times: int = 1) -> torch.Tensor:
            return X * times

    with ns.Model.wrap(Constant()).trace() as t:
        assert t.root.input is None
        with pytest.raises(ns.interventions.WrongValueError, match="inputs"):
            t.root.input = X
        t.root.inputs = (2,), {}
    assert torch.equal(t.result, X * 2)


def test_input_and_then_output_of_one_call(net: Blocks) -> None:
    """Both sides of a call in their order; afterwards its inputs can still be read."""
    with ns.Model.wrap(net).trace(X) as t:
        came = t.h[1].input
        went = t.h[1].output
        assert went[1] is came
        assert t.h[1].input is came


def test_skip_does_without_the_module(net: Blocks) -> None:
    """The module does not run; nor do its hooks."""
    ran: list[int] = []
    net.h[1].register_forward_hook(lambda *_: ran.append(1))
    with ns.Model.wrap(net).trace(X) as t:
        t.h[1].skip((t.h[1].input, None))
    assert torch.equal(t.result, net.head(net.h[2](net.h[0](X)[0])[0]))
    assert not ran


def test_stop_ends_the_model_and_the_body_goes_on(net: Blocks) -> None:
    """After `stop` values stay, the result is not there."""
    ran: list[int] = []
    handle = net.head.register_forward_hook(lambda *_: ran.append(1))
    with ns.Model.wrap(net).trace(X) as t:
        value = t.h[0].output[0]
        t.stop()
        doubled = value * 2
    assert doubled.shape == (2, 8)
    assert not ran
    with pytest.raises(ns.interventions.TraceClosedError, match="stopped"):
        _ = t.result
    with pytest.raises(ns.interventions.TraceClosedError):
        _ = t["h.0"].output
    handle.remove()


def test_result_within_the_block_runs_the_model_to_its_end(net: Blocks) -> None:
    """`result` is a value like any other."""
    with ns.Model.wrap(net).trace(X) as t:
        t.head.output = t.head.output + 1
        assert torch.equal(t.result, net(X) + 1)


def test_any_method_or_callable_can_be_traced(net: Blocks) -> None:
    """A method by name, or a function that runs the model."""
    model = ns.Model.wrap(net)
    with model.trace(X, 2, method="rollout") as t:
        assert t.h[0].visits == 0
        _ = t.h[0].output
    assert torch.equal(t.result, net(net(X)))
    with model.trace(X, method=lambda x: net(x) + 1) as t:
        t.head.output = t.head.output * 0
    assert torch.equal(t.result, torch.ones(2, 8))
    with pytest.raises(AttributeError, match="no method 'fly'"):
        model.trace(method="fly")


def test_reading_a_site_again_after_another_means_its_next_call(net: Blocks) -> None:
    """Without steps, time goes on from site to site."""
    with ns.Model.wrap(net).trace(X, 2, method="rollout") as t:
        first = t.h[0].output[1]
        _ = t.head.output
        second = t.h[0].output[1]
    assert torch.equal(first, X)
    assert torch.equal(second, net(X))


def test_steps_visit_each_call_and_code_after_them_runs(net: Blocks) -> None:
    """The loop ends when the model does."""
    seen: list[torch.Tensor] = []
    with ns.Model.wrap(net).trace(X, 3, method="rollout") as t:
        for step in t.steps:
            seen.append(t.h[0].output[1])
            if step == 1:
                t.head.output = t.head.output * 0
        after = "ran"
    assert after == "ran"
    assert len(seen) == 3
    assert torch.equal(seen[2], torch.zeros(2, 8))
    assert torch.equal(t.result, net(torch.zeros(2, 8)))


def test_only_some_steps_and_breaking_out(net: Blocks) -> None:
    """Steps that were not asked for run by."""
    with ns.Model.wrap(net).trace(X, 4, method="rollout") as t:
        assert [step for step in t.steps[1:3] if t.h[1].output] == [1, 2]
        last = t.head.output
    assert torch.equal(last, t.result)
    with ns.Model.wrap(net).trace(X, 4, method="rollout") as t:
        for _ in t.steps:
            break
        assert torch.equal(t.result, net.rollout(X, 4))


def test_steps_of_a_module_inside(net: Blocks) -> None:
    """A loop over the calls of any module."""
    with ns.Model.wrap(net).trace(X, 3, method="rollout") as t:
        inputs = [t.h[1].input for _ in t.steps_of("h.1")]
    assert len(inputs) == 3


def test_a_step_never_reaches_into_the_next(net: Blocks) -> None:
    """A site that has passed in this step is an error, not silently the next step's."""
    with ns.Model.wrap(net).trace(X, 3, method="rollout") as t:
        for step in t.steps:
            _ = t.head.output
            with pytest.raises(ns.interventions.OutOfOrderError, match=r"within this step|has finished"):
                _ = t.h[0].output
            assert step < 3
        assert step == 2
    assert torch.equal(t.result, net.rollout(X, 3))


def test_edits_of_a_run_apply_in_every_call_without_stopping(net: Blocks) -> None:
    """A function over a site's outputs."""
    with ns.Model.wrap(net).trace(X, 3, method="rollout") as t:
        t.edit("head", lambda out: out * 0)
        seen = t.h[0].output
    assert torch.equal(seen[1], X)
    assert torch.equal(t.result, torch.zeros(2, 8))


def test_cache_keeps_every_call_of_many_sites(net: Blocks) -> None:
    """Outputs after edits, detached, one entry a call."""
    with ns.Model.wrap(net).trace(X, 2, method="rollout") as t:
        cache = t.cache("h.*", "head", inputs=True)
        t.h[0].replace_first(torch.ones(2, 8))
    assert list(cache) == ["h.0", "h.1", "h.2", "head"]
    assert [len(calls) for calls in cache.values()] == [2, 2, 2, 2]
    assert torch.equal(cache["h.1"][0].args[0], torch.ones(2, 8))
    assert torch.equal(cache.output("head"), t.result)
    assert not cache.output("head").requires_grad


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
def test_nested_tensors_are_replaced_part_by_part() -> None:
    """They have no shape, but parts that have."""
    net = nn.Sequential(nn.ReLU(), nn.ReLU())
    ragged = torch.nested.nested_tensor([torch.ones(2, 8), torch.ones(3, 8)])
    other = torch.nested.nested_tensor([torch.ones(3, 8), torch.ones(3, 8)])
    model = ns.Model.wrap(net)
    with model.trace(ragged) as t:
        t[0].output = t[0].output * 2
        with pytest.raises(ns.interventions.WrongValueError, match=r"\(2, 8\), \(3, 8\)"):
            t[0].output = other
        with pytest.raises(ns.interventions.WrongValueError, match="shape"):
            t[0].output = torch.ones(2, 8)
        t[1].first = t[1].first + 1
    assert all(bool((part == 3).all()) for part in t.result.unbind())
    assert "float32[(2, 8), (3, 8)]" in repr(model.show("0", ragged))


def test_a_value_changed_after_it_was_cached_is_told_not_shown() -> None:
    """An in-place module would falsify what was kept by reference."""
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True))
    with ns.Model.wrap(net).trace(X) as t:
        cache, copies = t.cache("0"), t.cache("0", clone=True)
    with pytest.raises(ns.interventions.WrongValueError, match="clone=True"):
        cache.output("0")
    assert copies.output("0").min() < 0
    assert torch.equal(copies.output("0"), net[0](X))


def test_probes_see_what_the_model_goes_on_with(net: Blocks) -> None:
    """An observer of the same site is told of the edited output."""
    model = ns.Model.wrap(net)
    with ns.Scope("edited") as scope:
        model.attach_probe("head")
        with model.trace(X) as t:
            t.head.output = torch.full((2, 8), 7.0)
    records = [record for record in scope.artifact.telemetry.layer_snapshots if record.layer_id == "head"]
    assert [record.summary.max for record in records if record.summary] == [7.0]


def test_a_module_applied_in_the_body_is_an_ordinary_call(net: Blocks) -> None:
    """The body may call modules, the traced model included."""
    with ns.Model.wrap(net).trace(X) as t:
        hidden = t.h[0].output[0]
        lens = net.head(hidden)
        whole = net(X)
    assert torch.equal(lens, net.head(net.h[0](X)[0]))
    assert torch.equal(whole, t.result)


def test_aliases_and_views(net: Blocks) -> None:
    """Names of one's own, read and written."""
    model = ns.Model.wrap(net)
    model.alias("blocks", "h")
    model.view(
        "halves", "h.*", lambda out, _: out[0].view(2, 2, 4), lambda new, out, _: (new.reshape(2, 8), out[1])
    )
    model.view("hidden", Blocks, lambda x, _: x, on="input")
    with model.trace(X) as t:
        assert t.hidden is X
        assert t.blocks[0] is t["blocks.0"] is t["h.0"]
        halves = t.blocks[2].halves
        assert halves.shape == (2, 2, 4)
        t.blocks[2].halves = halves * 0
    assert torch.equal(t.result, net.head(torch.zeros(2, 8)))
    assert "h: ModuleList  = blocks" in model.tree()
    assert ".halves over output" in model.tree()
    shown = model.tree(X).splitlines()
    assert shown[0] == "(model): Blocks  .hidden over input = float32[2, 8]"
    assert "  h.1: Block  .halves over output = float32[2, 2, 4]" in shown
    with pytest.raises(ValueError, match="alias"):
        model.alias("head", "h")
    with pytest.raises(ns.LayerNotFoundError):
        model.alias("x", "nothing.here")


def test_views_may_be_read_only_and_unknown_names_say_what_there_is(net: Blocks) -> None:
    """Typing errors do not pass silently."""
    model = ns.Model.wrap(net)
    model.view("norm", "h.*", lambda out, _: out[0].norm())
    with model.trace(X) as t:
        site: Any = t.h[0]
        assert site.norm > 0
        with pytest.raises(AttributeError, match="only be read"):
            site.norm = 3
        with pytest.raises(AttributeError):
            site.outptu = 3
        with pytest.raises(AttributeError, match="output"):
            _ = site.outptu
        with pytest.raises(ns.LayerNotFoundError, match=r"h\.1"):
            _ = t["h.11"]
        anything: Any = t
        for odd in (anything, anything.h):
            with pytest.raises(TypeError, match="path, pattern, number or slice, not by float"):
                _ = odd[0.5]
    for taken in ("output", "inputs", "ops", "visits", "skip", "first", "_hidden"):
        with pytest.raises(ValueError, match="cannot be called"):
            model.view(taken, "h.*", lambda out, _: out)


def test_scan_gives_shapes_and_computes_nothing(net: Blocks) -> None:
    """Fake tensors pass through; the body edits them as real ones."""
    with ns.Model.wrap(net).scan(torch.zeros(5, 8)) as t:
        hidden = t.h[1].output[0]
        assert hidden.shape == (5, 8)
        t.h[1].replace_first(hidden * 2)
    assert t.result.shape == (5, 8)
    assert type(t.result).__name__ == "FakeTensor"
    assert torch.equal(net(X), blocks()(X))


def test_nothing_is_left_on_the_model(net: Blocks) -> None:
    """Slots are there during the block only."""
    with ns.Model.wrap(net).trace(X) as t:
        _ = t.h[0].output
        assert left_on(net)
    assert not left_on(net)

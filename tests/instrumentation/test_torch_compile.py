"""Compiling, exporting and tracing a watched model give what they give without us."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
import torch._dynamo as dynamo
from torch import nn

from neuronscope_instrumentation.torch import ADAPTER
from neuronscope_instrumentation.torch.internals import CALL, COMPILED_CALL
from neuronscope_instrumentation.torch.slot import Slot
from torchnets import INPUT, PATHS, Net, make_net, watch

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, about its deprecated ways to compile


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """No compiled code of another test."""
    dynamo.reset()
    yield
    dynamo.reset()


class Graphs:
    """A backend that notes what it is given to compile."""

    def __init__(self) -> None:
        self.codes: list[str] = []

    def __call__(self, graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        self.codes.append(graph.code)
        return graph.forward


def life(model: Net, way: Callable[[Net, Graphs], Callable[..., Any]], when: str, *paths: str) -> Graphs:
    """Compile and run a model, watched from before or after its first call, then no longer."""
    graphs = Graphs()
    expected = make_net()(INPUT)
    undo: list[Callable[[], None]] = []
    if when == "before":
        undo.append(watch(model, *paths)[1])
    run = way(model, graphs)
    assert torch.equal(run(INPUT), expected)
    if when == "after":
        undo.append(watch(model, *paths)[1])
    for _ in range(2):
        assert torch.equal(run(INPUT), expected)
    for step in undo:
        step()
    for _ in range(2):
        assert torch.equal(run(INPUT), expected)
    return graphs


def wrap(model: Net, graphs: Graphs) -> Callable[..., Any]:
    return torch.compile(model, backend=graphs, fullgraph=True)


def compile_in_place(model: Net, graphs: Graphs) -> Callable[..., Any]:
    model.compile(backend=graphs, fullgraph=True)
    return model


@pytest.mark.parametrize("way", [wrap, compile_in_place])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("paths", [("first",), PATHS], ids=["one", "all"])
def test_graphs_and_compilations_are_those_of_the_plain_model(
    way: Callable[[Net, Graphs], Callable[..., Any]], when: str, paths: tuple[str, ...]
) -> None:
    """One graph, the same code, whether watched before or after the first call, or no longer."""
    plain = life(make_net(), way, "never")
    dynamo.reset()
    watched = life(make_net(), way, when, *paths)
    assert watched.codes == plain.codes
    assert len(plain.codes) == 1


def test_frames_that_dynamo_leaves_alone_are_seen_and_our_own_not_compiled() -> None:
    """Layers that run inside a compiled call but outside its graphs are seen; the graphs stay the user's."""

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

        @cast(Any, dynamo.disable)(recursive=False)  # type: ignore[untyped-decorator]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    def graphs(*paths: str) -> tuple[list[str], list[str]]:
        dynamo.reset()
        graphs = Graphs()
        model = Broken().eval()
        seen, _ = watch(model, *paths) if paths else ([], None)
        run: Any = torch.compile(model, backend=graphs)
        run(INPUT)
        run(INPUT)
        return graphs.codes, seen

    plain, _ = graphs()
    watched, seen = graphs("layers.0", "layers.1")
    assert watched == plain
    assert seen == ["layers.0", "layers.1"] * 2


def test_the_boundary_of_a_wrapped_model_is_seen_and_its_inside_told() -> None:
    """`torch.compile(model)`: the wrapper and the model in it are seen."""
    wrapped: Any = torch.compile(make_net(), backend="eager")
    seen, _ = watch(wrapped, "", "_orig_mod", "_orig_mod.first")
    wrapped(INPUT)
    wrapped(INPUT)
    assert seen == ["_orig_mod", ""] * 2
    assert ADAPTER.not_visited(wrapped, ["_orig_mod.first"], seen) == {"_orig_mod.first": "compiled"}


@pytest.mark.parametrize("first", ["watch", "compile"])
def test_the_boundary_of_a_model_compiled_in_place_is_seen(first: str) -> None:
    """`model.compile()` before or after watching it; undone, the compiled call alone is left."""
    model = make_net()
    if first == "compile":
        model.compile(backend="eager")
    seen, undo = watch(model, "", "first")
    if first == "watch":
        model.compile(backend="eager")
    assert torch.equal(model(INPUT), make_net()(INPUT))
    assert seen == [""]
    assert ADAPTER.not_visited(model, ["", "first"], seen) == {"first": "compiled"}
    undo()
    assert vars(model).keys() - vars(make_net()).keys() == {COMPILED_CALL}
    assert not isinstance(vars(model)[COMPILED_CALL], Slot)
    assert torch.equal(model(INPUT), make_net()(INPUT))


def test_modules_outside_a_compiled_part_are_seen() -> None:
    """Compilation of one submodule leaves the others observable."""
    model = nn.Sequential(nn.Linear(8, 8), make_net(), nn.ReLU())
    model[1].compile(backend="eager")
    seen, _ = watch(model, "", "0", "1", "1.first", "2")
    model(INPUT)
    model(INPUT)
    assert seen == ["0", "1", "2", ""] * 2


def test_a_layer_watched_during_a_compilation_is_watched_after_it() -> None:
    """Slots step aside while Dynamo traces; what comes or goes meanwhile is not lost."""
    model = make_net()
    seen, undo = watch(model, "first")
    late: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        undo()
        ADAPTER.observe_layer(model, "first", lambda _: late.append("first"))
        assert CALL not in vars(model.rest)
        return graph.forward

    watch(model, "rest")
    torch.compile(model, backend=backend)(INPUT)
    model(INPUT)
    assert (seen, late) == ([], ["first"])
    assert CALL in vars(model.rest)


@pytest.mark.parametrize("strict", [False, True])
def test_export_sees_the_plain_model(strict: bool) -> None:
    """The same exported program; nothing captured from fake tensors."""
    plain = torch.export.export(make_net(), (INPUT,), strict=strict)
    model = make_net()
    seen, _ = watch(model)
    exported = torch.export.export(model, (INPUT,), strict=strict)
    assert exported.graph_module.code == plain.graph_module.code
    assert seen == []
    assert torch.equal(exported.module()(INPUT), make_net()(INPUT))


def test_tracing_and_scripting_see_the_plain_model() -> None:
    """jit.trace, jit.script, fx and make_fx give the same code, and no records."""
    from torch.fx.experimental.proxy_tensor import make_fx

    ways: list[Callable[[Any], Any]] = [
        lambda model: cast(Any, torch.jit.trace)(model, INPUT, check_trace=False),
        torch.jit.script,
        torch.fx.symbolic_trace,
        lambda model: make_fx(model)(INPUT),
    ]
    for way in ways:
        plain = way(make_net())
        model = make_net()
        seen, _ = watch(model)
        traced = way(model)
        assert traced.code == plain.code
        assert seen == []
        assert torch.equal(traced(INPUT), make_net()(INPUT))


def test_a_scripted_model_is_seen_at_its_boundary() -> None:
    """TorchScript runs the inside without Python: told, not silent."""
    scripted = torch.jit.script(make_net())
    seen, _ = watch(scripted, "", "first")
    scripted(INPUT)
    assert seen == [""]
    assert ADAPTER.not_visited(scripted, ["", "first"], seen) == {"first": "scripted"}


def test_fake_tensors_and_functorch_levels_are_passed_through() -> None:
    """No values, no records, no errors; the functional results are the plain ones."""
    from torch._subclasses import FakeTensorMode

    model = make_net()
    seen, _ = watch(model)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert model(mode.from_tensor(INPUT)).shape == (2, 4)
    mapped = torch.func.vmap(model)(INPUT)

    def total(of: Callable[..., Any]) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: of(x).sum()

    gradient = torch.func.grad(total(model))(INPUT)
    assert seen == []
    torch.testing.assert_close(mapped, make_net()(INPUT))
    torch.testing.assert_close(gradient, torch.func.grad(total(make_net()))(INPUT))


def test_functional_call_is_seen_with_the_weights_it_was_given() -> None:
    """Swapped parameters are what computes."""
    model = make_net()
    means: list[float] = []
    ADAPTER.observe_layer(model, "", lambda snapshot: means.append(snapshot.summarize().mean))
    zeros = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    torch.func.functional_call(model, zeros, (INPUT,))
    assert means == [0.0]

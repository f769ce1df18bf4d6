"""What goes wrong is told at the line that asked, with the way out."""

# What a trace gives is Any, and so are lambdas over it; torch leaves parts of itself untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import neuronscope as ns
from neuronscope.interventions import (
    CannotSuspendError,
    CheckpointedError,
    InterventionError,
    OutOfOrderError,
    SiteNotReachedError,
    TraceClosedError,
    WrongThreadError,
    WrongValueError,
)
from tracednets import Blocks, X, blocks, left_on


@pytest.fixture
def net() -> Blocks:
    """A stack of three blocks."""
    return blocks()


def test_out_of_order_names_the_site_the_line_and_what_ran(net: Blocks) -> None:
    """All that is needed to correct it."""
    with pytest.raises(OutOfOrderError) as caught, ns.Model.wrap(net).trace(X) as t:
        _ = t.h[2].output
        _ = t.h[0].output
    message = str(caught.value)
    assert caught.value.site == "h.0"
    assert caught.value.ran == (("", 1), ("h.2", 1))
    assert "'h.0'" in message
    assert "h.2 (1×)" in message
    assert f"{__file__}:" in message
    assert any(frame.filename == __file__ for frame in traceback.extract_tb(caught.value.__traceback__))
    assert not left_on(net)


def test_input_after_output_is_out_of_order_when_it_is_assigned(net: Blocks) -> None:
    """The call is over: its arguments can be read, not changed."""
    with ns.Model.wrap(net).trace(X) as t:
        _ = t.h[1].output
        with pytest.raises(OutOfOrderError, match="before output"):
            t.h[1].input = X
        with pytest.raises(OutOfOrderError, match="before output"):
            t.h[1].skip(X)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (torch.zeros(2, 8), "replace_first"),
        ((torch.zeros(2, 8),), "tuple of 2, not of 1"),
        ((torch.zeros(1, 8), X), r"shape \(2, 8\), not \(1, 8\).*expand_as"),
        ((torch.zeros(2, 8, dtype=torch.float64), X), r"value.to\(torch.float32\)"),
        ((torch.zeros(2, 8, device="meta"), X), "is on cpu, not on meta"),
        ([torch.zeros(2, 8), X], "is a tuple of 2, not a list"),
        (("zero", X), "not a str"),
    ],
)
def test_values_of_another_kind_are_refused_at_the_assignment(net: Blocks, value: Any, why: str) -> None:
    """Structure, shape, dtype, device; the model goes on unchanged."""
    with ns.Model.wrap(net).trace(X) as t, pytest.raises(WrongValueError, match=why):
        t.h[1].output = value
    assert torch.equal(t.result, net(X))


def test_replace_takes_anything(net: Blocks) -> None:
    """For those who mean it."""
    with ns.Model.wrap(net).trace(X) as t:
        t.head.replace("anything")
    assert t.result == "anything"


def test_a_site_that_never_runs_says_why() -> None:
    """A branch not taken, a direct call of forward, a fused parent."""

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.direct, self.never = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.direct.forward(x)

    model = ns.Model.wrap(Odd())
    with (
        pytest.raises(SiteNotReachedError, match=r"calls its \.forward|seems to call its"),
        model.trace(X) as t,
    ):
        _ = t.direct.output
    with pytest.raises(SiteNotReachedError, match="did not call it in this run"), model.trace(X) as t:
        _ = t.never.output


def test_a_fused_parent_is_told_and_can_be_unfused() -> None:
    """The encoder layer computes for its submodules; `unfuse` runs them."""
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x, model = torch.rand(2, 3, 8), ns.Model.wrap(encoder)
    with torch.no_grad():
        with pytest.raises(SiteNotReachedError, match="unfuse=True"), model.trace(x) as t:
            _ = t.linear1.output
        with model.with_options(unfuse=True).trace(x) as t:
            t.linear1.output = t.linear1.output * 0
        assert torch.backends.mha.get_fastpath_enabled()
        assert not torch.equal(t.result, encoder(x))


@pytest.mark.filterwarnings("ignore")  # torch's own, about how it compiles
def test_a_compiled_region_is_told_and_can_be_run_eagerly(net: Blocks) -> None:
    """Modules inside compiled code do not run as modules."""
    import torch._dynamo as dynamo

    dynamo.reset()
    run: Any = torch.compile(net, backend="eager")
    expected = run(X)
    model = ns.Model.wrap(run)
    with pytest.raises(SiteNotReachedError, match="eager=True"), model.trace(X) as t:
        _ = t["_orig_mod.h.0"].output
    with model.with_options(eager=True).trace(X) as t:
        assert torch.equal(t["_orig_mod.h.0"].output[1], X)
    assert torch.equal(t.result, expected)
    dynamo.reset()


@pytest.mark.filterwarnings("ignore")
def test_a_scripted_region_is_told() -> None:
    """TorchScript runs without Python."""
    scripted: Any = torch.jit.script(nn.Sequential(nn.Linear(8, 8)))

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = scripted

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)  # type: ignore[no-any-return]

    with pytest.raises(SiteNotReachedError, match="TorchScript"), ns.Model.wrap(Holder()).trace(X) as t:
        _ = t["inner.0"].output


def test_another_thread_is_told_that_the_trace_is_not_its_own(net: Blocks) -> None:
    """The owner goes on undisturbed."""
    caught: list[BaseException] = []
    with ns.Model.wrap(net).trace(X) as t:
        first = t.h[0].output

        def meddle() -> None:
            try:
                _ = t.h[1].output
            except InterventionError as error:
                caught.append(error)

        thread = threading.Thread(target=meddle)
        thread.start()
        thread.join()
        assert t.h[0].output is first
    assert isinstance(caught[0], WrongThreadError)
    assert torch.equal(t.result, net(X))


def test_a_forward_in_another_thread_is_not_part_of_the_trace(net: Blocks) -> None:
    """A model that hands work to threads is told so."""

    class Threaded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: list[torch.Tensor] = []
            thread = threading.Thread(target=lambda: out.append(self.inner(x)))
            thread.start()
            thread.join()
            return out[0]

    with pytest.raises(SiteNotReachedError, match="another thread"), ns.Model.wrap(Threaded()).trace(X) as t:
        _ = t.inner.head.output


def test_after_the_block_sites_are_closed_and_the_result_is_there(net: Blocks) -> None:
    """And a trace runs once."""
    trace: Any = ns.Model.wrap(net).trace(X)
    with pytest.raises(TraceClosedError, match="not begun"):
        _ = trace["h.0"]
    with trace as t:
        site = t.h[0]
    with pytest.raises(InterventionError):
        _ = site.output
    with pytest.raises(TraceClosedError, match="has ended"):
        _ = t["h.1"]
    assert torch.equal(t.result, net(X))
    with pytest.raises(TraceClosedError, match="has been used"), trace:
        pass


def test_the_model_s_error_comes_out_where_the_body_asked(net: Blocks) -> None:
    """With the model's own frames, and the user's line."""
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        with ns.Model.wrap(net).trace(torch.ones(2, 3)) as t:
            _ = t.h[0].input
            _ = t.head.output  # here
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert any("# here" in (frame.line or "") for frame in frames)
    assert any(frame.name == "forward" and "linear.py" in frame.filename for frame in frames)
    assert not left_on(net)


class Lacking(nn.Module):
    """A module with a fault."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        lacking: Any = self
        return x * lacking.scale  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(lambda t: t.result, id="result"),
        pytest.param(lambda t: t.output, id="output"),
        pytest.param(lambda t: t.h[1].output, id="output of a site"),
        pytest.param(lambda t: t.h[1].input, id="input of a site"),
    ],
)
def test_an_attribute_that_the_model_lacks_is_not_taken_for_one_of_the_trace(
    ask: Callable[[Any], Any], net: Blocks
) -> None:
    """Python takes an AttributeError in a property for a missing property; the model's own comes out."""
    net.h[0] = Lacking()
    for _turn in range(2):
        with pytest.raises(AttributeError, match="'Lacking' object has no attribute 'scale'") as caught:
            with ns.Model.wrap(net).trace(X) as t:
                ask(t)
        assert any(frame.name == "forward" for frame in traceback.extract_tb(caught.value.__traceback__))
        assert not left_on(net)


def test_a_replaced_module_is_found_by_its_path_again(net: Blocks) -> None:
    """Surgery between traces."""
    model = ns.Model.wrap(net)
    with model.trace(X) as t:
        _ = t.h[0].lin.output
    net.h[0].lin = nn.Linear(8, 8)
    with model.trace(X) as t:
        assert torch.equal(t.h[0].lin.output, net.h[0].lin(X))


def test_what_is_none_is_no_module() -> None:
    """An optional part that a model lacks is not found, whoever asks."""

    class Halved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(8, 8)
            self.register_module("down", None)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.up(x)  # type: ignore[no-any-return]

    model = ns.Model.wrap(Halved())
    for path in ("down", "down.lin"):
        with pytest.raises(ns.LayerNotFoundError, match="up"), model.trace(X) as t:
            _ = t[path].output
        with pytest.raises(ns.LayerNotFoundError, match="up"):
            model.alias("below", path)
        with pytest.raises(ns.LayerNotFoundError, match="up"):
            model.edits.add("half", path, ns.interventions.Scale(0.5))


def test_inside_transforms_the_model_is_not_stopped(net: Blocks) -> None:
    """vmap in the model, and vmap in the body."""

    class Mapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.func.vmap(self.inner)(x)  # type: ignore[no-any-return]

    mapped = ns.Model.wrap(Mapped())
    with pytest.raises(CannotSuspendError, match="vmap"), mapped.trace(X) as t:
        _ = t.inner.output
    with mapped.trace(X) as t:
        assert t.root.output.shape == (2, 8)
    model = ns.Model.wrap(net)
    with model.trace(X) as t:
        with pytest.raises(CannotSuspendError):
            torch.func.vmap(lambda x: x + t.h[0].output[0].sum())(X)
        assert t.h[0].output[1] is X


def test_inside_the_autograd_engine_the_model_is_not_stopped(net: Blocks) -> None:
    """A read in a hook of the body, and a backward pass of the model's own method."""
    model = ns.Model.wrap(net)
    with model.trace(X) as t:
        weight: Any = torch.ones(1, requires_grad=True)
        weight.register_hook(lambda _: t.h[0].output[0].sum())
        with pytest.raises(CannotSuspendError, match=r"t\.backward"):
            (weight * 2).backward()
        assert t.h[0].output[1] is X

    def training_step(x: torch.Tensor) -> torch.Tensor:
        def segment(inner: torch.Tensor) -> torch.Tensor:
            return net.head(inner)  # type: ignore[no-any-return]

        loss: Any = checkpoint(segment, x.clone().requires_grad_(), use_reentrant=False)
        loss.sum().backward()
        return loss  # type: ignore[no-any-return]

    with pytest.raises(CannotSuspendError), model.trace(X, method=training_step) as t:
        for _ in t.steps_of("head"):  # the second is the checkpoint's
            pass


@pytest.mark.parametrize("reentrant", [True, False])
def test_edits_in_a_checkpointed_region_are_refused(reentrant: bool, net: Blocks) -> None:
    """The second forward would not repeat them: wrong gradients, silently."""

    class Saving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, x, use_reentrant=reentrant)  # type: ignore[no-any-return]

    model = ns.Model.wrap(Saving())
    x = X.clone().requires_grad_()
    with pytest.raises(CheckpointedError, match="gradient_checkpointing_disable"), model.trace(x) as t:
        t.inner.head.output = t.inner.head.output * 0
    with pytest.raises(CheckpointedError), model.trace(x) as t:
        t.inner.h[0].lin.output.detach().zero_()
        _ = t.inner.head.output
    for change in (lambda out: out * 0, lambda out: (out.detach().zero_(), out)[1]):
        with pytest.raises(CheckpointedError, match=r"inner\.h\.0\.lin"), model.trace(x) as t:
            t.edit("inner.h.0.lin", change)
    with torch.no_grad(), model.trace(x) as t:
        t.inner.head.output = t.inner.head.output * 0
    assert not t.result.any()
    with model.trace(x) as t:
        t.edit("inner.h.0.lin", lambda out: out)  # looks, and changes nothing
        assert t.inner.head.output.shape == (2, 8)
        t.root.output = t.root.output * 2
    t.result.sum().backward()
    assert x.grad is not None


def test_greenlet_missing_is_told(monkeypatch: pytest.MonkeyPatch, net: Blocks) -> None:
    """The message says what to install."""
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "greenlet" else real(name, *a)
    )
    with pytest.raises(ns.MissingDependencyError, match=r"neuronscope\[interventions\]"):
        ns.Model.wrap(net).trace(X)


def test_runtimes_without_interventions_say_so() -> None:
    """An adapter of one's own need not have them."""

    class Adapter:
        name = "mine"

        def matches(self, model_obj: Any) -> bool:
            return isinstance(model_obj, dict)

        def list_layers(self, model_obj: Any) -> list[ns.LayerSpec]:
            return []

        def install_observer_hook(self, model_obj: Any, layer_id: str, callback: Any) -> None: ...

        def remove_hooks(self, model_obj: Any) -> None: ...

        def fingerprint_model(self, model_obj: Any) -> str:
            return ""

    with pytest.raises(ns.AdapterNotFoundError, match="cannot intervene"):
        ns.Model({}, Adapter(), "mine").trace(1)

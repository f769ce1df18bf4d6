"""The acceptance suite: reports from other tools for interventions, each with the test that would show it
here.

`ROWS` says where each is tried: the 38 rows are reports on nnsight, TransformerLens, pyvene, transformers and
PyTorch, F1 to F10 what we reproduced in nnsight ourselves.
"""

# What a trace gives is Any, and so are lambdas over it; torch leaves parts of itself untyped.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportAttributeAccessIssue=false, reportUnusedImport=false
# pyright: reportUnusedVariable=false
from __future__ import annotations

import gc
import importlib
import inspect
import signal
import sys
import threading
from types import FrameType
from typing import Any

import pytest
import torch
import torch._dynamo as dynamo
import torch._dynamo.testing
from torch import nn
from torch.overrides import TorchFunctionMode

import neuronscope as ns
from growth import growth
from neuronscope.interventions import OutOfOrderError
from neuronscope_instrumentation.torch import ADAPTER
from tinymodels import llama
from tracednets import X, blocks, left_on

HERE = "test_acceptance"
ROWS: dict[str, tuple[str, str, str]] = {
    "1": ("nnsight #672: a shorter prompt in a left-padded batch", "test_trace_rows",
          "test_a_row_alone_gives_the_same_values_as_in_the_batch"),
    "2": ("nnsight #607: an earlier trace changes a later one", HERE,
          "test_an_earlier_trace_changes_nothing"),
    "3": ("nnsight #488: a loop longer than the generation", HERE, "test_a_loop_may_outlast_the_model"),
    "4": ("nnsight #718: a late read lands one step late", "test_traces",
          "test_a_step_never_reaches_into_the_next"),
    "5": ("nnsight #600: a call that never comes", HERE,
          "test_a_call_that_never_comes_is_told_with_its_count"),
    "6": ("nnsight #510: an edit in a loop has no effect", HERE, "test_an_edit_in_a_loop_has_its_effect"),
    "7": ("nnsight #350: generation under a trace differs", "test_families",
          "test_generation_is_equal_untouched_and_steps_follow_it"),
    "8": ("nnsight #102, #538: memory grows over traces", "test_trace_endings",
          "test_slots_are_gone_and_activations_free"),
    "9": ("nnsight #396: batching concatenates at every read", HERE, "test_reading_rows_copies_nothing"),
    "10": ("nnsight #790: stop keeps activations", "test_trace_endings",
           "test_slots_are_gone_and_activations_free"),
    "11": ("nnsight #793: a failed backward pins the graph", "test_trace_endings",
           "test_slots_are_gone_and_activations_free"),
    "12": ("nnsight #652: a cache of all modules is slow", HERE, "test_a_cache_never_stops_the_model"),
    "13": ("nnsight 0.7: hooks of a cache stay", HERE, "test_no_hook_is_ever_registered"),
    "14": ("nnsight #723: copies compute with the original's weights", "test_trace_endings",
           "test_copies_made_during_a_trace_are_plain_models_of_their_own"),
    "15": ("nnsight #694: two backwards over one graph", "test_trace_gradients",
           "test_what_cannot_be_had_is_told"),
    "16": ("nnsight #473: a forward value inside a gradient block", HERE,
           "test_sites_can_be_read_within_a_gradient_block"),
    "17": ("nnsight #280: requests from threads", "test_trace_concurrent",
           "test_hundreds_of_traces_and_plain_callers_share_a_model"),
    "18": ("nnsight #656: tenants with equal names", HERE, "test_equal_names_in_two_threads"),
    "19": ("nnsight #676: a body that never ends", HERE, "test_an_endless_body_can_be_interrupted"),
    "20": ("nnsight #86: quantised weights under a scan", HERE, "test_scan_of_weights_of_another_kind"),
    "21": ("nnsight #190: a meta model", HERE, "test_a_model_without_weights_is_traced_and_scanned"),
    "22": ("nnsight #555: an adapter added after wrapping", HERE,
          "test_modules_added_after_wrapping_are_sites"),
    "23": ("nnsight #114: no way to list and cache all", HERE, "test_all_sites_are_listed_and_cached"),
    "24": ("nnsight #422: tracebacks of code without a file", HERE, "test_code_without_a_file"),
    "25": ("nnterp #17: tuple in one version, tensor in the next", HERE,
           "test_one_accessor_for_tuples_and_tensors"),
    "26": ("transformers #26142: is the last hidden state normed?", HERE,
           "test_the_last_block_and_the_norm_are_told_apart"),
    "27": ("transformers #48825: a negative layer number", HERE, "test_negative_numbers_count_from_the_end"),
    "28": ("TransformerLens #156: an exception leaves hooks", "test_trace_endings",
           "test_slots_are_gone_and_activations_free"),
    "29": ("TransformerLens #1636: the user's hooks are removed", "test_trace_endings",
           "test_the_user_s_own_hooks_stay"),
    "30": ("TransformerLens #1323: the model is not freed", "test_trace_endings",
           "test_the_model_itself_can_go"),
    "31": ("TransformerLens #336: one tensor into three projections", HERE,
           "test_replacing_the_input_of_one_projection_leaves_the_others"),
    "32": ("pyvene #158: patching across layers, grouped queries", HERE,
           "test_patching_a_layer_from_another_one"),
    "33": ("pytorch #117758: hooks after the first compile", "test_trace_errors",
           "test_a_compiled_region_is_told_and_can_be_run_eagerly"),
    "34": ("pytorch #142358: a hook disables module.compile()", HERE,
           "test_traces_do_not_disturb_compiled_models"),
    "35": ("torchvista #45: a probe that changes outer state under compile", HERE,
           "test_traces_do_not_disturb_compiled_models"),
    "36": ("pytorch #181924: sharded modules", HERE, "test_sharded_modules"),
    "37": ("accelerate #3223: wrapped forwards", "test_trace_endings",
          "test_an_instance_s_own_forward_is_kept"),
    "38": ("MRFI #5: closures accumulate", HERE, "test_attaching_again_and_again_accumulates_nothing"),
    "F1": ("a plain caller dies while a trace runs", "test_trace_concurrent",
           "test_hundreds_of_traces_and_plain_callers_share_a_model"),
    "F2": ("the trace loses a value to a stranger", HERE, "test_a_stranger_s_call_takes_nothing"),
    "F3": ("three threads trace one handle", "test_trace_concurrent",
           "test_the_same_handle_from_several_threads"),
    "F4": ("a trace within a trace", "test_trace_concurrent", "test_nested_traces_of_one_model"),
    "F5": ("a tensor where a tuple belongs", "test_trace_errors",
           "test_values_of_another_kind_are_refused_at_the_assignment"),
    "F6": ("an edit in place changes what was read before", HERE, "test_a_copy_stays_what_it_was"),
    "F7": ("a wrapped model cannot be scripted", HERE, "test_a_wrapped_model_can_be_scripted"),
    "F8": ("compiling a wrapped model", HERE, "test_traces_do_not_disturb_compiled_models"),
    "F9": ("every object has a save", HERE, "test_nothing_of_python_or_torch_is_patched"),
    "F10": ("hooks left by a cache", HERE, "test_no_hook_is_ever_registered"),
}  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
def test_every_row_has_its_test(row: str) -> None:
    """The table is kept true."""
    _, module, name = ROWS[row]
    path = inspect.getsourcefile(sys.modules[__name__])
    assert path is not None
    text = importlib.import_module("pathlib").Path(path).with_name(f"{module}.py").read_text()
    assert f"\ndef {name}(" in text
    assert len(ROWS) == 48


def test_an_earlier_trace_changes_nothing() -> None:
    """A trace after another one gives what it gives alone."""
    alone, after = ns.Model.wrap(blocks()), ns.Model.wrap(blocks())
    with after.trace(X) as t:
        t.h[0].replace_first(torch.zeros(2, 8))
    del t
    results: list[torch.Tensor] = []
    for model in (alone, after):
        with model.trace(X) as t:
            t.h[1].replace_first(t.h[1].output[0] * 2)
        results.append(t.result)
    assert torch.equal(*results)


def test_a_loop_may_outlast_the_model() -> None:
    """It ends with the model, and what follows runs."""
    seen: list[int] = []
    with ns.Model.wrap(blocks()).trace(X, 2, method="rollout") as t:
        seen.extend(t.steps[:100])
        after = t.result
    assert seen == [0, 1]
    assert after.shape == (2, 8)


def test_a_call_that_never_comes_is_told_with_its_count() -> None:
    """How often it did come."""
    with pytest.raises(OutOfOrderError, match=r"it had run 3× before") as caught:
        with ns.Model.wrap(blocks()).trace(X, 3, method="rollout") as t:
            for _ in range(10):
                _ = t.h[1].output
                _ = t.head.output
    assert ("h.1", 3) in caught.value.ran


def test_an_edit_in_a_loop_has_its_effect() -> None:
    """Absurd edits of a denoiser change what a diffusion loop gives, in every way to make them."""
    net = blocks()
    plain = net.rollout(X, 4)
    model = ns.Model.wrap(net)
    results: list[torch.Tensor] = []
    with model.trace(X, 4, method="rollout") as t:
        for _ in t.steps:
            t.h[1].replace_first(torch.full((2, 8), 50.0))
    results.append(t.result)
    with model.trace(X, 4, method="rollout") as t:
        t.edit("h.1", lambda out: (torch.full((2, 8), 50.0), out[1]))
    results.append(t.result)
    model.edits.add("absurd", "h.1", lambda h: torch.full_like(h, 50.0))
    results.append(net.rollout(X, 4))
    model.edits.clear()
    assert all(torch.equal(result, results[0]) for result in results)
    assert not torch.equal(results[0], plain)


def test_reading_rows_copies_nothing() -> None:
    """Views of the batch, and no concatenation."""
    called: list[str] = []

    class Names(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called.append(func.__name__)
            return func(*args, **(kwargs or {}))

    net = blocks()
    batch = torch.randn(32, 8)
    with ns.Model.wrap(net).trace(batch) as t, Names():
        whole = t.h[1].output[0]
        rows = [t.rows(i)["h.1"].first for i in range(32)]
    assert "cat" not in called
    assert all(row.data_ptr() == whole[i].data_ptr() for i, row in enumerate(rows))


def test_a_cache_never_stops_the_model() -> None:
    """No turn for a site that is only kept; one for each that is read."""
    model = ns.Model.wrap(blocks())

    def turns(kept: bool) -> int:
        taken: list[None] = []
        with model.trace(X) as t:
            to_body = t._run.to_body

            def count() -> Any:
                taken.append(None)
                return to_body()

            t._run.to_body = count
            if kept:
                cache = t.cache("**")
                assert not any(cache.values())
                _ = t.result
                assert all(len(calls) == 1 for calls in cache.values())
            else:
                for site in (t.h[0], t.h[1], t.head):
                    _ = site.output
        return len(taken)

    assert turns(kept=True) == 0
    assert turns(kept=False) == 3


def test_no_hook_is_ever_registered() -> None:
    """Neither during nor after; the number of entries stays."""
    net = blocks()

    def hooks() -> int:
        return sum(
            len(value)
            for module in net.modules()
            for name, value in vars(module).items()
            if "hooks" in name and value
        )

    entries = [len(vars(module)) for module in net.modules()]
    for _ in range(10):
        with ns.Model.wrap(net).trace(X) as t:
            t.cache("**")
            _ = t.h[0].output
            assert hooks() == 0
    assert hooks() == 0
    assert [len(vars(module)) for module in net.modules()] == entries


def test_sites_can_be_read_within_a_gradient_block() -> None:
    """The pass runs at the block's end; what is read before is real."""
    with ns.Model.wrap(blocks()).trace(X) as t:
        first = t.h[0].output[0]
        with t.backward(first.sum(), retain_graph=True) as b:
            gradient = b.grad(first)
            later = t.h[2].output[0]
        assert later.shape == gradient.value.shape


def test_equal_names_in_two_threads() -> None:
    """Values are ordinary variables of each body."""
    model = ns.Model.wrap(blocks())
    seen: dict[float, bool] = {}

    def client(value: float) -> None:
        same = True
        for _ in range(30):
            with model.trace(torch.full((2, 8), value)) as t:
                hidden = t.h[0].input
            same &= bool((hidden == value).all())
        seen[value] = same

    threads = [threading.Thread(target=client, args=(float(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == dict.fromkeys(map(float, range(4)), True)


def test_an_endless_body_can_be_interrupted() -> None:
    """The body is the user's own code: a signal, a time limit or Ctrl-C end it, and the model with it."""
    net = blocks()

    class TooLongError(Exception):
        pass

    def ring(_: int, __: FrameType | None) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(TooLongError), ns.Model.wrap(net).trace(X) as t:
            _ = t.h[0].output
            while True:
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not left_on(net)


class Quantised(torch.Tensor):
    """A weight of another kind: a wrapper with its own dispatch, as torchao's are."""

    wrapped: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # torch's own way

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Quantised:
        """Without memory of its own."""
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner: torch.Tensor) -> None:
        self.wrapped = inner

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # declared without being a class method
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Computes with what it wraps."""
        if func is torch.ops.aten.detach.default and isinstance(args[0], cls):
            return cls(args[0].wrapped)
        args, kwargs = torch.utils._pytree.tree_map(
            lambda leaf: leaf.wrapped if isinstance(leaf, Quantised) else leaf, (args, kwargs or {})
        )
        return func(*args, **kwargs)


def test_scan_of_weights_of_another_kind() -> None:
    """Shapes, or an error in words; never something wrong."""
    net = nn.Sequential(nn.Linear(8, 4))
    net[0].weight = nn.Parameter(Quantised(torch.ones(4, 8)), requires_grad=False)
    with torch.no_grad(), ns.Model.wrap(net).trace(X) as t:
        assert t[0].output.shape == (2, 4)
    with torch.no_grad(), ns.Model.wrap(net).scan(X) as t:
        assert t[0].output.shape == (2, 4)
    assert not left_on(net)


def test_a_model_without_weights_is_traced_and_scanned() -> None:
    """On the meta device nothing needs memory."""
    net = blocks().to("meta")
    model = ns.Model.wrap(net)
    with model.trace(X.to("meta")) as t:
        t.h[1].replace_first(t.h[1].output[0] * 2)
    assert t.result.is_meta
    with model.scan(X.to("meta")) as t:
        assert t.h[1].output[0].shape == (2, 8)


def test_modules_added_after_wrapping_are_sites() -> None:
    """A LoRA-like adapter put in later."""

    class Lora(nn.Module):
        def __init__(self, base: nn.Module) -> None:
            super().__init__()
            self.base, self.down, self.up = base, nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base(x) + self.up(self.down(x))  # type: ignore[no-any-return]

    net = blocks()
    model = ns.Model.wrap(net)
    with model.trace(X) as t:
        _ = t.h[0].lin.output
    first: Any = net.h[0]
    first.lin = Lora(first.lin)
    with model.trace(X) as t:
        assert t.h[0].lin.up.output.shape == (2, 8)
    assert torch.equal(t.result, net(X))


def test_all_sites_are_listed_and_cached() -> None:
    """By their paths."""
    net = blocks()
    with ns.Model.wrap(net).trace(X) as t:
        paths = [site.path for site in t.sites()]
        cache = t.cache()
    assert paths == [path for path, module in net.named_modules() if path and path != "h"]
    assert set(cache) == set(paths)


def test_code_without_a_file() -> None:
    """As in a notebook, a console, or exec: nothing is needed but the code."""
    space: dict[str, Any] = {"model": ns.Model.wrap(blocks()), "X": X}
    source = "with model.trace(X) as t: value = t.h[0].output[0]"
    exec(source, space)
    assert space["value"].shape == (2, 8)
    with pytest.raises(OutOfOrderError, match="<string>:3"):
        exec("with model.trace(X) as t:\n  t.h[1].output\n  t.h[0].output", space)


def test_one_accessor_for_tuples_and_tensors() -> None:
    """`first` reads and writes either."""
    net = blocks()
    with ns.Model.wrap(net).trace(X) as t:
        for site in (t.h[0], t.head):
            site.first = site.first * 0
    assert not t.result.any()


def test_the_last_block_and_the_norm_are_told_apart() -> None:
    """`hidden_states[-1]` of a Llama is after the final norm; sites say which is which."""
    net = llama()
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad(), ns.Model.wrap(net).trace(ids, output_hidden_states=True) as t:
        before, after = t["model.layers.3"].first, t["model.norm"].output
    assert torch.equal(t.result.hidden_states[-1], after)
    assert not torch.equal(t.result.hidden_states[-1], before)


def test_negative_numbers_count_from_the_end() -> None:
    """And beyond the end there is nothing."""
    with ns.Model.wrap(blocks()).trace(X) as t:
        assert t.h[-1].path == "h.2"
        with pytest.raises(IndexError, match="3 submodules"):
            _ = t.h[3]
        with pytest.raises(IndexError):
            _ = t.h[-4]


def test_replacing_the_input_of_one_projection_leaves_the_others() -> None:
    """q, k and v get one tensor: assigning is theirs alone, in place is everyone's."""
    net = llama(layers=1)
    ids = torch.tensor([[3, 4, 5]])
    with torch.no_grad(), ns.Model.wrap(net).trace(ids) as t:
        attention = t["model.layers.0.self_attn"]
        attention.q_proj.input = attention.q_proj.input * 0
        keys = attention.k_proj.input
        assert keys.any()


def test_patching_a_layer_from_another_one() -> None:
    """Grouped queries, source and target layers that differ, three blocks."""
    net = llama(layers=3)
    ids = torch.tensor([[3, 4, 5]])
    model = ns.Model.wrap(net)
    with torch.no_grad():
        with model.trace(ids) as t:
            source = t["model.layers.0.self_attn.k_proj"].output
            t["model.layers.2.self_attn.k_proj"].output = source
        with model.trace(ids) as other:
            other["model.layers.2.self_attn.k_proj"].output = source.clone()
    assert torch.equal(t.result.logits, other.result.logits)
    assert not torch.equal(t.result.logits, net(ids).logits)


@pytest.mark.filterwarnings("ignore")  # torch's own, about how it compiles
@pytest.mark.parametrize("way", ["compile", "module.compile"])
def test_traces_do_not_disturb_compiled_models(way: str) -> None:
    """Compiled before, during or after: as many graphs, the same values."""
    dynamo.reset()
    counter = dynamo.testing.CompileCounter()
    net = blocks()
    expected = net(X)
    run: Any = net
    if way == "compile":
        run = torch.compile(net, backend=counter)
    else:
        net.compile(backend=counter)
    for _ in range(2):
        assert torch.allclose(run(X), expected)
    frames = counter.frame_count
    with ns.Model.wrap(net).with_options(eager=True).trace(X) as t:
        assert torch.equal(t.h[0].output[1], X)
        assert torch.allclose(run(X), expected)
    for _ in range(2):
        assert torch.allclose(run(X), expected)
    assert counter.frame_count == frames
    dynamo.reset()


def _stopped(model: ns.Model) -> None:
    with model.trace(X) as t:
        _ = t.h[1].lin.output
        t.stop()


def _failed(model: ns.Model) -> None:
    with pytest.raises(ZeroDivisionError), model.trace(X) as t:
        _ = t.h[1].lin.output
        _ = 1 / 0


def _dropped(model: ns.Model) -> None:
    trace: Any = model.trace(X).__enter__()
    _ = trace["h.1.lin"].output


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore")  # torch's own, about process groups
def test_sharded_modules(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """FSDP2 on one rank: values are whole, and weights of a model that did not end are sharded again."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch puts its own there, and leaves it
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        net, plain = blocks(), blocks()
        for block in net.h:
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
        model = ns.Model.wrap(net)
        with model.trace(X) as t:
            hidden = t.h[1].output[0]
            t.h[1].replace_first(hidden * 2)
        assert torch.allclose(hidden, plain.h[1](plain.h[0](X)[0])[0])
        for end in (_stopped, _failed, _dropped):
            end(model)
            assert all(isinstance(parameter, DTensor) for parameter in net.h.parameters()), end
            assert torch.allclose(net(X), plain(X))
    finally:
        dist.destroy_process_group()


def test_attaching_again_and_again_accumulates_nothing() -> None:
    """Slots, sites, closures."""
    net = blocks()
    model = ns.Model.wrap(net)

    def round_() -> None:
        undo = ADAPTER.observe_layer(net, "h.0", lambda _: None)
        with model.trace(X) as t:
            t.cache("**")
            _ = t.h[1].output
        edit = model.edits.add("e", "h.0", lambda h: h)
        edit.remove()
        undo()

    def rounds(number: int) -> None:
        for _ in range(number):
            round_()

    rounds(5)
    assert growth(lambda: len(gc.get_objects()), lambda: rounds(50), 200) < 200


def test_a_stranger_s_call_takes_nothing() -> None:
    """Another thread's call of the same module, while the trace waits for it."""
    net = blocks()
    with ns.Model.wrap(net).trace(X) as t:
        _ = t.h[0].output
        thread = threading.Thread(target=net, args=(torch.ones(2, 8),))
        thread.start()
        thread.join()
        assert torch.equal(t.h[1].input, net.h[0](X)[0])
        assert t.h[1].visits == 0


def test_a_copy_stays_what_it_was() -> None:
    """Values are the model's own tensors: a change in place shows in what was read, and not in a copy."""
    with torch.no_grad(), ns.Model.wrap(blocks()).trace(X) as t:
        value = t.h[0].output[0]
        kept = value.clone()
        t.h[0].output[0][:] = 0
        assert not value.any()
        assert kept.any()


@pytest.mark.filterwarnings("ignore")  # scripting is deprecated, and works
def test_a_wrapped_model_can_be_scripted() -> None:
    """Nothing stands on a model that is wrapped, or was traced."""
    net = nn.Sequential(nn.Linear(8, 8))
    model = ns.Model.wrap(net)
    with model.trace(X) as t:
        _ = t[0].output
    scripted: Any = torch.jit.script(net)
    assert torch.equal(scripted(X), net(X))


def test_nothing_of_python_or_torch_is_patched() -> None:
    """No attribute of every object, no changed Tensor."""
    with ns.Model.wrap(blocks()).trace(X) as t:
        assert not hasattr(3, "save")
        assert not hasattr(dict, "save")
        assert torch.Tensor.backward.__module__ == "torch._tensor"
        assert isinstance(torch.Tensor.grad, type(torch.Tensor.grad))
        assert "forward" not in vars(t.h[0].module)

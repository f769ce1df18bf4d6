"""PEFT, quantised weights, wrappers, and what was not visited: seen through, and told on the span."""

from __future__ import annotations

import copy
import sys
import types
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import neuronscope as ns
import tinymodels
from neuronscope.signals import names
from neuronscope_instrumentation.torch import ADAPTER
from torchnets import INPUT, make_net

IDS = torch.tensor([[5, 9, 17, 3]])
# PEFT's own use of a name that transformers is about to rename.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


def root_of(scope: ns.Scope) -> ns.SpanRecord:
    """The scope's own span."""
    return next(span for span in scope.artifact.telemetry.spans if span.parent_span_id is None)


def call_span(scope: ns.Scope) -> ns.SpanRecord:
    """The one model call in a scope."""
    (span,) = [span for span in scope.artifact.telemetry.spans if span.parent_span_id is not None]
    return span


# --- PEFT ---------------------------------------------------------------------------------------------
@pytest.fixture
def lora() -> Any:
    """A tiny Llama with two LoRA adapters, the second of them trained away from zero."""
    from peft import LoraConfig, get_peft_model

    model: Any = get_peft_model(tinymodels.llama(2), LoraConfig(target_modules=["q_proj", "v_proj"], r=4))
    model.add_adapter("other", LoraConfig(target_modules=["q_proj"], r=2))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B.other" in name:
                parameter.fill_(0.5)
    return model.eval()


@pytest.mark.filterwarnings("ignore:Already unmerged")  # PEFT's, of layers without the adapter
def test_lora_layers_and_adapters_are_told(lora: Any) -> None:
    """The active adapters and whether they are merged, at each call as they are then."""
    ns.instrument("transformers")
    told: list[tuple[object, object]] = []
    outputs: list[Any] = []
    for switch in (lambda: None, lambda: lora.set_adapter("other"), lora.merge_adapter, lora.unmerge_adapter):
        switch()
        with ns.Scope("lora") as scope:
            outputs.append(lora.generate(input_ids=IDS, max_new_tokens=3, do_sample=False))
        attributes = call_span(scope).attributes
        told.append((attributes[names.MODEL_ADAPTERS], attributes[names.MODEL_ADAPTERS_MERGED]))
    assert told == [(["default"], False), (["other"], False), (["other"], True), (["other"], False)]
    assert torch.equal(outputs[1], outputs[3])


def test_probes_on_lora_layers_see_the_adapted_output(lora: Any) -> None:
    """The tuner's output is base plus adapter; its parts can be watched alone; outputs are bit-equal."""
    lora.set_adapter("other")
    path = "base_model.model.model.layers.0.self_attn.q_proj"
    with torch.no_grad():
        plain = lora(IDS).logits
        with ns.Scope("lora", max_overhead_pct=1000) as scope:
            ns.Model.wrap(lora).attach_probe([path, f"{path}.base_layer", f"{path}.lora_B.other"])
            assert torch.equal(lora(IDS).logits, plain)
    arrays = {r.layer_id: r.tensor.numpy() for r in scope.artifact.telemetry.layer_snapshots if r.tensor}
    scaling = lora.get_submodule(path).scaling["other"]
    expected = arrays[f"{path}.base_layer"] + arrays[f"{path}.lora_B.other"] * scaling
    assert arrays[path] == pytest.approx(expected, rel=1e-5)
    assert ADAPTER.block_paths(lora) == [f"base_model.model.model.layers.{n}" for n in range(2)]


def test_the_fingerprint_tells_adapters_apart(lora: Any) -> None:
    """With other adapter weights, or merged, it is another model."""
    prints = {ADAPTER.fingerprint_model(lora)}
    with torch.no_grad():
        lora.get_submodule("base_model.model.model.layers.1.self_attn.q_proj.lora_A.other").weight[0, 0] += 1
    prints.add(ADAPTER.fingerprint_model(lora))
    lora.set_adapter("other")
    lora.merge_adapter()
    prints.add(ADAPTER.fingerprint_model(lora))
    assert len(prints) == 3


# --- weights that are tensor subclasses ------------------------------------------------------------------
class Int8Weight(torch.Tensor):
    """A weight stored in eight bits, as torchao's are: integers and a scale behind a tensor's face."""

    ints: torch.Tensor
    scale: torch.Tensor

    @staticmethod
    def __new__(cls: Any, ints: torch.Tensor, scale: torch.Tensor) -> Int8Weight:
        make: Any = torch.Tensor._make_wrapper_subclass
        made: Int8Weight = make(cls, ints.shape, dtype=torch.float32)
        made.ints, made.scale = ints, scale
        return made

    @classmethod
    def of(cls, weight: torch.Tensor) -> Int8Weight:
        """Quantise by rows."""
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale)

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["ints", "scale"], None

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch's stub declares a function's signature
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in {torch.ops.aten.detach.default, torch.ops.aten.clone.default}:
            return cls(args[0].ints, args[0].scale)
        widened: Any = cast(Any, pytree).tree_map(_widened, args)
        return func(*widened, **(kwargs or {}))


def _widened(value: Any) -> Any:
    return value.ints * value.scale if isinstance(value, Int8Weight) else value


def quantized() -> Any:
    model: Any = make_net()
    for layer in (model.first, model.rest[1]):
        layer.weight = nn.Parameter(Int8Weight.of(layer.weight.detach()), requires_grad=False)
    return model


def test_quantised_weights_are_only_used_by_the_model() -> None:
    """Outputs are bit-equal; the storage is told; a fingerprint is of integers and scales."""
    model = quantized()
    expected = model(INPUT)
    with ns.Scope("quantised", max_overhead_pct=1000) as scope:
        ns.Model.wrap(model).attach_probe("**")
        assert torch.equal(model(INPUT), expected)
    assert len(scope.artifact.telemetry.layer_snapshots) == 4
    assert ADAPTER.describe_model(model)[names.MODEL_QUANTIZATION] == "Int8Weight"
    name = ADAPTER.fingerprint_model(model)
    assert ADAPTER.fingerprint_model(quantized()) == name
    model.first.weight.data.ints[0, 0] += 1
    assert ADAPTER.fingerprint_model(model) != name


@pytest.mark.filterwarnings("ignore")  # torch's own, about the deprecation of what is tried here
def test_dynamically_quantised_modules_are_seen() -> None:
    """torch's own quantised Linear gives ordinary floats."""
    quantize = cast(Any, torch.ao.quantization).quantize_dynamic
    model = quantize(make_net(), {nn.Linear})
    seen: list[float] = []
    ADAPTER.observe_layer(model, "first", lambda snapshot: seen.append(snapshot.summarize().max))
    output = model.first(INPUT)
    assert seen == [output.max().item()]


# --- wrappers -----------------------------------------------------------------------------------------
@pytest.fixture
def deepspeed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """DeepSpeed's engine, emulated: it needs a compiler and a GPU; what counts is its shape and its hooks."""
    module: Any = types.ModuleType("deepspeed.runtime.engine")

    class DeepSpeedEngine(nn.Module):
        """Holds the model as `module`, and gathers partitioned weights in hooks, as ZeRO 3 does."""

        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.module = model
            self.held: dict[nn.Module, list[torch.Tensor]] = {}
            children: Any = model.modules()
            for child in children:
                child.register_forward_pre_hook(self._gather)
                child.register_forward_hook(self._release)
                self._release(child)

        def _gather(self, child: nn.Module, *_: object) -> None:
            for parameter, kept in zip(child.parameters(recurse=False), self.held[child], strict=True):
                parameter.data = kept

        def _release(self, child: nn.Module, *_: object) -> None:
            own = list(child.parameters(recurse=False))
            self.held.setdefault(child, [parameter.data for parameter in own])
            for parameter in own:
                parameter.data = torch.empty(0)

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            return self.module(*args, **kwargs)

    DeepSpeedEngine.__module__ = module.__name__
    module.DeepSpeedEngine = DeepSpeedEngine
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return DeepSpeedEngine


def test_a_deepspeed_engine_is_seen_through(deepspeed: Any) -> None:
    """Partitioned weights come and go inside our slots; layers are found below it; it is told."""
    expected = make_net()(INPUT)
    engine = deepspeed(make_net())
    with ns.Scope("deepspeed", max_overhead_pct=1000) as scope:
        assert ns.Model.wrap(engine).attach_probe("module.*") == ["module.first", "module.rest"]
        assert torch.equal(engine(INPUT), expected)
    records = scope.artifact.telemetry.layer_snapshots
    assert [record.layer_id for record in records] == ["module.first", "module.rest"]
    assert records[1].tensor is not None
    assert torch.equal(torch.from_numpy(records[1].tensor.numpy()), expected)
    assert ADAPTER.describe_model(engine)[names.MODEL_WRAPPERS] == ["DeepSpeedEngine"]
    assert all(parameter.numel() == 0 for parameter in engine.parameters())


def test_compiled_wrappers_are_told() -> None:
    """`torch.compile(model)`."""
    compiled: Any = torch.compile(make_net(), backend="eager")
    assert ADAPTER.describe_model(compiled)[names.MODEL_WRAPPERS] == ["OptimizedModule"]
    assert names.MODEL_WRAPPERS not in ADAPTER.describe_model(make_net())


def test_data_parallel_replicas_compute_with_their_own_weights() -> None:
    """Replicas of a watched model, given other weights, answer by these, in threads of their own."""
    import threading

    model: Any = make_net()
    seen: list[str] = []
    for path in ("", "first", "rest"):
        ADAPTER.observe_layer(model, path, lambda _, path=path: seen.append(path))  # type: ignore[misc]

    def replicate(module: Any, scale: float) -> Any:
        replica = module._replicate_for_data_parallel()
        replica._modules = {name: replicate(child, scale) for name, child in module._modules.items()}
        replica._parameters = {}
        for name, parameter in module._parameters.items():
            setattr(replica, name, parameter.detach() * scale)
        return replica

    replicas = [replicate(model, scale) for scale in (1.0, 2.0, 0.0)]
    outputs: dict[int, torch.Tensor] = {}

    def run(number: int) -> None:
        outputs[number] = replicas[number](INPUT)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, scale in enumerate((1.0, 2.0, 0.0)):
        scaled = copy.deepcopy(model)
        with torch.no_grad():
            for parameter in scaled.parameters():
                parameter.mul_(scale)
        assert torch.equal(outputs[number], scaled(INPUT))
    assert seen == []


# --- what was not visited ----------------------------------------------------------------------------
def scripted(model: Any) -> Any:
    return cast(Any, torch.jit).script(model)


def compiled(model: Any) -> Any:
    model.compile(backend="eager")
    return model


def untouched(model: Any) -> Any:
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("way", "reason"),
    [(scripted, "scripted"), (compiled, "compiled"), (untouched, None)],
    ids=["scripted", "compiled", "seen"],
)
def test_a_scope_tells_which_layers_it_could_not_see(way: Callable[[Any], Any], reason: str | None) -> None:
    """With the reason; nothing is told of layers that ran."""
    model = way(make_net())
    with ns.Scope("partly", max_overhead_pct=1000) as scope:
        ns.Model.wrap(model).attach_probe(["", "first"])
        model(INPUT)
    told = root_of(scope).attributes.get(names.LAYERS_NOT_VISITED)
    assert told == (None if reason is None else [f"first: {reason}"])


def test_a_fused_encoder_is_told() -> None:
    """It stays fused, and the span names the layers that its kernel computed for."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    with ns.Scope("fused", max_overhead_pct=1000) as scope, torch.inference_mode():
        ns.Model.wrap(model).attach_probe(["layers.0", "layers.0.linear1"])
        model(torch.randn(2, 5, 16))
    assert root_of(scope).attributes[names.LAYERS_NOT_VISITED] == ["layers.0.linear1: fused"]


def test_spans_say_what_computes_summaries() -> None:
    """The compiled kernel, or why it is not."""
    model = make_net()
    with ns.Scope("kernel", max_overhead_pct=1000) as scope:
        ns.Model.wrap(model).attach_probe("first")
        model(INPUT)
    assert str(root_of(scope).attributes[names.SUMMARY_KERNEL]).startswith("compiled (")

"""The specification's custom adapter: an adapter for an engine that nobody but its owner knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import neuronscope as ns

Hook = Callable[["RawTensor"], None]


@dataclass(frozen=True)
class RawTensor:
    """The engine's own kind of tensor."""

    values: NDArray[np.float32]

    def to_numpy(self) -> NDArray[np.float32]:
        """The values."""
        return self.values


@dataclass
class EngineLayer:
    """A layer of the engine."""

    id: str
    name: str
    output_shape: tuple[int, ...]
    weights: NDArray[np.float32]


@dataclass(eq=False)
class Engine:
    """A proprietary inference engine with interceptors."""

    generate_engine: str = "v1"
    interceptors: dict[str, list[Hook]] = field(default_factory=dict[str, list[Hook]])
    layers: list[EngineLayer] = field(
        default_factory=lambda: [
            EngineLayer(f"block.{i}", "Block", (4,), np.full((4, 4), i + 1, np.float32)) for i in range(3)
        ]
    )

    def list_layers(self) -> list[EngineLayer]:
        """The layers, in order."""
        return self.layers

    def add_interceptor(self, layer_id: str, hook: Hook) -> None:
        """Call `hook` with the layer's output each time it runs."""
        self.interceptors.setdefault(layer_id, []).append(hook)

    def clear_interceptors(self) -> None:
        """Remove all interceptors."""
        self.interceptors.clear()

    def get_weight_bytes(self) -> bytes:
        """All weights."""
        return b"".join(layer.weights.tobytes() for layer in self.layers)

    def generate(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Run the layers."""
        for layer in self.layers:
            values = layer.weights @ values
            for hook in self.interceptors.get(layer.id, []):
                hook(RawTensor(values))
        return values


class CustomInferenceAdapter(ns.BackendAdapter):
    """Adapter for a proprietary enterprise inference engine."""

    name = "enterprise_vllm"

    def matches(self, model_obj: Any) -> bool:
        """Return True if this adapter handles the given model object."""
        return hasattr(model_obj, "generate_engine")

    def list_layers(self, model_obj: Any) -> list[ns.LayerSpec]:
        """Enumerate all layers the platform can probe."""
        return [ns.LayerSpec(id=l.id, name=l.name, shape=l.output_shape) for l in model_obj.list_layers()]  # noqa: E741

    def install_observer_hook(
        self,
        model_obj: Any,
        layer_id: str,
        callback: Callable[[ns.TensorSnapshot], None],
    ) -> None:
        """Attach a non-invasive callback to a named layer."""

        def _hook(raw_tensor: Any) -> None:
            snapshot = ns.TensorSnapshot.from_numpy(raw_tensor.to_numpy())
            callback(snapshot)

        model_obj.add_interceptor(layer_id, _hook)

    def remove_hooks(self, model_obj: Any) -> None:
        """Called by the Scope on __exit__ to clean up all hooks."""
        model_obj.clear_interceptors()

    def fingerprint_model(self, model_obj: Any) -> str:
        """Return a stable fingerprint for this model's weights."""
        return ns.fingerprint(model_obj.get_weight_bytes())


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Register adapter — auto-discovered at runtime initialization."""
    ns.registry.register_adapter(CustomInferenceAdapter())
    yield
    ns.registry.unregister_adapter("enterprise_vllm")


INPUT = np.ones(4, np.float32)


def test_the_custom_adapter_is_selected_and_records(tmp_path: Path) -> None:
    """Layers, probes, snapshots and files work as for the platform's own adapters."""
    engine = Engine()
    expected = engine.generate(INPUT)
    ns_model = ns.Model.wrap(engine)
    assert ns_model.adapter_name == "enterprise_vllm"
    assert ns_model.layers == [ns.LayerSpec(id=f"block.{i}", name="Block", shape=(4,)) for i in range(3)]
    with ns.Scope("enterprise", max_overhead_pct=1000) as scope:
        assert ns_model.attach_probe(layers="block.*", kind=ns.probes.LayerActivations) == [
            "block.0",
            "block.1",
            "block.2",
        ]
        assert (engine.generate(INPUT) == expected).all()
        engine.generate(INPUT)
    assert engine.interceptors == {}
    artifact = scope.save(tmp_path / "enterprise.nsz")
    records = artifact.telemetry.layer_snapshots
    assert [(record.layer_id, record.step) for record in records] == [
        (f"block.{i}", step) for step in range(2) for i in range(3)
    ]
    assert records[2].tensor is not None
    assert (records[2].tensor.numpy() == expected).all()
    assert records[2].summary is not None
    assert records[2].summary.max == expected.max()
    assert len(ns.load(tmp_path / "enterprise.nsz").telemetry.layer_snapshots) == 6


def test_scopes_share_the_hooks_of_one_engine() -> None:
    """The adapter can only remove all hooks at once; an inner scope's end leaves the outer one's."""
    engine = Engine()
    ns_model = ns.Model.wrap(engine)
    with ns.Scope("outer", max_overhead_pct=1000) as outer:
        ns_model.attach_probe(layers=["block.0"], kind=ns.probes.LayerActivations)
        with ns.Scope("inner", max_overhead_pct=1000) as inner:
            ns_model.attach_probe(layers=["block.1"], kind=ns.probes.LayerActivations)
            engine.generate(INPUT)
        engine.generate(INPUT)
    assert engine.interceptors == {}
    seen = [record.layer_id for record in outer.artifact.telemetry.layer_snapshots]
    assert seen.count("block.0") == 2
    assert [r.layer_id for r in inner.artifact.telemetry.layer_snapshots].count("block.1") == 1


def test_the_fingerprint_is_of_the_weights() -> None:
    """Two engines of equal weights are the same model, a changed weight is another."""
    one, same, other = Engine(), Engine(), Engine()
    other.layers[0].weights[0, 0] += 1
    prints = [ns.Model.wrap(engine).fingerprint for engine in (one, same, other)]
    assert prints[0] == prints[1] != prints[2]


def test_an_object_without_adapter_is_refused() -> None:
    """The message names what was tried and what to do."""
    with pytest.raises(LookupError, match=r"enterprise_vllm.*register_adapter"):
        ns.Model.wrap(object())

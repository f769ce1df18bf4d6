"""One suite over every model runtime: the rules of `BackendAdapter`, and of `ObservingBackend`.

A new backend joins by a `Case`.  The second case is the specification's example of an adapter that a
user writes for an engine of their own.
"""

from __future__ import annotations

import gc
import os
import random
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import jax_case
import onnx_case
import onnxruntime_case
from neuronscope.engine.guard import GUARD, MAX_FAULTS
from neuronscope.exceptions import LayerNotFoundError, UnsupportedProbeError
from neuronscope.fingerprints import fingerprint
from neuronscope.instrumentation import (
    AttentionBackend,
    BackendAdapter,
    DescribingBackend,
    GradientBackend,
    ObservingBackend,
)
from neuronscope.signals import names
from neuronscope.signals.tensors import LayerSpec, TensorSnapshot
from neuronscope_instrumentation.jax import ADAPTER as JAX_ADAPTER
from neuronscope_instrumentation.onnx import ADAPTER as ONNX_ADAPTER
from neuronscope_instrumentation.onnxruntime import ADAPTER as SESSION_ADAPTER
from neuronscope_instrumentation.tf import ADAPTER as TF_ADAPTER
from neuronscope_instrumentation.torch import ADAPTER


# --- the user's engine, and the adapter of the specification's example --------------------------------
class EngineTensor:
    """A tensor of the proprietary engine."""

    def __init__(self, values: NDArray[Any]) -> None:
        self._values = values

    def to_numpy(self) -> NDArray[Any]:
        return self._values


@dataclass
class EngineLayer:
    id: str
    name: str
    output_shape: tuple[int, ...]
    weights: NDArray[Any]


class Engine:
    """A proprietary inference engine with interceptors of its own."""

    def __init__(self, seed: int) -> None:
        numbers = np.random.default_rng(seed)
        self._layers = [
            EngineLayer(f"stage.{number}", "Affine", (2, 4), numbers.normal(size=(4, 4)))
            for number in range(2)
        ]
        self._interceptors: dict[str, list[Callable[[EngineTensor], None]]] = {}

    def list_layers(self) -> list[EngineLayer]:
        return self._layers

    def add_interceptor(self, layer_id: str, hook: Callable[[EngineTensor], None]) -> None:
        if layer_id not in {layer.id for layer in self._layers}:
            raise LayerNotFoundError(layer_id)
        self._interceptors.setdefault(layer_id, []).append(hook)

    def clear_interceptors(self) -> None:
        self._interceptors.clear()

    def marks(self) -> dict[str, int]:
        return {layer_id: len(hooks) for layer_id, hooks in self._interceptors.items()}

    def get_weight_bytes(self) -> bytes:
        return b"".join(layer.weights.tobytes() for layer in self._layers)

    def generate_engine(self, x: NDArray[Any]) -> NDArray[Any]:
        for layer in self._layers:
            x = np.tanh(x @ layer.weights)
            for hook in self._interceptors.get(layer.id, ()):
                hook(EngineTensor(x))
        return x


class CustomInferenceAdapter(BackendAdapter):
    """Adapter for a proprietary enterprise inference engine."""

    name = "enterprise_vllm"

    def matches(self, model_obj: Any) -> bool:
        """Return True if this adapter handles the given model object."""
        return hasattr(model_obj, "generate_engine")

    def list_layers(self, model_obj: Any) -> list[LayerSpec]:
        """Enumerate all layers the platform can probe."""
        return [LayerSpec(id=x.id, name=x.name, shape=x.output_shape) for x in model_obj.list_layers()]

    def install_observer_hook(
        self, model_obj: Any, layer_id: str, callback: Callable[[TensorSnapshot], None]
    ) -> None:
        """Attach a non-invasive callback to a named layer."""

        def _hook(raw_tensor: Any) -> None:
            snapshot = TensorSnapshot.from_numpy(raw_tensor.to_numpy())
            callback(snapshot)

        model_obj.add_interceptor(layer_id, _hook)

    def remove_hooks(self, model_obj: Any) -> None:
        """Called by the Scope on __exit__ to clean up all hooks."""
        model_obj.clear_interceptors()

    def fingerprint_model(self, model_obj: Any) -> str:
        """Return a stable fingerprint for this model's weights."""
        return fingerprint(model_obj.get_weight_bytes())


# --- what each backend brings to the suite ------------------------------------------------------------
@dataclass(frozen=True)
class Case:
    """A backend, and how to make and run a model of its runtime.

    Attributes:
        make: a model from a seed.
        run: runs it, always on the same input; the output as raw bytes.
        trace: a picture of the model object that hooks must not leave a mark on.
    """

    adapter: BackendAdapter
    make: Callable[[int], Any]
    run: Callable[[Any], bytes]
    trace: Callable[[Any], Any]


def make_torch(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 4)))


def run_torch(model: nn.Module) -> bytes:
    output = model(torch.linspace(-1, 1, 8).view(2, 4))
    assert output.requires_grad
    return bytes(output.detach().numpy().tobytes())


def marks_on_torch(model: nn.Module) -> list[dict[str, Any]]:
    return [dict(vars(module)) for module in model.modules()]


def run_engine(engine: Engine) -> bytes:
    return engine.generate_engine(np.linspace(-1, 1, 8).reshape(2, 4)).tobytes()


CASES = {
    "torch": Case(
        ADAPTER,
        make_torch,
        run_torch,
        marks_on_torch,
    ),
    "enterprise": Case(
        CustomInferenceAdapter(),
        Engine,
        run_engine,
        Engine.marks,
    ),
    "nnx": Case(JAX_ADAPTER, jax_case.Pair, jax_case.eager, jax_case.marks),
    "nnx compiled": Case(JAX_ADAPTER, jax_case.Pair, jax_case.compiled, jax_case.marks),
    "linen": Case(JAX_ADAPTER, jax_case.bound, jax_case.compiled, jax_case.marks),
    "onnxruntime": Case(SESSION_ADAPTER, onnxruntime_case.make, onnxruntime_case.run, onnxruntime_case.trace),
}

if os.environ.get("NEURONSCOPE_TEST_KERAS"):  # in a process of its own: see tests/instrumentation/test_tf.py
    import keras_case

    CASES["tf"] = Case(TF_ADAPTER, keras_case.make, keras_case.run, keras_case.trace)

# Runtimes that read models and run none: the rules that are not about observing hold for them, too.
READING = {"onnx": Case(ONNX_ADAPTER, onnx_case.make, lambda _: b"", onnx_case.trace)}
every_case = pytest.mark.parametrize("case", [*CASES, *READING], indirect=True)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return (CASES | READING)[request.param]


@pytest.fixture
def model(case: Case) -> Iterator[Any]:
    model = case.make(0)
    yield model
    case.adapter.remove_hooks(model)


def noting(seen: list[Any], item: object) -> Callable[[TensorSnapshot], None]:
    """An observer that appends `item` to `seen`."""
    return lambda _: seen.append(item)


def layer_ids(case: Case, model: Any) -> Sequence[str]:
    return [layer.id for layer in case.adapter.list_layers(model)]


@every_case
def test_it_has_a_name_and_matches_its_own_models_only(case: Case, model: Any) -> None:
    """Asking imports nothing."""
    modules = set(sys.modules)
    assert isinstance(case.adapter, BackendAdapter)
    assert case.adapter.name
    assert case.adapter.matches(model)
    assert not case.adapter.matches(object())
    others = [other.make(0) for other in CASES.values() if other.adapter is not case.adapter]
    assert not any(map(case.adapter.matches, others))
    assert set(sys.modules) == modules


@every_case
def test_layers_are_deterministic_with_distinct_ids(case: Case, model: Any) -> None:
    """The same for every model of one architecture."""
    layers = case.adapter.list_layers(model)
    assert layers == case.adapter.list_layers(case.make(1))
    assert layers
    assert len({layer.id for layer in layers}) == len(layers)
    assert all(layer.name for layer in layers)


def test_every_listed_layer_can_be_watched(case: Case, model: Any) -> None:
    """Each run of each gives one snapshot with the right shape, whose values survive the callback."""
    kept: dict[str, list[Any]] = {layer_id: [] for layer_id in layer_ids(case, model)}

    def keeper(values: list[Any]) -> Callable[[TensorSnapshot], None]:
        return lambda snapshot: values.append(
            (snapshot.shape, snapshot.nbytes, snapshot.numpy(), snapshot.summarize())
        )

    for layer_id, values in kept.items():
        case.adapter.install_observer_hook(model, layer_id, keeper(values))
    case.run(model)
    case.run(model)
    for values in kept.values():
        assert len(values) == 2
        shape, nbytes, array, summary = values[0]
        assert shape == array.shape == (2, 4)
        assert nbytes == array.nbytes
        assert summary.count == 8
        assert summary.max == array.max()
        assert array.flags.owndata
        np.testing.assert_array_equal(array, values[1][2])


def test_observing_changes_nothing(case: Case, model: Any) -> None:
    """Outputs are bit-equal, also when an observer writes to what it got."""
    expected = case.run(model)
    state, generator = random.getstate(), torch.get_rng_state()

    def vandal(snapshot: TensorSnapshot) -> None:
        snapshot.numpy().fill(7)

    for layer_id in layer_ids(case, model):
        case.adapter.install_observer_hook(model, layer_id, vandal)
    assert case.run(model) == expected
    case.adapter.remove_hooks(model)
    assert case.run(model) == expected
    assert random.getstate() == state
    assert torch.equal(torch.get_rng_state(), generator)


def test_two_observers_of_one_layer_both_see_it(case: Case, model: Any) -> None:
    """Installing twice gives two observers, in order."""
    seen: list[int] = []
    for number in (1, 2):
        case.adapter.install_observer_hook(model, layer_ids(case, model)[0], noting(seen, number))
    case.run(model)
    assert seen == [1, 2]


def test_removal_is_complete_and_may_be_repeated(case: Case, model: Any) -> None:
    """The object is as before the first hook; hooks can be installed anew."""
    before = case.trace(model)
    seen: list[int] = []
    case.adapter.remove_hooks(model)
    for _ in range(2):
        for layer_id in layer_ids(case, model):
            case.adapter.install_observer_hook(model, layer_id, noting(seen, 1))
        case.adapter.remove_hooks(model)
        case.adapter.remove_hooks(model)
        assert case.trace(model) == before
    case.run(model)
    assert seen == []


def test_removal_leaves_other_models_watched(case: Case, model: Any) -> None:
    """Hooks belong to one object, not to its class."""
    other = case.make(0)
    seen: list[int] = []
    for target in (model, other):
        case.adapter.install_observer_hook(target, layer_ids(case, model)[0], noting(seen, 1))
    case.adapter.remove_hooks(model)
    case.run(model)
    case.run(other)
    assert seen == [1]


@every_case
def test_an_unknown_layer_is_refused_at_once(case: Case, model: Any) -> None:
    """At installation, not at the first run."""
    with pytest.raises(LayerNotFoundError):
        case.adapter.install_observer_hook(model, "no.such.layer", lambda _: None)


def test_a_watched_model_can_be_collected(case: Case) -> None:
    """Neither hooks nor the adapter keep it."""
    model = case.make(0)
    case.adapter.install_observer_hook(model, layer_ids(case, model)[0], lambda _: None)
    case.run(model)
    dead = weakref.ref(model)
    del model
    gc.collect()
    assert dead() is None


@every_case
def test_the_fingerprint_depends_on_weights_alone(case: Case, model: Any) -> None:
    """Equal for equal weights in another object, watched or not; different for others."""
    name = case.adapter.fingerprint_model(model)
    assert case.adapter.fingerprint_model(case.make(0)) == name
    assert case.adapter.fingerprint_model(case.make(1)) != name
    if case.adapter is not ONNX_ADAPTER:
        case.adapter.install_observer_hook(model, layer_ids(case, model)[0], lambda _: None)
    assert case.adapter.fingerprint_model(model) == name


# --- what our own runtimes promise beyond the specification's protocol --------------------------------
@pytest.fixture(params=[name for name, case in CASES.items() if isinstance(case.adapter, ObservingBackend)])
def observing(request: pytest.FixtureRequest) -> tuple[ObservingBackend, Case, Any]:
    case = CASES[request.param]
    assert isinstance(case.adapter, ObservingBackend)
    return case.adapter, case, case.make(0)


def test_an_undo_takes_away_just_its_observer(observing: tuple[ObservingBackend, Case, Any]) -> None:
    """It may be called again; `remove_hooks` does not touch observers of others."""
    backend, case, model = observing
    before = case.trace(model)
    first = layer_ids(case, model)[0]
    seen: list[int] = []
    undo = [backend.observe_layer(model, first, noting(seen, n)) for n in (1, 2)]
    backend.remove_hooks(model)
    undo[0]()
    undo[0]()
    case.run(model)
    undo[1]()
    case.run(model)
    assert seen == [2]
    assert case.trace(model) == before


def test_a_faulty_observer_is_contained(observing: tuple[ObservingBackend, Case, Any]) -> None:
    """The model runs on with the same output; the guard has counted."""
    backend, case, model = observing
    expected = case.run(model)
    GUARD.reraise = False

    def faulty(_: TensorSnapshot) -> None:
        raise ValueError("ours")

    backend.observe_layer(model, layer_ids(case, model)[0], faulty)
    assert case.run(model) == expected
    assert sum(GUARD.faults.values()) == 1


def test_an_observer_that_keeps_failing_is_switched_off_alone(
    observing: tuple[ObservingBackend, Case, Any],
) -> None:
    """Another one of the same layer goes on."""
    backend, case, model = observing
    GUARD.reraise = False
    first = layer_ids(case, model)[0]
    failed: list[int] = []
    seen: list[int] = []

    def faulty(_: TensorSnapshot) -> None:
        failed.append(1)
        raise ValueError("ours")

    undo = [backend.observe_layer(model, first, faulty), backend.observe_layer(model, first, noting(seen, 1))]
    for _ in range(MAX_FAULTS + 5):
        case.run(model)
    for step in undo:
        step()
    assert len(failed) == MAX_FAULTS
    assert len(seen) == MAX_FAULTS + 5


def test_what_an_observer_runs_is_not_observed(observing: tuple[ObservingBackend, Case, Any]) -> None:
    """Else it would be told of its own run, and so for ever."""
    backend, case, model = observing
    first = layer_ids(case, model)[0]
    seen: list[int] = []

    def runs_it(_: TensorSnapshot) -> None:
        seen.append(1)
        if len(seen) < 5:
            case.run(model)

    undo = backend.observe_layer(model, first, runs_it)
    case.run(model)
    undo()
    assert seen == [1]


def test_blocks_and_patterns_name_layers_that_can_be_watched(
    observing: tuple[ObservingBackend, Case, Any],
) -> None:
    """And what was not visited gets a reason."""
    backend, case, model = observing
    seen: list[str] = []
    blocks = backend.block_paths(model)
    for path in (*blocks, *backend.match_layers(model, "**")):
        backend.observe_layer(model, path, noting(seen, path))
    assert set(backend.not_visited(model, blocks, seen).values()) == {"not run"}
    case.run(model)
    assert set(seen) >= set(blocks)
    assert backend.not_visited(model, blocks, seen) == {}
    with pytest.raises(LayerNotFoundError):
        backend.match_layers(model, "no.such.*")


# --- what a backend may offer besides -----------------------------------------------------------------
def no_numbers(_: TensorSnapshot) -> None:
    """An observer that asks for nothing."""


def test_gradient_and_attention_observers_leave_no_trace(
    observing: tuple[ObservingBackend, Case, Any],
) -> None:
    """They change no output, come off one by one, twice if need be, and unknown layers are refused."""
    backend, case, model = observing
    before, expected = case.trace(model), case.run(model)
    first = layer_ids(case, model)[0]
    undo: list[Callable[[], None]] = []
    if isinstance(backend, GradientBackend):
        with suppress(UnsupportedProbeError):  # Keras on JAX: refused at once
            undo.append(backend.observe_gradient(model, first, no_numbers))
        with pytest.raises(LayerNotFoundError):
            backend.observe_gradient(model, "no.such.layer", no_numbers)
    if isinstance(backend, AttentionBackend):
        undo.append(backend.observe_attention(model, first, no_numbers, None))
        with pytest.raises(LayerNotFoundError):
            backend.observe_attention(model, "no.such.layer", no_numbers, None)
    assert case.run(model) == expected
    for step in (*undo, *undo):
        step()
    assert case.trace(model) == before


def test_a_description_has_attributes_of_the_registry_only(
    observing: tuple[ObservingBackend, Case, Any],
) -> None:
    """The same each time, and nothing that the registry does not know."""
    backend, _, model = observing
    if isinstance(backend, DescribingBackend):
        told = backend.describe_model(model)
        assert told == backend.describe_model(model)
        assert told.keys() <= names.ATTRIBUTES.keys()

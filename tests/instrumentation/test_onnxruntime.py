"""ONNX Runtime sessions: spans of their runs, and their outputs as layers."""

from __future__ import annotations

import gc
import importlib
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from opentelemetry import trace

import neuronscope as ns
import onnx_case
from neuronscope.signals import names
from neuronscope.signals.records import SpanRecord
from neuronscope_instrumentation.onnxruntime import ADAPTER

runtime: Any = importlib.import_module("onnxruntime")
X = np.linspace(-1, 1, 8, dtype="float32").reshape(2, 4)
RUN_METHODS = ("run", "run_async", "run_with_iobinding", "run_with_ort_values")


def make(seed: int = 0, path: Path | None = None) -> Any:
    content = onnx_case.make(seed)
    content.ir_version = 10  # the runtime is older than the library
    content.opset_import[0].version = 17
    data = content.SerializeToString()
    if path is not None:
        path.write_bytes(data)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(str(path) if path else data, options, providers=["CPUExecutionProvider"])


@pytest.fixture
def scope() -> Iterator[ns.Scope]:
    ns.Platform()
    ns.instrument("onnxruntime")
    with ns.Scope("test") as scope:
        yield scope


def runs(scope: ns.Scope) -> list[SpanRecord]:
    return [span for span in scope.artifact.telemetry.spans if span.library == "neuronscope.onnxruntime"]


def test_a_run_is_a_span_with_shapes_and_without_values(scope: ns.Scope, tmp_path: Path) -> None:
    """Name, fingerprint, providers, inputs, outputs."""
    session = make(path=tmp_path / "pair.onnx")
    (output,) = session.run(None, {"x": X})
    assert output.shape == (2, 4)
    (span,) = runs(scope)
    assert span.name == "inference pair"
    told = span.attributes
    assert told[names.MODEL_INPUTS] == ["x: F32[2,4]"]
    assert told[names.MODEL_OUTPUTS] == ["y: F32[2,4]"]
    assert told[names.MODEL_PROVIDERS] == ["CPUExecutionProvider"]
    assert told[names.MODEL_BATCH] == 2
    assert told[names.MODEL_FINGERPRINT] == ns.Model.wrap(session).fingerprint
    assert told[names.PROVIDER_NAME] == "onnxruntime"


def test_every_way_to_run_is_observed(scope: ns.Scope) -> None:
    """Bound outputs are the service's: their shapes are not told."""
    session = make()
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    value = runtime.OrtValue.ortvalue_from_numpy(X)
    session.run_with_ort_values(["y"], {"x": value})
    bound, values = runs(scope)
    assert names.MODEL_OUTPUTS not in bound.attributes
    assert values.attributes[names.MODEL_INPUTS] == ["x: tensor(float)[2,4]"]
    assert values.attributes[names.MODEL_OUTPUTS] == ["y: tensor(float)[2,4]"]


def test_an_asynchronous_run_lasts_until_its_callback_which_is_in_its_trace(scope: ns.Scope) -> None:
    """In a thread of the runtime's."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 2  # it has no thread for a callback otherwise
    content = onnx_case.make(0)
    content.ir_version = 10
    content.opset_import[0].version = 17
    session = runtime.InferenceSession(content.SerializeToString(), options)
    done, found = threading.Event(), list[Any]()

    def callback(results: Any, data: Any, error: str) -> None:
        found.extend((results, data, error, trace.get_current_span().get_span_context().span_id))
        done.set()

    session.run_async(["y"], {"x": X}, callback, "mine")
    assert done.wait(60)
    (span,) = runs(scope)
    results, data, error, current = found
    assert (results[0] == session.run(None, {"x": X})[0]).all()
    assert (data, error, current) == ("mine", "", span.span_id)
    assert span.attributes[names.MODEL_OUTPUTS] == ["y: F32[2,4]"]


def test_a_failed_run_is_told_and_raises_as_before(scope: ns.Scope) -> None:
    """By type."""
    session = make()
    with pytest.raises(Exception, match="Got invalid dimensions") as caught:
        session.run(None, {"x": np.ones((3, 3), "float32")})
    with pytest.raises(ValueError, match="Required inputs"):
        session.run_async(None, {}, print, None)
    first, second = runs(scope)
    assert str(first.attributes[names.ERROR_TYPE]).endswith(f".{type(caught.value).__name__}")
    assert second.attributes[names.ERROR_TYPE] == "ValueError"


def test_methods_are_restored(scope: ns.Scope) -> None:
    """Nothing of ours stays."""
    kind = runtime.InferenceSession
    patched = [getattr(kind, name) for name in RUN_METHODS]
    ns.uninstrument("onnxruntime")
    plain = [getattr(kind, name) for name in RUN_METHODS]
    assert all(one is not other for one, other in zip(patched, plain, strict=True))
    make().run(None, {"x": X})
    assert runs(scope) == []


def test_outputs_are_layers(scope: ns.Scope) -> None:
    """Each run gives a record, bit-equal to the output; the session is as before afterwards."""
    session = make()
    before = dict(session.__dict__)
    expected = session.run(None, {"x": X})[0]
    model = ns.Model.wrap(session)
    assert (model.adapter_name, model.name) == ("onnxruntime", "pair")
    assert [(layer.id, layer.shape) for layer in model.layers] == [("y", (2, 4))]
    model.attach_probe(layers="*", fidelity="full")
    assert (session.run(["y"], {"x": X})[0] == expected).all()
    scope.__exit__(None, None, None)
    assert session.__dict__ == before
    (record,) = scope.artifact.telemetry.layer_snapshots
    assert record.summary is not None
    assert (record.layer_id, record.summary.max) == ("y", expected.max())
    with pytest.raises(ns.LayerNotFoundError, match="y"):
        model.attach_probe(layers="inside")


def test_observers_come_and_go_by_themselves() -> None:
    """Two watch, one leaves; a watched session can be collected."""
    session, seen = make(), list[int]()
    undo = [ADAPTER.observe_layer(session, "", lambda _, n=n: seen.append(n)) for n in (1, 2)]  # type: ignore[misc]
    undo[0]()
    undo[0]()
    session.run(None, {"x": X})
    assert seen == [2]
    dead = weakref.ref(session)
    del session
    gc.collect()
    assert dead() is None
    undo[1]()


def test_the_fingerprint_is_that_of_the_file(tmp_path: Path) -> None:
    """From bytes or from a path; None of it where the file is gone."""
    one, same, other = make(0), make(0, tmp_path / "a.onnx"), make(1)
    assert (
        ADAPTER.fingerprint_model(one) == ADAPTER.fingerprint_model(same) != ADAPTER.fingerprint_model(other)
    )
    gone = make(0, tmp_path / "b.onnx")
    (tmp_path / "b.onnx").unlink()
    with pytest.raises(ns.ModelFileError, match="gone"):
        ADAPTER.fingerprint_model(gone)

"""ONNX graphs: layers, shapes, parameters, operations and fingerprints, without running anything."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neuronscope as ns
from neuronscope.signals.tensors import TensorSnapshot
from neuronscope_instrumentation.onnx import ADAPTER

onnx: Any = importlib.import_module("onnx")
importlib.import_module("onnx.parser")

# One layer of a transformer as exporters write it: names with slashes, a batch known only when it runs.
BLOCK = """
<ir_version: 8, opset_import: ["" : 17]>
block (float[batch, 16, 8] x) => (float[batch, 16, 8] y)
<float[8, 32] up = {%s}, float[32, 8] down = {%s}, float[8] scale = {1, 1, 1, 1, 1, 1, 1, 1},
 int64[3] order = {0, 16, 8}>
{
   normal = LayerNormalization(x, scale)
   wide = MatMul(normal, up)
   active = Relu(wide)
   narrow = MatMul(active, down)
   sum = Add(x, narrow)
   y = Reshape(sum, order)
}
"""
NAMES = (
    "/layers.0/norm/LayerNormalization", "/layers.0/mlp/up/MatMul", "/layers.0/mlp/act/Relu",
    "/layers.0/mlp/down/MatMul", "/layers.0/Add", "/layers.0/Reshape",
)  # fmt: skip


def block(seed: int = 0) -> Any:
    numbers = np.random.default_rng(seed).normal(size=(2, 256)).astype("float32")
    texts = tuple([", ".join(f"{value:.6f}" for value in row) for row in numbers])
    model = onnx.parser.parse_model(BLOCK % texts)
    for node, name in zip(model.graph.node, NAMES, strict=True):
        node.name = name  # the parser takes no slashes
    return model


def test_layers_have_dotted_ids_shapes_parameters_and_operations() -> None:
    """All from the graph alone."""
    model = ns.Model.wrap(block())
    assert (model.adapter_name, model.name) == ("onnx", "block")
    layers = {layer.id: layer for layer in model.layers}
    assert list(layers) == [
        "layers.0.norm.LayerNormalization", "layers.0.mlp.up.MatMul", "layers.0.mlp.act.Relu",
        "layers.0.mlp.down.MatMul", "layers.0.Add", "layers.0.Reshape",
    ]  # fmt: skip
    up = layers["layers.0.mlp.up.MatMul"]
    assert (up.name, up.shape, up.parameters) == ("MatMul", (-1, 16, 32), 256)
    assert up.signature == "F32[-1,16,8], F32[8,32] -> F32[-1,16,32]"
    assert up.flops == 2 * 16 * 8 * 32
    assert layers["layers.0.norm.LayerNormalization"].parameters == 8
    assert layers["layers.0.mlp.act.Relu"].flops == 16 * 32
    assert (layers["layers.0.Reshape"].flops, layers["layers.0.Reshape"].parameters) == (0, 0)
    assert sum(layer.parameters or 0 for layer in layers.values()) == 2 * 256 + 8


def test_a_file_tells_the_same_as_a_message(tmp_path: Path) -> None:
    """By path, chosen by its ending or by name."""
    path = tmp_path / "small.onnx"
    onnx.save(block(), path)
    model, named = ns.Model.wrap(str(path)), ns.Model.wrap(path, adapter="onnx", name="other")
    assert model.layers == named.layers == ns.Model.wrap(block()).layers
    assert (model.name, named.name) == ("small", "other")
    assert model.fingerprint == named.fingerprint == ns.Model.wrap(block()).fingerprint


def test_the_fingerprint_depends_on_architecture_and_weights_alone(tmp_path: Path) -> None:
    """Not on names, on how numbers are stored, nor on the order of the file."""
    name = ADAPTER.fingerprint_model(block())
    assert ADAPTER.fingerprint_model(block(1)) != name
    renamed = block()
    for node in renamed.graph.node:
        node.name = f"other_{node.name}"
        node.input[:] = [f"v_{each}" for each in node.input]
        node.output[:] = [f"v_{each}" for each in node.output]
    for value in (*renamed.graph.input, *renamed.graph.output, *renamed.graph.initializer):
        value.name = f"v_{value.name}"
    packed = [
        onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor), tensor.name)
        for tensor in reversed(renamed.graph.initializer)
    ]
    del renamed.graph.initializer[:]
    renamed.graph.initializer.extend(packed)
    assert ADAPTER.fingerprint_model(renamed) == name
    changed = block()
    changed.graph.node[2].op_type = "Tanh"
    assert ADAPTER.fingerprint_model(changed) != name
    swapped = block()
    swapped.graph.node[4].input[:] = ["narrow", "x"]
    assert ADAPTER.fingerprint_model(swapped) != name


def test_external_data_is_not_loaded_for_layers_and_read_for_the_fingerprint(tmp_path: Path) -> None:
    """The file of weights may be missing until the fingerprint is asked for, and is checked then."""
    path = tmp_path / "big.onnx"
    model = block()
    packed = [
        onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(t), t.name) for t in model.graph.initializer
    ]
    del model.graph.initializer[:]
    model.graph.initializer.extend(packed)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=64)
    fingerprint = ADAPTER.fingerprint_model(path)
    message = onnx.load(path, load_external_data=False)
    assert ADAPTER.fingerprint_model(message) != fingerprint, "a message does not tell where its data is"
    assert ADAPTER.fingerprint_model(onnx.load(path)) == ADAPTER.fingerprint_model(block())
    data = (tmp_path / "weights.bin").read_bytes()
    (tmp_path / "weights.bin").write_bytes(data[:-1] + b"\x7f")
    assert ADAPTER.fingerprint_model(path) != fingerprint
    (tmp_path / "weights.bin").write_bytes(data[: len(data) // 2])
    with pytest.raises(ns.ModelFileError, match="bytes early"):
        ADAPTER.fingerprint_model(path)
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ns.ModelFileError, match="cannot be read"):
        ADAPTER.fingerprint_model(path)
    assert ADAPTER.list_layers(path) == ADAPTER.list_layers(block())


def test_external_data_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    """A model must not make us read any file of the machine."""
    model = block()
    tensor = model.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")
    path = tmp_path / "hostile.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ns.ModelFileError, match="outside"):
        ADAPTER.fingerprint_model(path)


def test_a_model_beyond_the_limit_of_protobuf_is_inferred() -> None:
    """Weights of 3 GB that are not there: their sizes are enough."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        "huge (float[1, 28672] x) => (float[1, 28672] y) { y = MatMul(x, w) }"
    )
    tensor = model.graph.initializer.add(name="w", data_type=onnx.TensorProto.FLOAT, dims=[28672, 28672])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    (layer,) = ADAPTER.list_layers(model)
    assert (layer.id, layer.parameters, layer.flops) == ("MatMul_0", 28672**2, 2 * 28672**2)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            "(float[1, 3, 8, 8] x, float[4, 3, 3, 3] w) => (float[1, 4, 6, 6] y) { y = Conv(x, w) }",
            2 * 144 * 27,
        ),
        (
            "(float[1, 4, 8, 8] x, float[4, 2, 3, 3] w) => (float[1, 4, 6, 6] y) { y = Conv<group=2>(x, w) }",
            2 * 144 * 18,
        ),
        (
            "(float[1, 4, 6, 6] x, float[4, 3, 3, 3] w) => (float[1, 3, 8, 8] y) { y = ConvTranspose(x, w) }",
            2 * 144 * 27,
        ),
        (
            "(float[5, 6] x, float[7, 6] w, float[7] b) => (float[5, 7] y) { y = Gemm<transB=1>(x, w, b) }",
            2 * 35 * 6 + 35,
        ),
        ("(float[6, 5] x, float[6, 7] w) => (float[5, 7] y) { y = Gemm<transA=1>(x, w) }", 2 * 35 * 6),
        (
            "(float[2, 3, 4] x, float[2, 4, 5] w) => (float[2, 3, 5] y) "
            '{ y = Einsum<equation="bij,bjk->bik">(x, w) }',
            2 * 120,
        ),
        (
            "(float[9, 2, 6] x, float[1, 20, 6] w, float[1, 20, 5] r) => (float[9, 1, 2, 5] y) "
            "{ y = LSTM<hidden_size=5>(x, w, r) }",
            2 * 18 * 20 * 11,
        ),
        ("(float[2, 8] x) => (float[2, 8] y) { y = Softmax(x) }", 80),
        ("(float[2, 8] x) => (float[2, 1] y) { y = ReduceMean<axes=[1]>(x) }", 16),
        (
            "(float[1, 1, 4, 4] x) => (float[1, 1, 2, 2] y) "
            "{ y = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(x) }",
            16,
        ),
        ("(float[2, 8] x) => (float[8, 2] y) { y = Transpose(x) }", 0),
    ],
)
def test_operations_follow_the_definitions(body: str, expected: int) -> None:
    """A multiplication and an addition are two."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]>\nnet {body}')
    (layer,) = ADAPTER.list_layers(model)
    assert layer.flops == expected


def test_bodies_of_branches_and_unknown_operations_are_listed() -> None:
    """What is unknown is None, not nothing."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "vendor" : 1]>
        net (bool which, float[2, 4] x) => (float[2, 4] y) {
           [pick] y = If (which) <
              then_branch = yes () => (float[2, 4] a) { [act] a = Relu(x) },
              else_branch = no () => (float[2, 4] b) { [odd] b = vendor.Strange(x) }
           >
        }
    """)
    layers = {layer.id: layer for layer in ADAPTER.list_layers(model)}
    assert list(layers) == ["pick", "pick.then_branch.act", "pick.else_branch.odd"]
    assert layers["pick.then_branch.act"].signature == "F32[2,4] -> F32[2,4]"
    assert layers["pick.else_branch.odd"].flops is None


def test_a_probe_is_refused_with_what_to_do_instead() -> None:
    """A graph that is read shows no values; an unknown layer is told first."""
    model = ns.Model.wrap(block())
    with pytest.raises(ns.UnsupportedProbeError, match="InferenceSession"):
        model.attach_probe(layers="layers.0.**")
    with pytest.raises(ns.LayerNotFoundError, match=r"layers\.0\.Add"):
        model.attach_probe(layers="layers.0.Ad")
    ADAPTER.remove_hooks(model.model)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "no version"), (b"no model at all", "no ONNX model"), (b"\x08\x08", "no graph")],
)
def test_what_is_no_model_is_told(tmp_path: Path, content: bytes, message: str) -> None:
    """By one error of ours, whatever protobuf thinks of it."""
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    with pytest.raises(ns.ModelFileError, match=f"broken.onnx.*{message}"):
        ADAPTER.list_layers(path)
    with pytest.raises(ns.ModelFileError, match="cannot be read"):
        ADAPTER.list_layers(tmp_path / "missing.onnx")


def test_only_models_match_and_unknown_layers_are_refused() -> None:
    """Strings of other kinds are no models."""

    def observer(_: TensorSnapshot) -> None: ...

    assert ADAPTER.matches(block())
    assert not any(map(ADAPTER.matches, (object(), "model.pt", b"x.bin", 3)))
    with pytest.raises(ns.LayerNotFoundError):
        ADAPTER.install_observer_hook(block(), "no.such.layer", observer)

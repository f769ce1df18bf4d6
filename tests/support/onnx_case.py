"""An ONNX graph for the suite of all runtimes."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

onnx: Any = importlib.import_module("onnx")  # its stubs leave most of it untyped


def make(seed: int) -> Any:
    """The same architecture, and names, for every seed."""
    weights = np.random.default_rng(seed).normal(size=(4, 4)).astype("float32")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["h"], name="/first/MatMul"),
         helper.make_node("Relu", ["h"], ["y"], name="/second/Relu")],
        "pair",
        [helper.make_tensor_value_info("x", floats, [2, 4])],
        [helper.make_tensor_value_info("y", floats, [2, 4])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    return helper.make_model(graph)


def trace(model: Any) -> bytes:
    """What must not change."""
    return bytes(model.SerializeToString(deterministic=True))

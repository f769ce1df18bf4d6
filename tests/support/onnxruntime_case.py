"""A session of ONNX Runtime for the suite of all runtimes."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

import onnx_case

runtime: Any = importlib.import_module("onnxruntime")
onnx: Any = importlib.import_module("onnx")


def make(seed: int) -> Any:
    """The same architecture for every seed; both of its tensors are outputs."""
    model = onnx_case.make(seed)
    model.ir_version = 10
    del model.opset_import[:]
    model.opset_import.extend([onnx.helper.make_opsetid("", 17)])
    model.graph.output.append(onnx.helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [2, 4]))
    return runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def run(session: Any) -> bytes:
    """All outputs of one run."""
    x = np.linspace(-1, 1, 8, dtype="float32").reshape(2, 4)
    return b"".join(output.tobytes() for output in session.run(None, {"x": x}))


def trace(session: Any) -> dict[str, Any]:
    """What observers must not leave a mark on."""
    return dict(session.__dict__)

"""ONNX graphs, read without running them."""

from neuronscope_instrumentation.onnx.adapter import ADAPTER, OnnxAdapter

__all__ = ["ADAPTER", "OnnxAdapter"]

"""ONNX Runtime: a span for each run of a session, and its outputs as layers."""

from neuronscope_instrumentation.onnxruntime.adapter import ADAPTER, SessionAdapter
from neuronscope_instrumentation.onnxruntime.integration import ONNXRUNTIME

__all__ = ["ADAPTER", "ONNXRUNTIME", "SessionAdapter"]

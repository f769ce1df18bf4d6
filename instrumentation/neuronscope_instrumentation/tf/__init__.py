"""Keras 3 on each of its backends, and SavedModels at their boundary."""

from neuronscope_instrumentation.tf.adapter import ADAPTER, KerasAdapter

__all__ = ["ADAPTER", "KerasAdapter"]

"""Keras 3 on each of its backends, and SavedModels at their boundary."""

from neuronscope_instrumentation.tf.adapter import ADAPTER, KerasAdapter
from neuronscope_instrumentation.tf.trainers import KERAS

__all__ = ["ADAPTER", "KERAS", "KerasAdapter"]

"""PyTorch: modules observed by slots, tensors summarised where they are."""

from neuronscope_instrumentation.torch.adapter import ADAPTER, TorchAdapter

__all__ = ["ADAPTER", "TorchAdapter"]

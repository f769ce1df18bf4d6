"""Statistics of arrays: moments that merge, and the compiled kernel that reads an array once for all of them.

Framework-neutral: the kernel takes an address, an element type and strides; whether an address may be
read is for the adapter to know that owns the tensor.
"""

from neuronscope.summaries.moments import Moments, merge_summaries

__all__ = ["Moments", "merge_summaries"]

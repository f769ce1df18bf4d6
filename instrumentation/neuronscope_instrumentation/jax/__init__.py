"""JAX: Flax (linen and nnx), Equinox and plain functions, observed in eager code and inside `jax.jit`."""

from neuronscope_instrumentation.jax.adapter import ADAPTER, JaxAdapter

__all__ = ["ADAPTER", "JaxAdapter"]

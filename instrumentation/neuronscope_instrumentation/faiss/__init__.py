"""FAISS: searches of every index class, and what is added to or removed from an index."""

from neuronscope_instrumentation.faiss.integration import FAISS

__all__ = ["FAISS"]

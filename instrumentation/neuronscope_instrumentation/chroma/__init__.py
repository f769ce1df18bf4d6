"""Chroma: searches, listings and writes of collections, embedded, on a server or in Chroma's cloud."""

from neuronscope_instrumentation.chroma.integration import CHROMA

__all__ = ["CHROMA"]

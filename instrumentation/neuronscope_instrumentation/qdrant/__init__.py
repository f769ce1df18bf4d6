"""Qdrant: searches, listings and writes of `qdrant-client`, sync and async, remote and local."""

from neuronscope_instrumentation.qdrant.integration import QDRANT

__all__ = ["QDRANT"]

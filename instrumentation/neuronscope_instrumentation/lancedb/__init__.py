"""LanceDB: vector, full-text and hybrid searches, listings and writes, sync and async."""

from neuronscope_instrumentation.lancedb.integration import LANCEDB

__all__ = ["LANCEDB"]

"""Weaviate, the v4 client: searches, generation, listings, aggregations and writes of collections."""

from neuronscope_instrumentation.weaviate.integration import WEAVIATE

__all__ = ["WEAVIATE"]

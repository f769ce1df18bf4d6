"""Milvus: searches, queries and writes of `pymilvus`, by its clients, its ORM and its iterators."""

from neuronscope_instrumentation.milvus.integration import MILVUS

__all__ = ["MILVUS"]

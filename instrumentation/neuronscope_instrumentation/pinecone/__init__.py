"""Pinecone: searches, listings and writes of an index over HTTP, gRPC and asyncio, and hosted inference."""

from neuronscope_instrumentation.pinecone.integration import PINECONE

__all__ = ["PINECONE"]

"""Redis and Valkey: similarity searches of their search module, sync and async, alone or in pipelines."""

from neuronscope_instrumentation.redis.integration import REDIS

__all__ = ["REDIS"]

"""pgvector: similarity searches and writes of vectors in PostgreSQL, by psycopg, psycopg2 and asyncpg."""

from neuronscope_instrumentation.pgvector.integration import PGVECTOR

__all__ = ["PGVECTOR"]

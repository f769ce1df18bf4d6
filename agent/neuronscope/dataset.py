"""`ns.Dataset`: a handle on where documents come from."""

from __future__ import annotations

from typing import TypeVar

from neuronscope import platform
from neuronscope.exceptions import AdapterNotFoundError
from neuronscope.instrumentation import Kind, registry

T = TypeVar("T")


class Dataset:
    """Vector stores."""

    @staticmethod
    def wrap_vector_store(store: T) -> T:
        """Observe one vector store client or index; returns the same object.

        Raises:
            AdapterNotFoundError: no vector store adapter handles it.
        """
        for integration in registry.clients_for(store):
            if integration.kind is Kind.VECTOR_STORE:
                platform.instrument_object(integration.name, store)
                return store
        clients = map(registry.client, registry.client_names())
        known = [integration.name for integration in clients if integration.kind is Kind.VECTOR_STORE]
        raise AdapterNotFoundError(
            f"no vector store adapter handles a {type(store).__module__}.{type(store).__qualname__}. "
            f"There are adapters for: {', '.join(known)}"
        )

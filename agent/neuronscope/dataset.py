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
        module = type(store).__module__.partition(".")[0]
        known: list[str] = []
        for name in registry.client_names():
            integration = registry.client(name)
            if integration.kind is not Kind.VECTOR_STORE:
                continue
            known.append(name)
            if any(
                method.target.partition(".")[0].partition(":")[0] == module for method in integration.methods
            ):
                platform.instrument_object(name, store)
                return store
        raise AdapterNotFoundError(
            f"no vector store adapter handles a {type(store).__module__}.{type(store).__qualname__}. "
            f"There are adapters for: {', '.join(known)}"
        )

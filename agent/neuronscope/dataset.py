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
        # A subclass of the user's own is handled by its base class's adapter.
        packages = {base.__module__.partition(".")[0] for base in type(store).__mro__} - {"builtins"}
        known: list[str] = []
        for name in registry.client_names():
            integration = registry.client(name)
            if integration.kind is not Kind.VECTOR_STORE:
                continue
            known.append(name)
            if any(_package(method.target) in packages for method in integration.methods):
                platform.instrument_object(name, store)
                return store
        raise AdapterNotFoundError(
            f"no vector store adapter handles a {type(store).__module__}.{type(store).__qualname__}. "
            f"There are adapters for: {', '.join(known)}"
        )


def _package(target: str) -> str:
    return target.partition(":")[0].partition(".")[0]

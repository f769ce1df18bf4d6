"""Clients as the specification's adapters `llm_api` and `vector_store`: their calls are seen, not layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from neuronscope.exceptions import AdapterNotFoundError, LayerNotFoundError
from neuronscope.instrumentation.clients import ClientIntegration
from neuronscope.instrumentation.runtimes import LayerCallback
from neuronscope.signals.tensors import LayerSpec


class ClientFamily:
    """Every client that one of a family's integrations handles.

    Args:
        name: the family's.
        members: names of its integrations.
        handlers: the integrations that handle an object, of any family.
    """

    def __init__(
        self, name: str, members: Sequence[str], handlers: Callable[[object], Iterable[ClientIntegration]]
    ) -> None:
        self.name = name
        self._members = members
        self._handlers = handlers

    def matches(self, model_obj: Any) -> bool:
        """True for a client, index or collection of one of the family's libraries."""
        return bool(self._found(model_obj))

    def observed_by(self, model_obj: Any) -> list[tuple[str, Any]]:
        """The client itself, by its integration.

        Raises:
            AdapterNotFoundError: no integration of the family handles it.
        """
        found = self._found(model_obj)
        if not found:
            raise AdapterNotFoundError(
                f"the adapter {self.name!r} does not handle a {_class_of(model_obj)}. "
                f"It is for clients of: {', '.join(self._members)}"
            )
        return [(name, model_obj) for name in found]

    def _found(self, model_obj: Any) -> list[str]:
        return [each.name for each in self._handlers(model_obj) if each.name in self._members]

    def name_model(self, model_obj: Any) -> str:
        """The client's class: which models it calls is told by each call."""
        return type(model_obj).__name__

    def list_layers(self, model_obj: Any) -> list[LayerSpec]:
        """None: the model is elsewhere."""
        return []

    def install_observer_hook(self, model_obj: Any, layer_id: str, callback: LayerCallback) -> NoReturn:
        """There is nothing to watch.

        Raises:
            LayerNotFoundError: always.
        """
        raise LayerNotFoundError(
            f"a {_class_of(model_obj)} has no layers: its calls are observed, and become spans"
        )

    def remove_hooks(self, model_obj: Any) -> None:
        """There are none; `ns.uninstrument` ends the observation of calls."""

    def fingerprint_model(self, model_obj: Any) -> NoReturn:
        """Nobody sees the weights behind an endpoint.

        Raises:
            AdapterNotFoundError: always.
        """
        raise AdapterNotFoundError(
            f"the adapter {self.name!r} sees no weights, so a {_class_of(model_obj)} has no fingerprint"
        )


def _class_of(obj: object) -> str:
    return f"{type(obj).__module__}.{type(obj).__qualname__}"


if TYPE_CHECKING:
    from neuronscope.instrumentation.runtimes import BackendAdapter, CallingBackend, NamingBackend

    _family = ClientFamily("", (), lambda _: ())
    _adapter: BackendAdapter = _family
    _calls: CallingBackend = _family
    _names: NamingBackend = _family

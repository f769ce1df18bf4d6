"""The contracts of model runtimes: what every backend does, and what it may do besides."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from neuronscope.signals.records import Fidelity
from neuronscope.signals.tensors import LayerSpec, TensorSnapshot

# What takes a snapshot of each run.  An attribute `needs` (a `Fidelity`) may say how much it will ask for at
# most: statistics (`SUMMARY`), or only that the layer ran (`CRITICAL`).  Runtimes that must decide before a
# program is compiled heed it.
LayerCallback = Callable[[TensorSnapshot], None]


@runtime_checkable
class BackendAdapter(Protocol):
    """A model runtime, as the platform sees it (the customer's protocol, word for word).

    Rules that one contract suite holds every adapter to: `matches` is cheap and imports nothing;
    `list_layers` is deterministic and its ids are the runtime's own dotted paths; observing changes no
    output, gradient, dtype, device or random state, and a raising callback never reaches the model;
    installing twice on one layer gives two observers; `remove_hooks` is idempotent and restores the
    object exactly; hooks hold the model weakly; the fingerprint depends on architecture and weights
    only.
    """

    name: str

    def matches(self, model_obj: Any) -> bool:
        """True if this adapter handles the object."""
        ...

    def list_layers(self, model_obj: Any) -> list[LayerSpec]:
        """The layers a probe can watch."""
        ...

    def install_observer_hook(self, model_obj: Any, layer_id: str, callback: LayerCallback) -> None:
        """Call `callback` with a snapshot of the layer's output each time it runs."""
        ...

    def remove_hooks(self, model_obj: Any) -> None:
        """Remove every observer this adapter installed on the object."""
        ...

    def fingerprint_model(self, model_obj: Any) -> str:
        """A stable fingerprint of architecture and weights."""
        ...


@runtime_checkable
class ObservingBackend(BackendAdapter, Protocol):
    """A backend that the platform can also watch selectively; our own runtimes are of this kind.

    Of a plain `BackendAdapter` only all hooks can be removed at once, so scopes share them.
    """

    def observe_layer(self, model_obj: Any, layer_id: str, callback: LayerCallback) -> Callable[[], None]:
        """Watch one layer; the function returned undoes just this, once, from any thread.

        Raises:
            LayerNotFoundError: the model has no such layer.
        """
        ...

    def match_layers(self, model_obj: Any, pattern: str) -> list[str]:
        """Ids of the layers a pattern names, in the model's order: `*` within a part, `**` across parts.

        Raises:
            LayerNotFoundError: none; the message names what is close.
        """
        ...

    def block_paths(self, model_obj: Any) -> list[str]:
        """Ids of the repeated encoder or decoder blocks: what is worth watching by default."""
        ...

    def not_visited(self, model_obj: Any, layer_ids: Iterable[str], seen: Collection[str]) -> dict[str, str]:
        """Why watched layers were not `seen`: ``fused``, ``scripted``, ``compiled`` or ``not run``."""
        ...


@runtime_checkable
class GradientBackend(Protocol):
    """A backend that can also show gradients."""

    def observe_gradient(self, model_obj: Any, layer_id: str, callback: LayerCallback) -> Callable[[], None]:
        """Call `callback` with the gradient by each of the layer's outputs; returns the undo of just this.

        A run whose output has no gradient gives a snapshot that refuses to be read, with the reason.
        """
        ...


@runtime_checkable
class AttentionBackend(Protocol):
    """A backend that can also show attention weights."""

    def observe_attention(
        self, model_obj: Any, layer_id: str, callback: LayerCallback, heads: Sequence[int] | None
    ) -> Callable[[], None]:
        """Call `callback` with each run's weights, (batch, head, query, key); returns the undo of this.

        A run that shows none gives a snapshot that refuses to be read, with the reason.
        """
        ...


@runtime_checkable
class LearningBackend(Protocol):
    """A backend whose models may show what layers they have only when they run.

    Its wrapped models are watched in each scope, as `NEURONSCOPE_PROBES` says: probes cannot be attached to
    layers that are not known yet.
    """

    def prepare(self) -> None:
        """A model was wrapped: scopes will watch it."""
        ...

    def observe_pattern(
        self, model_obj: Any, pattern: str, make: Callable[[str], LayerCallback], needs: Fidelity
    ) -> Callable[[], None]:
        """Watch every layer that a pattern (or ``blocks``) turns out to name; returns the undo of just this.

        `make` gives the callback of a layer, the first time it runs; `needs` is the most they will ask for.
        """
        ...


@runtime_checkable
class NamingBackend(Protocol):
    """A backend that also knows what its models are called: by their files, say."""

    def name_model(self, model_obj: Any) -> str:
        """The model's name in records, for people."""
        ...


@runtime_checkable
class CallingBackend(Protocol):
    """A backend of objects whose calls are observed, by client adapters, from the moment they are wrapped."""

    def observed_by(self, model_obj: Any) -> Sequence[tuple[str, Any]]:
        """Names of client adapters, each with the object whose calls it sees: it, or a part of it.

        Raises:
            AdapterNotFoundError: there is none, and nothing else that the backend could show.
        """
        ...


@runtime_checkable
class ExaminableBackend(Protocol):
    """A backend that stands on names of its library that no release has promised to keep.

    `neuronscope doctor` shows those that the installed version lacks.
    """

    def private_names(self) -> Mapping[str, bool]:
        """Such names, and whether the installed version has them; imports the library.

        Raises:
            ImportError: the library cannot be imported.
        """
        ...


@runtime_checkable
class PreparingBackend(Protocol):
    """A backend that has something to load before the first of its models is watched."""

    def prepare(self) -> None:
        """Load it, if the framework is loaded: asked when a library that runs models has been imported.

        In the first call instead, the service would wait for it, and observation be charged for it.
        """
        ...


@runtime_checkable
class DescribingBackend(Protocol):
    """A backend that also tells how a model is adapted, stored and distributed."""

    def describe_model(self, model_obj: Any) -> Mapping[str, Any]:
        """Attributes of the registry for the spans of the model's calls; a few µs, asked at each call."""
        ...

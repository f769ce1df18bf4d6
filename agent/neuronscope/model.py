"""`ns.Model.wrap`: a handle on an in-process model, to list its layers and attach probes to them."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from neuronscope import joining, platform, recording
from neuronscope.callwatch import picked
from neuronscope.engine.guard import GUARD
from neuronscope.exceptions import LayerNotFoundError, UnsupportedProbeError
from neuronscope.governor.steward import AGENT_PROBE
from neuronscope.instrumentation import (
    AttentionBackend,
    BackendAdapter,
    CallingBackend,
    GradientBackend,
    LayerCallback,
    LearningBackend,
    NamingBackend,
    ObservingBackend,
)
from neuronscope.instrumentation.registry import backend_for
from neuronscope.interventions.handle import Intervening
from neuronscope.interventions.pipelines import is_pipeline, reader_of
from neuronscope.layers import LayerObserver
from neuronscope.modelcall import ModelCall
from neuronscope.modelnames import model_name
from neuronscope.probes import GRADIENT, OUTPUT, AttentionMaps, LayerActivations, Probe
from neuronscope.signals.records import Fidelity
from neuronscope.signals.tensors import LayerSpec


class Model(Intervening):
    """A wrapped model.  The model itself is not changed, and held by this handle only.

    Attributes:
        model: the model.
        adapter_name: name of the runtime adapter that handles it.
        name: the model's name in records.
    """

    def __init__(self, model: Any, adapter: BackendAdapter, name: str) -> None:
        self.model = model
        self.name = name
        self._adapter = adapter
        self._undo: list[Callable[[], None]] = []

    @classmethod
    def wrap(cls, model: Any, *, adapter: str | None = None, name: str | None = None) -> Model:
        """Wrap a model; the adapter is chosen by its type, or by name.

        Of a pipeline of transformers the model is wrapped, and `trace` calls the pipeline: text in, answer
        out.

        Raises:
            AdapterNotFoundError: no adapter handles the object, or none has that name.
        """
        if is_pipeline(model):
            wrapped = cls.wrap(model.model, adapter=adapter, name=name)
            wrapped.call, wrapped.tokenizer = model, reader_of(model)
            _see_calls(wrapped._adapter, model)
            return wrapped
        backend = backend_for(model, adapter)
        _see_calls(backend, model)
        if name is None:
            name = backend.name_model(model) if isinstance(backend, NamingBackend) else model_name(model)
        wrapped = cls(model, backend, name)
        joining.MEMBERS.add(model, wrapped.name, wrapped._adapter, recording.CURRENT.get())
        return wrapped

    @property
    def adapter_name(self) -> str:
        """Name of the runtime adapter, as ``"torch"``."""
        return self._adapter.name

    @property
    def layers(self) -> list[LayerSpec]:
        """The computing (leaf) layers; containers can be probed by path as well."""
        return self._adapter.list_layers(self.model)

    @cached_property
    def fingerprint(self) -> str:
        """A stable fingerprint of architecture and weights."""
        return self._adapter.fingerprint_model(self.model)

    def attach_probe(
        self,
        layers: Sequence[str] | str,
        kind: type[Probe] | Probe = LayerActivations,
        *,
        fidelity: Fidelity | str | None = None,
    ) -> list[str]:
        """Observe layers from now on; inside a scope until it ends, else until `detach`.

        Args:
            layers: dotted paths or patterns (``"model.layers.*"``).
            kind: what to observe.
            fidelity: ``"full"`` or ``"summary"``; the budget may lower it.

        Returns:
            Ids of the layers now observed.

        Raises:
            LayerNotFoundError: a path or pattern matches no layer; nothing is attached then.
            UnsupportedProbeError: this runtime cannot show what the probe looks at.
        """
        platform.current()
        probe = kind() if isinstance(kind, type) else kind
        want = probe.fidelity if fidelity is None else Fidelity(fidelity)
        found = self._find([layers] if isinstance(layers, str) else layers)
        scope = recording.CURRENT.get()
        observers = {
            layer: LayerObserver(
                self.name,
                layer,
                want,
                type(probe).__name__,
                scope,
                probe.role,
                critical=probe.critical,
                kind=probe,
            )
            for layer in found
        }
        undo = [self._observe(layer, observer, probe) for layer, observer in observers.items()]
        if scope is None:
            self._undo += undo
        else:
            scope.probe(self.model)
            joining.MEMBERS.probed(scope, self.model)
            scope.on_exit(partial(self._tell_unseen, scope, observers))
            for step in undo:
                scope.on_exit(step)
        return found

    def watch(self, scope: recording.Recording) -> None:
        """Observe in a scope what `NEURONSCOPE_PROBES` asks for (default: blocks, in summaries).

        It ends with the scope, or where somebody attaches probes of their own.  A model that shows its layers
        only when it runs is watched in each scope anyway.
        """
        if isinstance(self._adapter, LearningBackend) or scope.probes(self.model):
            return
        observers = {
            watch.layer_id: LayerObserver(self.name, watch.layer_id, watch.want, AGENT_PROBE, scope)
            for watch in picked(self._blocks, self._match)
        }
        probe = LayerActivations()
        undo = [self._observe(layer, observer, probe) for layer, observer in observers.items()]
        if undo:
            joined = joining.MEMBERS.hold(scope, self.model, self.name, undo)
            scope.on_exit(partial(self._leave, scope, joined, observers))

    def _leave(
        self, scope: recording.Recording, joined: joining.Joined, observers: Mapping[str, LayerObserver]
    ) -> None:
        if joined.undo:
            joined.leave()
            self._tell_unseen(scope, observers)

    def _blocks(self) -> list[str]:
        """What is watched by default; of a runtime that names no blocks, every layer."""
        if isinstance(self._adapter, ObservingBackend):
            return self._adapter.block_paths(self.model)
        return [layer.id for layer in self.layers]

    def detach(self) -> None:
        """Remove the probes attached outside of scopes."""
        while self._undo:
            GUARD.call("model.detach", self._undo.pop())

    def _tell_unseen(self, scope: recording.Recording, observers: Mapping[str, LayerObserver]) -> None:
        """Note in the scope's span which layers never ran, and why."""
        unseen = [layer for layer, observer in observers.items() if not observer.seen]
        if not unseen or scope.root is None or not isinstance(self._adapter, ObservingBackend):
            return
        if scope.root.model_call is None:
            scope.root.model_call = ModelCall(self.name)
        scope.root.model_call.watched.update(self._adapter.not_visited(self.model, unseen, ()))

    def _find(self, patterns: Sequence[str]) -> list[str]:
        found: dict[str, None] = {}
        for pattern in patterns:
            found.update(dict.fromkeys(self._match(pattern)))
        return list(found)

    def _match(self, pattern: str) -> list[str]:
        if isinstance(self._adapter, ObservingBackend):
            return self._adapter.match_layers(self.model, pattern)
        import fnmatch

        ids = [layer.id for layer in self.layers]
        matching = [layer for layer in ids if layer == pattern] or fnmatch.filter(ids, pattern)
        if not matching:
            raise LayerNotFoundError(
                f"{pattern!r} matches none of the model's {len(ids)} layers, e.g. {ids[:3]}"
            )
        return matching

    def _observe(self, layer: str, callback: LayerCallback, probe: Probe) -> Callable[[], None]:
        if probe.role == GRADIENT and isinstance(self._adapter, GradientBackend):
            return self._adapter.observe_gradient(self.model, layer, callback)
        if isinstance(probe, AttentionMaps) and isinstance(self._adapter, AttentionBackend):
            return self._adapter.observe_attention(self.model, layer, callback, probe.heads)
        if probe.role != OUTPUT:
            raise UnsupportedProbeError(
                f"{type(probe).__name__} looks at a layer's {probe.role}, which the adapter "
                f"{self.adapter_name!r} cannot show. It shows outputs: use ns.probes.LayerActivations"
            )
        if isinstance(self._adapter, ObservingBackend):
            return self._adapter.observe_layer(self.model, layer, callback)
        return _SHARED.observe(self._adapter, self.model, layer, callback)

    def __repr__(self) -> str:
        return f"Model({self.name!r}, adapter={self.adapter_name!r}, layers={len(self.layers)})"


def _see_calls(backend: BackendAdapter, model: Any) -> None:
    if isinstance(backend, CallingBackend):
        for name, observed in backend.observed_by(model):
            platform.instrument_object(name, observed)


class _SharedHooks:
    """Lets several scopes share the hooks of an adapter that can only remove all of them at once.

    One hook per layer is installed for all; it calls whoever still watches, and goes when nobody does.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._watchers: weakref.WeakKeyDictionary[Any, dict[str, list[LayerCallback]]] = (
            weakref.WeakKeyDictionary()
        )

    def observe(
        self, adapter: BackendAdapter, model: Any, layer: str, callback: LayerCallback
    ) -> Callable[[], None]:
        with self._lock:
            layers = self._watchers.setdefault(model, {})
            watching = layers.get(layer)
            if watching is None:
                watching = layers[layer] = []
                adapter.install_observer_hook(model, layer, _dispatcher(watching))
            watching.append(callback)
        model_ref = weakref.ref(model)

        def undo() -> None:
            with self._lock:
                if callback in watching:
                    watching.remove(callback)
                observed = model_ref()
                if (
                    observed is not None
                    and not any(layers.values())
                    and self._watchers.get(observed) is layers
                ):
                    del self._watchers[observed]
                    adapter.remove_hooks(observed)

        return undo


def _dispatcher(watching: list[LayerCallback]) -> LayerCallback:
    def call(snapshot: Any) -> None:
        for callback in tuple(watching):
            GUARD.call("model.probe", callback, snapshot)

    return call


_SHARED = _SharedHooks()

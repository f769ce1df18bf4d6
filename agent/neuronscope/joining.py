"""Wrapped models that every scope watches: of runtimes that show their layers only when they run.

Probes cannot be attached to layers that nobody knows yet.  So a scope watches such a model from its start,
as `NEURONSCOPE_PROBES` says (default: its blocks, in summaries), until probes of its own are attached.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from neuronscope import native
from neuronscope.callwatch import parse_probe
from neuronscope.engine import ENGINE
from neuronscope.engine.guard import GUARD
from neuronscope.governor.steward import AGENT_PROBE
from neuronscope.instrumentation import BackendAdapter, LearningBackend, ObservingBackend
from neuronscope.layers import LayerObserver
from neuronscope.modelcall import ModelCall
from neuronscope.recording import Recording
from neuronscope.signals.records import Fidelity

NOT_RUN: Final = "not run"


@dataclass(slots=True)
class Joined:
    """A model watched in one scope.

    Attributes:
        undo: what ends the watching; nothing: it has ended.
        observers: of the layers that ran.
    """

    name: str
    undo: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    observers: list[LayerObserver] = field(default_factory=list[LayerObserver])

    def leave(self) -> None:
        """End the watching."""
        while self.undo:
            GUARD.call("joining.leave", self.undo.pop())


class _Members:
    """The models, held weakly and by identity; and which scope watches which.  Safe for threads."""

    def __init__(self) -> None:
        self._lock = native.new_lock()
        self._models: dict[int, tuple[weakref.ref[Any], str, BackendAdapter]] = {}
        self._joined: weakref.WeakKeyDictionary[Recording, dict[int, Joined]] = weakref.WeakKeyDictionary()

    def add(self, model: Any, name: str, adapter: BackendAdapter, scope: Recording | None) -> None:
        """A model was wrapped: scopes that begin from now on watch it, and so does the one that is open."""
        if not isinstance(adapter, LearningBackend):
            return
        key = id(model)
        adapter.prepare()
        ref = weakref.ref(model, lambda _: self._models.pop(key, None))
        with self._lock:
            self._models[key] = (ref, name, adapter)
        if scope is not None:
            self._join(scope, key)

    def enter(self, scope: Recording) -> None:
        """A scope begins."""
        for key in list(self._models):
            self._join(scope, key)

    def hold(self, scope: Recording, model: Any, name: str, undo: list[Callable[[], None]]) -> Joined:
        """A scope was given a model: its watching is kept, until somebody attaches probes of their own."""
        joined = Joined(name, undo)
        with self._lock:
            self._joined.setdefault(scope, {})[id(model)] = joined
        scope.probe(model)
        return joined

    def probed(self, scope: Recording, model: Any) -> None:
        """Somebody has attached probes of their own: these are what is wanted."""
        inner: Recording | None = scope
        while inner is not None:
            joined = self._joined.get(inner, {}).get(id(model))
            if joined is not None:
                joined.leave()
                joined.observers.clear()
            inner = inner.parent

    def _join(self, scope: Recording, key: int) -> None:
        found = self._models.get(key)
        if found is None:
            return
        ref, name, adapter = found
        model = ref()
        outer: Recording | None = scope
        while outer is not None:
            if key in self._joined.get(outer, {}):
                return  # a scope around this one sees to it
            outer = outer.parent
        if model is None or not isinstance(adapter, LearningBackend) or scope.probes(model):
            return
        joined = Joined(name)
        with self._lock:
            self._joined.setdefault(scope, {})[key] = joined
        for text in ENGINE.settings.probes:
            pattern, want = parse_probe(text)
            if pattern == "off":
                return
            make = partial(_observe, joined, want, scope)
            joined.undo.append(adapter.observe_pattern(model, pattern, make, want))
        scope.on_exit(partial(_leave, joined, scope, ref, adapter))


def _observe(joined: Joined, want: Fidelity, scope: Recording, layer_id: str) -> LayerObserver:
    observer = LayerObserver(joined.name, layer_id, want, AGENT_PROBE, scope)
    joined.observers.append(observer)
    return observer


def _leave(joined: Joined, scope: Recording, ref: weakref.ref[Any], adapter: BackendAdapter) -> None:
    """The scope ends: a model of which nothing was seen is named in its span.

    One that simply did not run is named only if there is nothing else in the scope, which then is known when
    its span, the last of all, is recorded.
    """
    watched = bool(joined.undo)
    joined.leave()
    model = ref()
    if not watched or joined.observers or model is None or scope.root is None:
        return
    call = scope.root.model_call
    if call is not None and call.runs:
        return  # the scope was about another model
    if isinstance(adapter, ObservingBackend):
        call = scope.root.model_call = call or ModelCall(joined.name)
        call.is_alone = scope.is_empty
        for name, why in adapter.not_visited(model, [joined.name], ()).items():
            (call.idle if why == NOT_RUN else call.watched)[name] = why


MEMBERS: Final = _Members()

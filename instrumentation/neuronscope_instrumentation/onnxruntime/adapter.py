"""The `onnxruntime` backend: the outputs of a session, which are all that it shows of its model.

Importing this module does not import onnxruntime.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from neuronscope.instrumentation import LayerCallback
from neuronscope.signals.tensors import LayerSpec
from neuronscope_instrumentation.common.host_arrays import of_array
from neuronscope_instrumentation.common.layer_paths import match, not_found
from neuronscope_instrumentation.common.methods import LOCK, Arguments, MethodSlot
from neuronscope_instrumentation.common.observing import InstalledHooks, Lender, Observer
from neuronscope_instrumentation.onnxruntime import sessions

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SESSION: Final = ("onnxruntime.capi.onnxruntime_inference_collection", "InferenceSession")
_RUNTIME: Final = "onnxruntime"
_RUN: Final = "run"
_LENDER: Final = Lender()
_slots: weakref.WeakKeyDictionary[Any, _Slot] = weakref.WeakKeyDictionary()


class SessionAdapter(InstalledHooks):
    """An `onnxruntime.InferenceSession`.  Layer ids are the names of its outputs; ``""`` is the first.

    To see inside, export the model with the tensors of interest as outputs.  Runs by `run` are seen;
    bound outputs and asynchronous ones are not.  Safe for threads.
    """

    name = _RUNTIME

    def matches(self, model_obj: Any) -> bool:
        """True for an `InferenceSession`, told by its classes' names alone."""
        kind: type = model_obj.__class__
        return any((base.__module__, base.__qualname__) == _SESSION for base in kind.__mro__)

    def list_layers(self, model_obj: Any) -> list[LayerSpec]:
        """The outputs, with the shapes that the model declares."""
        return [
            LayerSpec(
                str(output.name),
                str(output.type),
                tuple([size if isinstance(size, int) else -1 for size in output.shape]),
            )
            for output in model_obj.get_outputs()
        ]

    def name_model(self, model_obj: Any) -> str:
        """The file's name, else the graph's."""
        return sessions.name_of(model_obj)

    def fingerprint_model(self, model_obj: Any) -> str:
        """A fingerprint of the file or the bytes that the session was made from.

        Raises:
            ModelFileError: they are gone.
        """
        found = sessions.fingerprint_of(model_obj)
        if found is None:
            from neuronscope.exceptions import ModelFileError

            raise ModelFileError("the file that this session was made from is gone")
        return found

    def observe_layer(self, model_obj: Any, layer_id: str, callback: LayerCallback) -> Callable[[], None]:
        """Watch one output; returns the undo of just this.

        Raises:
            LayerNotFoundError: the session has no such output.
        """
        outputs = [str(output.name) for output in model_obj.get_outputs()]
        if layer_id and layer_id not in outputs:
            raise not_found("the session", outputs, layer_id)
        return _watch(model_obj, layer_id or outputs[0], callback)

    def match_layers(self, model_obj: Any, pattern: str) -> list[str]:
        """Outputs that a pattern names, in the model's order.

        Raises:
            LayerNotFoundError: nothing matches; the message names what is close.
        """
        outputs = [str(output.name) for output in model_obj.get_outputs()]
        return match("the session", outputs, pattern)

    def block_paths(self, model_obj: Any) -> list[str]:
        """All outputs."""
        return [str(output.name) for output in model_obj.get_outputs()]

    def not_visited(self, model_obj: Any, layer_ids: Iterable[str], seen: Collection[str]) -> dict[str, str]:
        """Outputs that no run returned."""
        return {layer: "not run" for layer in layer_ids if layer not in seen}


# --- observing --------------------------------------------------------------------------------------------
class _OutputObserver(Observer):
    """One callback on one output."""

    __slots__ = ("output",)

    def __init__(self, slot: _Slot, output: str, callback: LayerCallback) -> None:
        super().__init__(slot, callback, _RUNTIME)
        self.output = output


class _Slot(MethodSlot):
    """Tells a session's observers of what `run` returns."""

    def __init__(self, session: Any) -> None:
        super().__init__(session, (_RUN,), _RUNTIME)

    def see(self, output: Any, call: Arguments) -> None:
        """Lend each watched output that was asked for."""
        import numpy as np

        positional, named = call
        asked: object = positional[0] if positional else named.get("output_names")
        observers = self.observers
        for name, value in zip(sessions.output_names(self.owner(), asked), output, strict=False):
            watching = [
                each for each in observers if isinstance(each, _OutputObserver) and each.output == name
            ]
            if watching and isinstance(value, np.ndarray) and not value.dtype.hasobject:
                _LENDER.lend(watching, of_array(cast("NDArray[Any]", value)))


def _watch(session: Any, output: str, callback: LayerCallback) -> Callable[[], None]:
    with LOCK:
        slot = _slots.get(session)
        if slot is None:
            slot = _slots[session] = _Slot(session)
        observer = _OutputObserver(slot, output, callback)
        slot.observers += (observer,)
        slot.install(session)
    return observer.undo


ADAPTER = SessionAdapter()

if TYPE_CHECKING:
    from neuronscope.instrumentation import ObservingBackend

    _conforms: ObservingBackend = ADAPTER

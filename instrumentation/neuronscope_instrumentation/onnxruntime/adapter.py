"""The `onnxruntime` backend: the outputs of a session, which are all that it shows of its model.

Importing this module does not import onnxruntime.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from neuronscope.engine.guard import GUARD
from neuronscope.instrumentation import LayerCallback
from neuronscope.native import new_lock
from neuronscope.signals.tensors import LayerSpec, TensorSnapshot
from neuronscope_instrumentation.common.layer_paths import match, not_found
from neuronscope_instrumentation.onnxruntime import sessions

_SESSION: Final = ("onnxruntime.capi.onnxruntime_inference_collection", "InferenceSession")
_RUN: Final = "run"


class SessionAdapter:
    """An `onnxruntime.InferenceSession`.  Layer ids are the names of its outputs; ``""`` is the first.

    To see inside, export the model with the tensors of interest as outputs.  Runs by `run` are seen;
    bound outputs and asynchronous ones are not.  Safe for threads.
    """

    name = "onnxruntime"

    def __init__(self) -> None:
        self._installed: weakref.WeakKeyDictionary[Any, list[Callable[[], None]]] = (
            weakref.WeakKeyDictionary()
        )

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

    def install_observer_hook(self, model_obj: Any, layer_id: str, callback: LayerCallback) -> None:
        """Call `callback` with the output of each run that returns it, until `remove_hooks`.

        Raises:
            LayerNotFoundError: the session has no such output.
        """
        undo = self.observe_layer(model_obj, layer_id, callback)
        self._installed.setdefault(model_obj, []).append(undo)

    def remove_hooks(self, model_obj: Any) -> None:
        """Undo every `install_observer_hook` on this session; observers of `observe_layer` stay."""
        for undo in self._installed.pop(model_obj, ()):
            undo()

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
_lock: Final = new_lock()


class _Run:
    """Stands for a watched session's `run`, in its instance dictionary.

    Attributes:
        observers: by output; replaced, never changed.
        below: what had that place before, if anything.
    """

    def __init__(self, session: Any) -> None:
        self._session = weakref.ref(session)
        self.below: Any = session.__dict__.get(_RUN)
        self.observers: tuple[tuple[str, LayerCallback, object], ...] = ()

    def __call__(self, output_names: Any, input_feed: Any, run_options: Any = None) -> Any:
        session: Any = self._session()
        run: Any = self.below or session.__class__.run.__get__(session)
        outputs: Any = run(output_names, input_feed, run_options)
        if self.observers:
            GUARD.call("onnxruntime.outputs", self._notify, session, output_names, outputs)
        return outputs

    def _notify(self, session: Any, asked: Any, outputs: Sequence[Any]) -> None:
        import numpy as np

        by_name = dict(zip(sessions.output_names(session, asked), outputs, strict=False))
        for name, callback, _ in self.observers:
            value = by_name.get(name)
            if isinstance(value, np.ndarray) and not value.dtype.hasobject:
                GUARD.call("onnxruntime.observer", callback, _Output(value))


class _Output(TensorSnapshot):
    """An output on loan: summarised where it is, copied on request."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        _, dtype, shape = sessions.describe_outputs([value], [""])[0]
        super().__init__(shape, dtype)
        self._value = value

    @property
    def nbytes(self) -> int:
        """Bytes of the full array."""
        return int(self._value.nbytes)

    def numpy(self) -> Any:
        """A copy."""
        return self._value.copy()

    def summarize(self) -> Any:
        """The statistics, without a copy."""
        from neuronscope.signals.tensors import TensorSummary

        return TensorSummary.of(self._value)


def _watch(session: Any, output: str, callback: LayerCallback) -> Callable[[], None]:
    mark = object()
    with _lock:
        run = session.__dict__.get(_RUN)
        if not isinstance(run, _Run):
            run = session.__dict__[_RUN] = _Run(session)
        run.observers += ((output, callback, mark),)
    observed = weakref.ref(session)

    def undo() -> None:
        with _lock:
            run.observers = tuple([each for each in run.observers if each[2] is not mark])
            held: Any = observed()
            if held is None or run.observers or held.__dict__.get(_RUN) is not run:
                return
            if run.below is None:
                del held.__dict__[_RUN]
            else:
                held.__dict__[_RUN] = run.below

    return undo


ADAPTER = SessionAdapter()

if TYPE_CHECKING:
    from neuronscope.instrumentation import ObservingBackend

    _conforms: ObservingBackend = ADAPTER

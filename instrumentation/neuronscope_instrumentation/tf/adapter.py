"""The `tf` backend: Keras 3 layers on TensorFlow, PyTorch or JAX, and loaded SavedModels.

Importing this module imports none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neuronscope.exceptions import UnsupportedProbeError
from neuronscope.instrumentation import LayerCallback
from neuronscope.signals.tensors import LayerSpec
from neuronscope_instrumentation.common.observing import InstalledHooks

_LAYER_CLASS = ("keras.src.layers.layer", "Layer")
_SAVED_MODEL = "tensorflow.python.saved_model.load"


class KerasAdapter(InstalledHooks):
    """Keras 3 models and layers, whichever backend Keras runs on; `tf.saved_model.load`'s objects.

    Layer ids are the names that Keras gives (``model.get_layer``), dotted where models or layers hold
    others; ``""`` is the model itself.  Names that nobody chose are numbered by Keras in the order of
    creation, so name your layers if ids are to be the same in every process.  Safe for threads.
    """

    name = "tf"

    def matches(self, model_obj: Any) -> bool:
        """True for a Keras layer and for a loaded SavedModel, told by its classes' names alone."""
        kind: type = model_obj.__class__
        return kind.__module__ == _SAVED_MODEL or any(
            (base.__module__, base.__qualname__) == _LAYER_CLASS for base in kind.__mro__
        )

    def list_layers(self, model_obj: Any) -> list[LayerSpec]:
        """The layers without layers inside; of a SavedModel its functions, for its inside is one graph."""
        if _is_saved(model_obj):
            from neuronscope_instrumentation.tf import saved

            return saved.functions(model_obj)
        from neuronscope_instrumentation.tf import layers

        return layers.leaf_layers(model_obj)

    def fingerprint_model(self, model_obj: Any) -> str:
        """A fingerprint of classes, configurations, connections and weights; names do not count.

        Costs one read of all weights.
        """
        from neuronscope_instrumentation.tf import weights

        return (
            weights.fingerprint_saved(model_obj) if _is_saved(model_obj) else weights.fingerprint(model_obj)
        )

    def describe_model(self, model_obj: Any) -> Mapping[str, Any]:
        """How weights are quantised, if they are."""
        if _is_saved(model_obj):
            return {}
        from neuronscope_instrumentation.tf import weights

        return weights.describe(model_obj)

    def observe_layer(self, model_obj: Any, layer_id: str, callback: LayerCallback) -> Callable[[], None]:
        """Watch one layer; returns the undo of just this.

        `callback` gets a snapshot of the first tensor that the layer returned: in the model's thread where
        layers run eagerly, in a thread of TensorFlow's where they run inside a `tf.function`.

        Raises:
            LayerNotFoundError: the model has no such layer; the message names what is close.
        """
        if _is_saved(model_obj):
            from neuronscope_instrumentation.tf import saved

            return saved.observe(model_obj, layer_id, callback)
        from neuronscope_instrumentation.tf import layers, slots

        return slots.observe(layers.find_layer(model_obj, layer_id), callback)

    def observe_gradient(self, model_obj: Any, layer_id: str, callback: LayerCallback) -> Callable[[], None]:
        """Call `callback` with the gradient by the layer's output, in each backward pass.

        On TensorFlow through an identity that the layer's output goes through, on PyTorch by a tensor hook.
        An eager run that nothing differentiates gives a snapshot that refuses to be read: ``no gradient``.

        Raises:
            LayerNotFoundError: the model has no such layer.
            UnsupportedProbeError: Keras runs on another backend, or the model is a SavedModel.
        """
        from neuronscope_instrumentation.tf import layers, slots

        if _is_saved(model_obj):
            raise _one_graph("gradients by layers")
        return slots.observe_gradient(layers.find_layer(model_obj, layer_id), callback)

    def observe_attention(
        self, model_obj: Any, layer_id: str, callback: LayerCallback, heads: Sequence[int] | None = None
    ) -> Callable[[], None]:
        """Call `callback` with the weights of Keras' attention layers, (batch, head, query, key).

        Of the layer itself, or of those that it holds; where a fused kernel computes, again from queries and
        keys.  A layer without such gives a snapshot that refuses to be read: ``no attention``.

        Raises:
            LayerNotFoundError: the model has no such layer.
            UnsupportedProbeError: the model is a SavedModel.
        """
        from neuronscope_instrumentation.tf import attention, layers

        if _is_saved(model_obj):
            raise _one_graph("attention")
        return attention.observe(layers.find_layer(model_obj, layer_id), callback, heads)

    def match_layers(self, model_obj: Any, pattern: str) -> list[str]:
        """Paths that a pattern names, in the model's order: `*` within a part, `**` across parts.

        Raises:
            LayerNotFoundError: nothing matches; the message names what is close.
        """
        if _is_saved(model_obj):
            from neuronscope_instrumentation.tf import saved

            return saved.match(model_obj, pattern)
        from neuronscope_instrumentation.tf import layers

        return layers.match_layers(model_obj, pattern)

    def block_paths(self, model_obj: Any) -> list[str]:
        """Paths of the repeated blocks: the largest group of alike layers that hold layers; else the top."""
        if _is_saved(model_obj):
            return [layer.id for layer in self.list_layers(model_obj)]
        from neuronscope_instrumentation.tf import layers

        return layers.block_paths(model_obj)

    def not_visited(self, model_obj: Any, layer_ids: Iterable[str], seen: Collection[str]) -> dict[str, str]:
        """Why some of the watched layers were not seen, by layer id.

        ``traced before``: inside a `tf.function` whose trace was there before anyone watched;
        ``compiled``: by XLA, `jax.jit` or `torch.compile`; ``exported``: only traced, to be saved;
        ``not run``: else.
        """
        unseen = [layer for layer in layer_ids if layer not in seen]
        if _is_saved(model_obj):
            return dict.fromkeys(unseen, "not run")
        from neuronscope_instrumentation.tf import layers, slots

        return {path: slots.why_not_visited(layers.find_layer(model_obj, path)) for path in unseen}


def _one_graph(what: str) -> UnsupportedProbeError:
    return UnsupportedProbeError(
        f"a SavedModel is one graph, which shows no {what}. It shows what its functions return: "
        "use ns.probes.LayerActivations, or wrap the Keras model it was exported from"
    )


def _is_saved(model_obj: Any) -> bool:
    return bool(model_obj.__class__.__module__ == _SAVED_MODEL)


ADAPTER = KerasAdapter()

if TYPE_CHECKING:
    from neuronscope.instrumentation import ObservingBackend

    _conforms: ObservingBackend = ADAPTER

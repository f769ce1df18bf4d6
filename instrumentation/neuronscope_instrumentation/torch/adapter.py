"""The `torch` backend: which modules a model has, and watching them.

Importing this module does not import torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from neuronscope.exceptions import MissingDependencyError
from neuronscope.instrumentation import LayerCallback
from neuronscope.signals.tensors import LayerSpec
from neuronscope_instrumentation.common.observing import InstalledHooks

if TYPE_CHECKING:
    from torch import nn

    from neuronscope.interventions.backend import Interventions

_MODULE_CLASS = ("torch.nn.modules.module", "Module")


class TorchAdapter(InstalledHooks):
    """PyTorch modules of every kind, transformers' and sentence-transformers' included.

    Layer ids are the dotted paths of `named_modules`; ``""`` is the model itself.  A module that a
    model uses under several paths is listed under the first, and can be watched by any.  Safe for
    threads: observers may come and go while forwards run.
    """

    name = "torch"

    def matches(self, model_obj: Any) -> bool:
        """True for an `nn.Module`, told by its classes' names alone."""
        return any((kind.__module__, kind.__qualname__) == _MODULE_CLASS for kind in type(model_obj).__mro__)

    def list_layers(self, model_obj: Any) -> list[LayerSpec]:
        """The computing modules without submodules, in the model's order."""
        from neuronscope_instrumentation.torch import layers

        return layers.leaf_layers(model_obj)

    def fingerprint_model(self, model_obj: Any) -> str:
        """A fingerprint of classes, hyperparameters, parameters and persistent buffers.

        Equal on every device.  Costs one read of all weights.
        """
        from neuronscope_instrumentation.torch.weights import fingerprint_model

        return fingerprint_model(model_obj)

    def describe_model(self, model_obj: Any) -> Mapping[str, Any]:
        """Active PEFT adapters and whether they are merged; wrappers; how weights are stored."""
        from neuronscope_instrumentation.torch.describe import describe_model

        return describe_model(model_obj)

    def prepare(self) -> None:
        """Load what watching a model needs, if torch is loaded."""
        if "torch" in sys.modules:
            _watching()
            for part in ("describe", "weights"):
                importlib.import_module(f"neuronscope_instrumentation.torch.{part}")

    def observe_layer(self, model_obj: Any, layer_id: str, callback: LayerCallback) -> Callable[[], None]:
        """Watch one layer; returns the undo of just this.

        `callback` runs in the model's thread after each of the layer's calls, with a snapshot of the
        first tensor it returned.  Its faults go to the guard, never to the model.

        Raises:
            LayerNotFoundError: the model has no such layer; the message names what is close.
        """
        find_layer, observe = _watching()
        return observe(find_layer(model_obj, layer_id), callback)

    def observe_gradient(self, model_obj: Any, layer_id: str, callback: LayerCallback) -> Callable[[], None]:
        """Call `callback` with the gradient by the layer's output, during each backward pass.

        By a tensor hook on the first tensor that the layer returned.  Where it needs no gradient the
        callback gets, at once, a snapshot that refuses to be read: ``no gradient``.

        Raises:
            LayerNotFoundError: the model has no such layer.
        """
        from neuronscope_instrumentation.torch import gradients, layers

        return gradients.observe_gradients(layers.find_layer(model_obj, layer_id), callback)

    def observe_attention(
        self, model_obj: Any, layer_id: str, callback: LayerCallback, heads: Sequence[int] | None = None
    ) -> Callable[[], None]:
        """Call `callback` with the attention weights of each of the layer's runs, (batch, head, query, key).

        Raises:
            LayerNotFoundError: the model has no such layer.
        """
        from neuronscope_instrumentation.torch import attention, layers

        return attention.observe_attention(layers.find_layer(model_obj, layer_id), callback, heads)

    def match_layers(self, model_obj: Any, pattern: str) -> list[str]:
        """Paths of the computing modules that a pattern names, in the model's order.

        ``*`` stands for anything within one part of a path, ``**`` for any number of parts:
        ``model.layers.*`` are the blocks, ``**.mlp`` the MLP of each.  A module that is under several paths
        is named once, by the first that matches.

        Raises:
            LayerNotFoundError: nothing matches; the message names what is close.
        """
        from neuronscope_instrumentation.torch import layers

        return layers.match_layers(model_obj, pattern)

    def block_paths(self, model_obj: Any) -> list[str]:
        """Paths of the repeated encoder or decoder blocks.

        They are the elements of the largest lists of alike modules (several in an encoder-decoder or a
        vision-language model).  A model without such lists gives its computing top-level modules.
        """
        from neuronscope_instrumentation.torch import layers

        return layers.block_paths(model_obj)

    def not_visited(self, model_obj: Any, layer_ids: Iterable[str], seen: Collection[str]) -> dict[str, str]:
        """Why some of the watched layers were not seen, by layer id.

        ``fused``: an attention or encoder layer computed for its submodules; ``scripted``: TorchScript
        runs them without Python; ``compiled``: `torch.compile` does; ``not run``: else.
        """
        from neuronscope_instrumentation.torch import layers

        return {path: layers.why_not_visited(model_obj, path) for path in layer_ids if path not in seen}

    def interventions(self, model_obj: Any) -> Interventions:
        """Interventions in one model.

        Raises:
            MissingDependencyError: `greenlet` is not installed.
        """
        if importlib.util.find_spec("greenlet") is None:
            raise MissingDependencyError("An intervention", "greenlet", extra="interventions")
        from neuronscope_instrumentation.torch.interventions.session import TorchInterventions

        return TorchInterventions(model_obj)


@cache
def _watching() -> tuple[
    Callable[[Any, str], nn.Module], Callable[[nn.Module, LayerCallback], Callable[[], None]]
]:
    """What `observe_layer` needs; importing it each time would be a fifth of what watching costs."""
    from neuronscope_instrumentation.torch import layers, noting, slots

    noting.begin()
    return layers.find_layer, slots.observe


ADAPTER = TorchAdapter()

if TYPE_CHECKING:
    from neuronscope.instrumentation import ObservingBackend

    _conforms: ObservingBackend = ADAPTER

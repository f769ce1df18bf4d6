"""The `onnx` backend: what a graph consists of, read-only.

Importing this module does not import onnx.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from neuronscope.exceptions import UnsupportedProbeError
from neuronscope.instrumentation import LayerCallback
from neuronscope.modelnames import name_from_path
from neuronscope.signals.tensors import LayerSpec
from neuronscope_instrumentation.common.layer_paths import match

_MESSAGE: Final = "ModelProto"


class OnnxAdapter:
    """A `ModelProto`, or the path of a file with one.  Nothing is executed, and no external data is loaded.

    Layer ids are the nodes' names with dots for slashes (``/model/layers.0/mlp/MatMul`` is
    ``model.layers.0.mlp.MatMul``); nodes inside the bodies of `If`, `Loop` and `Scan` follow the node that
    holds them.  A size known only when the model runs is -1, and counts as 1 in the number of operations.
    """

    name = "onnx"

    def matches(self, model_obj: Any) -> bool:
        """True for a `ModelProto`, and for a path that ends in ``.onnx``."""
        if isinstance(model_obj, str | os.PathLike):
            return os.fsdecode(cast("str | os.PathLike[str]", model_obj)).endswith(".onnx")
        kind: type = model_obj.__class__
        return kind.__name__ == _MESSAGE and kind.__module__.startswith("onnx.")

    def list_layers(self, model_obj: Any) -> list[LayerSpec]:
        """All nodes that compute, in the graph's order, with signature, parameters and operations.

        Raises:
            ModelFileError: this is no ONNX model.
        """
        from neuronscope_instrumentation.onnx import graph

        return graph.layers(graph.load(model_obj))

    def name_model(self, model_obj: Any) -> str:
        """The file's name, else the graph's."""
        if isinstance(model_obj, str | os.PathLike):
            path = os.fsdecode(cast("str | os.PathLike[str]", model_obj))
            return name_from_path(path).removesuffix(".onnx")
        return str(model_obj.graph.name) or _MESSAGE

    def install_observer_hook(self, model_obj: Any, layer_id: str, callback: LayerCallback) -> None:
        """Nothing can be observed in a graph that is not run.

        Raises:
            LayerNotFoundError: there is no such layer.
            UnsupportedProbeError: else; the message says what can be observed.
        """
        self.observe_layer(model_obj, layer_id, callback)

    def observe_layer(self, model_obj: Any, layer_id: str, callback: LayerCallback) -> Callable[[], None]:
        """Nothing can be observed in a graph that is not run.

        Raises:
            LayerNotFoundError: there is no such layer.
            UnsupportedProbeError: else; the message says what can be observed.
        """
        self.match_layers(model_obj, layer_id)
        raise UnsupportedProbeError(
            "the adapter 'onnx' reads graphs and runs none, so no probe sees a value. Wrap the "
            "onnxruntime.InferenceSession that runs this model instead: ns.Model.wrap(session) shows its "
            'outputs, and ns.instrument("onnxruntime") makes a span of each run'
        )

    def remove_hooks(self, model_obj: Any) -> None:
        """There are none."""

    def fingerprint_model(self, model_obj: Any) -> str:
        """A fingerprint of operations, attributes, connections and weights; names do not count.

        External data is read from its files block by block, where the model was given as a path; else its
        place stands for it.

        Raises:
            ModelFileError: this is no ONNX model, or a file of its data is missing.
        """
        from neuronscope_instrumentation.onnx import graph, weights

        return weights.fingerprint(graph.load(model_obj))

    def match_layers(self, model_obj: Any, pattern: str) -> list[str]:
        """Ids that a pattern names, in the graph's order: `*` within a part, `**` across parts.

        Raises:
            LayerNotFoundError: nothing matches; the message names what is close.
        """
        ids = [layer.id for layer in self.list_layers(model_obj)]
        return match("the ONNX graph", ids, pattern)

    def block_paths(self, model_obj: Any) -> list[str]:
        """Nothing is worth watching where nothing runs."""
        return []

    def not_visited(self, model_obj: Any, layer_ids: Iterable[str], seen: Collection[str]) -> dict[str, str]:
        """Nothing runs."""
        return {layer: "not run" for layer in layer_ids if layer not in seen}


ADAPTER = OnnxAdapter()

if TYPE_CHECKING:
    from neuronscope.instrumentation import ObservingBackend

    _conforms: ObservingBackend = ADAPTER

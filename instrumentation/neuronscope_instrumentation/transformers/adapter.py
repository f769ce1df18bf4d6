"""The `hf_transformers` backend: what the `torch` backend shows of a model, and the calls around it.

Importing this module does not import transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neuronscope.exceptions import AdapterNotFoundError, LayerNotFoundError
from neuronscope.interventions.pipelines import is_pipeline, reader_of
from neuronscope.signals.tensors import LayerSpec
from neuronscope_instrumentation.torch.adapter import TorchAdapter

_MODEL = ("transformers.modeling_utils", "PreTrainedModel")
_TOKENIZER = ("transformers.tokenization_utils_base", "PreTrainedTokenizerBase")


class HfTransformersAdapter(TorchAdapter):
    """transformers' models, pipelines and tokenizers.

    Layers, gradients, attention and interventions are the `torch` adapter's.  Calls of a wrapped model's
    `generate` become spans with the fingerprint of its configuration, and those of a wrapped pipeline's
    tokenizer, or of a tokenizer, spans with its input and output: counts, and texts with content.
    """

    name = "hf_transformers"

    def matches(self, model_obj: Any) -> bool:
        """True for a model or tokenizer of transformers, told by its classes' names alone."""
        return _is(model_obj, _MODEL) or _is(model_obj, _TOKENIZER)

    def observed_by(self, model_obj: Any) -> list[tuple[str, Any]]:
        """A model's `generate`; a pipeline's calls, and its tokenizer's; a tokenizer's.

        Raises:
            AdapterNotFoundError: it is none of these.
        """
        if _is(model_obj, _MODEL):
            return [("transformers", model_obj)]
        if _is(model_obj, _TOKENIZER):
            return [("tokenizers", model_obj)]
        if not is_pipeline(model_obj):
            kind: type = model_obj.__class__
            raise AdapterNotFoundError(
                f"the adapter 'hf_transformers' does not handle a {kind.__module__}.{kind.__qualname__}. "
                "It is for transformers' models, pipelines and tokenizers; 'torch' is for all of PyTorch's"
            )
        tokenizer = reader_of(model_obj)
        return [("pipelines", model_obj), *([] if tokenizer is None else [("tokenizers", tokenizer)])]

    def list_layers(self, model_obj: Any) -> list[LayerSpec]:
        """The model's layers; a tokenizer has none."""
        return [] if _is(model_obj, _TOKENIZER) else super().list_layers(model_obj)

    def match_layers(self, model_obj: Any, pattern: str) -> list[str]:
        """The model's layers that a pattern names.

        Raises:
            LayerNotFoundError: nothing matches, or this is a tokenizer.
        """
        if _is(model_obj, _TOKENIZER):
            raise LayerNotFoundError("a tokenizer has no layers: its calls are observed, and become spans")
        return super().match_layers(model_obj, pattern)

    def block_paths(self, model_obj: Any) -> list[str]:
        """The model's blocks; a tokenizer has none."""
        return [] if _is(model_obj, _TOKENIZER) else super().block_paths(model_obj)

    def fingerprint_model(self, model_obj: Any) -> str:
        """The fingerprint of architecture and weights.

        Raises:
            AdapterNotFoundError: this is a tokenizer, which has none.
        """
        if _is(model_obj, _TOKENIZER):
            raise AdapterNotFoundError("a tokenizer has no weights, so it has no fingerprint")
        return super().fingerprint_model(model_obj)


def _is(obj: object, kind: tuple[str, str]) -> bool:
    return any((base.__module__, base.__qualname__) == kind for base in type(obj).__mro__)


ADAPTER = HfTransformersAdapter()

if TYPE_CHECKING:
    from neuronscope.instrumentation import CallingBackend, ObservingBackend

    _observes: ObservingBackend = ADAPTER
    _calls: CallingBackend = ADAPTER

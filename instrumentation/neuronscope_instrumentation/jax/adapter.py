"""The `jax` backend: which layers a model has, and watching them in eager and in compiled code.

Importing this module does not import JAX.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from neuronscope.instrumentation import LayerCallback
from neuronscope.signals.records import Fidelity
from neuronscope.signals.tensors import LayerSpec
from neuronscope_instrumentation.common.observing import InstalledHooks

_MODULES: Final = frozenset({
    ("flax.linen.module", "Module"), ("flax.nnx.module", "Module"), ("equinox._module._module", "Module"),
    ("equinox._module", "Module"), ("jaxlib._jax", "PjitFunction"),
})  # fmt: skip


class JaxAdapter(InstalledHooks):
    """Modules of Flax linen, nnx and Equinox, jitted functions, and (named ``jax``) plain functions.

    Layer ids are dotted paths: attributes and list positions (nnx, Equinox), the names of submodules, which
    are also those of their variables (linen), or what a plain function names with
    `jax.ad_checkpoint.checkpoint_name`.  ``""`` is the model itself.  A module of linen and a function show
    their layers when they run; until then paths are taken on trust.

    Observers see compiled code of the thread that installed them, and eager code of all threads.
    """

    name = "jax"

    def matches(self, model_obj: Any) -> bool:
        """True for modules and jitted functions, told by their classes' names alone."""
        return any((kind.__module__, kind.__qualname__) in _MODULES for kind in type(model_obj).__mro__)

    def list_layers(self, model_obj: Any) -> list[LayerSpec]:
        """The computing layers without layers below them, as far as they are known."""
        from neuronscope_instrumentation.jax import models

        return models.handle(model_obj).layers()

    def fingerprint_model(self, model_obj: Any) -> str:
        """A fingerprint of classes, hyperparameters and arrays, equal on every device.

        A module of linen that is not bound to variables has no weights: then of its architecture.
        """
        from neuronscope_instrumentation.jax.weights import fingerprint_model

        return fingerprint_model(model_obj)

    def describe_model(self, model_obj: Any) -> Mapping[str, Any]:
        """How weights are stored, and whether they are spread over devices."""
        from neuronscope_instrumentation.jax.describe import describe_model

        return describe_model(model_obj)

    def observe_layer(self, model_obj: Any, layer_id: str, callback: LayerCallback) -> Callable[[], None]:
        """Watch one layer; returns the undo of just this.

        `callback` gets a snapshot of the first array of each of the layer's results: in the caller's thread
        in eager code, in one of XLA's from compiled code.  An attribute `needs` of it (a `Fidelity`) says how
        much compiled code has to send: all by default.

        Raises:
            LayerNotFoundError: the model has no such layer; the message names what is close.
        """
        from neuronscope_instrumentation.jax import observing

        return observing.observe_layer(model_obj, layer_id, callback)

    def observe_gradient(self, model_obj: Any, layer_id: str, callback: LayerCallback) -> Callable[[], None]:
        """Call `callback` with the gradient by the layer's output, in each differentiated run of it.

        By an identity in the program whose transpose shows what flows back: eager, compiled, mapped and in
        loops; forward-mode and higher derivatives work as without.  A run that was not differentiated gives
        a snapshot that refuses to be read: ``no gradient``.

        Raises:
            LayerNotFoundError: the model has no such layer.
        """
        from neuronscope_instrumentation.jax import observing

        return observing.observe_gradient(model_obj, layer_id, callback)

    def observe_attention(
        self, model_obj: Any, layer_id: str, callback: LayerCallback, heads: Sequence[int] | None = None
    ) -> Callable[[], None]:
        """Call `callback` with the attention weights of each of the layer's runs, (…, head, query, key).

        Where Flax or Equinox compute them; of `jax.nn.dot_product_attention`, which Flax nnx uses, again from
        queries and keys.  A run without such gives a snapshot that refuses to be read: ``no attention``.

        Raises:
            LayerNotFoundError: the model has no such layer.
            UnsupportedProbeError: the model is a plain function.
        """
        from neuronscope_instrumentation.jax import observing

        return observing.observe_attention(model_obj, layer_id, callback, heads)

    def prepare(self) -> None:
        """A model was wrapped.

        From now on what a thread watches is part of the key of compiled code.  What was compiled before that
        is traced once more even where nothing is watched: so wrap models before their functions run.
        """
        importlib.import_module("neuronscope_instrumentation.jax.observing")

    def observe_pattern(
        self, model_obj: Any, pattern: str, make: Callable[[str], LayerCallback], needs: Fidelity
    ) -> Callable[[], None]:
        """Watch every layer that a pattern turns out to name; see `LearningBackend`."""
        from neuronscope_instrumentation.jax import observing

        return observing.observe_pattern(model_obj, pattern, make, needs)

    def match_layers(self, model_obj: Any, pattern: str) -> list[str]:
        """Paths that a pattern names: ``*`` within one part of a path, ``**`` across parts.

        Raises:
            LayerNotFoundError: nothing matches; the message names what is close.
        """
        from neuronscope_instrumentation.jax import models

        return models.handle(model_obj).match(pattern)

    def private_names(self) -> dict[str, bool]:
        """JAX's own functions that the way of a call into `jax.jit` is made of, and which are there.

        Without one of them layers are observed all the same; the rules in `jit.py` are left out.
        """
        from neuronscope_instrumentation.jax import jit

        return jit.private_names()

    def block_paths(self, model_obj: Any) -> list[str]:
        """Paths of the repeated blocks; a model without such gives its top-level layers."""
        from neuronscope_instrumentation.jax import models

        return models.handle(model_obj).blocks()

    def not_visited(self, model_obj: Any, layer_ids: Iterable[str], seen: Collection[str]) -> dict[str, str]:
        """Why some of the watched layers were not seen, by layer id.

        ``not run``, or where else the model may have run: ``compiled ahead of time``, ``compiled without us``
        (its program cannot have callbacks), ``another thread``.
        """
        from neuronscope_instrumentation.jax import observing

        return observing.why_not_visited(model_obj, layer_ids, seen)


ADAPTER = JaxAdapter()

if TYPE_CHECKING:
    from neuronscope.instrumentation import ExaminableBackend, ObservingBackend

    _conforms: ObservingBackend = ADAPTER
    _examinable: ExaminableBackend = ADAPTER

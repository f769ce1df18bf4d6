"""Gradients by a layer's output: an identity in the program whose transpose shows what flows back through it.

Two primitives.  `TAP` stands for the output: differentiated it is the output itself, and its tangent goes
through `FLOW`, which is linear; the transpose of that shows the cotangent, and hands it on.  So every
transformation works as without us, forward-mode and higher derivatives included (`custom_vjp` would refuse
these).  Compiled, both are nothing at all.  A `TAP` that is left when a program runs was not differentiated:
it tells that there is no gradient.
"""

from __future__ import annotations

from typing import Any, Final, cast

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from neuronscope.engine.guard import GUARD
from neuronscope.probes import GRADIENT
from neuronscope_instrumentation.common.observing import NO_GRADIENT
from neuronscope_instrumentation.jax import emission, models
from neuronscope_instrumentation.jax.emission import EFFECT, OBSERVE, Tap
from neuronscope_instrumentation.jax.models import Handle
from neuronscope_instrumentation.jax.untyped import is_traced


def through(handle: Handle, path: str, output: Any) -> Any:
    """The output of a layer, for whoever runs on with it: as it is, or with a `TAP` on its first array."""
    if not any(observer.wants(path, GRADIENT) for observer in tuple(handle.observers)):
        return output
    leaves, structure = cast("tuple[list[Any], Any]", jax.tree_util.tree_flatten(output))
    place = next((number for number, leaf in enumerate(leaves) if emission.is_array(leaf)), None)
    if place is None:
        return output
    array = leaves[place]
    if not is_traced(array) or not jnp.issubdtype(array.dtype, jnp.inexact):
        emission.show(handle, path, array, GRADIENT, NO_GRADIENT)
        return output
    tap = emission.tap_of(handle, path, array, GRADIENT)
    if tap is None:
        return output
    leaves[place] = TAP.bind(array, tap=tap)
    return jax.tree_util.tree_unflatten(structure, leaves)


# --- the output -------------------------------------------------------------------------------
TAP: Final[Any] = Primitive("neuronscope_gradient")
FLOW: Final[Any] = Primitive("neuronscope_gradient_flow")
emission.CARRIERS.append(TAP)


def _evaluate(x: Any, *, tap: Tap) -> Any:
    handle = models.by_token(tap.token)
    if handle is not None:
        GUARD.call("jax.show", emission.show_live, handle, tap.path, x, GRADIENT, NO_GRADIENT)
    return x


def _abstract(x: Any, *, tap: Tap) -> tuple[Any, set[Any]]:
    return x, {EFFECT}


def _batched(primitive: Any, arguments: Any, dimensions: Any, tap: Tap) -> tuple[Any, Any]:
    (x,), (dimension,) = arguments, dimensions
    if isinstance(dimension, int):
        moved = emission.front(x, dimension)
        return primitive.bind(moved, tap=tap._replace(mapped=tap.mapped + 1)), 0
    return primitive.bind(x, tap=tap), dimension


def _batch_tap(arguments: Any, dimensions: Any, *, tap: Tap) -> tuple[Any, Any]:
    return _batched(TAP, arguments, dimensions, tap)


def _differentiate(primals: Any, tangents: Any, *, tap: Tap) -> tuple[Any, Any]:
    (x,), (tangent,) = primals, tangents
    if type(tangent) is ad.Zero:
        return TAP.bind(x, tap=tap), tangent
    return x, FLOW.bind(tangent, tap=tap)


def _lowered(x: Any, *, tap: Tap) -> list[Any]:
    emission.lowered(x, tap=tap._replace(why=NO_GRADIENT))
    return [x]


TAP.def_impl(_evaluate)
TAP.def_effectful_abstract_eval(_abstract)
batching.primitive_batchers[TAP] = cast(Any, _batch_tap)
ad.primitive_jvps[TAP] = cast(Any, _differentiate)
mlir.register_lowering(TAP, mlir.lower_fun(_lowered, multiple_results=True))


# --- its tangent ------------------------------------------------------------------------------
def _identity(x: Any, *, tap: Tap) -> Any:
    return x


def _batch_flow(arguments: Any, dimensions: Any, *, tap: Tap) -> tuple[Any, Any]:
    return _batched(FLOW, arguments, dimensions, tap)


def _flows_back(cotangent: Any, _: Any, *, tap: Tap) -> list[Any]:
    if type(cotangent) is not ad.Zero:
        OBSERVE.bind(cotangent, tap=tap)
    return [cotangent]


def _nothing(_: Any, x: Any, *, tap: Tap) -> list[Any]:
    return [x]


FLOW.def_impl(_identity)
FLOW.def_abstract_eval(_identity)
batching.primitive_batchers[FLOW] = cast(Any, _batch_flow)
cast(Any, ad).deflinear2(FLOW, _flows_back)
mlir.register_lowering(FLOW, cast(Any, _nothing))

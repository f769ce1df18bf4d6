"""One primitive that shows an array to observers, and changes nothing else of a program.

It has no result.  Under `vmap` it takes the whole batch at once, under `grad` the primal only, under
`checkpoint` the first run only; compiled, it computes statistics on the device and sends them to the host.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, cast

import jax
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, partial_eval

from neuronscope.engine.guard import GUARD
from neuronscope.probes import OUTPUT
from neuronscope.signals.records import Attributes, AttributeValue
from neuronscope.summaries import arrays
from neuronscope_instrumentation.common.host_arrays import NOTHING
from neuronscope_instrumentation.jax import models, sessions, statistics
from neuronscope_instrumentation.jax.dtypes import dtype_name, is_numeric, widened
from neuronscope_instrumentation.jax.models import Handle
from neuronscope_instrumentation.jax.snapshot import ArraySnapshot, SentSnapshot
from neuronscope_instrumentation.jax.statistics import measure
from neuronscope_instrumentation.jax.untyped import is_traced, programs_in

COMPILED: Final = "compiled"
MAPPED: Final = "mapped"
SHARDED: Final = "sharded"
SOURCE: Final = "source"
STRANGE: Final = "inside a transformation that cannot show it"
# JAX's transformations that let effects pass.  Others (`jet`, `sparsify`) would stop at the primitive.
_KNOWN: Final = frozenset({
    "DynamicJaxprTracer", "JaxprTracer", "BatchTracer", "JVPTracer", "LinearizeTracer", "ShardMapTracer",
})  # fmt: skip


class Tap(NamedTuple):
    """What a place in a program carries: whose layer it is, and how much of it to send.

    Attributes:
        axes: mesh axes by which the array is split (`shard_map`, `pmap`): each device sends its part.
        mapped: leading dimensions that `vmap` added.
        role: which of the layer's arrays it is.
        why: the reason, where there is nothing to show.
        source: where attention weights are from.
    """

    lane: int
    token: int
    path: str
    detail: int
    axes: tuple[str, ...] = ()
    mapped: int = 0
    role: str = OUTPUT
    why: str = ""
    source: str = ""


def show(handle: Handle, path: str, output: Any, role: str = OUTPUT, why: str = "", source: str = "") -> None:
    """A layer has returned `output`: its first array, or a reason, goes to whoever watches."""
    array = next((leaf for leaf in jax.tree_util.tree_leaves(output) if is_array(leaf)), None)
    if array is None:
        return
    if not is_traced(array):
        show_live(handle, path, array, role, why, source)
    elif (tap := tap_of(handle, path, array, role)) is not None:
        OBSERVE.bind(array, tap=tap._replace(why=why, source=source))


def tap_of(handle: Handle, path: str, array: Any, role: str) -> Tap | None:
    """What the program being traced has to carry for an array; None if nobody wants it, or could see it."""
    session = sessions.current()
    if session is None:
        handle.told["another thread"] = None
    elif not passes(array):
        handle.told[STRANGE] = None
    elif (detail := session.detail(handle, path, role)) is not None:
        axes = tuple(str(name) for name in jax.sharding.get_abstract_mesh().manual_axes)
        return Tap(session.lane, handle.token, path, detail, axes, role=role)
    return None


def passes(value: Any) -> bool:
    """Can the value's transformation, if it is in one, show layers?"""
    return not is_traced(value) or type(value).__name__ in _KNOWN


def observes(program: Any) -> bool:
    """May a program show layers?"""
    return EFFECT in program.effects


def shown(program: Any) -> frozenset[int]:
    """The tokens of the models whose layers a program shows."""
    found: set[int] = set()
    pending = [program]
    while pending:
        current = pending.pop()
        for equation in getattr(current, "jaxpr", current).eqns:
            if equation.primitive in (OBSERVE, *CARRIERS):
                found.add(equation.params["tap"].token)
            pending.extend(programs_in(equation.params))
    return frozenset(found)


def show_live(handle: Handle, path: str, array: Any, role: str, why: str = "", source: str = "") -> None:
    """A layer of eager code has returned `array`."""
    watching = [observer for observer in tuple(handle.observers) if observer.wants(path, role)]
    if not watching:
        return
    if why:
        sessions.lend(watching, path, SentSnapshot(tuple(array.shape), array.dtype, NOTHING, why_not=why))
    else:
        sessions.lend(watching, path, ArraySnapshot(array, {SOURCE: source} if source else NOTHING))


def is_array(leaf: object) -> bool:
    """Is it an array, or stands for one?"""
    return isinstance(leaf, jax.Array | np.ndarray)


# --- the primitive ----------------------------------------------------------------------------
def _no_effect() -> None:
    jax.debug.callback(lambda: None)


# Of `jax.debug.callback`: what every transformation of JAX lets pass.
(EFFECT,) = jax.make_jaxpr(_no_effect)().effects
OBSERVE: Final[Any] = Primitive("neuronscope_observe")
CARRIERS: Final[list[Any]] = []  # other primitives with a tap
OBSERVE.multiple_results = True


def _evaluate(x: Any, *, tap: Tap) -> list[Any]:
    handle = models.by_token(tap.token)
    if handle is not None:
        GUARD.call("jax.show", show_live, handle, tap.path, x, *tap[-3:])
    return []


def _abstract(x: Any, *, tap: Tap) -> tuple[list[Any], set[Any]]:
    return [], {EFFECT}


def _batch(arguments: Any, dimensions: Any, *, tap: Tap) -> tuple[list[Any], list[Any]]:
    (x,), (dimension,) = arguments, dimensions
    if isinstance(dimension, int):
        x, tap = front(x, dimension), tap._replace(mapped=tap.mapped + 1)
    OBSERVE.bind(x, tap=tap)
    return [], []


def front(x: Any, dimension: int) -> Any:
    """The array with one of its dimensions first."""
    if dimension == 0:
        return x
    order = (dimension, *(number for number in range(x.ndim) if number != dimension))
    return lax.transpose(x, order)


def _differentiate(primals: Any, tangents: Any, *, tap: Tap) -> tuple[list[Any], list[Any]]:
    OBSERVE.bind(*primals, tap=tap)
    return [], []


def _partially(saveable: Any, unknown: Any, instantiated: Any, equation: Any) -> tuple[Any, ...]:
    """What is known is shown in the first run, and not again when it is recomputed."""
    if any(unknown):
        missing = [v for v, is_there in zip(equation.invars, instantiated, strict=True) if not is_there]
        return None, equation, [], [], missing
    return equation, None, [], [], []


def lowered(x: Any, *, tap: Tap) -> list[Any]:
    """What a compiled program does: statistics on the device, and a call of ours."""
    shape, dtype = tuple(x.shape), x.dtype
    parts: tuple[Any, ...] = ()
    if tap.why:
        pass
    elif tap.detail == sessions.WHOLE:
        parts = (x,)
    elif tap.detail == sessions.STATISTICS and x.size and is_numeric(dtype):
        parts = measure(x)

    def receive(*sent: Any) -> None:
        GUARD.call("jax.receive", _receive, tap, shape, dtype, sent)

    jax.debug.callback(receive, *parts)
    return []


OBSERVE.def_impl(_evaluate)
OBSERVE.def_effectful_abstract_eval(_abstract)
batching.primitive_batchers[OBSERVE] = cast(Any, _batch)
ad.primitive_jvps[OBSERVE] = cast(Any, _differentiate)
partial_eval.partial_eval_jaxpr_custom_rules[OBSERVE] = cast(Any, _partially)
mlir.register_lowering(OBSERVE, mlir.lower_fun(lowered, multiple_results=True))


# --- on the host ------------------------------------------------------------------------------
def _receive(tap: Tap, shape: tuple[int, ...], dtype: Any, sent: tuple[Any, ...]) -> None:
    session, handle = sessions.by_lane(tap.lane), models.by_token(tap.token)
    if session is None or handle is None:
        return
    values = [np.asarray(part) for part in sent]
    attributes = _attributes(tap, dtype)
    if tap.why:
        snapshot = SentSnapshot(shape, dtype, attributes, why_not=tap.why)
    elif tap.detail == sessions.WHOLE:
        snapshot = SentSnapshot(shape, dtype, attributes, whole=values[0])
    elif values:
        count = int(np.prod(shape, dtype=np.int64))
        summary = statistics.read(count, *values)
        snapshot = SentSnapshot(shape, dtype, attributes, summary=summary)
    elif not is_numeric(dtype):
        snapshot = SentSnapshot(shape, dtype, attributes, why_not=f"dtype:{dtype_name(dtype)}")
    elif tap.detail == sessions.STATISTICS:  # an empty array
        nothing = arrays.summarize(widened(np.zeros(shape, dtype)))
        snapshot = SentSnapshot(shape, dtype, attributes, summary=nothing)
    else:
        snapshot = SentSnapshot(shape, dtype, attributes)
    session.deliver(handle, tap.path, tap.role, snapshot)


def _attributes(tap: Tap, dtype: Any) -> Attributes:
    told: dict[str, AttributeValue] = {COMPILED: True}
    if tap.mapped:
        told[MAPPED] = tap.mapped
    if tap.axes:
        told[SHARDED] = tap.axes
    if tap.source:
        told[SOURCE] = tap.source
    return told

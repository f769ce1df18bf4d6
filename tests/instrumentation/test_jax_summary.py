"""Statistics computed inside compiled programs agree with float64, whatever the array holds."""

# JAX's and Flax's values have no types that pyright knows.
# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxnets import checkpoint_name
from neuronscope.exceptions import UnsupportedTensorError
from neuronscope.signals.records import Fidelity
from neuronscope.signals.tensors import TensorSnapshot, TensorSummary
from neuronscope_instrumentation.jax import ADAPTER
from neuronscope_instrumentation.jax.dtypes import widened
from neuronscope_instrumentation.jax.snapshot import ArraySnapshot

jax: Any = importlib.import_module("jax")  # much of it has no types

FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "bool", "int4", "uint4")


class Asking:
    """An observer that asks for no more than it says."""

    def __init__(self, needs: Fidelity) -> None:
        self.needs = needs
        self.seen: list[TensorSnapshot] = []

    def __call__(self, snapshot: TensorSnapshot) -> None:
        self.seen.append(snapshot)


def in_program(x: Any, needs: Fidelity = Fidelity.SUMMARY) -> TensorSnapshot:
    """The snapshot that compiled code sends of an array."""
    run = jax.jit(lambda x: checkpoint_name(x, "x"))
    asking = Asking(needs)
    undo = ADAPTER.observe_layer(run, "x", asking)
    run(x)
    undo()
    (snapshot,) = asking.seen
    return snapshot


def assert_close(got: TensorSummary, values: Any) -> None:
    """Counts and extremes exact; the rest to float32's accuracy."""
    wanted = TensorSummary.of(widened(np.asarray(values)))
    for name in ("count", "zero_count", "nan_count", "inf_count"):
        assert getattr(got, name) == getattr(wanted, name), name
    complex_ = np.iscomplexobj(values)
    for name in ("min", "max", "abs_max"):
        expected = pytest.approx(getattr(wanted, name), rel=1e-6 if complex_ else 0, abs=0, nan_ok=True)
        assert getattr(got, name) == expected, name
    assert got.std == pytest.approx(wanted.std, rel=1e-5, nan_ok=True)
    assert got.l2 == pytest.approx(wanted.l2, rel=1e-5, nan_ok=True)
    rms = wanted.l2 / math.sqrt(max(1, wanted.count))
    assert got.mean == pytest.approx(
        wanted.mean, rel=1e-5, abs=0 if math.isnan(rms) else 1e-6 * rms, nan_ok=True
    )


def normal(*shape: int) -> Any:
    return jax.random.normal(jax.random.key(0), shape)


def planted(**places: float) -> Any:
    values = np.array(normal(5000))
    for position, value in places.items():
        values[int(position[1:])] = value
    return jnp.asarray(values)


HARD: dict[str, Callable[[], Any]] = {
    "normal": lambda: normal(100_003),
    "rows": lambda: normal(300, 700),
    "mean 1e4 times the deviation": lambda: normal(100_000) + 1e4,
    "float32's last digits": lambda: 1e6 + jnp.arange(50_000) % 3 / 16,
    "constant": lambda: jnp.full((100_000,), 0.1),
    "large": lambda: normal(1000) * 1e38,
    "small": lambda: normal(1000) * 1e-36,
    "all NaN": lambda: jnp.full((10,), jnp.nan),
    "Inf of both signs and NaN": lambda: planted(p3=math.inf, p7=-math.inf, p9=math.nan),
    "zeros": lambda: jnp.zeros((3, 5)),
    "negative zero": lambda: jnp.array([-0.0, 0.0, 1.0]),
    "one number": lambda: jnp.array(3.5),
    "empty": lambda: jnp.zeros((0, 4)),
    "complex": lambda: normal(100) + 1j * normal(100),
}


@pytest.mark.parametrize("name", list(HARD))
def test_statistics_of_hard_arrays(name: str) -> None:
    """As accurate as in eager code."""
    values = HARD[name]()
    assert_close(in_program(values).summarize(), values)
    assert_close(ArraySnapshot(values).summarize(), values)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_statistics_of_every_type(dtype: str) -> None:
    """Each under its safetensors name; the array itself bit for bit."""
    values = jnp.clip(normal(40, 7) * 3, 0 if dtype[0] in "ub" and dtype != "bfloat16" else -7, 7).astype(
        dtype
    )
    summary = in_program(values)
    assert_close(summary.summarize(), values)
    with pytest.raises(UnsupportedTensorError, match="only statistics"):
        summary.numpy()
    whole = in_program(values, Fidelity.FULL)
    assert_close(whole.summarize(), values)
    assert whole.dtype == ArraySnapshot(values).dtype == summary.dtype
    array = whole.numpy()
    assert array.nbytes == whole.nbytes
    assert array.flags.owndata
    assert array.tobytes() == np.ascontiguousarray(widened(np.asarray(values))).tobytes()


def test_integers_beyond_float32_keep_their_extremes() -> None:
    """Extremes are taken in the type itself."""
    values = jnp.array([-(2**31), 2**31 - 1, 2**24 + 1])
    summary = in_program(values).summarize()
    assert (summary.min, summary.max) == (-(2**31), 2**31 - 1)


def test_double_precision_where_it_is_switched_on() -> None:
    """float64 is summed in float64."""
    with jax.enable_x64(True):
        values = jnp.asarray(np.random.default_rng(0).normal(size=1000) * 1e-300 + 1e200)
        assert values.dtype == jnp.float64
        got = in_program(values).summarize()
        assert got.mean == pytest.approx(1e200, rel=1e-14)
        assert in_program(values).dtype == "F64"


def test_what_has_no_arithmetic_is_refused_with_the_reason() -> None:
    """Random keys, in eager and in compiled code; and what was donated."""
    keys = jax.random.split(jax.random.key(0), 3)
    for snapshot in (in_program(keys), ArraySnapshot(keys)):
        assert snapshot.nbytes == 0
        with pytest.raises(UnsupportedTensorError, match="dtype:key"):
            snapshot.summarize()
    gone = jnp.ones(3)
    gone.delete()
    with pytest.raises(UnsupportedTensorError, match="donated"):
        ArraySnapshot(gone).numpy()


def test_a_live_snapshot_is_a_loan() -> None:
    """It is valid during the callback, and says so afterwards."""
    snapshot = ArraySnapshot(jnp.ones(3))
    copied = snapshot.numpy()
    snapshot.close()
    with pytest.raises(ValueError, match="only while the observer's callback ran"):
        snapshot.numpy()
    assert copied.sum() == 3


def test_large_arrays_come_from_compiled_code_without_a_deadlock() -> None:
    """Callbacks that wait for the device have been known to wait for ever."""
    values = jnp.ones((2048, 2048))
    whole = in_program(values, Fidelity.FULL)
    assert whole.summarize().count == values.size

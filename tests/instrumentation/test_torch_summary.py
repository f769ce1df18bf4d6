"""Summaries agree with float64, whatever the tensor looks like."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import astuple

from neuronscope.exceptions import UnsupportedTensorError
from neuronscope.signals.tensors import TensorSummary
from neuronscope.summaries import Moments
from neuronscope_instrumentation.torch import fallback
from neuronscope_instrumentation.torch.internals import without_function_modes
from neuronscope_instrumentation.torch.summary import summarize


def reference(values: torch.Tensor) -> TensorSummary:
    """The statistics by numpy in float64."""
    if values.is_complex():
        values = values.to(torch.complex128).abs()
    return TensorSummary.of(values.double().numpy())


def assert_close(got: TensorSummary, wanted: TensorSummary, extremes: float = 0.0) -> None:
    """Counts and extremes exact; the rest to the accuracy that `summary` promises."""
    for name in ("count", "zero_count", "nan_count", "inf_count"):
        assert getattr(got, name) == getattr(wanted, name), name
    for name in ("min", "max", "abs_max"):
        expected = pytest.approx(getattr(wanted, name), rel=extremes, abs=0, nan_ok=True)
        assert getattr(got, name) == expected, name
    assert got.std == pytest.approx(wanted.std, rel=1e-5, nan_ok=True)
    assert got.l2 == pytest.approx(wanted.l2, rel=1e-5, nan_ok=True)
    rms = wanted.l2 / math.sqrt(max(1, wanted.count))
    tolerance = 0.0 if math.isnan(rms) else 1e-6 * rms
    assert got.mean == pytest.approx(wanted.mean, rel=1e-5, abs=tolerance, nan_ok=True)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def planted(**places: float) -> torch.Tensor:
    values = normal(5000)
    for position, value in places.items():
        values[int(position[1:])] = value
    return values


ADVERSARIAL: dict[str, Callable[[], torch.Tensor]] = {
    "normal": lambda: normal(100_003),
    "several pieces": lambda: normal(700_001),
    "mean 1e4 times the deviation": lambda: normal(300_000) + 1e4,
    "float32's last digits": lambda: 1e6 + torch.arange(50_000) % 3 / 16,
    "mean of one piece far from another": lambda: torch.cat([normal(1 << 18), normal(1 << 18) + 1000]),
    "constant": lambda: torch.full((300_000,), 0.1),
    "constant, alternating": lambda: torch.tensor([1 / 3, -1 / 3]).repeat(1 << 17),
    "one outlier": lambda: planted(_7=3e4),
    "outlier channels": lambda: normal(256, 1024) * torch.tensor([50.0] * 6 + [1.0] * 1018),
    "lognormal": lambda: torch.exp(normal(200_000) * 2),
    "squares overflow": lambda: normal(5000) * 1e30,
    "sum overflows": lambda: torch.full((5000,), 1e38),
    "squares vanish": lambda: normal(5000) * 1e-25,
    "denormal": lambda: torch.full((3,), 1e-42),
    "zeros": lambda: torch.zeros(70_000),
    "half zeros": lambda: normal(70_000).relu(),
    "negative zero": lambda: torch.tensor([-0.0, 0.0, 1.0]),
    "one NaN": lambda: planted(_9=math.nan),
    "infinities of both signs": lambda: planted(_3=math.inf, _4=-math.inf, _5=math.nan),
    "all NaN": lambda: torch.full((5,), math.nan),
    "all infinite": lambda: torch.tensor([math.inf, -math.inf]),
    "empty": lambda: torch.empty(0, 7),
    "scalar": lambda: torch.tensor(3.5),
    "one element": lambda: torch.tensor([2.0]),
    "row remainder": lambda: normal(16_385 + 1),
}


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_float32_agrees_with_float64(name: str) -> None:
    """Mean, deviation and norm to 1e-5; extremes and counts exactly."""
    values = ADVERSARIAL[name]()
    assert_close(summarize(values), reference(values))


FLOATS = [
    getattr(torch, name)
    for name in (
        "float64",
        "float32",
        "bfloat16",
        "float16",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
    )
]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS, ids=str)
def test_every_real_type_agrees_with_float64(dtype: torch.dtype) -> None:
    """Narrow types are widened first: no overflow at 60,000, no saturation."""
    values = (normal(20_000) * 20).clamp(0, 200).to(dtype)
    assert_close(summarize(values), reference(values))


def test_half_precision_does_not_overflow() -> None:
    """float16 values near its end have a finite norm."""
    values = torch.full((4096,), 60_000.0, dtype=torch.float16)
    assert summarize(values).l2 == pytest.approx(60_000 * 64, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
def test_complex_values_count_by_modulus(dtype: torch.dtype) -> None:
    """Also conjugated views, and infinite parts."""
    values = torch.complex(normal(3000), normal(3000)).to(dtype)
    values[5] = torch.tensor(complex(math.inf, 0))
    # A modulus is computed, so its last digit may differ.
    assert_close(summarize(values.conj()), reference(values), extremes=1e-15)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda t: t.transpose(0, 2),
    "permuted": lambda t: t.permute(1, 2, 0),
    "every other": lambda t: t[:, ::2],
    "column": lambda t: t[..., 3],
    "expanded": lambda t: t[:1].expand(9, -1, -1),
    "broadcast scalar": lambda t: t[0, 0, 0].expand(700, 1000),
    "negated view": lambda t: torch.complex(t, t).conj().imag,
    "overlapping": lambda t: t.view(-1).unfold(0, 8, 3),
    "channels last": lambda t: t.unsqueeze(0).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("shape", [(4, 20, 30), (40, 80, 130)], ids=["small", "large"])
def test_strides_do_not_matter(name: str, shape: tuple[int, ...]) -> None:
    """Views give the statistics of the elements they show."""
    values = LAYOUTS[name](normal(*shape))
    assert_close(summarize(values), reference(values.resolve_neg()))


def test_a_dense_permuted_tensor_is_not_copied() -> None:
    """Its pieces are views into its memory."""
    values = normal(64, 32).t()
    (piece,) = fallback.pieces(values, fallback.PIECE)
    assert piece.data_ptr() == values.data_ptr()


def fake() -> torch.Tensor:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.ones(3)


def freed() -> torch.Tensor:
    values = torch.ones(1000)
    values.untyped_storage().resize_(0)
    return values


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: torch.ones(3, device="meta"), "meta"),
        (lambda: torch.eye(3).to_sparse(), "layout:sparse_coo"),
        (lambda: torch.eye(3).to_sparse_csr(), "layout:sparse_csr"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "dtype:qint8"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
        (
            lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            "nested",
        ),
        (fake, "subclass:FakeTensor"),
        (freed, "no memory"),
    ],
    ids=["meta", "coo", "csr", "qint8", "nested", "jagged", "fake", "freed"],
)
def test_what_has_no_plain_memory_is_refused_with_a_reason(
    make: Callable[[], torch.Tensor], reason: str
) -> None:
    """A typed error with a reason fit for a label; never an address read."""
    with pytest.raises(UnsupportedTensorError) as error:
        summarize(make())
    assert error.value.reason == reason


def test_subclasses_with_plain_memory_are_read() -> None:
    """A subclass that only adds methods is a tensor like any; its overrides are not called."""

    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(func)

    with without_function_modes():
        values = normal(100).as_subclass(Loud)
        expected = reference(values.as_subclass(torch.Tensor))
    assert_close(summarize(values), expected)
    assert_close(summarize(torch.nn.Parameter(normal(100))), expected)


def test_moments_merge_as_if_read_together() -> None:
    """Parts of unlike size and mean add up to the whole."""
    parts = [normal(10), normal(100_000) * 3 + 50, torch.empty(0), torch.tensor([math.nan, 0.0])]
    total = Moments()
    for part in parts:
        total.merge(fallback.cpu_moments(part))
    assert_close(total.summary(), reference(torch.cat(parts)))


@pytest.mark.parametrize("name", ADVERSARIAL)
def test_the_accelerator_s_route_agrees_too(name: str) -> None:
    """The code that computes on a device without waiting, here run on the CPU."""
    values = ADVERSARIAL[name]()
    assert_close(fallback.device_moments(values).summary(), reference(values))


def test_gradients_and_random_state_are_left_alone() -> None:
    """No graph is recorded; the generator is where it was."""
    values = normal(100).requires_grad_()
    state = torch.get_rng_state()
    assert all(isinstance(value, int | float) for value in astuple(summarize(values * 2))[:-2])
    assert torch.equal(torch.get_rng_state(), state)
    assert values.grad is None


def test_numpy_agrees_on_the_reference() -> None:
    """The reference itself: two numbers by hand."""
    found = TensorSummary.of(np.array([3.0, -4.0]))
    assert (found.mean, found.std, found.l2) == (-0.5, 3.5, 5.0)

"""A snapshot is lazy while the callback runs, a plain host copy afterwards, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from neuronscope.exceptions import UnsupportedTensorError
from neuronscope.signals.tensors import DTYPE_NAMES
from neuronscope_instrumentation.torch import ADAPTER
from neuronscope_instrumentation.torch.memory import dtype_name
from neuronscope_instrumentation.torch.snapshot import TorchSnapshot


def test_values_share_no_memory_and_no_graph() -> None:
    """Writing to the tensor later does not change the copy."""
    tensor = torch.ones(3, requires_grad=True) * 2
    array = TorchSnapshot(tensor).numpy()
    with torch.no_grad():
        tensor.zero_()
    assert array.tolist() == [2.0, 2.0, 2.0]
    assert array.flags.owndata


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.float16, torch.int8, torch.int64, torch.bool, torch.complex64],
    ids=str,
)
def test_types_that_numpy_has_come_as_they_are(dtype: torch.dtype) -> None:
    """Element type, shape and bytes are the tensor's."""
    tensor = torch.tensor([[0, 1, 2], [3, 4, 5]], dtype=dtype)
    snapshot = TorchSnapshot(tensor)
    array = snapshot.numpy()
    assert snapshot.dtype == DTYPE_NAMES[array.dtype.name]
    assert snapshot.shape == array.shape == (2, 3)
    assert snapshot.nbytes == array.nbytes
    assert torch.equal(torch.from_numpy(array), tensor)


@pytest.mark.parametrize(
    ("dtype", "name", "bits"),
    [
        (torch.bfloat16, "BF16", "uint16"),
        (torch.float8_e4m3fn, "F8_E4M3", "uint8"),
        (torch.float8_e5m2, "F8_E5M2", "uint8"),
    ],
)
def test_types_that_numpy_lacks_come_as_their_bits(dtype: torch.dtype, name: str, bits: str) -> None:
    """Nothing is lost: the bits give the tensor back."""
    tensor = torch.randn(4, 5).to(dtype)
    snapshot = TorchSnapshot(tensor.t())
    array = snapshot.numpy()
    assert (snapshot.dtype, array.dtype.name) == (name, bits)
    back = torch.from_numpy(array).view(dtype)
    assert torch.equal(back.float(), tensor.t().float())


def test_views_are_copied_as_they_show() -> None:
    """Transposed, conjugated and negated views: C order, resolved."""
    values = torch.complex(torch.arange(6.0), torch.arange(6.0)).view(2, 3)
    np.testing.assert_array_equal(TorchSnapshot(values.t().conj()).numpy(), values.numpy().conj().T)
    np.testing.assert_array_equal(TorchSnapshot(values.conj().imag).numpy(), (-values.imag).numpy())
    assert TorchSnapshot(values.t()).numpy().flags.c_contiguous


def test_shape_type_and_size_cost_no_copy() -> None:
    """They are known for tensors without values, too; values are refused with a reason."""
    snapshot = TorchSnapshot(torch.ones(2, 3, device="meta", dtype=torch.bfloat16))
    assert (snapshot.shape, snapshot.dtype, snapshot.nbytes) == ((2, 3), "BF16", 12)
    with pytest.raises(UnsupportedTensorError, match="meta"):
        snapshot.numpy()


def test_a_snapshot_ends_with_its_callback() -> None:
    """Kept too long it says so, and does not keep the tensor."""
    kept: list[Any] = []
    layer = nn.Linear(2, 2)
    ADAPTER.observe_layer(layer, "", kept.append)
    layer(torch.ones(1, 2))
    (snapshot,) = kept
    assert snapshot.shape == (1, 2)
    with pytest.raises(ValueError, match="only while the observer's callback ran"):
        snapshot.numpy()
    with pytest.raises(ValueError, match="only while"):
        snapshot.summarize()
    assert snapshot._tensor is None


def test_observers_of_one_layer_share_a_summary() -> None:
    """The second gets what the first had computed."""
    found: list[Any] = []
    layer = nn.Linear(2, 2)
    for _ in range(2):
        ADAPTER.observe_layer(layer, "", lambda snapshot: found.append(snapshot.summarize()))
    layer(torch.ones(1, 2))
    assert found[0] is found[1]


def test_every_torch_type_has_a_name() -> None:
    """safetensors' name where there is one."""
    kinds = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    names = {dtype_name(kind) for kind in kinds}
    assert set(DTYPE_NAMES.values()) <= names
    assert len(names) == len(kinds)

"""Where in memory torch keeps what is asked of every tensor: found by trial, or not used.

Before a tensor is summarised five questions must be answered: which kinds of memory and behaviour it has
(`internals.dispatch_keys`), how many elements, from where in its storage, where that is and how large.
Through torch's bindings the answers cost more than reading a small tensor.  They are plain numbers in
structures whose layout is fixed in a build of torch, and named nowhere.  So it is looked for in samples of
which the answers are known: reading what may be no memory through the kernel, which refuses instead of
faulting.  It is used only if every answer is in one place in all samples, and nowhere else.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

import torch

from neuronscope_instrumentation.torch.internals import dispatch_keys

_WORD: Final = 8
_TENSOR_BYTES: Final = 256  # that are looked at; torch 2.13's take 192
_STORAGE_BYTES: Final = 96


class Layout(NamedTuple):
    """Offsets in bytes: in the Python object, in the tensor, and in its storage.

    Attributes:
        tensor: of the pointer to the tensor.
        keys: of its dispatch keys.
        elements: of their number; `offset`: of the first one's place in the storage.
        storage: of the pointer to the storage.
        data: of the storage's address; `held`: of its size in bytes.
    """

    tensor: int
    keys: int
    elements: int
    offset: int
    storage: int
    data: int
    held: int


class Answers(NamedTuple):
    """What torch says of a tensor."""

    keys: int
    elements: int
    offset: int
    data: int
    held: int


def answers(tensor: torch.Tensor) -> Answers:
    """The five, by torch's bindings."""
    storage = tensor.untyped_storage()
    return Answers(
        dispatch_keys(tensor),
        tensor.numel(),
        int(tensor.storage_offset()),
        storage.data_ptr(),
        storage.nbytes(),
    )


def find() -> Layout | None:
    """The layout of tensors in this build of torch; None where it is not found for certain."""
    if sys.platform != "linux" or sys.byteorder != "little" or struct.calcsize("P") != _WORD:
        return None
    try:
        memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _found(memory, list(samples()))
    except (OSError, OverflowError, RuntimeError, ValueError):  # no memory there, or another torch
        return None
    finally:
        os.close(memory)


def samples() -> Iterator[torch.Tensor]:
    """Tensors of which no two answers are alike, of every kind that may be met."""
    for n in range(3):
        whole = torch.zeros(4_099 + 514 * n, dtype=(torch.float32, torch.float64, torch.int16)[n])
        yield whole
        yield whole[17 + n : 17 + n + 35 * 11].view(5, 7, 11)
        yield whole[129:].view(-1)[: 13 * 31].view(13, 31).t()
    yield torch.frombuffer(bytearray(1_032), dtype=torch.uint8)[3:1_020]  # memory of somebody else's
    yield torch.zeros(3, 67, requires_grad=True)
    yield cast(torch.Tensor, torch.nn.Parameter(torch.zeros(19, 23, dtype=torch.bfloat16)))
    yield torch.view_as_real(torch.zeros(43, dtype=torch.complex64).conj().resolve_conj())[:, 1]
    yield torch.zeros(47, dtype=torch.complex64).conj().imag  # negated
    with torch.inference_mode():
        yield torch.zeros(53, 3)
    yield (torch.zeros(59, 2, requires_grad=True) * 2.0)[1:]  # with a history
    yield torch.zeros(61, 0, 3)


def _found(memory: int, tensors: list[torch.Tensor]) -> Layout | None:
    known = [answers(tensor) for tensor in tensors]
    to_tensor = object.__basicsize__
    at = [_words(memory, id(tensor) + to_tensor, _WORD)[0] for tensor in tensors]
    bodies = [_words(memory, address, _TENSOR_BYTES) for address in at]
    keys, elements, offset = (_only(bodies, [each[n] for each in known]) for n in range(3))
    storages: list[tuple[int, int, int]] = []
    for place in range(_TENSOR_BYTES // _WORD):
        inside = _inside(memory, [body[place] for body in bodies], known)
        if inside is not None:
            storages.append((place * _WORD, *inside))
    if keys is None or elements is None or offset is None or len(storages) != 1:
        return None
    ((storage, data, held),) = storages
    return Layout(to_tensor, keys, elements, offset, storage, data, held)


def _inside(memory: int, pointers: list[int], known: list[Answers]) -> tuple[int, int] | None:
    """Where a storage has its address and size, if that is what is pointed at."""
    try:
        bodies = [_words(memory, pointer, _STORAGE_BYTES) for pointer in pointers]
    except (OSError, OverflowError, ValueError):
        return None
    data, held = (_only(bodies, [each[n] for each in known]) for n in (3, 4))
    return None if data is None or held is None else (data, held)


def _only(bodies: list[tuple[int, ...]], wanted: list[int]) -> int | None:
    """The one offset at which each body has what is wanted."""
    places = [
        place
        for place in range(len(bodies[0]))
        if all(body[place] == value for body, value in zip(bodies, wanted, strict=True))
    ]
    return places[0] * _WORD if len(places) == 1 else None


def _words(memory: int, address: int, size: int) -> tuple[int, ...]:
    read = os.pread(memory, size, address)
    if len(read) != size:
        raise ValueError("no memory there")
    return struct.unpack(f"<{size // _WORD}Q", read)


def bind(bind_layout: Any, laid_out: Any) -> None:
    """Let compiled code read these answers itself, if all are found, and right for tensors not tried yet."""
    layout = find()
    if layout is None:
        return
    bind_layout(layout)
    if not all(laid_out(tensor) == answers(tensor) for tensor in samples()):
        bind_layout(None)

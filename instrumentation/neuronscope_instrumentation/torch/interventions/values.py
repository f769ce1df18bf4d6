"""Values that modules take and return: what may stand for what, and the first tensor in them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final

import torch

from neuronscope_instrumentation.torch.internals import class_of
from neuronscope_instrumentation.torch.outputs import first_tensor

_NOTHING: Final = object()


def is_mapping(value: object) -> bool:
    """A dictionary of some kind: transformers' outputs are."""
    return isinstance(value, Mapping)


def is_sequence(value: object) -> bool:
    """A tuple or a list."""
    return isinstance(value, tuple | list)


def is_record(value: object) -> bool:
    """A dataclass's instance."""
    return is_dataclass(value) and not isinstance(value, type)


def mismatch(old: Any, new: Any, where: str = "the value") -> str | None:
    """Why `new` cannot stand for `old`; None if it can.

    Structures must be of the same kind and length, dictionaries have the same keys, dataclasses the same
    fields, tensors the same shape, dtype and device.  What is None may become anything.
    """
    if old is None or old is new:
        return None
    if isinstance(old, torch.Tensor):
        return _tensor_mismatch(old, new, where)
    if is_mapping(old):
        return _mapping_mismatch(old, new, where)
    if is_sequence(old):
        return _sequence_mismatch(old, new, where)
    if not isinstance(new, type(old)):
        return f"{where} is a {_kind(old)}, not a {_kind(new)}."
    if is_record(old):
        return _record_mismatch(old, new, where)
    return None


def first_of(value: object) -> torch.Tensor:
    """The first tensor in a value.

    Raises:
        TypeError: there is none.
    """
    found = first_tensor(value)
    if found is None:
        raise TypeError(f"there is no tensor in this {_kind(value)}")
    return found


def replace_first(value: Any, new: torch.Tensor) -> Any:
    """The same structure with its first tensor replaced; structures are copied, never changed.

    Raises:
        TypeError: there is no tensor.
    """
    replaced = _replace(value, first_of(value), new)
    if replaced is _NOTHING:
        raise TypeError(f"the first tensor of a {_kind(value)} cannot be replaced: give the whole value")
    return replaced


def with_tensors(
    value: Any, change: Callable[..., torch.Tensor], *beside: Any, seen: dict[int, Any] | None = None
) -> Any:
    """The structure, copied, with each of its tensors given through a function.

    Args:
        change: from a tensor, and what stands in its place in each of `beside`, to another tensor.
        beside: values of the same structure.
        seen: what dataclasses have become, by identity: those of a graph know each other.
    """
    if isinstance(value, torch.Tensor):
        return change(value, *beside)
    seen = {} if seen is None else seen
    if is_sequence(value):
        items = [
            with_tensors(item, change, *[other[i] for other in beside], seen=seen)
            for i, item in enumerate(value)
        ]
        return like(value, items)
    if is_mapping(value):
        copied = _copied(value)
        for key in value:
            copied[key] = with_tensors(value[key], change, *[other[key] for other in beside], seen=seen)
        return copied
    if not is_record(value):
        return value
    if id(value) not in seen:
        seen[id(value)] = copied = copy.copy(value)
        for name, item in _fields(value):
            new = with_tensors(item, change, *[getattr(other, name) for other in beside], seen=seen)
            if new is not item:
                _set_field(copied, name, new)
    return seen[id(value)]


def inputs_first(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The first positional argument, or else the first keyword argument; None without any."""
    if args:
        return args[0]
    return next(iter(kwargs.values()), None)


def inputs_mismatch(old: Any, new: Any, where: str) -> str | None:
    """Why arguments cannot stand for others; they may be more or fewer, but not of other kinds."""
    pair: Any = new if is_sequence(new) else ()
    if len(pair) != 2 or not is_sequence(pair[0]) or not is_mapping(pair[1]):
        return f"{where} are a pair of positional arguments (a tuple) and arguments by name (a dictionary)."
    args: tuple[Any, ...] = pair[0]
    kwargs: dict[str, Any] = pair[1]
    both = [
        *((f"{where}[0][{i}]", a, b) for i, (a, b) in enumerate(zip(old[0], args, strict=False))),
        *((f"{where}[1][{name!r}]", old[1][name], kwargs[name]) for name in kwargs if name in old[1]),
    ]
    return next((why for place, a, b in both if (why := mismatch(a, b, place)) is not None), None)


def with_input(
    args: tuple[Any, ...], kwargs: dict[str, Any], value: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with the first one replaced."""
    if args:
        return (value, *args[1:]), kwargs
    name = next(iter(kwargs))
    return args, {**kwargs, name: value}


def shape_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """A tensor's shape; of a nested one, which has none, those of its parts."""
    if tensor.is_nested and tensor.layout is torch.strided:
        return tuple([tuple(part.shape) for part in tensor.unbind()])
    return tuple(tensor.shape)


def _tensor_mismatch(old: torch.Tensor, new: object, where: str) -> str | None:
    if not isinstance(new, torch.Tensor):
        return f"{where} is a tensor of shape {tuple(old.shape)}, not a {_kind(new)}."
    if old.is_nested or new.is_nested:
        if shape_of(new) != shape_of(old):
            return f"{where} has shape {shape_of(old)}, not {shape_of(new)}."
    elif new.shape != old.shape:
        hint = " Use expand_as to repeat it." if new.dim() == old.dim() and 1 in new.shape else ""
        return f"{where} has shape {tuple(old.shape)}, not {tuple(new.shape)}.{hint}"
    if new.dtype is not old.dtype:
        return f"{where} is {old.dtype}, not {new.dtype}. Use value.to({old.dtype})."
    if new.device != old.device:
        return f"{where} is on {old.device}, not on {new.device}. Use value.to({str(old.device)!r})."
    return None


def _mapping_mismatch(old: Any, new: Any, where: str) -> str | None:
    if not is_mapping(new):
        return f"{where} is a {_kind(old)} of {list(old)}, not a {_kind(new)}."
    if list(new) != list(old):
        return f"{where} has {list(old)}, not {list(new)}."
    return next(
        (why for key in old if (why := mismatch(old[key], new[key], f"{where}[{key!r}]")) is not None),
        None,
    )


def _sequence_mismatch(old: Any, new: Any, where: str) -> str | None:
    if not is_sequence(new) or isinstance(new, tuple) is not isinstance(old, tuple):
        return (
            f"{where} is a {_kind(old)} of {len(old)}, not a {_kind(new)}. "
            "To replace its first tensor and keep the rest, use replace_first."
        )
    if len(new) != len(old):
        return f"{where} is a {_kind(old)} of {len(old)}, not of {len(new)}."
    whys = (mismatch(old[i], new[i], f"{where}[{i}]") for i in range(len(old)))
    return next((why for why in whys if why is not None), None)


def _record_mismatch(old: Any, new: Any, where: str) -> str | None:
    now = dict(_fields(new))
    whys = (mismatch(item, now.get(name), f"{where}.{name}") for name, item in _fields(old))
    return next((why for why in whys if why is not None), None)


def _replace(value: Any, old: torch.Tensor, new: torch.Tensor) -> Any:
    """The value with `old` replaced; `_NOTHING` where it is not in it."""
    if value is old:
        return new
    if is_mapping(value):
        found = _replace_item(list(value.items()), old, new)
        if found is None:
            return _NOTHING
        changed_mapping = _copied(value)
        changed_mapping[found[0]] = found[1]
        return changed_mapping
    if is_sequence(value):
        found = _replace_item([(i, value[i]) for i in range(len(value))], old, new)
        if found is None:
            return _NOTHING
        changed = [*value]
        changed[found[0]] = found[1]
        return like(value, changed)
    if is_record(value):
        found = _replace_item(_fields(value), old, new)
        if found is not None:
            changed_record = copy.copy(value)
            _set_field(changed_record, *found)
            return changed_record
    return _NOTHING


def _replace_item(
    pairs: Sequence[tuple[Any, Any]], old: torch.Tensor, new: torch.Tensor
) -> tuple[Any, Any] | None:
    for key, item in pairs:
        replaced = _replace(item, old, new)
        if replaced is not _NOTHING:
            return key, replaced
    return None


def _fields(record: Any) -> list[tuple[str, Any]]:
    return [(each.name, getattr(record, each.name)) for each in fields(record) if hasattr(record, each.name)]


def _copied(mapping: Any) -> Any:
    """Of the same kind, as `ModelOutput`s must be; a dictionary where that cannot be filled."""
    fillable = issubclass(type(mapping), MutableMapping)
    return copy.copy(mapping) if fillable else dict(mapping)


def _set_field(record: Any, name: str, value: Any) -> None:
    object.__setattr__(record, name, value)  # also where it is frozen


def like(sequence: Any, items: list[Any]) -> Any:
    """The items as the kind of sequence that another one is: a list, a tuple, a named tuple."""
    kind = class_of(sequence)
    return kind(*items) if hasattr(kind, "_fields") else kind(items)


def _kind(value: object) -> str:
    return type(value).__name__

"""Values that modules take and return: what may stand for what, and the first tensor in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Final, cast

import torch

from neuronscope_instrumentation.torch.outputs import first_tensor

_NOTHING: Final = object()


def mismatch(old: object, new: object, where: str = "the value") -> str | None:
    """Why `new` cannot stand for `old`; None if it can.

    Structures must be of the same kind and length, dictionaries have the same keys, tensors the same shape,
    dtype and device.  What is None may become anything.
    """
    if old is None or old is new:
        return None
    if isinstance(old, torch.Tensor):
        return _tensor_mismatch(old, new, where)
    if isinstance(old, Mapping):
        return _mapping_mismatch(cast(Mapping[Any, Any], old), new, where)
    if isinstance(old, tuple | list):
        return _sequence_mismatch(cast(Sequence[Any], old), new, where)
    if not isinstance(new, type(old)):
        return f"{where} is a {_kind(old)}, not a {_kind(new)}."
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


def inputs_first(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The first positional argument, or else the first keyword argument; None without any."""
    if args:
        return args[0]
    return next(iter(kwargs.values()), None)


def inputs_mismatch(old: Any, new: object, where: str) -> str | None:
    """Why arguments cannot stand for others; they may be more or fewer, but not of other kinds."""
    pair = cast("tuple[Any, ...]", new) if isinstance(new, tuple) else ()
    if len(pair) != 2 or not isinstance(pair[0], tuple) or not isinstance(pair[1], dict):
        return f"{where} are a pair of positional arguments (a tuple) and arguments by name (a dictionary)."
    args, kwargs = cast("tuple[tuple[Any, ...], dict[str, Any]]", pair)
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


def _tensor_mismatch(old: torch.Tensor, new: object, where: str) -> str | None:
    if not isinstance(new, torch.Tensor):
        return f"{where} is a tensor of shape {tuple(old.shape)}, not a {_kind(new)}."
    if new.shape != old.shape:
        hint = " Use expand_as to repeat it." if new.dim() == old.dim() and 1 in new.shape else ""
        return f"{where} has shape {tuple(old.shape)}, not {tuple(new.shape)}.{hint}"
    if new.dtype is not old.dtype:
        return f"{where} is {old.dtype}, not {new.dtype}. Use value.to({old.dtype})."
    if new.device != old.device:
        return f"{where} is on {old.device}, not on {new.device}. Use value.to({str(old.device)!r})."
    return None


def _mapping_mismatch(old: Mapping[Any, Any], new: object, where: str) -> str | None:
    if not isinstance(new, Mapping):
        return f"{where} is a {_kind(old)} of {list(old)}, not a {_kind(new)}."
    given = cast(Mapping[Any, Any], new)
    if list(given) != list(old):
        return f"{where} has {list(old)}, not {list(given)}."
    return next(
        (why for key in old if (why := mismatch(old[key], given[key], f"{where}[{key!r}]")) is not None),
        None,
    )


def _sequence_mismatch(old: Sequence[Any], new: object, where: str) -> str | None:
    if not isinstance(new, tuple | list) or isinstance(new, tuple) is not isinstance(old, tuple):
        return (
            f"{where} is a {_kind(old)} of {len(old)}, not a {_kind(new)}. "
            "To replace its first tensor and keep the rest, use replace_first."
        )
    given = cast(Sequence[Any], new)
    if len(given) != len(old):
        return f"{where} is a {_kind(old)} of {len(old)}, not of {len(given)}."
    pairs = enumerate(zip(old, given, strict=True))
    return next((why for i, (a, b) in pairs if (why := mismatch(a, b, f"{where}[{i}]")) is not None), None)


def _replace(value: Any, old: torch.Tensor, new: torch.Tensor) -> Any:
    """The value with `old` replaced; `_NOTHING` where it is not in it."""
    if value is old:
        return new
    if isinstance(value, Mapping):
        found = _replace_item(list(cast(Mapping[Any, Any], value).items()), old, new)
        return _NOTHING if found is None else _mapping_like(cast(Mapping[Any, Any], value), found)
    if isinstance(value, tuple | list):
        items = cast(Sequence[Any], value)
        found = _replace_item(list(enumerate(items)), old, new)
        if found is None:
            return _NOTHING
        changed = [*items]
        changed[found[0]] = found[1]
        if isinstance(value, list):
            return changed
        kind = type(cast(object, value))
        return kind(*changed) if hasattr(kind, "_fields") else kind(changed)
    if is_dataclass(value) and not isinstance(value, type):
        pairs = [(field.name, getattr(value, field.name)) for field in fields(value)]
        found = _replace_item(pairs, old, new)
        if found is not None:
            import copy

            changed_value = copy.copy(value)
            object.__setattr__(changed_value, found[0], found[1])
            return changed_value
    return _NOTHING


def _replace_item(
    pairs: Sequence[tuple[Any, Any]], old: torch.Tensor, new: torch.Tensor
) -> tuple[Any, Any] | None:
    for key, item in pairs:
        replaced = _replace(item, old, new)
        if replaced is not _NOTHING:
            return key, replaced
    return None


def _mapping_like(value: Mapping[Any, Any], change: tuple[Any, Any]) -> Mapping[Any, Any]:
    import copy

    changed: Any = copy.copy(value)  # keeps `ModelOutput`s what they are
    changed[change[0]] = change[1]
    return cast(Mapping[Any, Any], changed)


def _kind(value: object) -> str:
    return type(value).__name__

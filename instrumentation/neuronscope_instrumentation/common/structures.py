"""What a layer returned, looked through without running any code of the user's."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, cast

# The built-in types' own methods: a subclass may have overridden them.
_tuple_items = cast(Callable[[object], Iterable[object]], tuple.__iter__)
_list_items = cast(Callable[[object], Iterable[object]], list.__iter__)
_dict_values = cast(Callable[[object], Iterable[object]], dict.values)
NODE_LIMIT: Final = 1_000  # objects looked at per output; 10,000 tensors in a list cost no more than this


def nodes(output: object, limit: int = NODE_LIMIT, leaves: type | tuple[type, ...] = ()) -> Iterator[object]:
    """The objects of a structure, depth first: tuples, lists, dictionaries, dataclasses, and these nested.

    Nothing else is opened: generators and iterators would be consumed, and attributes of arbitrary
    objects may compute.  Types are read by `type()`, so that a strange ``__class__`` or
    ``__getattr__`` is never asked.

    Args:
        leaves: only objects of these types are given, and they are not opened; else all objects are.
    """
    pending = [iter((output,))]
    for _ in range(limit):
        while pending:
            try:
                node = next(pending[-1])
                break
            except StopIteration:
                pending.pop()
        else:
            return
        leaf = issubclass(type(node), leaves)
        if leaf or not leaves:
            yield node
        if not leaf:
            pending.append(iter(_children(node)))


def _children(node: object) -> Iterable[object]:
    kind = type(node)
    if issubclass(kind, tuple):
        return _tuple_items(node)
    if issubclass(kind, list):
        return _list_items(node)
    if issubclass(kind, dict):  # ModelOutput of transformers is one
        return list(_dict_values(node))
    if issubclass(kind, UserDict):
        return [_attribute(node, "data")]
    if fields := getattr(kind, "__dataclass_fields__", None):
        return [_attribute(node, name) for name in cast(dict[str, Any], fields)]
    return ()


def _attribute(node: object, name: str) -> object:
    """An attribute as the instance stores it: in its dictionary, or in a slot of its class."""
    try:
        stored: dict[str, object] = object.__getattribute__(node, "__dict__")
    except AttributeError:
        stored = {}
    if name in stored:
        return stored[name]
    slot = next((vars(kind)[name] for kind in type(node).__mro__ if name in vars(kind)), None)
    if type(slot).__name__ != "member_descriptor":
        return None
    try:
        return cast(Any, slot).__get__(node)
    except AttributeError:  # declared, never assigned
        return None

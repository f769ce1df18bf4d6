"""A method in whose place we stand."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from opentelemetry.trace import SpanKind

from neuronscope import compiled
from neuronscope.instrumentation import WrappedMethod

MAX_PLAIN: Final = 256  # types of results that are remembered


class Seam:
    """A method in whose place we stand: what is the same for all of its calls.

    Attributes:
        covers: ``(arguments) -> bool``: is such a call to be observed?
        library: instrumentation scope of its spans.
        name: what the service calls it.
        site: where faults of ours are counted.
        kind: of its spans.
        bound: its first argument is an instance.
        parameters: names of its positional arguments, without the instance.
        plain: types of results that are neither streams nor bodies to be read.
    """

    __slots__ = ("bound", "covers", "kind", "library", "method", "name", "parameters", "plain", "site")

    def __init__(
        self,
        method: WrappedMethod,
        covers: Callable[[tuple[Any, ...]], bool],
        library: str,
        name: str,
        site: str,
        *,
        bound: bool,
        parameters: Sequence[str],
    ) -> None:
        self.method = method
        self.covers = covers
        self.library = library
        self.name = name
        self.site = site
        self.kind = SpanKind.INTERNAL if method.in_process else SpanKind.CLIENT
        self.bound = bound
        self.parameters = tuple(parameters)
        self.plain: set[type] = set()

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name."""
        return _arguments(self.parameters, self.bound, args, kwargs)

    def changed(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], arguments: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments with those replaced that `arguments` holds differently."""
        instance, given = (args[:1], args[1:]) if self.bound else ((), args)
        names = self.parameters
        positional = (
            *(arguments.get(name, value) for name, value in zip(names, given, strict=False)),
            *given[len(names) :],
        )
        taken = names[: len(given)]
        keyword = {name: arguments.get(name, value) for name, value in kwargs.items()}
        extra = {name: value for name, value in arguments.items() if name not in kwargs and name not in taken}
        return (*instance, *positional), {**keyword, **extra}


def arguments_in_python(
    parameters: Sequence[str], first: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The arguments of a call by name; the `first` ones of `args` are left out."""
    found = dict(kwargs)
    given = zip(parameters, args[first:])  # noqa: B905 - some may be left to defaults
    found.update((name, value) for name, value in given if name not in kwargs)
    return found


_arguments: Final = compiled.choose("arguments", arguments_in_python)


@functools.lru_cache(maxsize=64)
def seam_of(library: str) -> Seam:
    """Stands for the methods of a library whose adapter has a seam of its own."""
    method = WrappedMethod(target=library, snapshot=_no_snapshot)
    return Seam(method, lambda _: True, library, "", library, bound=False, parameters=())


def _no_snapshot(_instance: Any, _arguments: dict[str, Any], _content: bool) -> None:
    """There is no method behind such a seam."""

"""What a model runtime gives for interventions; optional for a `BackendAdapter`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self, runtime_checkable

from neuronscope.interventions.options import Options
from neuronscope.interventions.views import View


class Site(Protocol):
    """A module's place in a trace; see the runtime's own for the rest."""

    path: str
    output: Any
    input: Any
    inputs: Any
    first: Any

    def replace_first(self, value: Any) -> None:
        """Replace the first tensor of `output` and keep the rest."""
        ...

    def skip(self, value: Any) -> None:
        """Do without the module's call."""
        ...

    def edit(self, function: Callable[[Any], Any]) -> None:
        """Give every output from now on through a function."""
        ...


class Trace(Protocol):
    """One call of a model, read and changed from the body of a ``with`` statement."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def __getitem__(self, path: str | int) -> Any: ...

    def __getattr__(self, name: str) -> Any: ...

    @property
    def result(self) -> Any:
        """What the traced call returned."""
        ...

    @property
    def steps(self) -> Any:
        """The model's forwards, one after the other."""
        ...

    def stop(self) -> None:
        """End the model here."""
        ...


class Interventions(Protocol):
    """Interventions in one model, for the handle that the user has on it."""

    def trace(
        self,
        method: str | Callable[..., Any] | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: Options,
    ) -> Any:
        """A trace of one call."""
        ...

    def encode(
        self, tokenizer: Any, method: str | Callable[..., Any] | None, args: tuple[Any, ...]
    ) -> dict[str, Any] | None:
        """The model's arguments for a text; None if no text was given."""
        ...

    def alias(self, name: str, path: str) -> None:
        """Another name for a path."""
        ...

    def view(self, view: View) -> None:
        """Define a view."""
        ...

    def show(self, path: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """What a module's forward calls, with shapes."""
        ...

    def describe(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The model's modules with their views and aliases; with arguments, the views' shapes."""
        ...

    def edit(self, path: str, edit: Callable[[Any], Any]) -> Callable[[], None]:
        """Give every output of a module, in every call, through a function; returns the undo."""
        ...

    def attach(self, name: str, module: Any, path: str) -> Callable[[], None]:
        """Pass a module's outputs through another one; returns the undo."""
        ...

    def paths(self, *patterns: str) -> list[str]:
        """Paths that paths, aliases or patterns stand for: of each module one, the first."""
        ...


@runtime_checkable
class InterveningBackend(Protocol):
    """A backend whose models can be intervened in."""

    def interventions(self, model_obj: Any) -> Interventions:
        """Interventions in one model.

        Raises:
            MissingDependencyError: what they need is not installed.
        """
        ...

"""Views: values over a site that a model's author did not give a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

Place = Literal["output", "input", "inputs"]


@dataclass(frozen=True, slots=True)
class View:
    """A value that is read, and can be written, where a module's output or input is.

    Attributes:
        name: the site's attribute under which the view is found.
        of: which modules have it: a class of modules, or a path or pattern (``"**.self_attn"``).
        read: ``(value, module) -> what the user sees``.
        write: ``(what the user gave, value, module) -> new value``; None: the view can only be read.
        on: what it is over: ``"output"``, ``"input"`` or ``"inputs"``.
        description: shown where the model's sites are listed.
    """

    name: str
    of: str | type
    read: Callable[[Any, Any], Any]
    write: Callable[[Any, Any, Any], Any] | None = None
    on: Place = "output"
    description: str = ""

    def __post_init__(self) -> None:
        places = get_args(Place)
        if self.on not in places:
            raise ValueError(f"the view {self.name!r} is over one of {', '.join(places)}, not {self.on!r}")

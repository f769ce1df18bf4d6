"""What of the engine is compiled: `neuronscope._native`, and the choice between its functions and Python's.

Every compiled function has a twin in Python that returns the same (property tests hold the pairs together).
Where the package was built without a C compiler, or ``NEURONSCOPE_NATIVE=false`` is in the environment, the
twins run; ``neuronscope doctor`` says which.  See docs/decisions/0011.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

SWITCH: Final = "NEURONSCOPE_NATIVE"
_OFF: Final = frozenset({"0", "false", "no", "off"})


def _load() -> tuple[ModuleType | None, str]:
    """The module, or why there is none."""
    if os.environ.get(SWITCH, "").strip().lower() in _OFF:
        return None, f"{SWITCH} switches it off"
    try:
        from neuronscope import _native

        file: str | None = getattr(_native, "__file__", None)
        if file is None:  # in a checkout, Python takes the folder of its sources for a package
            raise ModuleNotFoundError(_native.__name__)
    except ModuleNotFoundError:
        return None, "this package was built without a C compiler or Python's headers"
    except ImportError as error:  # of another machine, or not for this kind of interpreter
        return None, f"it cannot be used here: {error}"
    if is_older_than_its_sources(Path(file)):
        return None, "it is older than its sources: python hatch_build.py compiles it"
    return _native, ""


def is_older_than_its_sources(library: Path) -> bool:
    """In a checkout that moved on: what Python gives the functions may be what they no longer take."""
    try:
        compiled = library.stat().st_mtime
        return any(file.stat().st_mtime > compiled for file in library.with_name("_native").glob("*.[ch]"))
    except OSError:
        return False


MODULE, WHY_NOT = _load()


def find(name: str) -> Any | None:
    """The compiled function of that name, if there is one here."""
    return getattr(MODULE, name, None)


def choose(name: str, twin: F) -> F:
    """The compiled function of that name, if there is one here; else its twin in Python."""
    found: F = getattr(MODULE, name, twin)
    return found


def describe() -> str:
    """Which of the two runs here, and why."""
    return "compiled" if MODULE is not None else f"Python ({WHY_NOT})"

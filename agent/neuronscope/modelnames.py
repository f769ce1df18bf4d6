"""Names of models, for people."""

from __future__ import annotations

import re
from types import FunctionType
from typing import Any, Final

_ANONYMOUS: Final = frozenset({"model", "models", "snapshot", "snapshots", "checkpoint", "latest", "."})
_HASH: Final = re.compile("[0-9a-f]{32,64}")


def model_name(model: Any) -> str:
    """A name for people: the configuration's, else the class's."""
    config = getattr(model, "config", None)
    path = getattr(config, "_name_or_path", None) or getattr(model, "model_name_or_path", None)
    if isinstance(path, str) and path:
        return name_from_path(path)
    if isinstance(model, FunctionType):
        return model.__name__
    return type(model).__name__


def name_from_path(path: str) -> str:
    """The last part of a model's path that says something: not ``model``, nor a snapshot's hash."""
    parts = [part for part in path.replace("\\", "/").split("/") if part]
    telling = [part for part in parts if part.lower() not in _ANONYMOUS and not _HASH.fullmatch(part)]
    return (telling or parts or [path])[-1]

"""Where settings come from: arguments, environment variables, and a file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any, Final, cast

from neuronscope.exceptions import ConfigError
from neuronscope.settings.kinds import parsed

CONFIG_FILE: Final = "neuronscope.toml"


def from_arguments(settings: Sequence[Field[Any]], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those that were given; None is not.

    Raises:
        ConfigError: no setting is called so.
    """
    known = {item.name for item in settings}
    if unknown := set(arguments) - known:
        raise ConfigError(f"no setting is called {min(unknown)!r}. There are: {', '.join(sorted(known))}")
    return {key: value for key, value in arguments.items() if value is not None}


def from_environment(settings: Sequence[Field[Any]], env: Mapping[str, str]) -> dict[str, Any]:
    """What variables say, by the names of the settings; those that are empty say nothing.

    Raises:
        ConfigError: a value cannot be used.
    """
    values: dict[str, Any] = {}
    for item in settings:
        for variable in item.metadata["env"]:
            if said := env.get(variable, "").strip():
                values[item.name] = parsed(variable, said, item.metadata["parse"])
                break
    return values


def from_file(settings: Sequence[Field[Any]], env: Mapping[str, str]) -> dict[str, Any]:
    """What the file says, by the names of the settings.

    Raises:
        ConfigError: it is named and not there, is no TOML, or has a key or value that cannot be used.
    """
    named = env.get("NEURONSCOPE_CONFIG", "")
    path = Path(named or CONFIG_FILE)
    if not path.is_file():
        if named:
            raise ConfigError(f"`NEURONSCOPE_CONFIG` names {named!r}, which is no file.")
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from None
    known = {item.name: item for item in settings}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            raise ConfigError(f"{path}: no setting is called {key!r}. See `neuronscope doctor`.")
        text = ",".join(map(str, cast(list[object], value))) if isinstance(value, list) else str(value)
        values[key] = parsed(f"{path}: {key}", text, known[key].metadata["parse"])
    return values

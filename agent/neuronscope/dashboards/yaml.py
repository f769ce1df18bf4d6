"""The YAML that we write: mappings, lists, strings, numbers; read by Prometheus, Alertmanager and Grafana.

Long and multi-line strings stand as blocks, so that a diff of generated rules can be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

_PLAIN: Final = re.compile(r"[A-Za-z/][\w./-]*( [\w./-]+)*")
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "none"})
_BLOCK: Final = 90  # characters from which on a string is a block


def dump(value: Mapping[str, Any], comment: str = "") -> str:
    """The document, with a comment above it."""
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    lines += _mapping(value, 0)
    return "\n".join(lines) + "\n"


def _mapping(value: Mapping[str, Any], indent: int) -> Iterator[str]:
    for key, item in value.items():
        yield from _item(f"{' ' * indent}{_scalar(key)}:", item, indent + 2)


def _list(value: Sequence[Any], indent: int) -> Iterator[str]:
    for item in value:
        if isinstance(item, Mapping) and item:
            first, *rest = _mapping(cast(Mapping[str, Any], item), indent + 2)
            yield f"{' ' * indent}- {first.lstrip()}"
            yield from rest
        else:
            yield from _item(f"{' ' * indent}-", item, indent + 2)


def _item(head: str, value: Any, indent: int) -> Iterator[str]:
    if isinstance(value, Mapping) and value:
        yield head
        yield from _mapping(cast(Mapping[str, Any], value), indent)
    elif isinstance(value, Sequence) and not isinstance(value, str) and value:
        yield head
        yield from _list(cast("list[Any]", value), indent)
    elif isinstance(value, str) and (len(value) > _BLOCK or "\n" in value) and value == value.strip():
        yield f"{head} |-"
        for line in value.split("\n"):
            yield f"{' ' * indent}{line}".rstrip()
    else:
        yield f"{head} {_scalar(value)}"


def _scalar(value: Any) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value, ensure_ascii=False)

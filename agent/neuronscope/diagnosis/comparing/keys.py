"""Checksums and hashes of two keys tell nothing about each other: what cannot be compared is taken out.

Taken for facts they would say that every prompt, document and collection is another one.
"""

from __future__ import annotations

import math
from typing import Any, Final

from neuronscope.diagnosis.comparing.columns import UNKNOWN, Columns, Table

HASHED: Final = "sha256:"
_HIDDEN: Final = "(hashed)"  # in the place of names of which nothing is known
_KEYED: Final[dict[str, Any]] = {"checksum": UNKNOWN, "pieces": (), "system": "", "tools": ""}


def settle_keys(before: Columns, after: Columns) -> None:
    """Compare what has the same key; forget the rest, and note that on both sides."""
    keys = [_keys(side.calls) for side in (before, after)]
    if all(keys) and keys[0] != keys[1]:
        for side in (before, after):
            side.keys_differ = True
            for name, nothing in _KEYED.items():
                side.calls.columns[name] = [nothing] * len(side.calls)
    hashed = [_hashes(side.searches) for side in (before, after)]
    if not any(hashed) or _comparable(*hashed):
        before.hashed = after.hashed = False
        return
    before.hashed = after.hashed = True
    for side in (before, after):
        _hide(side.searches)


def _keys(table: Table) -> set[str]:
    """Ids of the keys that a side's checksums have; of those without a key an empty one."""
    columns = (table.columns[name] for name in ("key", *_KEYED))
    return {
        key for key, checksum, *others in zip(*columns, strict=True) if math.isfinite(checksum) or any(others)
    }


def _hashes(table: Table) -> set[str]:
    """Names of collections that are hashed; where there are none, hashed ids."""
    names = {name for name in (*table.labels("collection"), *table.labels("namespace")) if _is_hash(name)}
    return names or {name for ids in table.labels("ids") for name in ids if _is_hash(name)}


def _is_hash(name: Any) -> bool:
    return isinstance(name, str) and name.startswith(HASHED)


def _comparable(before: set[str], after: set[str]) -> bool:
    """Have these hashes the same key?  One that a process drew for itself shows by equal hashes alone."""
    keys = [{name[len(HASHED) :].rpartition(":")[0] for name in side} for side in (before, after)]
    if keys[0] != keys[1] or len(keys[0]) != 1:
        return False
    return keys[0] != {""} or len(before & after) >= 0.5 * max(1, min(len(before), len(after)))


def _hide(table: Table) -> None:
    for name in ("collection", "namespace"):
        table.columns[name] = [_HIDDEN if _is_hash(value) else value for value in table.columns[name]]
    table.columns["ids"] = [() if any(map(_is_hash, ids)) else ids for ids in table.columns["ids"]]

"""Keeping the outputs of many sites without stopping at any."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from neuronscope.interventions.errors import SiteNotReachedError, WrongValueError
from neuronscope_instrumentation.torch.interventions import values
from neuronscope_instrumentation.torch.interventions.sites import Site
from neuronscope_instrumentation.torch.outputs import tensor_leaves


@dataclass(frozen=True, slots=True)
class Entry:
    """One call of one site.

    Attributes:
        output: what it returned, after all edits.
        args: what it was called with, if that was asked for.
        kwargs: the same, arguments by name.
    """

    output: Any
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] | None = None


class Cache(Mapping[str, list[Entry]]):
    """Outputs by path: ``cache["model.layers.3"]`` is a list with an entry for each call.

    Tensors are detached, and share their memory with the model's: reading one that the model has changed in
    place since raises.  ``clone=True`` copies at once, ``device=`` moves; both cost what a copy costs.
    """

    __slots__ = ("_entries", "_take", "_versions")

    def __init__(
        self,
        sites: Callable[[str], list[Site]],
        patterns: Sequence[str],
        *,
        inputs: bool,
        clone: bool,
        device: Any,
    ) -> None:
        self._entries: dict[str, list[Entry]] = {}
        self._versions: dict[int, int] | None = None if clone or device is not None else {}
        self._take = _Take(self._entries, self._versions, inputs=inputs, clone=clone, device=device)
        for pattern in patterns:
            for site in sites(pattern):
                self._entries[site.path] = []
                site.observe(self._take)

    def __getitem__(self, path: str) -> list[Entry]:
        entries = self._entries[path]
        if self._versions:
            for entry in entries:
                self._check(path, entry)
        return entries

    def output(self, path: str, visit: int = -1) -> Any:
        """The output of one call, the last one by default.

        Raises:
            SiteNotReachedError: there was no such call.
        """
        entries = self[path]
        if not -len(entries) <= visit < len(entries):
            raise SiteNotReachedError(f"{path!r} was called {len(entries)}×; there is no call {visit}", path)
        return entries[visit].output

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<cache of {len(self)} sites, {sum(map(len, self._entries.values()))} calls>"

    def _check(self, path: str, entry: Entry) -> None:
        versions = self._versions or {}
        for leaf in tensor_leaves((entry.output, entry.args, entry.kwargs)):
            if versions.get(id(leaf), leaf_version(leaf)) != leaf_version(leaf):
                raise WrongValueError(
                    f"{path!r}: the model changed this value in place after it was kept. "
                    "Use t.cache(…, clone=True)"
                )


def leaf_version(tensor: torch.Tensor) -> int:
    """How often a tensor has been changed in place; -1 where torch does not count (inference mode)."""
    return -1 if tensor.is_inference() else tensor._version


class _Take:
    """Takes a site's output down."""

    __slots__ = ("_clone", "_device", "_entries", "_inputs", "_versions")

    def __init__(
        self,
        entries: dict[str, list[Entry]],
        versions: dict[int, int] | None,
        *,
        inputs: bool,
        clone: bool,
        device: Any,
    ) -> None:
        self._entries = entries
        self._versions = versions
        self._inputs = inputs
        self._clone = clone
        self._device = device

    def output(self, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        keep = self._keep
        entry = Entry(keep(output), keep(args), keep(kwargs)) if self._inputs else Entry(keep(output))
        self._entries[site.path].append(entry)
        return output

    def _keep(self, value: Any) -> Any:
        """The structure with its tensors detached, copied or moved."""
        if isinstance(value, torch.Tensor):
            kept = value.detach()
            if self._device is not None:
                kept = kept.to(self._device, copy=self._clone or kept.device == torch.device(self._device))
            elif self._clone:
                kept = kept.clone()
            elif self._versions is not None and not kept.is_inference():
                self._versions[id(kept)] = kept._version
            return kept
        if values.is_sequence(value):
            return values.like(value, [self._keep(item) for item in value])
        if values.is_mapping(value):
            return {key: self._keep(value[key]) for key in value}
        return value

"""Keeping the outputs of many sites without stopping at any."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from neuronscope.interventions.errors import SiteNotReachedError, WrongValueError
from neuronscope_instrumentation.torch.interventions import values
from neuronscope_instrumentation.torch.interventions.sites import Site
from neuronscope_instrumentation.torch.interventions.turning import TakeTurns
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
    Structures are tuples, lists, mappings and dataclasses; objects of other kinds (a KV cache) are kept as
    they are, with whatever the model does to them later.
    """

    __slots__ = ("_entries", "_kept", "_resolve", "_take")

    def __init__(
        self,
        resolve: Callable[[str], str],
        sites: Callable[[str], list[tuple[str, Site]]],
        patterns: Sequence[str],
        *,
        inputs: bool,
        clone: bool,
        device: Any,
    ) -> None:
        self._resolve = resolve
        self._kept: dict[str, list[Any]] = {}
        self._entries: dict[str, list[Entry]] = {}
        self._take = take = _Take(self._kept, inputs=inputs, clone=clone, device=device)
        for pattern in patterns:
            for path, site in sites(pattern):
                if site.path not in self._kept:
                    self._kept[site.path] = []
                    site.observers = (*site.observers, take)
                # An alias, or another path of a module with several.
                self._kept[path if "*" in pattern else pattern] = self._kept[site.path]

    def __getitem__(self, path: str) -> list[Entry]:
        kept = self._kept.get(path) or self._kept.get(self._resolve(path))
        if kept is None:
            close = difflib.get_close_matches(path, self._kept, 3) or list(self._kept)[:3]
            raise KeyError(f"{path!r} was not kept: {self!r}. Close to it: {', '.join(close)}")
        entries = self._entries.setdefault(path, [])
        entries += [self._entry(*each) for each in kept[len(entries) :]]
        for record in kept:
            _check(path, record)
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
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return f"<cache of {len(self)} sites, {sum(map(len, self._kept.values()))} calls>"

    @staticmethod
    def _entry(value: Any, _: object) -> Entry:
        return value if isinstance(value, Entry) else Entry(value.detach())


def _check(path: str, kept: tuple[Any, Any]) -> None:
    value, version = kept
    if version is None:
        return
    pairs = [(value, version)] if isinstance(version, int) else version
    if any(leaf_version(leaf) != before for leaf, before in pairs):
        raise WrongValueError(
            f"{path!r}: the model changed this value in place after it was kept. Use t.cache(…, clone=True)"
        )


def leaf_version(tensor: torch.Tensor) -> int:
    """How often a tensor has been changed in place; -1 where torch does not count (inference mode)."""
    return -1 if tensor.is_inference() else tensor._version


class _Take(TakeTurns):
    """Takes a site's outputs down, as pairs.

    A tensor is kept as it is, with its version; it is detached when it is asked for.  Anything else is an
    `Entry` with the tensors in it and their versions; or with None, where they are copies.

    Attributes:
        kept: the pairs of each call, by path.
        plain: outputs only, neither copied nor moved.
    """

    __slots__ = ("_clone", "_device", "_inputs")

    def __init__(self, kept: dict[str, list[Any]], *, inputs: bool, clone: bool, device: Any) -> None:
        self.kept = kept
        self.plain = not inputs and not clone and device is None
        self._inputs = inputs
        self._clone = clone
        self._device = device

    def output(self, site: Site, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        kept: tuple[Any, Any]
        if self.plain and type(output) in _PLAIN:
            value = output.detach() if output.requires_grad else output
            kept = value, leaf_version(value)
        else:
            taken = (output, args, kwargs) if self._inputs else (output,)
            entry = Entry(*[values.with_tensors(each, self._keep) for each in taken])
            kept = entry, self._versions(entry)
        self.kept[site.path].append(kept)
        return output

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor, detached, copied or moved."""
        kept = tensor.detach()
        if self._device is not None:
            return kept.to(self._device, copy=self._clone or kept.device == torch.device(self._device))
        return kept.clone() if self._clone else kept

    def _versions(self, entry: Entry) -> list[tuple[torch.Tensor, int]] | None:
        if self._clone or self._device is not None:
            return None
        leaves = tensor_leaves((entry.output, entry.args, entry.kwargs))
        return [(leaf, leaf_version(leaf)) for leaf in leaves]


_PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})

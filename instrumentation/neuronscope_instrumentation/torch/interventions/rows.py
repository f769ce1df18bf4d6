"""One prompt of a batch: its rows, without the padding of the others."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch

from neuronscope.interventions.errors import WrongValueError
from neuronscope_instrumentation.torch.interventions import values

if TYPE_CHECKING:
    from neuronscope_instrumentation.torch.interventions.sites import Site
    from neuronscope_instrumentation.torch.interventions.trace import Trace


class Rows:
    """The sites of a trace, narrowed to rows of the batch.

    ``t.rows(1)["model.layers.3"].output`` has the shape that the prompt alone would give: the batch dimension
    is kept, and positions that are padding are left out, where a tensor's second dimension is the mask's.
    Position 0 is the prompt's first token, on whichever side the padding is.

    Reading gives views of the model's tensors where rows and positions are contiguous (one prompt, padded on
    one side), so changes in place reach the model; assigning copies the batch once and fills the rows in.
    """

    __slots__ = ("_index", "_mask", "_number", "_trace")

    def __init__(self, trace: Trace, index: int | slice, mask: torch.Tensor | None) -> None:
        self._trace = trace
        self._number = number = None if isinstance(index, slice) else operator.index(index)
        self._index = index if isinstance(index, slice) else slice(number, index + 1 or None)
        self._mask = mask
        if mask is not None:
            self._check(mask)

    def __getitem__(self, path: str | int) -> Any:
        found = self._trace[path]
        return [RowSite(site, self) for site in found] if values.is_sequence(found) else RowSite(found, self)

    def __getattr__(self, name: str) -> Any:
        """The tree of modules, from the model on."""
        if name in Rows.__slots__ or name.startswith("__"):
            raise AttributeError(name)
        return getattr(RowSite(self._trace.root, self), name)

    @property
    def positions(self) -> slice:
        """Where the prompt's tokens are; all positions if there is no mask."""
        if self._mask is None or self._mask.dim() != 2:
            return slice(None)
        rows = self._mask[self._index].bool()
        real = rows.any(0).nonzero()
        if not len(real):
            return slice(0, 0)
        return slice(int(real[0]), int(real[-1]) + 1)

    def result(self) -> Any:
        """The rows of what the traced call returned."""
        return self.take(self._trace.result)

    def take(self, value: Any) -> Any:
        """The rows of a value: of every tensor in it that has the batch as its first dimension."""

        def taken(tensor: torch.Tensor) -> torch.Tensor:
            return tensor[self._where(tensor)]

        return values.with_tensors(value, taken)

    def put(self, value: Any, rows: Any, where: str) -> Any:
        """The value with its rows replaced."""
        why = values.mismatch(self.take(value), rows, where)
        if why is not None:
            raise WrongValueError(f"{why} Nothing was changed.")

        def filled(tensor: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
            changed = tensor.clone()
            changed[self._where(tensor)] = part
            return changed

        return values.with_tensors(value, filled, rows)

    def _check(self, batch: torch.Tensor) -> None:
        rows, number = batch.shape[0], self._number
        if number is not None and not -rows <= number < rows:
            raise IndexError(f"the batch has {rows} rows, no number {number}")

    def _where(self, tensor: torch.Tensor) -> tuple[slice, ...]:
        if not tensor.dim():
            return ()
        mask = self._mask
        if mask is None:
            self._check(tensor)
            return (self._index,)
        if tensor.shape[0] != mask.shape[0]:
            return ()
        if tensor.dim() > 1 and mask.dim() == 2 and tensor.shape[1] == mask.shape[1]:
            return self._index, self.positions
        return (self._index,)


class RowSite:
    """A site, narrowed to rows."""

    __slots__ = ("_rows", "_site")

    def __init__(self, site: Site, rows: Rows) -> None:
        self._site = site
        self._rows = rows

    def __getattr__(self, name: str) -> RowSite:
        """A submodule's site, narrowed as this one is."""
        if name in RowSite.__slots__ or name.startswith("__"):
            raise AttributeError(name)
        site = self._site
        if name not in site.tree.children(site.module):
            raise AttributeError(
                f"of rows there are output, first, input and submodules. {name!r} is the whole batch's: "
                f"t[{site.path!r}].{name}"
            )
        return self[name]

    def __getitem__(self, key: str | int) -> RowSite:
        return RowSite(self._site[key], self._rows)

    @property
    def output(self) -> Any:
        """The rows of what the module returned."""
        return self._rows.take(self._site.output)

    @output.setter
    def output(self, value: Any) -> None:
        site = self._site
        site.replace(self._rows.put(site.output, value, f"{site.path}: the rows of output"))

    @property
    def first(self) -> torch.Tensor:
        """The rows of the output's first tensor."""
        return self._rows.take(self._site.first)  # type: ignore[no-any-return]

    @first.setter
    def first(self, value: torch.Tensor) -> None:
        site = self._site
        site.replace_first(self._rows.put(site.first, value, f"{site.path}: the rows of first"))

    @property
    def input(self) -> Any:
        """The rows of the first argument."""
        return self._rows.take(self._site.input)

    @input.setter
    def input(self, value: Any) -> None:
        site = self._site
        site.input = self._rows.put(site.input, value, f"{site.path}: the rows of input")

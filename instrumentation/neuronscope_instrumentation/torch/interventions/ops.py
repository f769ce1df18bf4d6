"""`.ops`: the torch functions that a module's forward calls, by name and number, without its source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from neuronscope.interventions.errors import SiteNotReachedError
from neuronscope_instrumentation.torch.internals import without_function_modes
from neuronscope_instrumentation.torch.interventions.sites import Site
from neuronscope_instrumentation.torch.interventions.unreached import user_line
from neuronscope_instrumentation.torch.outputs import tensor_leaves

# Asking about a tensor is no operation: attributes, and what Python calls to print or test it.
_NO_OPS: Final = frozenset(
    {"__get__", "__set__", "__delete__", "__repr__", "__format__", "__hash__", "__len__"}
)


class Ops(Mapping[str, "OpCalls"]):
    """The torch functions of one module: ``site.ops["softmax"][0].output``.

    Counted are calls of torch functions and tensor methods between the module's beginning and end, those of
    its submodules included, anew in each of its calls; operators have their function's name (``a @ b`` is
    ``matmul``).  Ask for them before the module runs.  What a custom autograd Function, a compiled or a
    scripted part does inside is one call, or none.
    """

    __slots__ = ("_counts", "_site", "_wanted", "record")

    def __init__(self, site: Site) -> None:
        self._site = site
        self._counts: dict[str, int] = {}
        self._wanted: dict[tuple[str, int], Op] = {}
        self.record: list[OpCall] | None = None

    def __getitem__(self, name: str) -> OpCalls:
        return OpCalls(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(name for name, _ in self._wanted))

    def __len__(self) -> int:
        return len({name for name, _ in self._wanted})

    def op(self, name: str, number: int) -> Op:
        """One call; the same object each time."""
        op = self._wanted.get((name, number))
        if op is None:
            op = self._wanted[name, number] = Op(self._site, self, name, number)
        return op

    def counted(self) -> str:
        """What was called in the module's last call, for messages."""
        return ", ".join(f"{name} ({count}×)" for name, count in self._counts.items()) or "nothing"

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The module's call, with its torch functions watched."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._counts.clear()
            with _Watch(self):
                return call(*args, **kwargs)

        return watched

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make one call of a torch function."""
        name = op_name(function)
        if name is None:
            return function(*args, **kwargs)
        number = self._counts.get(name, 0)
        self._counts[name] = number + 1
        op = self._wanted.get((name, number))
        if op is None:
            output = function(*args, **kwargs)
        else:
            op.call = function
            output = op.visit(*args, **kwargs)
        if self.record is not None:
            self.record.append(OpCall(name, number, shapes((args, kwargs)), shapes(output)))
        return output


class OpCalls(Sequence["Op"]):
    """The calls of one function within a module: ``[0]`` is the first."""

    __slots__ = ("_name", "_ops")

    def __init__(self, ops: Ops, name: str) -> None:
        self._ops = ops
        self._name = name

    def __getitem__(self, number: Any) -> Any:
        if not isinstance(number, int) or number < 0:
            raise IndexError("calls are counted from 0, in the order in which they are made")
        return self._ops.op(self._name, number)

    def __len__(self) -> int:
        raise TypeError(
            "how often a function will be called is not known before; see ns_model.show(path, ...)"
        )


class Op(Site):
    """One call of a torch function, to be read and changed as a site is."""

    __slots__ = ("_ops", "name", "number")

    def __init__(self, site: Site, ops: Ops, name: str, number: int) -> None:
        super().__init__(site.tree, site.run, f"{site.path}.ops[{name!r}][{number}]", site.module)
        self._ops = ops
        self.name = name
        self.number = number

    def _not_reached(self) -> Exception:
        self.want_in = self.want_out = False
        return SiteNotReachedError(
            f"{self.path}, asked for at {user_line()}, was not reached. The module's last call made: "
            f"{self._ops.counted()}. Ask for it before the module begins; ns_model.show(path, ...) lists all",
            self.path,
        )


class _Watch(TorchFunctionMode):
    def __init__(self, ops: Ops) -> None:
        super().__init__()
        self._ops = ops

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._ops.call(func, args, kwargs or {})


@dataclass(frozen=True, slots=True)
class OpCall:
    """One call that `show` saw.

    Attributes:
        name: the function's name; `number`: which call of it, from 0.
        inputs: shapes and dtypes of the tensors it was given.
        output: the same of what it returned.
    """

    name: str
    number: int
    inputs: str
    output: str

    def __str__(self) -> str:
        return f"{self.name}[{self.number}]: {self.inputs} -> {self.output}"


class Listing(tuple[OpCall, ...]):
    """What a module's forward calls; printed as a line for each."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(map(str, self))


def ops_of(site: Site) -> Ops:
    """The torch functions of a site; watched from the module's next call on."""
    found = site.ops_seen
    if found is None:
        found = site.ops_seen = Ops(site)
        site.call, site.direct = found.around(site.call), False
    return found


def list_ops(site: Site) -> Listing:
    """Run the model through one call of the module, and say what it called."""
    ops = ops_of(site)
    ops.record = []
    _ = site.output
    return Listing(ops.record)


@lru_cache(maxsize=4096)
def op_name(function: Callable[..., Any]) -> str | None:
    """The name under which a torch function is counted; None if it is no operation."""
    name = getattr(function, "__name__", None)
    if name is None or name in _NO_OPS:
        return None
    return str(name).strip("_") or str(name)


def shapes(value: object) -> str:
    """Shapes and dtypes of the tensors in a value."""
    told = [_shape(leaf) for leaf in tensor_leaves(value)]
    return ", ".join(told) or "no tensor"


def _shape(tensor: torch.Tensor) -> str:
    with without_function_modes():
        return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"

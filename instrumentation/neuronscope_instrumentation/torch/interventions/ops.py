"""`.ops`: the torch functions that a module's forward calls, by name and number, without its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from neuronscope.compiled import find
from neuronscope.interventions.errors import SiteNotReachedError, TraceClosedError
from neuronscope_instrumentation.torch.internals import pop_mode, push_mode, without_function_modes
from neuronscope_instrumentation.torch.interventions.sites import ENDED, Site
from neuronscope_instrumentation.torch.interventions.turning import OpCallsTurns, OpsTurns, op_name
from neuronscope_instrumentation.torch.interventions.unreached import user_line
from neuronscope_instrumentation.torch.interventions.values import shape_of
from neuronscope_instrumentation.torch.outputs import tensor_leaves


class Ops(OpsTurns, TorchFunctionMode, Mapping[str, "OpCalls"]):
    """The torch functions of one module: ``site.ops["softmax"][0].output``.

    Counted are calls of torch functions and tensor methods between the module's beginning and end, those of
    its submodules included, anew in each of its calls; operators have their function's name (``a @ b`` is
    ``matmul``).  Ask for them before the module runs.  What a custom autograd Function, a compiled or a
    scripted part does inside is one call, or none.

    Attributes:
        counts: calls by name in the module's last call.
        wanted: what was asked for, by name and number.
        around: the module's call.
    """

    __slots__ = ()

    def __init__(self, site: Site) -> None:
        self.counts = {}
        self.wanted = {}
        self.record: list[OpCall] | None = None
        self.site = site
        self.around, self.direct = site.call, site.direct

    def __iter__(self) -> Iterator[str]:
        return iter(self.counts)

    def __len__(self) -> int:
        return len(self.counts)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __bool__(self) -> bool:
        return True

    def _calls(self, name: str) -> OpCalls:
        """The calls of one function."""
        calls = OpCalls()
        calls.ops, calls.name = self, name
        return calls

    def op(self, name: str, number: int) -> Op:
        """One call; the same object each time."""
        ops = self.wanted.setdefault(name, {})
        op: Op | None = ops.get(number)
        if op is None:
            op = ops[number] = Op(self.site, self, name, number)
        return op

    def counted(self) -> str:
        """What was called in the module's last call, for messages."""
        return ", ".join(f"{name} ({count}×)" for name, count in self.counts.items()) or "nothing"

    def _tell(self, name: str, number: int, args: Any, kwargs: Any, output: Any) -> None:
        """Take a call down."""
        if self.record is not None:
            self.record.append(OpCall(name, number, shapes((args, kwargs)), shapes(output)))

    def end(self, site: Site) -> None:
        """The run is over."""
        site.call, site.direct = self.around, self.direct
        for ops in self.wanted.values():
            for op in ops.values():
                op.end()


class OpCalls(OpCallsTurns, Sequence["Op"]):
    """The calls of one function within a module: ``[0]`` is the first."""

    __slots__ = ()

    def _find(self, number: Any) -> Any:
        """One call."""
        if not isinstance(number, int) or number < 0:
            raise IndexError("calls are counted from 0, in the order in which they are made")
        return self.ops.op(self.name, number)

    def __len__(self) -> int:
        raise TypeError(
            "how often a function will be called is not known before; see ns_model.show(path, ...)"
        )


class Op(Site):
    """One call of a torch function, to be read and changed as a site is."""

    __slots__ = ("_ops", "name", "number")

    def __init__(self, site: Site, ops: Ops, name: str, number: int) -> None:
        self.prepare(site.tree, site.run, f"{site.path}.ops[{name!r}][{number}]", site.module)
        self._ops: Ops | None = ops
        self.name = name
        self.number = number

    def end(self) -> None:
        """The run is over, and this site with it; whoever holds it holds nothing else."""
        self.want_nothing()
        self.run, self.call, self._ops = ENDED, None, None

    def _not_reached(self) -> Exception:
        self.want_in = self.want_out = False
        if self._ops is None:
            return TraceClosedError(f"{self.path!r} was asked for after the trace had ended")
        return SiteNotReachedError(
            f"{self.path}, asked for at {user_line()}, was not reached. The module's last call made: "
            f"{self._ops.counted()}. Ask for it before the module begins; ns_model.show(path, ...) lists all",
            self.path,
        )


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
        site.call, site.direct = found.watched, False
    return found  # type: ignore[no-any-return]  # ours


def list_ops(site: Site) -> Listing:
    """Run the model through one call of the module, and say what it called."""
    ops = ops_of(site)
    ops.record = []
    _ = site.output
    return Listing(ops.record)


def shapes(value: object) -> str:
    """Shapes and dtypes of the tensors in a value."""
    told = [_shape(leaf) for leaf in tensor_leaves(value)]
    return ", ".join(told) or "no tensor"


def _shape(tensor: torch.Tensor) -> str:
    with without_function_modes():
        return f"{str(tensor.dtype).removeprefix('torch.')}{list(shape_of(tensor))}"


if (_bind := find("bind_ops")) is not None:
    _bind(push_mode, pop_mode, op_name, OpCalls)

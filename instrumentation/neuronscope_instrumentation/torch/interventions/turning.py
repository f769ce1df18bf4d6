"""Turns between a traced model and its body: the hot half of `Run`, `Site` and `Trace`, and its twin in C.

What a visited module costs is asking for its site, coming to it and leaving, two turns, and before each a
look at the state of the thread.  `neuronscope._native` does it in one go (docs/decisions/0011).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from sys import getrefcount
from typing import TYPE_CHECKING, Any, Final

from greenlet import getcurrent

from neuronscope import compiled
from neuronscope_instrumentation.torch.internals import PLAIN_CALL, pop_mode, push_mode, set_dynamo
from neuronscope_instrumentation.torch.interventions import direct
from neuronscope_instrumentation.torch.interventions.threadstate import (
    autocasting,
    differs,
    dispatch_modes,
    function_modes,
    functions_enabled,
    grad_enabled,
    in_engine,
    in_transform,
    inference_enabled,
    nest_autocast,
    saved_hooks,
)


class PlainRunTurns:
    """What sites need of a run; `Run` says what it is."""

    __slots__ = (
        "at_in", "at_out", "body", "closed", "dynamo", "finished", "grad", "greenlet", "in_grad_mode",
        "inference", "inputs", "names", "present", "resume", "sites", "skipped", "stopped", "to_body",
        "value",
    )  # fmt: skip

    at_in: Any
    at_out: Any
    body: Any
    closed: bool
    dynamo: bool
    finished: bool
    grad: bool | None
    greenlet: Any
    in_grad_mode: bool
    inference: Any
    inputs: Any
    names: dict[str | int, str]
    present: list[Any]
    resume: Any
    sites: dict[str, Any]
    skipped: tuple[Any] | None
    stopped: bool
    to_body: Any
    value: Any

    def apart(self) -> bool:
        """Must the thread's state be looked at more closely before a turn?"""
        return bool(differs(self.grad, self.inference) or in_transform() or (self.grad and in_engine() != -1))


def _found(run: Any, path: str | None) -> Any:
    """A site that has been asked for before, watched; None: to be looked for."""
    site = None if run is None or path is None else run.sites.get(path)
    if site is None or site.here:
        return site
    return site.tree.come_again(run, site)


class PlainSiteTurns:
    """A module's calls in a run, what they take and return, and the sites below; `Site` says what it is."""

    __slots__ = (
        "call", "direct", "here", "keep_in", "module", "names", "observers", "ops_resting", "ops_seen",
        "path", "place", "run", "slot", "tree", "visits", "want_in", "want_out",
    )  # fmt: skip

    call: Any
    direct: bool
    here: bool
    keep_in: bool
    module: Any
    names: dict[str | int, str]
    observers: tuple[Any, ...]
    ops_resting: Any
    ops_seen: Any
    path: str
    place: Any
    run: Any
    slot: Any
    tree: Any
    visits: int
    want_in: bool
    want_out: bool

    if TYPE_CHECKING:

        def _before(self) -> None: ...
        def _assign(self, old: Any, value: Any) -> None: ...
        def _assign_input(self, value: Any) -> None: ...
        def _assign_inputs(self, value: Any) -> None: ...
        def _first(self, inputs: Any) -> Any: ...
        def _not_reached(self) -> Exception: ...
        def _missing(self, name: str) -> Any: ...
        def _child(self, index: Any) -> Any: ...
        def _watch_ops(self) -> Any: ...

    def prepare(self, tree: Any, run: Any, path: str, module: Any) -> None:
        """Make the site of a module; nothing is asked for."""
        self.tree = tree
        self.run = run
        self.path = path
        self.module = module
        self.place = self.call = self.ops_seen = self.ops_resting = None
        self.want_in = self.want_out = self.keep_in = self.here = self.direct = False
        self.visits = 0
        self.names = {}
        self.observers = ()

    @property
    def output(self) -> Any:
        """What the module returned."""
        run = self.run
        if run.at_out is not self:
            self.want_out = True
            run.advance()
            if run.at_out is not self:
                raise self._not_reached()
        return run.value

    @output.setter
    def output(self, value: Any) -> None:
        old = self.output
        if value is not old:
            self._assign(old, value)

    @property
    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments that the module is called with: positional ones, and those by name."""
        run = self.run
        if run.at_in is not self:
            if run.at_out is self:
                return run.inputs  # type: ignore[no-any-return]
            self.want_in = True
            run.advance()
            if run.at_in is not self:
                raise self._not_reached()
        return run.value  # type: ignore[no-any-return]

    @inputs.setter
    def inputs(self, value: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        self._assign_inputs(value)

    @property
    def input(self) -> Any:
        """The first argument: the first positional one, or else the first by name."""
        inputs = self.inputs
        return inputs[0][0] if inputs[0] else self._first(inputs)

    @input.setter
    def input(self, value: Any) -> None:
        self._assign_input(value)

    @property
    def ops(self) -> Any:
        """The torch functions that the module calls; see `Ops`."""
        return self.ops_seen or self._watch_ops()

    def visit(self, *args: Any, **kwargs: Any) -> Any:
        """Make one of the module's calls, and wait before and after it as far as the body wants to be there.

        Where nobody else watches the module, this is in the place of its slot.
        """
        run = self.run
        if getcurrent() is not run.greenlet:
            return self.slot(*args, **kwargs)
        skipped = None
        if self.want_in:
            if run.stopped:
                self._before()
            self.want_in = self.keep_in
            run.at_in = self
            run.value = (args, kwargs)
            run.pause()
            run.at_in = None
            (args, kwargs), run.value = run.value, None
            skipped, run.skipped = run.skipped, None
        output = self.call(*args, **kwargs) if skipped is None else skipped[0]
        self.visits += 1
        for observer in self.observers:
            output = observer.output(self, args, kwargs, output)
        if self.want_out:
            self.want_out = False
            run.at_out = self
            run.inputs = (args, kwargs)
            run.value = output
            run.pause()
            run.at_out = None
            output = run.value
            run.value = run.inputs = None
        return output

    def __getattr__(self, name: str) -> Any:
        if name in PlainSiteTurns.__slots__:  # not set yet
            raise AttributeError(name)
        found = _found(self.run, self.names.get(name))
        return self._missing(name) if found is None else found

    def __getitem__(self, key: Any) -> Any:
        found = _found(self.run, self.names.get(key)) if isinstance(key, str | int) else None
        return self._child(key) if found is None else found


class PlainTraceTurns:
    """The sites of a trace; `Trace` says what it is."""

    __slots__ = ("_run",)

    _run: Any

    if TYPE_CHECKING:

        def _missing(self, name: str) -> Any: ...
        def _item(self, key: Any) -> Any: ...

    def __getattr__(self, name: str) -> Any:
        run = None if name == "_run" else self._run
        found = None if run is None else _found(run, run.names.get(name))
        return self._missing(name) if found is None else found

    def __getitem__(self, key: Any) -> Any:
        run, found = self._run, None
        if run is not None and isinstance(key, str | int):
            found = _found(run, key if isinstance(key, str) else run.names.get(key))
        return self._item(key) if found is None else found


def _release(sites: list[Any]) -> bool:
    """Make sites that have left ready for another run, and retire those that somebody holds.

    Returns:
        Whether there were none of these.
    """
    all_kept = True
    for site in sites:
        if site.ops_seen is not None:
            site.end_ops()
        if getrefcount(site) <= _UNHELD:
            site.here = False
            site.visits = 0
            if site.observers:
                site.observers = ()
        else:
            site.retire()
            all_kept = False
    return all_kept


def _count() -> int:
    """How many references there are to a site that nobody else holds: in this version of Python."""

    class Thing:
        def visit(self) -> None: ...

    thing = Thing()
    # The run's dictionary and list; the entry of its slot, and whose that is.
    others = {"": thing}, (present := [thing]), {"": thing.visit}, [thing]
    del thing
    count = 0
    for site in present:
        count = getrefcount(site)
    return count + 0 * len(others)  # they are here until now


_UNHELD: Final = _count()


class PlainTakeTurns:
    """Keeps outputs; the cache says what it is."""

    __slots__ = ("kept", "plain")

    kept: dict[str, list[Any]]
    plain: bool


class PlainOpsTurns:
    """The torch functions of a module while it runs, as a function mode; `Ops` says what it is."""

    __slots__ = ("around", "counts", "direct", "record", "site", "wanted")

    around: Callable[..., Any]
    counts: dict[str, int]
    direct: bool
    record: list[Any] | None
    site: Any
    wanted: dict[str, dict[int, Any]]

    if TYPE_CHECKING:

        def _tell(self, name: str, number: int, args: Any, kwargs: Any, output: Any) -> None: ...
        def _calls(self, name: str) -> Any: ...

    def __getitem__(self, name: str) -> Any:
        return self._calls(name)

    def watched(self, *args: Any, **kwargs: Any) -> Any:
        """Make the module's call, with its torch functions watched."""
        self.counts.clear()
        push_mode(self)
        try:
            return self.around(*args, **kwargs)
        finally:
            pop_mode()

    def __torch_function__(
        self, function: Any, _: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Make one call of a torch function."""
        kwargs = kwargs or {}
        name = op_name(function)
        if name is None:
            return function(*args, **kwargs)
        number = self.counts.get(name, 0)
        self.counts[name] = number + 1
        op = self.wanted[name].get(number) if name in self.wanted else None
        if op is None:
            output = function(*args, **kwargs)
        else:
            op.call = function
            output = op.visit(*args, **kwargs)
        if self.record is not None:
            self._tell(name, number, args, kwargs, output)
        return output


class PlainOpCallsTurns:
    """The calls of one torch function; `OpCalls` says what it is."""

    __slots__ = ("name", "ops")

    name: str
    ops: Any

    if TYPE_CHECKING:

        def _find(self, number: Any) -> Any: ...

    def __getitem__(self, number: Any) -> Any:
        return self._find(number)


# Asking about a tensor is no operation: attributes, and what Python calls to print or test it.
_NO_OPS: Final = frozenset(
    {"__get__", "__set__", "__delete__", "__repr__", "__format__", "__hash__", "__len__"}
)


@lru_cache(maxsize=4096)
def op_name(function: Callable[..., Any]) -> str | None:
    """The name under which a torch function is counted; None if it is no operation."""
    name = getattr(function, "__name__", None)
    if name is None or name in _NO_OPS:
        return None
    return str(name).strip("_") or str(name)


if TYPE_CHECKING:
    RunTurns = PlainRunTurns
    SiteTurns = PlainSiteTurns
    TraceTurns = PlainTraceTurns
    TakeTurns = PlainTakeTurns
    OpsTurns = PlainOpsTurns
    OpCallsTurns = PlainOpCallsTurns
    release = _release
else:
    RunTurns = compiled.find("RunTurns") or PlainRunTurns
    SiteTurns = compiled.find("SiteTurns") or PlainSiteTurns
    TraceTurns = compiled.find("TraceTurns") or PlainTraceTurns
    TakeTurns = compiled.find("TakeTurns") or PlainTakeTurns
    OpsTurns = compiled.find("OpsTurns") or PlainOpsTurns
    OpCallsTurns = compiled.find("OpCallsTurns") or PlainOpCallsTurns
    release = compiled.find("release") or _release
    if (bind := compiled.find("bind_state")) is not None:
        bind(
            getcurrent, grad_enabled, inference_enabled, function_modes, dispatch_modes, nest_autocast,
            autocasting, functions_enabled, saved_hooks, in_transform, in_engine, set_dynamo,
        )  # fmt: skip
        if PLAIN_CALL is not None:
            compiled.find("bind_calls")(*PLAIN_CALL)
        direct.bind(compiled.find("bind_direct"), RunTurns.apart, PlainRunTurns.apart, RunTurns())

COMPILED: Final = RunTurns is not PlainRunTurns

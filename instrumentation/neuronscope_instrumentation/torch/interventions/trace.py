"""`Trace`: what ``with ns_model.trace(...) as t`` gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from neuronscope.interventions.errors import TraceClosedError, WrongThreadError
from neuronscope_instrumentation.torch.interventions.run import Run
from neuronscope_instrumentation.torch.interventions.sharding import reshard
from neuronscope_instrumentation.torch.interventions.sites import Site
from neuronscope_instrumentation.torch.interventions.tree import Tree
from neuronscope_instrumentation.torch.interventions.turning import TraceTurns

if TYPE_CHECKING:
    from neuronscope_instrumentation.torch.interventions.cache import Cache
    from neuronscope_instrumentation.torch.interventions.gradients import Backward
    from neuronscope_instrumentation.torch.interventions.rows import Rows
    from neuronscope_instrumentation.torch.interventions.steps import Steps


class Sites(list[Site]):
    """The sites that a pattern names: a list, which says so where it is taken for a site."""

    __slots__ = ("_pattern",)

    def __init__(self, pattern: str, sites: list[Site]) -> None:
        super().__init__(sites)
        self._pattern = pattern

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Site, name):
            raise AttributeError(f"a list of sites has no {name!r}")
        raise AttributeError(
            f"{self._pattern!r} names {len(self)} sites, each with its {name!r}: go through them, or keep "
            f"all their outputs with t.cache({self._pattern!r})"
        )


class Trace(TraceTurns):
    """One call of a model, to be read and changed from the body of a ``with`` statement.

    The body is ordinary code that runs where it stands; the model runs up to each site that the body asks
    for, and on to its end when the body ends.  A trace belongs to the thread that entered it; other threads
    may call and trace the same model meanwhile.

    Dropping a trace without leaving its block, or leaving by any exception, ends the model and leaves nothing
    behind on it.
    """

    __slots__ = ("__weakref__", "_call", "_mask", "_outcome", "_tree")

    def __init__(
        self,
        tree: Tree,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self._tree = tree
        self._call: tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]] | None = (
            call,
            args,
            kwargs,
        )
        self._run = None
        self._outcome: tuple[bool, Any, bool] | None = None
        self._mask: Any = kwargs.get("attention_mask")

    def __enter__(self) -> Self:
        if self._call is None:
            raise TraceClosedError("this trace has been used; make a new one for another run")
        (call, args, kwargs), self._call = self._call, None
        self._run = run = self._tree.take_run()
        run.begin(call, args, kwargs)
        self[""]  # before the model begins, so that its output can be had after its parts'
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run = self._started()
        if not run.in_its_thread():
            self._drop(run)
            if kind is None:
                raise WrongThreadError("a trace was left in another thread than it was entered in")
            return
        clean = False
        try:
            if kind is not None:
                self.stop()
            elif not run.finished:
                run.finish()
            clean = kind is None
        finally:
            run.close()
            self._outcome = (run.has_result, run.result, run.stopped)
            self._run = None
            if clean:
                self._tree.give_back(run)
            else:
                run.retire()

    def __del__(self) -> None:
        run = self._run
        if run is not None:
            self._drop(run)

    def _drop(self, run: Run) -> None:
        here = not run.finished and run.in_its_thread()
        run.abandon()
        if here:
            reshard(self._tree.model)
        self._outcome = (False, None, True)
        self._run = None

    def _started(self) -> Run:
        run = self._run
        if run is None:
            if self._outcome is not None:
                raise TraceClosedError("the trace has ended: sites are asked for within its block")
            raise TraceClosedError("the trace has not begun: use it as `with ns_model.trace(...) as t:`")
        return run  # type: ignore[no-any-return]  # one of its own since `__enter__`

    # --- sites -------------------------------------------------------------------------------------

    def _item(self, key: str | int | slice) -> Any:
        run = self._run or self._started()
        if not isinstance(key, str):
            return self._tree.child_of_model(run, key)
        if "*" in key:
            return Sites(key, self.sites(key))
        return self._tree.site(run, key)

    def _missing(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._run is not None:
            self._run.raise_failed(self, name)
        return self._tree.below_model(self._run or self._started(), name)

    def __setitem__(self, key: object, value: object) -> None:
        raise TypeError(f"a site is not assigned to: t[{key!r}].output = value")

    @property
    def root(self) -> Site:
        """The model itself as a site."""
        return self[""]  # type: ignore[no-any-return]

    @property
    def output(self) -> Any:
        """The output of the model's next forward; `result` is what the traced method returns."""
        return self.root.output

    def sites(self, pattern: str = "**") -> list[Site]:
        """The sites that a pattern names, in the model's order."""
        return [site for _, site in self._named(pattern)]

    def _named(self, pattern: str) -> list[tuple[str, Site]]:
        self._started()
        return [(path, self[path]) for path in self._tree.match(pattern)]

    # --- the run -----------------------------------------------------------------------------------

    @property
    def result(self) -> Any:
        """What the traced call returned.  Runs the model to its end; usable after the block as well.

        Raises:
            TraceClosedError: the model was stopped.
        """
        if self._outcome is None:
            return self._started().take_result()
        returned, result, stopped = self._outcome
        if not returned:
            raise TraceClosedError(
                "the model was stopped, so there is no result" if stopped else "the model did not return"
            )
        return result

    def stop(self) -> None:
        """End the model here.  The body goes on; what it has read stays."""
        run = self._started()
        if not run.finished:
            run.stop()
            reshard(self._tree.model)

    @property
    def steps(self) -> Steps:
        """The model's forwards, one after the other: ``for step in t.steps``."""
        return self.steps_of("")

    def steps_of(self, path: str) -> Steps:
        """The calls of a module that runs repeatedly: of a denoiser, an expert, a recurrent cell."""
        from neuronscope_instrumentation.torch.interventions.steps import Steps

        return Steps(self._tree.site(self._started(), path))

    def edit(self, pattern: str, function: Callable[[Any], Any]) -> None:
        """Give every output of these sites from now on through a function, without stopping there."""
        for site in self.sites(pattern):
            site.edit(function)

    def cache(self, *patterns: str, inputs: bool = False, clone: bool = False, device: Any = None) -> Cache:
        """Keep outputs of many sites without stopping at any; see `Cache`."""
        from neuronscope_instrumentation.torch.interventions.cache import Cache

        return Cache(
            self._tree.resolve, self._named, patterns or ("**",), inputs=inputs, clone=clone, device=device
        )

    def rows(self, index: int | slice, mask: Any = None) -> Rows:
        """One prompt's rows of a batch; see `Rows`."""
        from neuronscope_instrumentation.torch.interventions.rows import Rows

        return Rows(self, index, self._mask if mask is None else mask)

    def backward(self, loss: Any, gradient: Any = None, *, retain_graph: bool = False) -> Backward:
        """A backward pass whose gradients can be read and replaced; see `Backward`."""
        from neuronscope_instrumentation.torch.interventions.gradients import Backward

        return Backward(loss, gradient, retain_graph=retain_graph)

    def __repr__(self) -> str:
        run = self._run
        idle = "not entered" if self._outcome is None else "ended"
        state = idle if run is None else "finished" if run.finished else "running"
        return f"<trace of {type(self._tree.model).__name__}, {state}>"

    def __iter__(self) -> Iterator[Site]:
        return iter(self.root)

    def __len__(self) -> int:
        return len(self.root)

    def __bool__(self) -> bool:
        return True

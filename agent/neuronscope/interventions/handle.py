"""The part of `ns.Model` that intervenes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self

from neuronscope.exceptions import AdapterNotFoundError
from neuronscope.interventions.backend import InterveningBackend, Interventions, Trace
from neuronscope.interventions.edits import Edits
from neuronscope.interventions.options import PLAIN, Options
from neuronscope.interventions.plans import Plan, PlanResult, run_plan
from neuronscope.interventions.views import View

if TYPE_CHECKING:
    from neuronscope.instrumentation import BackendAdapter


class Intervening:
    """Traces, views and edits of a wrapped model.

    Attributes:
        tokenizer: set it, and texts and chats can be given in the place of tokens.
        call: what `trace` calls, if not the model itself: a pipeline, or anything else that runs the model.
    """

    model: Any
    tokenizer: Any = None
    call: Callable[..., Any] | None = None
    _adapter: BackendAdapter
    _options: Options = PLAIN

    @cached_property
    def _interventions(self) -> Interventions:
        adapter: object = self._adapter
        if not isinstance(adapter, InterveningBackend):
            raise AdapterNotFoundError(
                f"the adapter {self._adapter.name!r} cannot intervene in models; the one for PyTorch can"
            )
        return adapter.interventions(self.model)

    def trace(self, *args: Any, method: str | Callable[..., Any] | None = None, **kwargs: Any) -> Trace:
        """Call the model with these arguments, and read and change what happens inside.

        ::

            with ns_model.trace(input_ids) as t:
                h = t["model.layers.15"].output
                t["model.layers.15"].output = h + 4.0 * direction
            logits = t.result

        Args:
            method: the model's method to call instead (``"generate"``), or any callable that runs it.

        Raises:
            AdapterNotFoundError: the model's runtime cannot be intervened in.
            MissingDependencyError: `greenlet` is not installed.
        """
        return self._trace(method, args, kwargs, self._options)

    def generate(self, *args: Any, **kwargs: Any) -> Trace:
        """Trace the model's `generate`; ``t.steps`` are its forwards."""
        return self.trace(*args, method="generate", **kwargs)

    def scan(self, *args: Any, method: str | Callable[..., Any] | None = None, **kwargs: Any) -> Trace:
        """Trace a call on fake tensors: shapes and dtypes of everything, without computing anything."""
        return self._trace(method, args, kwargs, replace(self._options, fake=True))

    def show(self, path: str, *args: Any, **kwargs: Any) -> Any:
        """The torch functions that a module calls when the model is called with these arguments.

        What is given has a line for each, with the name and number by which `ops` finds it, and shapes.
        """
        made = self._interventions.encode(self.tokenizer, None, args)
        return self._interventions.show(path, *((args, kwargs) if made is None else ((), {**made, **kwargs})))

    def _trace(
        self,
        method: str | Callable[..., Any] | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: Options,
    ) -> Trace:
        if method is None and not options.fake:
            method = self.call
        made = self._interventions.encode(self.tokenizer, method, args)
        if made is not None:
            args, kwargs = (), {**made, **kwargs}
        return self._interventions.trace(method, args, kwargs, options)  # type: ignore[no-any-return]

    def with_options(self, *, eager: bool | None = None, unfuse: bool | None = None) -> Self:
        """This handle, with another way to run the model under a trace; see `Options`."""
        import copy

        changed = copy.copy(self)
        given: Mapping[str, bool | None] = {"eager": eager, "unfuse": unfuse}
        options = {name: value for name, value in given.items() if value is not None}
        changed._options = replace(self._options, **options)
        return changed

    def alias(self, name: str, path: str) -> None:
        """Give a path another name: ``ns_model.alias("blocks", "model.layers")``, then ``t.blocks[3]``."""
        self._interventions.alias(name, path)

    def view(
        self,
        name: str,
        of: str | type,
        read: Callable[[Any, Any], Any],
        write: Callable[[Any, Any, Any], Any] | None = None,
        *,
        on: Literal["output", "input", "inputs"] = "output",
        description: str = "",
    ) -> None:
        """Define a value over sites: ``t["model.layers.3.self_attn"].heads`` is then read and written.

        See `neuronscope.interventions.View`.
        """
        self._interventions.view(View(name, of, read, write, on, description))

    @cached_property
    def edits(self) -> Edits:
        """Changes of the model that stay in force, in production as well; see `Edits`."""
        return Edits(lambda: self._interventions)

    def run_plan(self, plan: Plan | Mapping[str, Any] | str, *args: Any, **kwargs: Any) -> PlanResult:
        """Call the model once, with the interventions of a plan; see `Plan`.

        Args:
            plan: a plan, its JSON, or what its JSON says.

        Raises:
            PlanError: it says something that no plan can mean, or that this model has not.
        """
        return run_plan(self, Plan.of(plan), args, kwargs)

    def attach(self, name: str, module: Any, at: str) -> Callable[[], None]:
        """Pass the hidden states that a layer gives through a module of one's own, in every call.

        A sparse autoencoder, a probe, an adapter.  It and what it consists of are sites:
        ``t.sae.encoder.output``.

        Returns:
            What detaches it.
        """
        return self._interventions.attach(name, module, at)

    def tree(self, *args: Any, **kwargs: Any) -> str:
        """The model's modules by path, with views and aliases.

        Given what the model is called with, it says the views' shapes as well: those of a run on fake
        tensors, which computes nothing.
        """
        made = self._interventions.encode(self.tokenizer, None, args)
        return self._interventions.describe(*((args, kwargs) if made is None else ((), {**made, **kwargs})))

"""What the torch adapter gives `ns.Model` for interventions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from neuronscope.engine.guard import GUARD
from neuronscope.interventions.errors import WrongValueError
from neuronscope.interventions.options import PLAIN, Options
from neuronscope.interventions.views import View
from neuronscope_instrumentation.torch import slots
from neuronscope_instrumentation.torch.interventions import describe, ops, text, values
from neuronscope_instrumentation.torch.interventions.sites import prepare_slots
from neuronscope_instrumentation.torch.interventions.trace import Trace
from neuronscope_instrumentation.torch.interventions.tree import Tree


class TorchInterventions:
    """Traces of one model, with the aliases and views of its handle."""

    def __init__(self, model: nn.Module) -> None:
        self._tree = Tree(model, ops.ops_of)

    def trace(
        self,
        method: str | Callable[..., Any] | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: Options = PLAIN,
    ) -> Trace:
        """A trace of one call."""
        prepare_slots()
        call = self._callable(method)
        if options is not PLAIN:
            call = _Differently(call, options)
        return Trace(self._tree, call, args, kwargs)

    def encode(self, tokenizer: Any, method: object, args: tuple[Any, ...]) -> dict[str, Any] | None:
        """The model's arguments for a text given as its only positional argument; None for anything else."""
        if len(args) != 1 or callable(method) or not text.is_text(args[0]):
            return None
        if tokenizer is None:
            # transformers' models have this, and take tokens there.
            if method in {None, "generate"} and hasattr(self._tree.model, "get_input_embeddings"):
                raise WrongValueError("this model takes tokens, not text: set ns_model.tokenizer")
            return None
        return text.encode(tokenizer, self._tree.model, args[0], generates=method == "generate")

    def show(self, path: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ops.Listing:
        """What a module's forward calls, with shapes."""
        with torch.no_grad(), self.trace(None, args, kwargs) as t:
            listing = ops.list_ops(t[path])
            t.stop()
        return listing

    def describe(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """The model's modules with their views and aliases; with arguments, the views' shapes."""
        shapes: describe.Shapes = {}
        if args or kwargs:
            with torch.no_grad(), self.trace(None, args, kwargs, Options(fake=True)) as t:
                describe.observe_views(t, self._tree, shapes)
        return describe.tree(self._tree, shapes)

    def alias(self, name: str, path: str) -> None:
        """Another name for a path, and for what is below it.

        Raises:
            LayerNotFoundError: there is no such path.
            ValueError: the name hides a submodule's.
        """
        full = self._tree.resolve(path)
        if self._tree.find(full) is None:
            self._tree.match(path)  # raises, and names what is close
        if name in self._tree.children(self._tree.model) or "." in name or not name:
            raise ValueError(f"{name!r} cannot be an alias: it is a submodule's name, or no single name")
        self._tree.add_alias(name, full)

    def view(self, view: View) -> None:
        """Define a view; a later one of the same name and modules goes before an earlier one."""
        self._tree.define(view)

    def paths(self, *patterns: str) -> list[str]:
        """Paths that paths, aliases or patterns stand for: of each module one, the first."""
        found: dict[int, str] = {}
        for pattern in patterns:
            for path in self._tree.match(pattern):
                found.setdefault(id(self._tree.find(path)), path)
        return list(found.values())

    def edit(self, path: str, edit: Callable[[Any], Any]) -> Callable[[], None]:
        """Give the first tensor of a module's outputs through a function, in every call; returns the undo.

        A fault, or a value of another shape, dtype or device, leaves the output as it is and goes to the
        guard.
        """
        module = self._tree.find(self._tree.match(path)[0])
        assert module is not None

        def edited(output: Any) -> Any:
            return GUARD.call(f"edit:{path}", _edited, output, edit, path, default=output)

        return slots.edit(module, edited)

    def attach(self, name: str, module: nn.Module, path: str) -> Callable[[], None]:
        """Pass the first tensor of a module's outputs through another module; returns the undo.

        Raises:
            LayerNotFoundError: there is no such path.
            ValueError: the name is taken.
        """
        tree = self._tree
        if name in tree.children(tree.model) or name in tree.aliases or name in tree.attached or "." in name:
            raise ValueError(f"{name!r} cannot be attached: the name is taken, or no single name")
        host = tree.match(path)[0]
        target = tree.find(host)
        assert target is not None
        tree.attached[name], tree.hosts[name] = module, host

        def through(output: Any) -> Any:
            return values.replace_first(output, module(values.first_of(output)))

        undo = slots.edit(target, through)

        def detach() -> None:
            undo()
            tree.attached.pop(name, None)
            tree.hosts.pop(name, None)

        return detach

    def _callable(self, method: str | Callable[..., Any] | None) -> Callable[..., Any]:
        model = self._tree.model
        if method is None:
            return model
        if callable(method):
            return method
        found = getattr(model, method, None)
        if not callable(found):
            raise AttributeError(f"{type(model).__name__} has no method {method!r}")
        return found  # type: ignore[no-any-return]  # of the user's class


def _edited(output: Any, edit: Callable[[Any], Any], path: str) -> Any:
    first = values.first_of(output)
    new = edit(first)
    why = values.mismatch(first, new, f"{path}: the edited output")
    if why is not None:
        raise WrongValueError(why)
    return output if new is first else values.replace_first(output, new)


class _Differently:
    """A call made in another way than the model's own; the contexts are the model's side's only."""

    __slots__ = ("_call", "_options")

    def __init__(self, call: Callable[..., Any], options: Options) -> None:
        self._call = call
        self._options = options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        options = self._options
        with ExitStack() as contexts:
            if options.eager:
                contexts.enter_context(torch.compiler.set_stance("force_eager"))
            if options.unfuse:
                contexts.enter_context(_unfused())
            if options.fake:
                # Weights are real, and become fake where they are used: nothing about the model changes.
                mode = FakeTensorMode(allow_non_fake_inputs=True)
                args, kwargs = tree_map(partial(_faked, mode), (args, kwargs))
                contexts.enter_context(mode)
            return self._call(*args, **kwargs)


def _faked(mode: FakeTensorMode, leaf: Any) -> Any:
    return mode.from_tensor(leaf) if isinstance(leaf, torch.Tensor) else leaf


def _unfused() -> AbstractContextManager[None]:
    backend: Any = getattr(torch.backends, "mha", None)
    if backend is None:
        return nullcontext()
    return _WithoutFastPath(backend)


class _WithoutFastPath(AbstractContextManager[None]):
    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __enter__(self) -> None:
        self._was = self._backend.get_fastpath_enabled()
        self._backend.set_fastpath_enabled(False)

    def __exit__(self, *_: object) -> None:
        self._backend.set_fastpath_enabled(self._was)

"""Puts the engine around methods that an integration's table names, and takes it away again.

The wrapper is an ordinary function on the same class: same name, signature and kind (plain or
coroutine function).  Whatever our side does, the original is called exactly once with the caller's
arguments and its result or exception goes back unchanged.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any, cast

from neuronscope.engine import ENGINE
from neuronscope.engine.context import propagate
from neuronscope.engine.guard import GUARD
from neuronscope.engine.imports import after_import
from neuronscope.engine.managers import observe_manager
from neuronscope.engine.seam import Seam
from neuronscope.instrumentation import ClientIntegration, HandOff, ResponseSeam, WrappedMethod

Undo = Callable[[], None]
# How many of the arguments that ``*args`` takes have a name.
MAX_VARIADIC = 64
# What a wrapper of ours is for; one method may have one of each.
CALLS, COPIES = "calls", "copies"


class Installation:
    """One integration, installed.

    Attributes:
        everything: observe all objects of the library; else only those added by `include`.
        installed: targets that were found and wrapped.
        missing: targets that the installed version does not have.
    """

    def __init__(self, integration: ClientIntegration) -> None:
        self.integration = integration
        self.library = f"neuronscope.{integration.name}"
        self.everything = False
        self.active = True
        self.installed: set[str] = set()
        self.missing: set[str] = set()
        self._objects: dict[int, weakref.ref[Any]] = {}  # by identity: clients may be equal, or not hash
        self._undo: list[Undo] = []

    def install(self) -> None:
        """Wrap everything now loaded, and the rest when it is imported."""
        for module, work in self._by_module().items():
            self._undo.append(after_import(module, functools.partial(self._on_import, work)))

    def uninstall(self) -> None:
        """Restore every function; wrappers that others have wrapped meanwhile only pass through."""
        self.active = False
        for undo in reversed(self._undo):
            GUARD.call("wrap.uninstall", undo)
        self._undo.clear()

    def include(self, obj: Any) -> None:
        """Observe this object, and those that act for it."""
        members = self.integration.members
        for each in (obj, *(members(obj) if members is not None else ())):
            key = id(each)
            self._objects[key] = weakref.ref(each, functools.partial(self._forget, key))

    def _forget(self, key: int, gone: weakref.ref[Any]) -> None:
        if self._objects.get(key) is gone:
            del self._objects[key]

    def covers(self, args: tuple[Any, ...]) -> bool:
        """Is a method's call with these arguments to be observed?  The first is its instance."""
        if not (ENGINE.active and self.active and args):
            return False  # without an instance Python will complain
        return self.everything or self._included(args[0])

    def covers_function(self, _: tuple[Any, ...]) -> bool:
        """Is a function's call to be observed?"""
        return ENGINE.active and self.active and self.everything

    def _included(self, instance: Any) -> bool:
        members = self.integration.members
        return self._is_among(instance) or (
            members is not None and bool(self._objects) and any(map(self._is_among, members(instance)))
        )

    def _is_among(self, obj: Any) -> bool:
        found = self._objects.get(id(obj))
        return found is not None and found() is obj

    def _by_module(self) -> dict[str, list[Callable[[ModuleType], None]]]:
        work: dict[str, list[Callable[[ModuleType], None]]] = {}
        integration = self.integration
        for method in integration.methods:
            work.setdefault(_module(method.target), []).append(functools.partial(self._wrap, method))
        for handoff in integration.handoffs:
            work.setdefault(_module(handoff.target), []).append(functools.partial(self._carry, handoff))
        for seam in integration.responses:
            work.setdefault(_module(seam.target), []).append(functools.partial(self._notice, seam))
        for target in integration.copies:
            work.setdefault(_module(target), []).append(functools.partial(self._follow, target))
        if integration.install is not None:
            for module in integration.modules:
                work.setdefault(module, []).append(self._hand_over)
        return work

    def _on_import(self, work: list[Callable[[ModuleType], None]], module: ModuleType) -> None:
        for step in work:
            GUARD.call(f"wrap.{self.integration.name}", step, module)

    def _hand_over(self, module: ModuleType) -> None:
        install = self.integration.install
        if install is not None and self.active:
            self._undo.append(install(ENGINE, module.__name__))
            self.installed.add(module.__name__)

    def _wrap(self, method: WrappedMethod, module: ModuleType) -> None:
        self._wrap_one(method, module)
        if method.subclasses:
            for name in _overrides(method.target, module):
                self._wrap_one(replace(method, target=name), module)

    def _wrap_one(self, method: WrappedMethod, module: ModuleType) -> None:
        original = self._find(method.target, module, optional=method.optional, inherited=method.inherited)
        if original is not None and method.inside is not None:
            self._wrap_inside(method, original, method.inside)
        elif original is not None:
            self._replace(method.target, module, original, wrapper_for(self, method, original))

    def _wrap_inside(self, method: WrappedMethod, decorated: Callable[..., Any], variable: str) -> None:
        """Wrap the function that a decorator's wrapper holds in its closure, in its place there."""
        cells = dict(zip(decorated.__code__.co_freevars, decorated.__closure__ or (), strict=False))
        cell = cells.get(variable)
        if cell is None:
            self.missing.add(method.target)
            return
        original = cell.cell_contents
        if getattr(original, "__neuronscope__", None) == (self, CALLS):
            return
        wrapper: Any = wrapper_for(self, method, original)
        wrapper.__neuronscope__ = (self, CALLS)
        cell.cell_contents = wrapper
        self.installed.add(method.target)

        def undo() -> None:
            if cell.cell_contents is wrapper:
                cell.cell_contents = original

        self._undo.append(undo)

    def _carry(self, handoff: HandOff, module: ModuleType) -> None:
        original = self._find(handoff.target, module, optional=True)
        if original is not None:
            self._replace(handoff.target, module, original, _carrier(self, handoff, original))

    def _notice(self, seam: ResponseSeam, module: ModuleType) -> None:
        original = self._find(seam.target, module, optional=True)
        if original is not None:
            self._replace(seam.target, module, original, _noticing(self, seam, original))

    def _follow(self, target: str, module: ModuleType) -> None:
        original = self._find(target, module, optional=True, role=COPIES)
        if original is not None:
            self._replace(target, module, original, _follower(self, original), role=COPIES)

    def _find(
        self,
        target: str,
        module: ModuleType,
        *,
        optional: bool,
        role: str = CALLS,
        inherited: bool = False,
    ) -> Callable[..., Any] | None:
        owner, name = _owner(target, module)
        function = cast("Any", None if owner is None else vars(owner).get(name))
        if function is None and inherited and owner is not None:
            function = inspect.getattr_static(owner, name, None)
        if inspect.isfunction(function):
            return None if getattr(function, "__neuronscope__", None) == (self, role) else function
        if not optional:
            self.missing.add(target)
        return None

    def _replace(
        self,
        target: str,
        module: ModuleType,
        original: Callable[..., Any],
        wrapper: Callable[..., Any],
        role: str = CALLS,
    ) -> None:
        owner, name = _owner(target, module)
        is_own = name in vars(owner)
        wrapper.__neuronscope__ = (self, role)  # type: ignore[attr-defined]
        setattr(owner, name, wrapper)
        self.installed.add(target)

        def undo() -> None:
            if vars(owner).get(name) is not wrapper:
                return
            if is_own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)

        self._undo.append(undo)


def wrapper_for(
    installation: Installation, method: WrappedMethod, original: Callable[..., Any]
) -> Callable[..., Any]:
    """The wrapper of one method."""
    bound = "." in method.target.partition(":")[2]
    seam = Seam(
        method,
        installation.covers if bound else installation.covers_function,
        installation.library,
        _called(method.target),
        f"{installation.library}.{original.__qualname__}",
        bound=bound,
        parameters=_positional_names(original)[1 if bound else 0 :],
    )
    engine, site, begin = ENGINE, seam.site, ENGINE.begin
    guarded_begin, end, always = GUARD.begin, GUARD.end, GUARD.always

    if method.awaitable:
        return _promise_wrapper(seam, original)
    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            if not engine.active:
                return await original(*args, **kwargs)
            invocation = guarded_begin(site, begin, seam, args, kwargs)
            if invocation is None:
                return await original(*args, **kwargs)
            if invocation.arguments is not None:
                args, kwargs = invocation.arguments
            try:
                result = await original(*args, **kwargs)
            except BaseException as error:
                if not end(site, invocation.fail, error):
                    always(site, invocation.leave)
                raise
            if not end(site, invocation.succeed, result):
                always(site, invocation.leave)
            return result if invocation.replacement is None else invocation.hand_out()

        return async_wrapper

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not engine.active:
            return original(*args, **kwargs)
        invocation = guarded_begin(site, begin, seam, args, kwargs)
        if invocation is None:
            return original(*args, **kwargs)
        if invocation.arguments is not None:
            args, kwargs = invocation.arguments
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            if not end(site, invocation.fail, error):
                always(site, invocation.leave)
            raise
        if method.manager:
            if not always(site, observe_manager, result, invocation):
                always(site, invocation.give_up)
            return result
        if not end(site, invocation.succeed, result):
            always(site, invocation.leave)
        return result if invocation.replacement is None else invocation.hand_out()

    return wrapper


def _promise_wrapper(seam: Seam, original: Callable[..., Any]) -> Callable[..., Any]:
    """The wrapper of a plain function that returns a coroutine: the call is made when that is awaited."""
    site = seam.site

    async def answer(promise: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        invocation = GUARD.begin(site, ENGINE.begin, seam, args, kwargs)
        if invocation is None:
            return await promise
        try:
            result = await promise
        except BaseException as error:
            if not GUARD.end(site, invocation.fail, error):
                GUARD.always(site, invocation.leave)
            raise
        if not GUARD.end(site, invocation.succeed, result):
            GUARD.always(site, invocation.leave)
        return result if invocation.replacement is None else invocation.hand_out()

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return answer(original(*args, **kwargs), args, kwargs)

    return wrapper


def _positional_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of positional arguments, in order; what ``*args`` takes is called ``*0``, ``*1`` and so on."""
    names: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            return (*names, *(f"*{position}" for position in range(MAX_VARIADIC)))
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return tuple(names)


def _carrier(
    installation: Installation, handoff: HandOff, original: Callable[..., Any]
) -> Callable[..., Any]:
    """A wrapper that runs the handed-over callable in the caller's context."""
    parameters = tuple(inspect.signature(original).parameters)
    index = parameters.index(handoff.parameter)

    def with_context(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not (ENGINE.active and installation.active):
            return None
        if handoff.package:
            function = args[index] if len(args) > index else kwargs.get(handoff.parameter)
            if str(getattr(function, "__module__", "")).partition(".")[0] != handoff.package:
                return None
        if len(args) > index:  # first: a keyword of the same name may be meant for the callable
            return (*args[:index], propagate(args[index]), *args[index + 1 :]), kwargs
        if handoff.parameter in kwargs:
            return args, {**kwargs, handoff.parameter: propagate(kwargs[handoff.parameter])}
        return None  # the original will complain

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        changed = GUARD.call(f"handoff.{handoff.target}", with_context, args, kwargs)
        if changed is None:
            return original(*args, **kwargs)
        return original(*changed[0], **changed[1])

    return wrapper


def _noticing(
    installation: Installation, seam: ResponseSeam, original: Callable[..., Any]
) -> Callable[..., Any]:
    """A wrapper that shows the HTTP response to the call it belongs to."""
    library, site, end = installation.library, f"response.{seam.target}", GUARD.end
    response, resends = seam.response, seam.resends

    def note(kwargs: dict[str, Any]) -> None:
        call = ENGINE.open_call(library)
        if call is not None:
            call.http = kwargs.get(response)
            call.resends = kwargs.get(resends)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:  # of a coroutine function: hands its coroutine on
        end(site, note, kwargs)
        return original(*args, **kwargs)

    return wrapper


def _follower(installation: Installation, original: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper that includes the result of `original` when its instance is included."""

    def follow(args: tuple[Any, ...], result: Any) -> None:
        if result is not None and installation.covers(args):
            installation.include(result)

    if inspect.iscoroutinefunction(original):

        @functools.wraps(original)
        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            result = await original(*args, **kwargs)
            GUARD.call("wrap.copies", follow, args, result)
            return result

        return async_wrapper

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        GUARD.call("wrap.copies", follow, args, result)
        return result

    return wrapper


def _module(target: str) -> str:
    return target.partition(":")[0]


def _called(target: str) -> str:
    """The name by which the service calls a method, whatever its function is called."""
    return target.partition(":")[2].rpartition(".")[2]


def _overrides(target: str, module: ModuleType) -> list[str]:
    """Targets of a method's overrides in subclasses that the library keeps beside the class."""
    where, _, path = target.partition(":")
    *outer, _, name = path.split(".")
    owner, _ = _owner(target, module)
    place: Any = functools.reduce(getattr, outer, module)
    found: list[type] = []
    waiting: list[type] = [owner] if isinstance(owner, type) else []
    for kind in waiting:
        all_of_it: list[type] = type.__subclasses__(kind)
        subclasses = [each for each in all_of_it if each not in waiting]
        waiting.extend(subclasses)
        found.extend(each for each in subclasses if getattr(place, each.__name__, None) is each)
    return [f"{where}:{'.'.join([*outer, kind.__name__, name])}" for kind in found if name in vars(kind)]


def _owner(target: str, module: ModuleType) -> tuple[Any, str]:
    """The object that holds the attribute (None if absent), and the attribute's name."""
    *path, name = target.partition(":")[2].split(".")
    owner: Any = module
    for part in path:
        owner = getattr(owner, part, None)
        if owner is None:
            break
    return owner, name

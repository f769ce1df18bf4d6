"""What stands in the place of a library's methods.

A wrapper is an ordinary function on the same class: same name, signature and kind (plain or
coroutine function).  Whatever our side does, the original is called exactly once with the caller's
arguments and its result or exception goes back unchanged.

A signal handler of the service may raise wherever Python looks for signals: as a call of ours returns, say,
before its result has a name.  So each of our steps stands in a `try` of its own, which costs nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from neuronscope.engine import ENGINE
from neuronscope.engine.context import propagate
from neuronscope.engine.entry import Entry, entry, forsake, noter
from neuronscope.engine.guard import GUARD
from neuronscope.engine.managers import observe_manager
from neuronscope.engine.seam import Seam
from neuronscope.instrumentation import HandOff, ResponseSeam, WrappedMethod

if TYPE_CHECKING:
    from neuronscope.engine.invocation import Invocation
    from neuronscope.engine.wrap import Installation

# How many of the arguments that ``*args`` takes have a name.
MAX_VARIADIC = 64


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
    site, door = seam.site, entry(ENGINE, seam, installation)
    if method.awaitable:
        return _promise_wrapper(door, site, original)
    if inspect.iscoroutinefunction(original):
        return _coroutine_wrapper(door, site, original)
    return _manager_wrapper(door, site, original) if method.manager else _wrapper(door, site, original)


def _wrapper(door: Entry, site: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """The wrapper of a plain function; as that of a coroutine function, it is written for speed."""
    begin, succeed = door.begin, door.succeed

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            invocation = begin(args, kwargs)
        except BaseException:
            forsake(door)
            raise
        if invocation is None:
            return original(*args, **kwargs)
        if invocation.arguments is not None:
            args, kwargs = invocation.arguments
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            _failed(site, invocation, error)
            raise
        try:
            return result if succeed(invocation, result) else invocation.hand_out()
        except BaseException:
            GUARD.always(site, invocation.give_up)
            raise

    return wrapper


def _coroutine_wrapper(door: Entry, site: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """The wrapper of a coroutine function."""
    begin, succeed = door.begin, door.succeed

    @functools.wraps(original)
    async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            invocation = begin(args, kwargs)
        except BaseException:
            forsake(door)
            raise
        if invocation is None:
            return await original(*args, **kwargs)
        if invocation.arguments is not None:
            args, kwargs = invocation.arguments
        try:
            result = await original(*args, **kwargs)
        except BaseException as error:
            _failed(site, invocation, error)
            raise
        try:
            return result if succeed(invocation, result) else invocation.hand_out()
        except BaseException:
            GUARD.always(site, invocation.give_up)
            raise

    return async_wrapper


def _begun(door: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Invocation | None:
    """Begin a call, where a frame more does not matter."""
    try:
        return door.begin(args, kwargs)
    except BaseException:
        forsake(door)
        raise


def _failed(site: str, invocation: Invocation, error: BaseException) -> None:
    """The call raised: end its observation.  Should a signal handler raise meanwhile, it is given up."""
    try:
        if not GUARD.end(site, invocation.fail, error):
            GUARD.always(site, invocation.leave)
    except BaseException:
        GUARD.always(site, invocation.give_up)
        raise


def _manager_wrapper(door: Entry, site: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """The wrapper of a method that returns a context manager: the call is made when its block is entered."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        invocation = _begun(door, args, kwargs)
        if invocation is None:
            return original(*args, **kwargs)
        if invocation.arguments is not None:
            args, kwargs = invocation.arguments
        try:
            manager = original(*args, **kwargs)
        except BaseException as error:
            _failed(site, invocation, error)
            raise
        if not GUARD.always(site, observe_manager, manager, invocation):
            GUARD.always(site, invocation.give_up)
        return manager

    return wrapper


def _promise_wrapper(door: Entry, site: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """The wrapper of a plain function that returns a coroutine: the call is made when that is awaited."""

    async def answer(promise: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        invocation = _begun(door, args, kwargs)
        if invocation is None:
            return await promise
        try:
            result = await promise
        except BaseException as error:
            _failed(site, invocation, error)
            raise
        try:
            return result if door.succeed(invocation, result) else invocation.hand_out()
        except BaseException:
            GUARD.always(site, invocation.give_up)
            raise

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


def carrier(installation: Installation, handoff: HandOff, original: Callable[..., Any]) -> Callable[..., Any]:
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


def noticing(
    installation: Installation, seam: ResponseSeam, original: Callable[..., Any]
) -> Callable[..., Any]:
    """A wrapper that shows the HTTP response to the call it belongs to."""
    note = noter(ENGINE, installation.library, f"response.{seam.target}", seam.response, seam.resends)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:  # of a coroutine function: hands its coroutine on
        note(kwargs)
        return original(*args, **kwargs)

    return wrapper


def follower(installation: Installation, original: Callable[..., Any]) -> Callable[..., Any]:
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


def _called(target: str) -> str:
    """The name by which the service calls a method, whatever its function is called."""
    return target.partition(":")[2].rpartition(".")[2]

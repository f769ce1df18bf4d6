"""What services do with a client, and what can go wrong there: each scenario returns all it could notice."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import gc
import inspect
import pickle
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import victimlib
from fakelib import FakeAsyncStream, FakeStream

Scenario = Callable[[], Any]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Callable[[], Any]) -> Callable[[], Any]:
    """Register a scenario; a coroutine function is run in a loop of its own."""
    run = (lambda: asyncio.run(function())) if inspect.iscoroutinefunction(function) else function
    SCENARIOS[function.__name__] = run
    return function


def caught(work: Callable[[], Any]) -> Any:
    """What came of it: the value, or the exception with its cause and context."""
    try:
        return work()
    except BaseException as error:  # noqa: BLE001 - whatever the service would get
        return type(error), error.args, type(error.__cause__), type(error.__context__)


async def acaught(work: Callable[[], Any]) -> Any:
    """The asynchronous twin."""
    try:
        return await work()
    except BaseException as error:  # noqa: BLE001 - whatever the service would get
        return type(error), error.args, type(error.__cause__), type(error.__context__)


def raising(error: BaseException) -> Callable[[Any], Any]:
    def work(_: Any) -> Any:
        raise error

    return work


def araising(error: BaseException) -> Callable[[Any], Any]:
    async def work(_: Any) -> Any:
        raise error

    return work


async def same(argument: Any) -> Any:
    return argument


def stream(_: Any = None, *, fail_after: int | None = None) -> FakeStream:
    return FakeStream(["a", "b", "c"], fail_after)


async def astream(_: Any = None) -> FakeAsyncStream:
    return FakeAsyncStream(["a", "b", "c"])


class Evil:
    """Every question about it raises."""

    def _no(self, *_: Any) -> Any:
        raise RuntimeError("do not touch")

    __eq__ = __bool__ = __len__ = __iter__ = __str__ = __repr__ = __format__ = __getattr__ = _no
    __getitem__ = __contains__ = __int__ = __float__ = __index__ = __copy__ = __deepcopy__ = _no
    __reduce_ex__ = __lt__ = __add__ = __call__ = __enter__ = __await__ = _no

    def __hash__(self) -> int:
        raise RuntimeError("do not touch")


class EvilError(Exception):
    """An exception that raises when it is looked at."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("do not touch")

    def __str__(self) -> str:
        raise RuntimeError("do not touch")

    __repr__ = __str__


EXITS: tuple[BaseException, ...] = (
    ValueError("v"),
    KeyboardInterrupt("k"),
    SystemExit(3),
    GeneratorExit("g"),
    asyncio.CancelledError("c"),
    StopIteration("s"),
    StopAsyncIteration("sa"),
    MemoryError(),
    RecursionError("r"),
    BaseExceptionGroup("group", [KeyboardInterrupt(), ValueError()]),
    EvilError("e"),
)

client = victimlib.Client()


# --- arguments and results ----------------------------------------------------------------------------
@scenario
def results_are_the_very_objects() -> Any:
    objects: list[Any] = [
        object(),
        None,
        0,
        "",
        [],
        {},
        Evil(),
        EvilError(),
        iter([1]),
        (x for x in "ab"),
        type,
        stream,
    ]
    return [client.call(lambda thing: thing, thing) is thing for thing in objects]


@scenario
def generators_are_not_consumed() -> Any:
    source = iter(range(5))
    generator = (n for n in range(5))
    next(source)
    next(generator)
    return client.call(list, source), client.call(list, generator), victimlib.function(iter("ab")).__next__()


@scenario
def arguments_are_not_changed() -> Any:
    messages = [{"role": "user", "content": "a"}]
    before = copy.deepcopy(messages)
    seen = client.call(lambda given: given is messages, messages, option=messages)
    return seen, messages == before, sys.getrefcount(messages) > 0


@scenario
def evil_arguments_and_results_pass() -> Any:
    evil = Evil()
    given = client.call(lambda thing: thing is evil, evil, option=evil)
    result = client.call(lambda _: evil)
    error = caught(lambda: client.call(evil))
    return given, result is evil, error


@scenario
def wrong_arguments_are_refused_as_ever() -> Any:
    wrong: list[Callable[[], Any]] = [
        lambda: client.call(),  # type: ignore[call-arg]  # noqa: PLW0108 - looked up when it is called
        lambda: client.call(len, "a", "b"),  # type: ignore[call-arg]
        lambda: client.call(len, other=1),  # type: ignore[call-arg]
        lambda: client.call(len, work=len),  # type: ignore[misc]
        lambda: victimlib.Client.call(),  # type: ignore[call-arg]  # noqa: PLW0108 - as above
        lambda: victimlib.Client.call(work=len),  # type: ignore[call-arg]
        lambda: client.acall(),  # type: ignore[call-arg]  # noqa: PLW0108 - as above
    ]
    results = [caught(work) for work in wrong[:-1]]
    return [result[:2] for result in results], asyncio.run(acaught(wrong[-1]))[:2]


@scenario
def texts_of_all_kinds() -> Any:
    texts = ["\ud800", "\x00", "a\udcffb\x00c", "😀" * 1000, "", "\u202e", "x" * 20_000_000]
    return [client.call(len, text, option=text) for text in texts]


@scenario
def exceptions_of_all_kinds() -> Any:
    found: list[Any] = []
    for error in EXITS:
        cause = KeyError("cause")
        error.__cause__ = cause
        try:
            client.call(raising(error))
        except BaseException as caught_error:  # noqa: BLE001 - whatever the service would get
            found.append((caught_error is error, error.__cause__ is cause, error.__suppress_context__))
    return found


@scenario
def an_exception_is_not_kept_alive() -> Any:
    class Big:
        pass

    def fail(_: Any) -> Any:
        big = Big()
        fail.ref = weakref.ref(big)  # type: ignore[attr-defined]
        raise ValueError

    with contextlib.suppress(ValueError):
        client.call(fail)
    gc.collect()
    return fail.ref() is None  # type: ignore[attr-defined]


@scenario
def functions_look_the_same() -> Any:
    found: list[Any] = []
    for function in (victimlib.Client.call, victimlib.Client.acall, victimlib.function):
        found += [
            function.__name__,
            function.__qualname__,
            function.__module__,
            function.__doc__,
            str(inspect.signature(function)),
            inspect.iscoroutinefunction(function),
            inspect.isfunction(function),
            function.__annotations__.keys(),
        ]
    return found


# --- copies -----------------------------------------------------------------------------------------
@scenario
def copies_and_pickles() -> Any:
    copies: list[Any] = [
        copy.copy(client),
        copy.deepcopy(client),
        pickle.loads(pickle.dumps(client)),
    ]
    methods: list[Any] = [
        copy.copy(client.call),
        copy.deepcopy(client.call),
        pickle.loads(pickle.dumps(client.call)),
        pickle.loads(pickle.dumps(functools.partial(client.call, len))),
        functools.partial(pickle.loads(pickle.dumps(victimlib.Client.call)), client),
    ]
    results: list[Any] = [one.call(len, "abc") for one in copies] + [m(len, "abc") for m in methods[:3]]
    return (
        results,
        methods[3]("abc"),
        methods[4](len, "abc"),
        pickle.loads(pickle.dumps(victimlib.function))(3),
    )


class ListStream(FakeStream):
    """A stream that can be copied: its inner iterator is over a list."""

    def _read(self, chunks: list[str], fail_after: int | None) -> Iterator[str]:
        return iter(chunks)


@scenario
def streams_can_be_copied_if_they_could_be() -> Any:
    whole = client.call(lambda _: ListStream(["a", "b", "c"]))
    first = next(whole)
    deep, shallow = copy.deepcopy(whole), copy.copy(whole)
    pickled = pickle.loads(pickle.dumps(whole))
    return first, list(deep), list(pickled), next(shallow), list(whole), type(deep) is ListStream


# --- streams ------------------------------------------------------------------------------------------
@scenario
def streams_that_are_read_to_the_end() -> Any:
    whole = client.call(stream)
    return type(whole), isinstance(whole, FakeStream), list(whole), list(whole), caught(whole.__next__)


@scenario
def streams_that_are_left() -> Any:
    found: list[Any] = []
    for _ in client.call(stream):
        break
    with client.call(stream) as opened:
        found.append(next(opened))
    found.append((opened.closed, list(opened)))
    half = client.call(stream)
    next(half)
    half.close()
    half.close()
    found.append((half.closed, list(half)))
    client.call(stream)
    dropped = client.call(stream)
    next(dropped)
    del dropped
    gc.collect()
    return found


@scenario
def streams_that_fail() -> Any:
    cut_off = client.call(functools.partial(stream, fail_after=1))
    first = next(cut_off)
    return first, caught(cut_off.__next__), caught(cut_off.__next__), list(cut_off)


@scenario
def streams_whose_reader_fails() -> Any:
    def read() -> None:
        with client.call(stream) as opened:
            for chunk in opened:
                raise ValueError(chunk)

    return caught(read)


@scenario
def streams_of_strange_chunks() -> Any:
    chunks: list[Any] = [None, Evil(), "\ud800", object(), b"\x00" * 1_000_000, EvilError()]
    read = list(client.call(lambda _: ListStream(chunks)))
    return [given is taken for given, taken in zip(chunks, read, strict=True)]


@scenario
def streams_that_are_read_in_other_threads() -> Any:
    whole = client.call(stream)
    found: list[str] = [next(whole)]
    thread = threading.Thread(target=lambda: found.extend(whole))
    thread.start()
    thread.join()
    return found


@scenario
def generators_around_streams() -> Any:
    def service() -> Iterator[str]:
        yield from client.call(stream)

    early, thrown = service(), service()
    next(early)
    next(thrown)
    early.close()  # type: ignore[attr-defined]
    return caught(lambda: thrown.throw(KeyError("in"))), list(early)  # type: ignore[attr-defined]


# --- coroutines -----------------------------------------------------------------------------------------
@scenario
async def awaited_calls() -> Any:
    results = await asyncio.gather(*(client.acall(same, n) for n in range(20)))
    errors = []
    for error in EXITS:
        if not isinstance(error, StopIteration | KeyboardInterrupt | SystemExit):
            outcome = await acaught(lambda error=error: client.acall(araising(error)))  # type: ignore[misc]
            errors.append(outcome[0])
    return results, errors


@scenario
async def cancelled_calls() -> Any:
    async def wait(_: Any) -> Any:
        await asyncio.sleep(60)

    async def clean_up(_: Any) -> Any:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "survived"

    outcomes: list[Any] = []
    for work in (wait, clean_up):
        task = asyncio.create_task(client.acall(work))
        await asyncio.sleep(0)
        task.cancel("why")
        outcomes.append(await acaught(lambda task=task: task))  # type: ignore[misc]
        outcomes.append((task.cancelled(), task.cancelling()))
    outcomes.append(await acaught(lambda: asyncio.wait_for(client.acall(wait), 0.01)))

    async def scope() -> Any:
        async with asyncio.timeout(0.01):
            await client.acall(wait)

    outcomes.append((await acaught(scope))[:2])
    return outcomes


@scenario
async def a_sibling_in_a_task_group_fails() -> Any:
    async def wait(_: Any) -> Any:
        await asyncio.sleep(60)

    async def group() -> Any:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.acall(wait))
            tasks.create_task(client.acall(araising(ValueError("sibling"))))

    error = await acaught(group)
    return error[0], [type(inner) for inner in error[1][1]]


@scenario
async def asynchronous_streams() -> Any:
    whole = await client.acall(astream)
    found: list[Any] = [type(whole), [chunk async for chunk in whole]]
    async for _ in await client.acall(astream):
        break
    closed = await client.acall(astream)
    await closed.close()
    found.append([chunk async for chunk in closed])

    async def service() -> AsyncIterator[str]:
        async for chunk in await client.acall(astream):
            yield chunk

    early = service()
    found.append(await anext(early))
    await asyncio.create_task(early.aclose())  # type: ignore[attr-defined]
    task = asyncio.create_task(read_slowly(await client.acall(astream)))
    await asyncio.sleep(0)
    task.cancel()
    found.append(await acaught(lambda: task))
    return found


async def read_slowly(source: Any) -> None:
    async for _ in source:
        await asyncio.sleep(60)


# --- recursion ------------------------------------------------------------------------------------------
@scenario
def calls_within_calls() -> Any:
    def deeper(depth: int) -> Any:
        return depth if depth == 0 else client.call(deeper, depth - 1)

    return client.call(deeper, 50)


@scenario
def endless_recursion() -> Any:
    def deeper(depth: int) -> Any:
        return client.call(deeper, depth + 1)

    return caught(lambda: client.call(deeper, 0))[0]


@scenario
def calls_in_finalisers() -> Any:
    found: list[Any] = []

    class Leaving:
        def __del__(self) -> None:
            found.append(client.call(len, "ab"))

    def leave() -> None:
        leaving = Leaving()
        leaving.me = leaving  # type: ignore[attr-defined]

    for _ in range(3):
        leave()
    client.call(lambda _: gc.collect())
    return found


@scenario
def calls_from_many_threads() -> Any:
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(client.call(len, "abc"))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found

"""Streams are folds: the observed iterator, put inside the SDK's own stream object.

The service keeps the SDK's stream, with its type, helpers and `close`.  Per chunk we take the time and a
reference; the worker folds the chunks into a response afterwards.  The span ends exactly once, whatever
happens: exhausted, closed, left by `with`, an exception, cancellation, or garbage collection.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import weakref
from array import array
from collections.abc import AsyncGenerator, Callable, Generator
from types import GeneratorType
from typing import Any, ClassVar, Literal, cast

from neuronscope.engine.chunks import HAND_OVER_EVERY, TIMED_EVERY, new_chunks
from neuronscope.engine.guard import GUARD
from neuronscope.instrumentation import Endpoint, Response

StreamEnd = Literal["complete", "client_closed", "cancelled", "error", "abandoned"]


class StreamState:
    """What is known of one stream; `finish` runs once.

    Args:
        later: runs a function in the worker, in order with what finishes the stream; None: at once.

    Attributes:
        seen: the chunks, and when they came.
        first_content_ns: when the first chunk with content came.
        end: how the stream ended.
        fetching: the SDK is fetching the next chunk.
        source: the SDK's generator, which can tell that by itself.  Held weakly: who keeps the HTTP response,
            which knows us, must not keep the stream open.
    """

    __slots__ = (
        "_content",
        "_endpoint",
        "_finish",
        "_is_content",
        "_later",
        "_site",
        "end",
        "error",
        "fetching",
        "first_content_ns",
        "response",
        "seen",
        "source",
    )

    def __init__(
        self,
        endpoint: Endpoint,
        site: str,
        content: bool,
        finish: Callable[[StreamState, BaseException | None], None],
        later: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._later = later
        self._site = site
        self._content = content
        self._is_content = endpoint.is_content
        self._finish: Callable[[StreamState, BaseException | None], None] | None = finish
        self.seen = new_chunks()
        self.first_content_ns: int | None = None
        self.response = Response()
        self.end: StreamEnd | None = None
        self.error: BaseException | None = None
        self.fetching = False
        self.source: weakref.ref[GeneratorType[Any, Any, Any]] | None = None

    @property
    def reading(self) -> bool:
        """Is the SDK fetching the next chunk?  What it closes then, it closes by itself."""
        source = None if self.source is None else self.source()
        return self.fetching or (source is not None and source.gi_running)

    @property
    def chunks(self) -> list[Any]:
        """Those that are not with the worker yet."""
        return self.seen.kept

    @property
    def times(self) -> array[int]:
        """When each chunk came, by the clock, in ns."""
        return array("q", self.seen.times())

    def take(self, chunk: Any) -> None:
        """Note a chunk on its way to the service."""
        if self.seen.take(chunk):
            self.attend(chunk)

    def attend(self, chunk: Any) -> None:
        """A chunk is to be looked at, or so many have come that they are to be handed over."""
        seen = self.seen
        if seen.waits:
            self.look_for_content(chunk, seen.last)
        if len(seen.kept) >= HAND_OVER_EVERY:
            self.hand_over()

    def fetch(self) -> None:
        """The service asks for the next chunk."""
        self.fetching = True
        self.seen.asked()

    @property
    def consumer_ns(self) -> int | None:
        """About how long the provider was kept waiting by the service; None for a stream too short to say."""
        count = self.seen.count
        timed = count // TIMED_EVERY
        return self.seen.held_ns * count // timed if timed else None

    def look_for_content(self, chunk: Any, now: int) -> None:
        """Note when the first chunk with content came."""
        if self._is_content is None or GUARD.call(self._site, self._is_content, chunk):
            self.first_content_ns = now
            self.seen.waits = False

    def hand_over(self) -> None:
        """Give the chunks so far to the worker.

        Held here, they would outlive young garbage collections, which costs the service more than all else
        that we do per chunk.
        """
        fold = functools.partial(self._fold, self.seen.hand_over())
        if self._later is None:
            fold()
        else:
            self._later(fold)

    def fold(self) -> Response:
        """The response that all chunks make; earlier ones have been folded by now."""
        self._fold(self.seen.hand_over())
        return self.response

    def _fold(self, chunks: list[Any]) -> None:
        fold = self._endpoint.fold_chunk
        if fold is not None:
            for chunk in chunks:
                self.response = fold(self.response, chunk, self._content)

    def close(self, end: StreamEnd, error: BaseException | None = None) -> None:
        """The stream is over; only the first call counts."""
        finish, self._finish = self._finish, None
        if finish is None:
            return
        self.end = end
        GUARD.call(self._site, finish, self, error)

    def fail(self, error: BaseException) -> None:
        """The stream raised into the service, or has come to its end."""
        if isinstance(error, StopIteration | StopAsyncIteration):
            self.close("complete")
        elif isinstance(error, GeneratorExit):
            self.close("client_closed")
        elif isinstance(error, asyncio.CancelledError):
            self.close("cancelled", error)
        else:
            self.close("error", error)

    def __del__(self) -> None:
        # Dropped half-read, or never read at all.
        if self._finish is not None:
            self.close("client_closed" if self.seen.count else "abandoned")


def observe(inner: Any, state: StreamState) -> Any:
    """The iterator to put in the place of `inner`, sync or async."""
    if hasattr(inner, "__anext__"):
        return ObservedAsyncIterator(inner, state)
    return _observed(inner, state) if inspect.isgenerator(inner) else ObservedIterator(inner, state)


def observe_generator(inner: Any, state: StreamState) -> Any:
    """The generator to hand out in the place of `inner`, sync or async: of the same type."""
    if inspect.isasyncgen(inner):
        return _observed_async(cast("AsyncGenerator[Any, None]", inner), state)
    return observe(inner, state)


async def _observed_async(inner: AsyncGenerator[Any, Any], state: StreamState) -> AsyncGenerator[Any, Any]:
    """The asynchronous twin of `_observed`."""
    state.fetching = True
    try:
        chunk = await anext(inner)
        while True:
            state.fetching = False
            GUARD.end("streams.take", state.take, chunk)
            try:
                sent = yield chunk
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - it is the inner one's
                state.fetching = True
                chunk = await inner.athrow(error)
                continue
            state.fetch()
            chunk = await (anext(inner) if sent is None else inner.asend(sent))
    except StopAsyncIteration:
        GUARD.always("streams.end", state.close, "complete")
    except GeneratorExit:
        GUARD.always("streams.end", state.close, "client_closed")
        await inner.aclose()
        raise
    except BaseException as error:
        GUARD.always("streams.end", state.fail, error)
        raise
    finally:
        state.fetching = False


def _observed(inner: Generator[Any, Any, Any], state: StreamState) -> Generator[Any, Any, Any]:
    """A generator in the place of a generator: a third of what an iterator object costs per chunk.

    What is sent or thrown into it goes to the inner one, and so does its return value the other way.
    """
    take, asked, advance = state.seen.take, state.seen.asked, inner.__next__
    state.source = weakref.ref(cast("GeneratorType[Any, Any, Any]", inner))
    try:
        chunk = advance()
        while True:
            due = take(chunk)
            if due:
                GUARD.call("streams.attend", state.attend, chunk)
            try:
                sent = yield chunk
            except GeneratorExit:
                raise
            except BaseException as error:  # noqa: BLE001 - it is the inner one's
                chunk = inner.throw(error)
                continue
            if due is not None:
                asked()
            chunk = advance() if sent is None else inner.send(sent)
    except StopIteration as stop:
        GUARD.always("streams.end", state.close, "complete")
        return stop.value
    except GeneratorExit:
        GUARD.always("streams.end", state.close, "client_closed")
        inner.close()
        raise
    except BaseException as error:
        GUARD.always("streams.end", state.fail, error)
        raise
    finally:
        state.source = None


class _Observed:
    """An iterator that tells a `StreamState` what passes through it; the rest is the inner one's."""

    __slots__ = ("_inner", "_next", "_state")
    _STEP: ClassVar[str]

    def __init__(self, inner: Any, state: StreamState) -> None:
        self._inner = inner
        self._next = getattr(inner, self._STEP)
        self._state = state

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _closing(self, method: str) -> Callable[[], Any] | None:
        """The service closes the stream: the inner one's way to do that, if it has one."""
        GUARD.always("streams.end", self._state.close, "client_closed")
        close: Callable[[], Any] | None = getattr(self._inner, method, None)
        return close


class ObservedIterator(_Observed):
    """A synchronous one."""

    __slots__ = ()
    _STEP = "__next__"

    def __iter__(self) -> ObservedIterator:
        return self

    def __next__(self) -> Any:
        state = self._state
        state.fetch()
        try:
            chunk = self._next()
        except BaseException as error:
            GUARD.always("streams.end", state.fail, error)
            raise
        finally:
            state.fetching = False
        GUARD.end("streams.take", state.take, chunk)
        return chunk

    def close(self) -> None:
        """Close the inner iterator where it can be closed."""
        close = self._closing("close")
        if close is not None:
            close()

    def __reduce_ex__(self, protocol: object) -> Any:
        return iter, (self._inner,)  # copies and pickles are of the stream, and are not observed


class ObservedAsyncIterator(_Observed):
    """An asynchronous one."""

    __slots__ = ()
    _STEP = "__anext__"

    def __aiter__(self) -> ObservedAsyncIterator:
        return self

    async def __anext__(self) -> Any:
        state = self._state
        state.fetch()
        try:
            chunk = await self._next()
        except BaseException as error:
            GUARD.always("streams.end", state.fail, error)
            raise
        finally:
            state.fetching = False
        GUARD.end("streams.take", state.take, chunk)
        return chunk

    async def aclose(self) -> None:
        """Close the inner iterator where it can be closed."""
        aclose = self._closing("aclose")
        if aclose is not None:
            await aclose()

    def __reduce_ex__(self, protocol: object) -> Any:
        return aiter, (self._inner,)

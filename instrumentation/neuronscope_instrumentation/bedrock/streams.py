"""botocore's event streams and unread bodies: watched from inside, so that the service keeps its objects.

An `EventStream` parses raw events one by one while it is iterated.  Its twin (a copy that shares the
connection) does that now, and the stream passes on what the twin has parsed: chunks are parsed events, and
an error event is raised while we look.  `InvokeModel`'s body is read by the service when it likes; every way
to read it ends in one `read`, which is followed.
"""

from __future__ import annotations

import copy
import functools
import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from neuronscope.engine.bodies import BodyCollector
from neuronscope.engine.guard import GUARD
from neuronscope.engine.streams import StreamEnd
from neuronscope.instrumentation import Stream
from neuronscope_instrumentation.bedrock.invoke import Answer
from neuronscope_instrumentation.common.fields import mapping

_SITE: Final = "bedrock.body"


def _stream_in(result: Any) -> Any:
    """The event stream of a result, which botocore has put in a dictionary; None if it has none."""
    told = mapping(result)
    if told is None:
        return None
    found = told.get("stream", told.get("body"))
    return found if hasattr(found, "_event_generator") else None


def _parsed_events(stream: Any) -> Any:
    twin = copy.copy(stream)
    return aiter(twin) if hasattr(twin, "__aiter__") else iter(twin)


def _pass_on(stream: Any, events: Any) -> None:
    stream._event_generator = events
    stream._parse_event = _as_it_is_later if hasattr(stream, "__aiter__") else _as_it_is


def _as_it_is(event: Any) -> Any:
    return event


async def _as_it_is_later(event: Any) -> Any:
    return event


EVENTS: Final = Stream(
    is_stream=lambda result: _stream_in(result) is not None,
    inner=_stream_in,
    get_iterator=_parsed_events,
    set_iterator=_pass_on,
)


# --- bodies ------------------------------------------------------------------------------------------
def unread_body(result: Any) -> UnreadBody | None:
    """The body of a result that the service has still to read."""
    told = mapping(result) or {}
    body = told.get("body")
    if body is None or not hasattr(body, "_raw_stream") or hasattr(body, "_event_generator"):
        return None
    return UnreadBody(body, mapping(told.get("ResponseMetadata")) or {})


class UnreadBody:
    """A body that the engine wants to hear of once it has been read."""

    def __init__(self, body: Any, metadata: Mapping[str, Any]) -> None:
        self._body = body
        self._metadata = metadata

    def when_read(self, finish: Callable[[Any], None]) -> bool:
        """Call `finish` once, with an `Answer` or the exception that cut it off."""
        metadata = self._metadata

        def told(document: Any) -> None:
            finish(document if isinstance(document, BaseException) else Answer(document, metadata))

        body = self._body
        told_length = body._content_length
        length = int(told_length) if str(told_length).isdecimal() else None
        # aiobotocore's bodies read from elsewhere, and are never left by `with` as another object.
        owner = body if inspect.iscoroutinefunction(cast("Any", type(body)).read) else body._raw_stream
        follow(owner, BodyCollector(told, bytes), length)
        return True


def follow(owner: Any, collector: BodyCollector, length: int | None) -> None:
    """Let `collector` see what is read from `owner`, and when that is closed.

    The two methods are replaced on this one object until the body is over.  They hold it weakly where
    somebody else holds it while it is read, so that dropping it ends the body at once; a coroutine's object
    may have nobody else (``await (await …)["body"].read()``), and is held.

    Args:
        length: bytes that the whole body has, if known: some read just these and never ask for more.
    """
    kind = cast("Any", type(owner))
    read, close = kind.read, kind.close
    later = inspect.iscoroutinefunction(read)
    here: Callable[[], Any] = (lambda: owner) if later else weakref.ref(owner)
    so_far = 0

    def over(end: StreamEnd, error: BaseException | None = None) -> None:
        collector.close(end, error)
        target = here()
        for name in ("read", "close"):
            vars(target).pop(name, None)

    def take(data: Any, wanted: int | None) -> None:
        nonlocal so_far
        so_far += len(data)
        collector.take(bytes(data))
        if wanted is None or wanted < 0 or (not data and wanted > 0) or so_far == length:
            over("complete")

    @functools.wraps(read)
    def read_now(amt: int | None = None, *args: Any, **kwargs: Any) -> Any:
        try:
            data = read(here(), amt, *args, **kwargs)
        except BaseException as error:
            GUARD.always(_SITE, over, "error", error)
            raise
        GUARD.call(_SITE, take, data, amt)
        return data

    @functools.wraps(read)
    async def read_later(amt: int | None = None) -> Any:
        try:
            data = await read(here(), amt)
        except BaseException as error:
            GUARD.always(_SITE, over, "error", error)
            raise
        GUARD.call(_SITE, take, data, amt)
        return data

    @functools.wraps(close)
    def close_now(*args: Any, **kwargs: Any) -> Any:
        target = here()
        if target is None:
            return None  # it is being collected, and the collector with it
        GUARD.always(_SITE, over, "client_closed")
        return close(target, *args, **kwargs)

    owner.read = read_later if later else read_now
    owner.close = close_now

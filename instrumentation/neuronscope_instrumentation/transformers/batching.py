"""transformers' continuous batching: a span for each request, and one for each stretch of batched work.

Tokens of many requests are computed in one forward, in a thread of the library's.  So a request's span
lasts from `add_request` to the delivery of its last token, where it was asked for; the work has a span of
its own, from the first request until none is left, with links to all of them.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from neuronscope.engine.guard import GUARD
from neuronscope.engine.work import Work
from neuronscope.instrumentation import ClientIntegration, Kind, Operation
from neuronscope.signals import names

if TYPE_CHECKING:
    from neuronscope.engine import Engine

LIBRARY: Final = "neuronscope.transformers"
_MODULE: Final = "transformers.generation.continuous_batching.continuous_api"
MAX_LINKS: Final = 128  # of one span
_opening: Final = threading.local()


@dataclass(slots=True)
class _Request:
    """A request under way."""

    work: Work
    router: int
    limit: int | None


@dataclass(slots=True)
class _Stretch:
    """A stretch of batched work of one manager.

    Attributes:
        requests: how many it has taken in.
        left: how many of them are not delivered.
        steps: forwards.
    """

    work: Work
    requests: int = 0
    left: int = 0
    steps: int = 0


class _Book:
    """Requests and work under way; safe for threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._requests: dict[tuple[int, str], _Request] = {}
        self._stretches: dict[int, _Stretch] = {}

    def open(self, manager: Any, arguments: dict[str, Any]) -> _Request | None:
        """A request is about to be added: its span, in the caller's context."""
        from neuronscope.modelnames import model_name

        ids = arguments.get("input_ids")
        name = model_name(manager.model)
        attributes: dict[str, Any] = {
            names.OPERATION_NAME: Operation.TEXT_COMPLETION.value,
            names.PROVIDER_NAME: "transformers",
            names.REQUEST_MODEL: name,
        }
        if isinstance(ids, list):
            attributes[names.INPUT_TOKENS] = len(ids)  # pyright: ignore[reportUnknownArgumentType] - of a list
        limit = arguments.get("max_new_tokens")
        if limit is None:
            limit = getattr(manager.generation_config, "max_new_tokens", None)
        if limit is not None:
            attributes[names.REQUEST_MAX_TOKENS] = int(limit)
        if arguments.get("streaming"):
            attributes[names.REQUEST_STREAM] = True
        title = f"{Operation.TEXT_COMPLETION.value} {name}"
        work = Work.begin(self._engine, title, LIBRARY, attributes, nested=True)
        return None if work is None else _Request(work, id(manager.output_router), limit)

    def register(self, request: _Request, request_id: str, name: str) -> None:
        """The request has an id: before any other thread can know of it."""
        with self._lock:
            self._requests[request.router, request_id] = request
            stretch = self._stretches.get(request.router)
            if stretch is None:
                work = Work.begin(
                    self._engine, f"batch {name}", LIBRARY, {names.MODEL_NAME: name}, apart=True
                )
                if work is None:
                    return
                stretch = self._stretches[request.router] = _Stretch(work)
            stretch.requests += 1
            stretch.left += 1
            if stretch.requests <= MAX_LINKS:
                stretch.work.link(request.work)

    def step(self, router: int) -> None:
        """A forward has run."""
        stretch = self._stretches.get(router)
        if stretch is not None:
            stretch.steps += 1

    def deliver(self, router: int, output: Any) -> None:
        """Something of a request is delivered."""
        if output.is_finished():
            self._end(router, output.request_id, lambda request: _tell(request, output))

    def cancel(self, router: int, request_id: str) -> None:
        """The caller no longer wants it: nothing of it will be delivered."""
        self._end(
            router,
            request_id,
            lambda request: request.work.tell(names.FINISH_REASONS, ["cancelled"]),
        )

    def _end(self, router: int, request_id: str, tell: Callable[[_Request], None]) -> None:
        """End a request's span, and that of the work if it was the last one."""
        with self._lock:
            request = self._requests.pop((router, request_id), None)
            stretch = self._stretches.get(router)
            if request is None:
                return
            done = False
            if stretch is not None:
                stretch.left -= 1
                done = not stretch.left
                if done:
                    del self._stretches[router]
        tell(request)
        request.work.end()
        if stretch is not None and done:
            stretch.work.tell(names.MODEL_BATCH, stretch.requests)
            stretch.work.tell(names.MODEL_FORWARDS, stretch.steps)
            stretch.work.end()


def _tell(request: _Request, output: Any) -> None:
    work, tokens = request.work, len(output.generated_tokens)
    work.tell(names.OUTPUT_TOKENS, tokens)
    begun, _ = output.lifespan
    if begun > 0:
        work.tell(names.MODEL_QUEUE, max(0.0, begun - output.created_time))
    if output.error is not None:
        work.fail("RuntimeError")
    else:
        cut = request.limit is not None and tokens >= request.limit
        work.tell(names.FINISH_REASONS, ["length" if cut else "stop"])


def _install(engine: Engine, module: str) -> Callable[[], None]:
    api: Any = sys.modules[module]
    book = _Book(engine)
    state: Any = api.RequestState
    patches: list[tuple[Any, str, Any, Any]] = []

    def patch(holder: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(holder, name)
        ours = functools.wraps(original)(make(original))
        setattr(holder, name, ours)
        patches.append((holder, name, original, ours))

    def add_request(original: Any) -> Any:
        def call(self: Any, input_ids: Any, *args: Any, **kwargs: Any) -> Any:
            known = dict(zip(("request_id", "max_new_tokens", "streaming"), args, strict=False))
            _opening.request = GUARD.call(
                "batching.open", book.open, self, {"input_ids": input_ids, **known, **kwargs}
            )
            _opening.name = GUARD.call("batching.name", _name, self)
            try:
                return original(self, input_ids, *args, **kwargs)
            finally:
                refused, _opening.request = _opening.request, None
                if refused is not None:
                    GUARD.call("batching.refused", _refuse, refused)

        return call

    def post_init(original: Any) -> Any:
        def call(self: Any) -> None:
            original(self)
            request = getattr(_opening, "request", None)
            if request is not None:
                _opening.request = None
                GUARD.call("batching.register", book.register, request, self.request_id, _opening.name)

        return call

    def deliver(original: Any) -> Any:
        def call(self: Any, output: Any) -> Any:
            GUARD.call("batching.deliver", book.deliver, id(self), output)
            return original(self, output)

        return call

    def deliver_batch(original: Any) -> Any:
        def call(self: Any, outputs: Any) -> Any:
            for output in outputs:
                GUARD.call("batching.deliver", book.deliver, id(self), output)
            return original(self, outputs)

        return call

    def cancel_request(original: Any) -> Any:
        def call(self: Any, request_id: Any) -> Any:
            result = original(self, request_id)
            if getattr(self, "is_tp_driver", True):  # in other processes it does nothing
                GUARD.call("batching.cancel", book.cancel, id(self.output_router), request_id)
            return result

        return call

    def step(original: Any) -> Any:
        def call(self: Any, model: Any) -> Any:
            GUARD.call("batching.step", book.step, id(self.output_router))
            return original(self, model)

        return call

    patch(api.ContinuousBatchingManager, "add_request", add_request)
    patch(api.ContinuousBatchingManager, "cancel_request", cancel_request)
    patch(state, "__post_init__", post_init)
    patch(api.OutputRouter, "deliver", deliver)
    patch(api.OutputRouter, "deliver_batch", deliver_batch)
    patch(api.ContinuousBatchProcessor, "_generation_step", step)

    def undo() -> None:
        for holder, name, original, ours in reversed(patches):
            if getattr(holder, name) is ours:
                setattr(holder, name, original)

    return undo


def _name(manager: Any) -> str:
    from neuronscope.modelnames import model_name

    return model_name(manager.model)


def _refuse(request: _Request) -> None:
    """The manager takes no requests: the caller gets None, and nothing will be delivered."""
    request.work.tell(names.FINISH_REASONS, ["refused"])
    request.work.end()


BATCHING: Final = ClientIntegration(
    name="continuous_batching",
    requires="transformers>=5.0",
    kind=Kind.LLM,
    modules=(_MODULE,),
    install=_install,
)

"""Parents are right in other threads, where we see the hand-off."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry import trace

import fakelib
import neuronscope as ns
from neuronscope.testing import InMemoryExporter


@pytest.fixture
def exporter(request: pytest.FixtureRequest) -> Iterator[InMemoryExporter]:
    """The fake library observed; thread pools carry the context where a test asks for it."""
    memory = InMemoryExporter()
    ns.registry.register_adapter(fakelib.integration(fakelib.__name__))
    ns.Platform(exporters=[memory], deferred=False, propagate_threads=getattr(request, "param", False))
    ns.instrument("fake")
    yield memory
    ns.registry.unregister_adapter("fake")


def parents(exporter: InMemoryExporter) -> dict[str, str | None]:
    """The name of each span's parent, by the span's name."""
    by_id = {span.span_id: span.name for span in exporter.spans}
    return {span.name: by_id.get(span.parent_span_id or 0) for span in exporter.spans}


def chat(model: str, *, fn: str = "") -> str:
    """A call; `fn` is a keyword that is also the name of the pool's own parameter."""
    fakelib.Client().chat("x", model=model)
    return fn


def test_a_propagated_function_has_the_callers_context(exporter: InMemoryExporter) -> None:
    """Span and scope; in a thread, in a pool, and as often as one likes, also at once."""
    with ns.Scope("request") as scope:
        work = ns.propagate(chat)
        thread = threading.Thread(target=work, args=("thread",))
        thread.start()
        with ThreadPoolExecutor(4) as pool:
            for future in [pool.submit(work, f"pool-{n}") for n in range(20)]:
                future.result()
    thread.join()
    expected = {"request": None, "chat thread": "request"}
    assert parents(exporter) == expected | {f"chat pool-{n}": "request" for n in range(20)}
    assert len(scope.artifact.llm_spans) == 21


def test_what_a_propagated_function_does_stays_there(exporter: InMemoryExporter) -> None:
    """Its own current span is not seen by a second call of it, nor by the caller."""
    barrier = threading.Barrier(2)

    def work(name: str) -> None:
        with trace.get_tracer("app").start_as_current_span(name):
            barrier.wait(60)
            chat(f"in {name}")

    with ns.Scope("request"):
        carried = ns.propagate(work)
        threads = [threading.Thread(target=carried, args=(name,)) for name in ("a", "b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        chat("here")
    assert parents(exporter) == {
        "request": None,
        "a": "request",
        "b": "request",
        "chat in a": "a",
        "chat in b": "b",
        "chat here": "request",
    }


def test_any_callable_can_be_propagated(exporter: InMemoryExporter) -> None:
    """Functions keep their name and signature; partial objects and bound methods work."""
    assert ns.propagate(chat).__name__ == "chat"
    assert ns.propagate(functools.partial(chat, "x", fn="r"))() == "r"
    assert ns.propagate("a,b".split)(",") == ["a", "b"]
    with pytest.raises(ZeroDivisionError):
        ns.propagate(lambda: 1 // 0)()


@pytest.mark.parametrize("exporter", [True], indirect=True)
def test_thread_pools_carry_the_context_when_asked_to(exporter: InMemoryExporter) -> None:
    """`submit`, `map` and `run_in_executor`; a keyword called like the pool's parameter is the function's."""

    async def in_loop() -> str:
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(chat, "to_thread")
        return await loop.run_in_executor(None, functools.partial(chat, "loop", fn="r"))

    with ns.Scope("request"):
        with ThreadPoolExecutor(2) as pool:
            assert pool.submit(chat, "submit", fn="r").result() == "r"
            assert list(pool.map(chat, ["map"])) == [""]
            with pytest.raises(TypeError):
                pool.submit()  # type: ignore[call-arg]
        assert asyncio.run(in_loop()) == "r"
    calls = ("submit", "map", "to_thread", "loop")
    assert parents(exporter) == {"request": None, **{f"chat {name}": "request" for name in calls}}


def test_thread_pools_are_left_alone_otherwise(exporter: InMemoryExporter) -> None:
    """Off by default, and restored exactly."""
    original = ThreadPoolExecutor.submit
    assert not hasattr(original, "__neuronscope__")
    with ns.Platform(propagate_threads=True):
        ns.instrument("fake")
        assert ThreadPoolExecutor.submit is not original
    assert ThreadPoolExecutor.submit is original

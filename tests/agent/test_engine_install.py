"""Libraries that are not what an adapter expects: what is there is observed, the rest is told."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import types
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import fakelib
import neuronscope as ns
from neuronscope import platform
from neuronscope.engine import ENGINE
from neuronscope.engine.cardinality import DEFAULT_VALUES, OTHER
from neuronscope.exporters import Exporter
from neuronscope.instrumentation import WrappedMethod
from neuronscope.signals import names
from neuronscope.signals.records import HistogramValue
from neuronscope.testing import InMemoryExporter


@pytest.fixture
def memory() -> Iterator[InMemoryExporter]:
    """A platform inline; whatever a test has registered as ``fake`` goes afterwards."""
    exporter = InMemoryExporter()
    ns.Platform(exporters=[exporter], deferred=False)
    yield exporter
    ns.uninstrument("fake")
    ns.registry.unregister_adapter("fake")


def test_a_method_that_is_gone_costs_that_method(memory: InMemoryExporter) -> None:
    """A release without one of the methods: the others are observed, and `doctor` can name it."""
    table = fakelib.integration(fakelib.__name__)
    gone = replace(table.methods[0], target=f"{fakelib.__name__}:Client.complete")
    ns.registry.register_adapter(replace(table, methods=(gone, *table.methods)))
    ns.instrument("fake")
    fakelib.Client().chat("a")
    assert len(memory.spans) == 1
    assert platform.installation("fake").missing == {gone.target}


def test_a_module_that_is_gone_costs_that_module(memory: InMemoryExporter) -> None:
    """A release that has moved a private module: what is elsewhere is observed."""
    table = fakelib.integration(fakelib.__name__)
    moved = replace(table.methods[0], target="fakelib_private_module:Client.chat")
    ns.registry.register_adapter(replace(table, methods=(moved, *table.methods)))
    ns.instrument("fake")
    fakelib.Client().chat("a")
    assert len(memory.spans) == 1


def test_a_module_that_fails_to_import_fails_as_without_us(memory: InMemoryExporter, tmp_path: Any) -> None:
    """The service gets the library's own exception, and may try again."""
    (tmp_path / "fragile_library.py").write_text("raise OSError('no licence')")
    sys.path.insert(0, str(tmp_path))
    try:
        method = WrappedMethod(target="fragile_library:call", snapshot=fakelib.snapshot)
        ns.registry.register_adapter(replace(fakelib.integration(fakelib.__name__), methods=(method,)))
        ns.instrument("fake")
        for _ in range(2):
            with pytest.raises(OSError, match="no licence"):
                __import__("fragile_library")
    finally:
        sys.path.remove(str(tmp_path))


def test_the_module_decides_not_the_distribution(memory: InMemoryExporter) -> None:
    """The distribution that the adapter names is not installed; the module is there."""
    table = fakelib.integration(fakelib.__name__)
    ns.registry.register_adapter(replace(table, requires="a-distribution-of-another-name>=99"))
    ns.instrument("fake")
    fakelib.Client().chat("a")
    assert len(memory.spans) == 1


def test_an_attribute_that_is_no_function_is_left_alone(memory: InMemoryExporter) -> None:
    """A method that has become a property, or a wrapper in C."""
    client: Any = type("Client", (), {"chat": property(lambda self: 42)})
    module: Any = types.ModuleType("odd_library")
    module.Client = client
    sys.modules["odd_library"] = module
    try:
        method = WrappedMethod(target="odd_library:Client.chat", snapshot=fakelib.snapshot)
        ns.registry.register_adapter(replace(fakelib.integration(fakelib.__name__), methods=(method,)))
        ns.instrument("fake")
        assert client().chat == 42
        assert platform.installation("fake").missing == {method.target}
    finally:
        del sys.modules["odd_library"]


def test_junk_model_names_fill_no_memory(memory: InMemoryExporter) -> None:
    """Beyond the values that a label has room for all is `other`, and nothing is counted twice or lost."""
    ns.registry.register_adapter(fakelib.integration(fakelib.__name__))
    ns.instrument("fake")
    client, calls = fakelib.Client(), DEFAULT_VALUES + 200
    for number in range(calls):
        client.chat("a", model=f"junk-{number}")
    families = ENGINE.metrics.collect().families
    (family,) = [each for each in families if each.metric is names.OPERATION_DURATION]
    assert len(family.points) == DEFAULT_VALUES + 1
    counts = [point.value.count for point in family.points if isinstance(point.value, HistogramValue)]
    assert sum(counts) == calls
    (folded,) = [point for point in family.points if dict(point.labels)[names.REQUEST_MODEL] == OTHER]
    assert isinstance(folded.value, HistogramValue)
    assert folded.value.count == 200
    assert ENGINE.metrics.total(names.SERIES_FOLDED) >= 200


class _Stuck:
    """An exporter that does not come back for a while."""

    name = "stuck"

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.leave = threading.Event()

    def export(self, batch: Any) -> None:
        self.entered.set()
        self.leave.wait(60)

    def flush(self, timeout_s: float) -> bool:
        return True

    def shutdown(self, timeout_s: float) -> None:
        self.leave.set()


def test_an_event_loop_never_waits_for_us() -> None:
    """While an exporter is stuck, calls and streams go on, and other tasks keep their beat."""
    stuck: Any = _Stuck()
    exporter: Exporter = stuck
    ns.registry.register_adapter(fakelib.integration(fakelib.__name__))
    ns.Platform(exporters=[exporter], export_interval_s=0.01)
    ns.instrument("fake")
    gaps: list[float] = []

    async def beat() -> None:
        before = time.perf_counter()
        while not stuck.leave.is_set():
            await asyncio.sleep(0.005)
            now = time.perf_counter()
            gaps.append(now - before)
            before = now

    async def work() -> None:
        beating = asyncio.create_task(beat())
        client = fakelib.Client()
        await client.achat("first")
        assert await asyncio.to_thread(stuck.entered.wait, 60)
        for _ in range(200):
            await client.achat("a b")
            async for _ in await client.achat("word " * 40, stream=True):
                pass
            await asyncio.sleep(0)
        assert not stuck.leave.is_set()
        stuck.leave.set()
        await beating

    try:
        asyncio.run(work())
    finally:
        ns.uninstrument("fake")
        ns.registry.unregister_adapter("fake")
    assert max(gaps) < 30  # the exporter is stuck for longer; a busy machine may be late

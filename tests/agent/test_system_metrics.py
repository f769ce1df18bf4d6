"""Metrics of the process, read by psutil, and of GPUs, of which the tests have only NVML's shape (a fake)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

import neuronscope as ns
from fakenvml import UUIDS, Nvml
from neuronscope.engine import ENGINE
from neuronscope.engine.metrics import Aggregator
from neuronscope.engine.system_metrics import SystemMetrics, visible_devices
from neuronscope.signals import names
from neuronscope.signals.names import Metric

Told = dict[tuple[str, str], Any]


def only(**libraries: Any) -> Callable[[str], Any]:
    """An environment in which these optional libraries are installed."""

    def load(name: str) -> Any:
        if name not in libraries:
            raise ImportError(name)
        return libraries[name]

    return load


def told(aggregator: Aggregator, *metrics: Metric) -> Told:
    """Values by metric and by the values of its labels."""
    return {
        (family.metric.name, ",".join(value for _, value in point.labels)): point.value
        for family in aggregator.collect().families
        if family.metric in metrics
        for point in family.points
    }


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())


def test_the_process_is_told_as_the_system_knows_it() -> None:
    """CPU, memory, descriptors, threads, by OpenTelemetry's names; no process id in any label."""
    aggregator = Aggregator()
    SystemMetrics(aggregator, only(psutil=psutil)).observe()
    found = told(
        aggregator, names.PROCESS_CPU, names.PROCESS_MEMORY, names.PROCESS_FILES, names.PROCESS_THREADS
    )
    assert set(found) == {
        ("process.cpu.time", "user"),
        ("process.cpu.time", "system"),
        ("process.memory.usage", ""),
        ("process.unix.file_descriptor.count", ""),
        ("process.thread.count", ""),
    }
    assert found["process.cpu.time", "user"] > 0
    assert found["process.memory.usage", ""] > 10 << 20
    assert found["process.thread.count", ""] >= threading.active_count() - 8


@pytest.mark.usefixtures("no_torch")
def test_gpus_are_told_by_index() -> None:
    """What a device does not tell is left out, for it alone."""
    aggregator, nvml = Aggregator(), Nvml()
    system = SystemMetrics(aggregator, only(pynvml=nvml))
    system.observe()
    system.observe()
    assert nvml.started == 1
    assert told(aggregator, names.GPU_UTILIZATION, names.GPU_MEMORY, names.POWER, names.ENERGY) == {
        ("hw.gpu.utilization", "0"): 0.4,
        ("hw.gpu.utilization", "1"): 0.41,
        ("hw.gpu.memory.usage", "0"): 20 << 30,
        ("hw.gpu.memory.usage", "1"): 21 << 30,
        ("hw.power", "0,gpu"): 310.0,
        ("hw.power", "1,gpu"): 310.001,
        ("hw.energy", "0,gpu"): 7000.5,
    }


@pytest.mark.usefixtures("no_torch")
def test_without_a_driver_or_libraries_there_is_nothing() -> None:
    """And nobody is told so again and again."""
    aggregator, nvml = Aggregator(), Nvml(driver=False)
    for load in (only(pynvml=nvml), only()):
        system = SystemMetrics(aggregator, load)
        system.observe()
        system.observe()
    assert [family.metric for family in aggregator.collect().families] == [names.SERIES]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, [0, 1]),
        ("", []),
        ("1", [1]),
        ("1,0", [1, 0]),
        ("GPU-2222", [1]),
        ("GPU-", []),  # fits both
        ("0,7,1", [0]),  # CUDA stops at the first that is not there
        ("-1", []),
    ],
)
def test_only_devices_of_this_process(setting: str | None, expected: list[int]) -> None:
    """As CUDA reads its variable."""
    environment = {} if setting is None else {"CUDA_VISIBLE_DEVICES": setting}
    assert visible_devices(environment, dict(enumerate(UUIDS))) == expected


class Cuda:
    """What is used of `torch.cuda`."""

    def __init__(self, *, used: bool) -> None:
        self.used = used

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return self.used

    def device_count(self) -> int:
        assert self.used
        return 1

    def memory_stats(self, position: int) -> dict[str, int]:
        assert position == 0
        return {
            "allocated_bytes.all.current": 3 << 30,
            "reserved_bytes.all.current": 9 << 30,
            "inactive_split_bytes.all.current": 2 << 30,
            "num_alloc_retries": 4,
            "num_ooms": 1,
        }


def test_pytorchs_allocator_is_told_where_the_service_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By NVML's index of the device; CUDA that nobody uses is not touched."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    aggregator = Aggregator()
    for used in (False, True):
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=Cuda(used=used)))
        SystemMetrics(aggregator, only(pynvml=Nvml())).observe()
        found = told(aggregator, names.TORCH_MEMORY, names.TORCH_RETRIES, names.TORCH_OOMS)
        assert bool(found) is used
    assert found == {
        ("neuronscope.torch.memory", "1,allocated"): 3 << 30,
        ("neuronscope.torch.memory", "1,reserved"): 9 << 30,
        ("neuronscope.torch.memory", "1,inactive_split"): 2 << 30,
        ("neuronscope.torch.alloc_retries", "1"): 4,
        ("neuronscope.torch.ooms", "1"): 1,
    }


def test_it_is_read_when_metrics_are_collected_and_can_be_switched_off() -> None:
    """Not before anybody asks."""
    with ns.Platform():
        assert ENGINE.metrics.total(names.PROCESS_MEMORY) == 0
        assert told(ENGINE.metrics, names.PROCESS_MEMORY)
    with ns.Platform(system_metrics=False):
        assert not told(ENGINE.metrics, names.PROCESS_MEMORY)

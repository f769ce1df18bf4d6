"""The process and its GPUs, as metrics: read when metrics are collected, never in the service's own threads.

Each source is used if it is there, and costs nothing if it is not: psutil for the process, NVML
(``nvidia-ml-py``) for GPUs, PyTorch for its allocator on them, if the service uses it; CUDA is never
initialised for our sake.  GPUs are labelled by NVML's index of the device, and by nothing else; of a process
that may use some of them only (``CUDA_VISIBLE_DEVICES``) only those are told.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from neuronscope.engine.guard import GUARD
from neuronscope.signals import names
from neuronscope.signals.names import Metric

if TYPE_CHECKING:
    from neuronscope.engine.metrics import Aggregator, Labels

Reading = tuple[Metric, float, "Labels"]
# PyTorch's statistics of a device's caching allocator, by what we call that state.
_ALLOCATOR: Final = (
    ("allocated", "allocated_bytes.all.current"),
    ("reserved", "reserved_bytes.all.current"),
    ("inactive_split", "inactive_split_bytes.all.current"),
)


class SystemMetrics:
    """Reads what there is.  For one thread at a time; the aggregator is told outside its lock.

    Args:
        metrics: what is told.
        load: imports an optional library by name.
    """

    def __init__(self, metrics: Aggregator, load: Callable[[str], Any] = import_module) -> None:
        self._metrics = metrics
        self._load = load
        self._psutil: Any = self._library("psutil")
        self._process: Any = self._psutil.Process() if self._psutil is not None else None
        self._nvml: Any = self._library("pynvml")
        self._devices: dict[int, Any] | None = None  # NVML's handles by index, once it has been asked

    def _library(self, name: str) -> Any:
        try:
            return self._load(name)
        except ImportError:
            return None

    def observe(self) -> None:
        """Read everything; what cannot be read is left as it was."""
        for source in (self._of_process, self._of_gpus, self._of_allocator):
            GUARD.call("system", self._tell, source())

    def _tell(self, readings: Iterator[Reading]) -> None:
        for metric, value, labels in readings:
            self._metrics.set(metric, value, labels)

    # --- the process -------------------------------------------------------------------------------
    def _of_process(self) -> Iterator[Reading]:
        process = self._process
        if process is None:
            return
        try:
            with process.oneshot():
                cpu, memory, switches = process.cpu_times(), process.memory_info(), process.num_ctx_switches()
                threads, files = process.num_threads(), process.num_fds()
        except (self._psutil.Error, OSError):  # no /proc, or not ours to read
            return
        yield names.PROCESS_CPU, cpu.user, (("cpu.mode", "user"),)
        yield names.PROCESS_CPU, cpu.system, (("cpu.mode", "system"),)
        yield names.PROCESS_MEMORY, memory.rss, ()
        yield names.PROCESS_VIRTUAL, memory.vms, ()
        yield names.PROCESS_FILES, files, ()
        yield names.PROCESS_THREADS, threads, ()
        for kind in ("voluntary", "involuntary"):
            count = getattr(switches, kind)
            yield names.PROCESS_SWITCHES, count, (("process.context_switch.type", kind),)

    # --- GPUs --------------------------------------------------------------------------------------
    def _of_gpus(self) -> Iterator[Reading]:
        nvml = self._nvml
        if nvml is None:
            return
        if self._devices is None:
            self._devices = self._find_devices()
        for index, device in self._devices.items():
            for metric, read in _READINGS:
                try:
                    value = read(nvml, device)
                except nvml.NVMLError:  # this model or driver does not tell
                    continue
                labels = (("hw.id", str(index)),)
                yield metric, value, labels if metric in _OF_GPUS_ONLY else (*labels, ("hw.type", "gpu"))

    def _find_devices(self) -> dict[int, Any]:
        nvml = self._nvml
        try:
            nvml.nvmlInit()
            found = {
                index: nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())
            }
            visible = visible_devices(
                os.environ, {index: _text(nvml.nvmlDeviceGetUUID(device)) for index, device in found.items()}
            )
        except nvml.NVMLError:  # no driver
            return {}
        return {index: found[index] for index in visible}

    def _of_allocator(self) -> Iterator[Reading]:
        cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
        if cuda is None or not cuda.is_available() or not cuda.is_initialized():
            return
        # PyTorch counts the devices that it may use; `_devices` are the same ones, in the same order.
        known = list(self._devices or ())
        for position in range(cuda.device_count()):
            index = known[position] if position < len(known) else position
            told: Mapping[str, int] = cuda.memory_stats(position)
            label = ("hw.id", str(index))
            for state, key in _ALLOCATOR:
                if key in told:
                    yield names.TORCH_MEMORY, told[key], (label, ("state", state))
            yield names.TORCH_RETRIES, told.get("num_alloc_retries", 0), (label,)
            yield names.TORCH_OOMS, told.get("num_ooms", 0), (label,)


def visible_devices(environment: Mapping[str, str], uuids: Mapping[int, str]) -> list[int]:
    """NVML's indices of the devices that CUDA lets this process use, in CUDA's order.

    ``CUDA_VISIBLE_DEVICES`` holds indices or beginnings of UUIDs; the first that fits nothing ends the list.
    """
    setting = environment.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return list(uuids)
    found: list[int] = []
    for part in setting.split(","):
        wanted = part.strip()
        fits = [
            index
            for index, uuid in uuids.items()
            if (str(index) == wanted if wanted.isdecimal() else wanted and uuid.startswith(wanted))
        ]
        if len(fits) != 1:
            break
        found += fits
    return found


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _share_of_time(nvml: Any, device: Any) -> float:
    return float(nvml.nvmlDeviceGetUtilizationRates(device).gpu) / 100


def _memory_used(nvml: Any, device: Any) -> float:
    return float(nvml.nvmlDeviceGetMemoryInfo(device).used)


def _memory_limit(nvml: Any, device: Any) -> float:
    return float(nvml.nvmlDeviceGetMemoryInfo(device).total)


def _temperature(nvml: Any, device: Any) -> float:
    return float(nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU))


def _watts(nvml: Any, device: Any) -> float:
    return float(nvml.nvmlDeviceGetPowerUsage(device)) / 1e3


def _joules(nvml: Any, device: Any) -> float:
    return float(nvml.nvmlDeviceGetTotalEnergyConsumption(device)) / 1e3


_READINGS: Final[tuple[tuple[Metric, Callable[[Any, Any], float]], ...]] = (
    (names.GPU_UTILIZATION, _share_of_time),
    (names.GPU_MEMORY, _memory_used),
    (names.GPU_MEMORY_LIMIT, _memory_limit),
    (names.TEMPERATURE, _temperature),
    (names.POWER, _watts),
    (names.ENERGY, _joules),
)
_OF_GPUS_ONLY: Final = frozenset({names.GPU_UTILIZATION, names.GPU_MEMORY, names.GPU_MEMORY_LIMIT})

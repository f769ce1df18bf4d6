"""NVML's API in the shape that nvidia-ml-py gives it, for machines without a GPU: two, one of them odd."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

NVML_TEMPERATURE_GPU = 0
UUIDS = ("GPU-11111111-aaaa", "GPU-22222222-bbbb")


class NVMLError(Exception):
    """What every call raises that cannot be answered."""


class Nvml:
    """Answers like the module ``pynvml``.

    Args:
        driver: is there one?
    """

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = NVML_TEMPERATURE_GPU

    def __init__(self, *, driver: bool = True) -> None:
        self.driver = driver
        self.started = 0

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        self.started += 1

    def nvmlDeviceGetCount(self) -> int:
        return len(UUIDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, device: int) -> Any:
        """Text in new releases, bytes in old ones."""
        return UUIDS[device] if device else UUIDS[device].encode()

    def nvmlDeviceGetUtilizationRates(self, device: int) -> SimpleNamespace:
        return SimpleNamespace(gpu=40 + device, memory=10)

    def nvmlDeviceGetMemoryInfo(self, device: int) -> SimpleNamespace:
        return SimpleNamespace(total=141 << 30, used=(20 + device) << 30, free=0)

    def nvmlDeviceGetTemperature(self, device: int, sensor: int) -> int:
        assert sensor == NVML_TEMPERATURE_GPU
        return 55 + device

    def nvmlDeviceGetPowerUsage(self, device: int) -> int:
        """In mW."""
        return 310_000 + device

    def nvmlDeviceGetTotalEnergyConsumption(self, device: int) -> int:
        """In mJ; the second device does not tell."""
        if device:
            raise NVMLError("Not Supported")
        return 7_000_500

"""The GPUs of this machine while something runs on them, through NVML (the optional package `nvidia-ml-py`)."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_GPUS = 64


class GpuSource:
    """Power, energy, utilisation, memory, clocks and temperature of each GPU; nothing where there is none.

    Energy counts from the first look on.
    """

    every = 2  # NVML itself refreshes most values only five to ten times a second

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        self._first_mj: dict[int, int] = {}
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:  # noqa: BLE001 - no package, no driver or a broken one: there is nothing to look at
            return
        self._nvml = pynvml
        for number in range(min(self._ask("nvmlDeviceGetCount") or 0, _MOST_GPUS)):
            handle = self._ask("nvmlDeviceGetHandleByIndex", number)
            if handle is not None:
                self._handles.append(handle)

    def read(self) -> Mapping[str, float]:
        """Return the counters of all GPUs, `gpu0_power_w` and the like; what a GPU does not tell is left out."""
        found: dict[str, float] = {}
        for number, handle in enumerate(self._handles):
            for name, value in self._of(number, handle).items():
                if value is not None:
                    found[f"gpu{number}_{name}"] = float(value)
        return found

    def close(self) -> None:
        """Let go of the driver."""
        if self._nvml is not None:
            with suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _of(self, number: int, handle: Any) -> dict[str, float | None]:
        nvml = self._nvml
        power_mw, energy_mj = (
            self._ask(f"nvmlDeviceGet{name}", handle) for name in ("PowerUsage", "TotalEnergyConsumption")
        )
        utilisation, memory = (
            self._ask(f"nvmlDeviceGet{name}", handle) for name in ("UtilizationRates", "MemoryInfo")
        )
        return {
            "power_w": None if power_mw is None else power_mw / 1e3,
            "energy_j": None
            if energy_mj is None
            else (energy_mj - self._first_mj.setdefault(number, energy_mj)) / 1e3,
            "utilisation_percent": None if utilisation is None else utilisation.gpu,
            "memory_bytes": None if memory is None else memory.used,
            "sm_mhz": self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
            "memory_mhz": self._ask("nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_MEM),
            "temperature_c": self._ask("nvmlDeviceGetTemperature", handle, nvml.NVML_TEMPERATURE_GPU),
        }

    def _ask(self, function: str, *arguments: Any) -> Any:
        with suppress(self._nvml.NVMLError, AttributeError, TypeError):
            return getattr(self._nvml, function)(*arguments)
        return None

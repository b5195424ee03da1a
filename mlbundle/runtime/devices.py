"""The GPUs of this machine, as far as their driver tells: through NVML, else nvidia-smi, else /proc.

Nothing here raises because something is absent: a machine without GPUs has none. Serial numbers and UUIDs are not
asked for: what is found goes into records that are shared.
"""

from __future__ import annotations

import csv
import re
import shutil
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbundle.errors import AcceleratorMissing, UsageError
from mlbundle.manifest.versions import VersionConstraint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TIMEOUT_S = 10.0
_MOST_GPUS = 64
# Bits of nvmlClocksEventReasons (nvml.h). A GPU that idles or runs at clocks that somebody set is not throttled.
_THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
# What nvidia-smi calls what we ask for (`nvidia-smi --help-query-gpu`), in the order of _from_row.
_FIELDS = (
    "name",
    "memory.total",
    "compute_cap",
    "driver_version",
    "clocks.sm",
    "clocks.mem",
    "clocks.max.sm",
    "clocks.max.mem",
    "enforced.power.limit",
    "power.draw",
    "persistence_mode",
    "ecc.mode.current",
    "mig.mode.current",
    "temperature.gpu",
    "utilization.gpu",
    "clocks_throttle_reasons.active",
)


@dataclass(frozen=True)
class GpuState:
    """How a GPU is at one moment: clocks in MHz, power in watts, the share of time it works, in percent."""

    sm_mhz: int | None = None
    memory_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    utilisation_percent: int | None = None
    throttled_by: tuple[str, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """Return the state as JSON-ready values."""
        return {**asdict(self), "throttled_by": list(self.throttled_by)}


@dataclass(frozen=True)
class Gpu:
    """What a GPU is. `cuda` is the newest CUDA that its driver speaks; None is what the driver does not tell."""

    name: str
    driver: str | None = None
    cuda: str | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None
    max_sm_mhz: int | None = None
    max_memory_mhz: int | None = None
    power_limit_w: float | None = None
    persistence: bool | None = None
    ecc: bool | None = None
    mig: bool | None = None
    state: GpuState = GpuState()

    def to_document(self) -> dict[str, Any]:
        """Return what stays the same from run to run as JSON-ready values; the state has a document of its own."""
        document = asdict(self)
        del document["state"]
        return document


def gpus(root: Path = Path("/")) -> tuple[Gpu, ...]:
    """Return the GPUs of this machine; empty where there are none, or no driver."""
    if not _has_driver(root):
        return ()
    return _by_nvml() or _by_smi() or _by_proc(root)


def nvidia_driver(root: Path = Path("/")) -> str | None:
    """Return the version of the NVIDIA driver, None where there is none."""
    if not _has_driver(root):
        return None
    found = _read(root / "proc/driver/nvidia/version")
    match = re.search(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)", found)
    if match:
        return match.group(1)
    return next((gpu.driver for gpu in gpus(root) if gpu.driver), None)


def check_driver(required: str | None, found: str | None) -> None:
    """Raise AcceleratorMissing unless there is a driver (`found`), in a version that `required` allows."""
    if found is None:
        raise AcceleratorMissing(
            "a GPU is asked for, and this machine has no NVIDIA driver",
            hint="run on the CPU (--accelerator cpu), or install the driver; `mlbundle doctor` says what it finds",
        )
    if required is None:
        return
    try:
        fits = VersionConstraint.parse(required).allows(found)
    except UsageError:
        fits = False
    if not fits:
        raise AcceleratorMissing(
            f"the GPU driver is {found}, and the framework's image wants {required}",
            hint="update the driver, or run on the CPU (--accelerator cpu)",
        )


def engine_has_gpu_runtime(info: Mapping[str, Any]) -> bool:
    """Return whether an engine can hand GPUs to containers, by what `docker info` says.

    Either the NVIDIA runtime is registered, or the engine found devices of the Container Device Interface.
    """
    devices = info.get("DiscoveredDevices") or []
    found = any(str(device.get("ID", "")).startswith("nvidia.com/gpu") for device in devices)
    return found or "nvidia" in (info.get("Runtimes") or {})


def _has_driver(root: Path) -> bool:
    """Tell cheaply: asking where there is nothing costs the start of a program."""
    if (root / "proc/driver/nvidia/version").exists() or (root / "dev/nvidiactl").exists():
        return True
    # Under WSL the driver is Windows' own; nvidia-smi is all that shows it.
    return shutil.which("nvidia-smi") is not None


def _by_nvml() -> tuple[Gpu, ...]:
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        driver = _asked(pynvml, "nvmlSystemGetDriverVersion")
        cuda = _asked(pynvml, "nvmlSystemGetCudaDriverVersion_v2")
        cuda_text = None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}"
        count = min(_asked(pynvml, "nvmlDeviceGetCount") or 0, _MOST_GPUS)
        handles = [_asked(pynvml, "nvmlDeviceGetHandleByIndex", number) for number in range(count)]
        return tuple(
            _nvml_gpu(pynvml, handle, _text(driver), cuda_text) for handle in handles if handle is not None
        )
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _asked(nvml: Any, function: str, *arguments: Any) -> Any:
    """Return the answer of an NVML function; None where the library, the driver or the GPU does not have it."""
    with suppress(nvml.NVMLError, AttributeError, TypeError):
        return getattr(nvml, function)(*arguments)
    return None


def _nvml_gpu(nvml: Any, handle: Any, driver: str | None, cuda: str | None) -> Gpu:
    def ask(name: str, *arguments: Any) -> Any:
        return _asked(nvml, f"nvmlDeviceGet{name}", handle, *arguments)

    memory, capability = ask("MemoryInfo"), ask("CudaComputeCapability")
    power, limit = ask("PowerUsage"), ask("EnforcedPowerLimit")
    ecc, mig, persistence = ask("EccMode"), ask("MigMode"), ask("PersistenceMode")
    utilisation = ask("UtilizationRates")
    reasons = ask("CurrentClocksThrottleReasons")
    return Gpu(
        name=_text(ask("Name")) or "unknown",
        driver=driver,
        cuda=cuda,
        memory_bytes=None if memory is None else int(memory.total),
        compute_capability=None if capability is None else ".".join(map(str, capability)),
        max_sm_mhz=ask("MaxClockInfo", nvml.NVML_CLOCK_SM),
        max_memory_mhz=ask("MaxClockInfo", nvml.NVML_CLOCK_MEM),
        power_limit_w=None if limit is None else limit / 1000,
        persistence=None if persistence is None else bool(persistence),
        ecc=None if ecc is None else bool(ecc[0]),
        mig=None if mig is None else bool(mig[0]),
        state=GpuState(
            sm_mhz=ask("ClockInfo", nvml.NVML_CLOCK_SM),
            memory_mhz=ask("ClockInfo", nvml.NVML_CLOCK_MEM),
            power_w=None if power is None else power / 1000,
            temperature_c=ask("Temperature", nvml.NVML_TEMPERATURE_GPU),
            utilisation_percent=None if utilisation is None else int(utilisation.gpu),
            throttled_by=_reasons(reasons),
        ),
    )


def _by_smi() -> tuple[Gpu, ...]:
    rows = _query(_FIELDS)
    if rows:
        return tuple(_from_row(row) for row in rows)
    # An old driver refuses the whole question because of one name that it does not know.
    shorter = _query(("name", "driver_version"))
    return tuple(Gpu(name=name, driver=driver) for name, driver in shorter if driver[:1].isdecimal())


def _query(fields: tuple[str, ...]) -> list[list[str]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    rows = csv.reader(done.stdout.decode("utf-8", "replace").splitlines(), skipinitialspace=True)
    return [row for row in rows if len(row) == len(fields)][:_MOST_GPUS]


def _from_row(row: list[str]) -> Gpu:
    """Return the GPU of an answer to _FIELDS; `[N/A]` and the like are what the driver does not tell."""
    told = dict(zip(_FIELDS, row, strict=True))

    def number(field: str, kind: Callable[[str], Any] = int) -> Any:
        with suppress(ValueError):
            return kind(told[field])
        return None

    def switch(field: str) -> bool | None:
        return {"Enabled": True, "Disabled": False}.get(told[field])

    memory_mib = number("memory.total")
    return Gpu(
        name=told["name"],
        driver=told["driver_version"] if told["driver_version"][:1].isdecimal() else None,
        memory_bytes=None if memory_mib is None else memory_mib << 20,
        compute_capability=None if number("compute_cap", float) is None else told["compute_cap"],
        max_sm_mhz=number("clocks.max.sm"),
        max_memory_mhz=number("clocks.max.mem"),
        power_limit_w=number("enforced.power.limit", float),
        persistence=switch("persistence_mode"),
        ecc=switch("ecc.mode.current"),
        mig=switch("mig.mode.current"),
        state=GpuState(
            sm_mhz=number("clocks.sm"),
            memory_mhz=number("clocks.mem"),
            power_w=number("power.draw", float),
            temperature_c=number("temperature.gpu"),
            utilisation_percent=number("utilization.gpu"),
            throttled_by=_reasons(number("clocks_throttle_reasons.active", lambda text: int(text, 16))),
        ),
    )


def _by_proc(root: Path) -> tuple[Gpu, ...]:
    found = []
    for place in sorted((root / "proc/driver/nvidia/gpus").glob("*/information"))[:_MOST_GPUS]:
        match = re.search(r"^Model:\s*(\S.*)$", _read(place), re.MULTILINE)
        if match:
            found.append(Gpu(name=match.group(1).strip()))
    return tuple(found)


def _reasons(bits: int | None) -> tuple[str, ...]:
    return tuple(name for bit, name in _THROTTLE_REASONS.items() if (bits or 0) & bit)


def _text(value: Any) -> str | None:
    # Older versions of the binding answer in bytes.
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""

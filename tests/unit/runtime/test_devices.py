"""GPUs, as NVML, nvidia-smi and /proc tell of them; this machine needs none."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from made_up import tree

from mlbundle.errors import AcceleratorMissing
from mlbundle.runtime.devices import Gpu, check_driver, engine_has_gpu_runtime, gpus, nvidia_driver

VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023"
OPEN_VERSION = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build"
ROW = (
    "NVIDIA H100 80GB HBM3, 81559, 9.0, 580.65.06, 1980, 2619, 1980, 2619, 700.00, 71.25, "
    "Enabled, Enabled, Disabled, 33, 0, 0x0000000000000044"
)


@pytest.fixture(autouse=True)
def _no_binding_and_no_program(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def program(tmp_path, script: str) -> None:
    path = tmp_path / "bin" / "nvidia-smi"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_machine_without_a_driver_has_no_gpus(tmp_path) -> None:
    assert gpus(tmp_path) == ()
    assert nvidia_driver(tmp_path) is None


def test_what_nvidia_smi_says(tmp_path) -> None:
    program(tmp_path, f'echo "{ROW}"; echo "{ROW}"')
    first, second = gpus(tmp_path)
    assert first == second
    assert (first.name, first.driver, first.compute_capability) == (
        "NVIDIA H100 80GB HBM3",
        "580.65.06",
        "9.0",
    )
    assert (first.memory_bytes, first.power_limit_w, first.max_sm_mhz) == (81559 << 20, 700.0, 1980)
    assert (first.persistence, first.ecc, first.mig) == (True, True, False)
    assert first.state.throttled_by == ("power cap", "heat (hardware)")
    assert nvidia_driver(tmp_path) == "580.65.06"


def test_what_a_card_does_not_tell_is_unknown(tmp_path) -> None:
    program(tmp_path, 'echo "GeForce GT 710, 2048, [N/A]' + ", [N/A]" * 13 + '"')
    (gpu,) = gpus(tmp_path)
    assert gpu == Gpu(name="GeForce GT 710", memory_bytes=2048 << 20)


def test_an_old_program_is_asked_for_less(tmp_path) -> None:
    program(
        tmp_path,
        'case "$1" in *compute_cap*) echo Field is not valid; exit 2;; esac\necho "Tesla K40, 418.67"',
    )
    assert gpus(tmp_path) == (Gpu(name="Tesla K40", driver="418.67"),)


@pytest.mark.parametrize("script", ["exit 9", "echo garbage", "printf '\\377\\0,\\n'", "kill -9 $$"])
def test_a_program_that_fails_is_no_error(tmp_path, script) -> None:
    program(tmp_path, script)
    assert gpus(tmp_path) == ()
    assert nvidia_driver(tmp_path) is None


@pytest.mark.parametrize(("text", "driver"), [(VERSION, "535.104.05"), (OPEN_VERSION, "580.65.06")])
def test_what_the_kernel_module_says(tmp_path, text, driver) -> None:
    card = "proc/driver/nvidia/gpus/0000:01:00.0/information"
    root = tree(
        tmp_path,
        {"proc/driver/nvidia/version": text, card: "Model: \t\t NVIDIA A100\nGPU UUID: \t GPU-1234"},
    )
    assert nvidia_driver(root) == driver
    assert gpus(root) == (Gpu(name="NVIDIA A100"),)


class FakeNvml:
    """The binding, as far as it is used; a card that does not know its MIG mode."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        pass

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.shut = 0

    def __getattr__(self, name: str) -> object:
        if name == "nvmlDeviceGetMigMode" or (name == "nvmlInit" and self.fails):
            raise_ = self.NVMLError
            return lambda *_arguments: (_ for _ in ()).throw(raise_)
        if name == "nvmlShutdown":
            self.shut += 1
        answers = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlSystemGetDriverVersion": b"580.65.06",
            "nvmlSystemGetCudaDriverVersion_v2": 13010,
            "nvmlDeviceGetCount": 1,
            "nvmlDeviceGetHandleByIndex": object(),
            "nvmlDeviceGetName": "NVIDIA H100",
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=80 << 30),
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlDeviceGetPowerUsage": 71_250,
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetEccMode": [1, 1],
            "nvmlDeviceGetPersistenceMode": 0,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=12),
            "nvmlDeviceGetCurrentClocksThrottleReasons": 0x21,
            "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetClockInfo": 345,
            "nvmlDeviceGetTemperature": 33,
        }
        if name not in answers:
            raise AttributeError(name)
        return lambda *_arguments: answers[name]


def test_what_nvml_says(tmp_path, monkeypatch) -> None:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    (gpu,) = gpus(tree(tmp_path, {"dev/nvidiactl": ""}))
    assert (gpu.name, gpu.driver, gpu.cuda, gpu.mig) == ("NVIDIA H100", "580.65.06", "13.1", None)
    assert (gpu.power_limit_w, gpu.ecc, gpu.persistence) == (700.0, True, False)
    # A GPU that idles (bit 1) is not held down; heat (bit 0x20) does it.
    assert gpu.state.throttled_by == ("heat (software)",)
    assert "state" not in gpu.to_document()
    assert fake.shut == 1


def test_without_nvml_s_library_the_program_is_asked(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(fails=True))
    program(tmp_path, f'echo "{ROW}"')
    assert gpus(tmp_path)[0].name == "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize("required", [None, ">=525", ">=535.104", "^535", "535.104.05"])
def test_a_driver_that_fits(required) -> None:
    check_driver(required, "535.104.05")


@pytest.mark.parametrize(
    ("required", "found"), [(None, None), (">=525", None), (">=580", "535.104.05"), (">=1", "not a version")]
)
def test_a_driver_that_is_missing_or_does_not_fit(required, found) -> None:
    with pytest.raises(AcceleratorMissing) as caught:
        check_driver(required, found)
    assert caught.value.exit_code == 3
    assert caught.value.reference == "accelerator-missing"
    assert "--accelerator cpu" in (caught.value.hint or "")
    assert str(found if found else "no NVIDIA driver") in caught.value.message


@pytest.mark.parametrize(
    ("info", "able"),
    [
        ({}, False),
        ({"Runtimes": {"runc": {}}, "DiscoveredDevices": None}, False),
        ({"Runtimes": {"runc": {}, "nvidia": {"path": "nvidia-container-runtime"}}}, True),
        ({"Runtimes": {}, "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]}, True),
        ({"Runtimes": {}, "DiscoveredDevices": [{"Source": "cdi", "ID": "vendor.com/nic=0"}]}, False),
    ],
)
def test_engines_that_can_hand_out_gpus(info, able) -> None:
    assert engine_has_gpu_runtime(info) is able

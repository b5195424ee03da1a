"""What this machine is and what works on it, each thing tried, with a hint for each that is missing."""

from __future__ import annotations

import importlib.util
import re
import sqlite3
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from mlbundle import __version__
from mlbundle.errors import EngineUnavailable, MlbundleError, ToolMissing
from mlbundle.platforms import free_bytes, this_architecture
from mlbundle.resources import built_in_frameworks, resource_folder
from mlbundle.runs.environment import engine_document, machine_document
from mlbundle.runs.quiet import Demand, Quiet
from mlbundle.runtime.devices import engine_has_gpu_runtime, nvidia_driver
from mlbundle.runtime.emulation import emulators

if TYPE_CHECKING:
    from pathlib import Path

    from mlbundle.config import Settings
    from mlbundle.manifest.framework import FrameworkManifest

    Checks = list["Check"]

_LOW_DISK_BYTES = 2 << 30


@dataclass(frozen=True)
class Check:
    """One thing that was tried: it works, it is missing (`no`), or it works with a reservation (`warn`)."""

    name: str
    state: Literal["ok", "warn", "no"]
    found: str
    hint: str | None = None


def examine(settings: Settings) -> dict[str, Any]:
    """Return facts and checks as one JSON-ready document; `can_run` says whether any runtime works.

    `machine` is what a run record says of it; `labels` are the same facts for those who choose among machines.
    """
    machine = machine_document(with_gpus=True)
    gpus = machine["gpus"]
    client, engine = _engine()
    process = _process_runtime()
    frameworks, ready = _frameworks(settings, client, ["cpu", *(["gpu"] if gpus else [])])
    storage = _storage(settings)
    checks = [_python(), _sqlite(), *storage, engine, *ready, process, *_gpus(gpus, client), _emulators()]
    checks += [_processor(), *_quiet(machine["governor"], gpu=bool(gpus))]
    storable = all(check.state != "no" for check in storage)
    works = {"docker": any(row["image"] for row in frameworks), "process": process.state != "no"}
    runtimes = [name for name, working in works.items() if working and storable]
    document = {
        "schema": "mlbundle/machine/v1",
        "mlbundle_version": __version__,
        "machine": machine,
        "folders": {"data": str(settings.data_dir), "cache": str(settings.cache_dir)},
        "engine": None if client is None else engine_document(client),
        "frameworks": frameworks,
        "labels": labels(machine),
        "checks": [asdict(check) for check in checks],
        "runtimes": runtimes,
        "can_run": bool(runtimes),
    }
    if client is not None:
        client.close()
    return document


def labels(machine: dict[str, Any]) -> dict[str, str]:
    """Return the facts that a scheduler matches, as it writes them: letters, digits, `-`, `_` and `.`."""
    gpus = machine["gpus"] or []
    found = {
        "arch": machine["architecture"],
        "accel": "gpu" if gpus else "cpu",
        "cpu-model": machine["cpu_model"],
        "gpu-model": gpus[0]["name"] if gpus else "",
        "interconnect": machine["interconnects"][0] if machine["interconnects"] else "",
    }
    words = {name: re.sub(r"[^0-9A-Za-z._]+", "-", value)[:63].strip("-._") for name, value in found.items()}
    return {f"mlbundle.io/{name}": word for name, word in words.items() if word}


def _python() -> Check:
    return Check("python", "ok", sys.version.split()[0])


def _sqlite() -> Check:
    return Check("sqlite", "ok", sqlite3.sqlite_version)


def _storage(settings: Settings) -> Checks:
    return [_folder("data folder", settings.data_dir), _folder("cache folder", settings.cache_dir)]


def _folder(name: str, folder: Path) -> Check:
    probe = folder / ".doctor"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
        free = free_bytes(folder)
    except OSError as error:
        return Check(
            name, "no", f"{folder}: {error.strerror}", "set MLBUNDLE_HOME to a folder you can write to"
        )
    text = f"{folder} ({free / (1 << 30):.1f} GiB free)"
    if free < _LOW_DISK_BYTES:
        return Check(name, "warn", text, "free some space: an environment or image takes 1 to 2 GiB")
    return Check(name, "ok", text)


def _engine() -> tuple[Any, Check]:
    """Return a client of the engine, None when none answers, and what is to be said about it."""
    from mlbundle.runtime.engine import engine_client

    try:
        client = engine_client()
    except EngineUnavailable as error:
        return None, Check("container engine", "no", error.message, error.hint)
    except Exception as error:  # noqa: BLE001 - whatever the engine does, the doctor goes on
        return None, Check("container engine", "no", str(error), "restart the engine")
    found = engine_document(client)
    if found is None:
        return client, Check("container engine", "warn", "does not say what it is", "restart the engine")
    return client, Check(
        "container engine", "ok", f"{found['kind']} {found['version']} ({found['platform']})"
    )


def _frameworks(
    settings: Settings, client: Any, accelerators: list[str]
) -> tuple[list[dict[str, Any]], Checks]:
    """Return what is here of every built-in framework, as rows of the document and as checks."""
    from mlbundle.manifest.load import load_framework

    rows, checks = [], []
    for path in built_in_frameworks().values():
        framework = load_framework(path).require()
        for accelerator in accelerators:
            image = None if client is None else _image(framework, accelerator, settings, client)
            environment = _environment(framework, accelerator, settings)
            rows.append(
                {
                    "name": framework.name,
                    "version": framework.version,
                    "accelerator": accelerator,
                    "image": None if image is None else image.state == "ok",
                    "environment": None if environment is None else environment.found == _MADE,
                }
            )
            checks += [check for check in (image, environment) if check is not None]
    return rows, checks


def _image(framework: FrameworkManifest, accelerator: str, settings: Settings, client: Any) -> Check:
    from mlbundle.runtime.images import resolve_image

    title = f"image {framework.name} {accelerator}"
    try:
        image = resolve_image(framework, this_architecture(), accelerator, settings, client)
    except MlbundleError as error:
        return Check(title, "no", error.message, error.hint or "see `mlbundle images list`")
    except Exception as error:  # noqa: BLE001 - whatever the engine does, the doctor goes on
        return Check(title, "no", str(error), "restart the engine")
    return Check(title, "ok", f"{image.ref} {image.config_digest}")


_MADE = "made"


def _environment(framework: FrameworkManifest, accelerator: str, settings: Settings) -> Check | None:
    """Return whether the environment of the process runtime is made; None when there is no lock for this machine."""
    from mlbundle.manifest.select import select_lock
    from mlbundle.runtime.environments import ensure_environment

    try:
        lock = resource_folder("containers").parent / select_lock(framework, this_architecture(), accelerator)
        made = ensure_environment(settings.cache_dir, framework.name.lower(), lock, make=False)
    except (MlbundleError, OSError):
        return None
    there = made.python.is_file()
    return Check(
        f"environment {framework.name} {accelerator}", "ok", _MADE if there else "made by the first run"
    )


def _gpus(found: list[dict[str, Any]], client: Any) -> Checks:
    driver = nvidia_driver()
    if not found:
        if driver is None:
            return [Check("gpu", "ok", "none")]
        return [Check("gpu", "warn", f"driver {driver}, and no GPU", "`nvidia-smi` may say why")]
    names = ", ".join(gpu["name"] for gpu in found)
    checks = [Check("gpu", "ok", f"{names}; driver {driver}, CUDA {found[0]['cuda'] or 'unknown'}")]
    if client is not None:
        checks.append(_gpus_in_containers(client))
    return checks


def _gpus_in_containers(client: Any) -> Check:
    try:
        if engine_has_gpu_runtime(client.info()):
            return Check("gpu in containers", "ok", "the engine can hand GPUs to containers")
    except Exception as error:  # noqa: BLE001 - whatever the engine does, the doctor goes on
        return Check("gpu in containers", "no", str(error), "restart the engine")
    return Check(
        "gpu in containers",
        "no",
        "the engine has no runtime for GPUs",
        "install the NVIDIA Container Toolkit and restart the engine",
    )


def _emulators() -> Check:
    registered = emulators()
    usable = [emulator.architecture for emulator in registered if emulator.usable]
    others = [emulator.architecture for emulator in registered if not emulator.usable]
    if others:
        return Check(
            "emulators",
            "warn",
            f"not usable in containers: {', '.join(others)}",
            "enable them, with the flag F (Debian: qemu-user-static does so)",
        )
    return Check(
        "emulators", "ok", ", ".join(usable) or "none registered: only images of this architecture run"
    )


def _process_runtime() -> Check:
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        return Check("process runtime", "no", "this Python can't make environments", "install python3-venv")
    return Check("process runtime", "ok", "environments are made from hash-locked requirements")


def _processor() -> Check:
    """Return what answers SQL over traces here; `trace open` needs none of it."""
    from mlbundle.trace.processor import find_processor

    try:
        return Check("trace processor", "ok", find_processor().name)
    except ToolMissing as error:
        return Check("trace processor", "warn", error.message, error.hint)


def _quiet(governor: str | None, *, gpu: bool) -> Checks:
    """Return what would disturb a measurement now."""
    notices = Quiet(Demand(gpu=gpu)).before()
    checks = [Check(n.reference.replace("-", " "), "warn", n.message, n.hint) for n in notices]
    if governor is None:
        hint = "clocks may vary: repeat runs before comparing them"
        checks.append(Check("cpu governor", "warn", "can't be read", hint))
    return checks or [Check("quiet", "ok", "nothing here disturbs a measurement")]

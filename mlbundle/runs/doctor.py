"""What this machine is and what works on it, each thing tried, with a hint for each that is missing."""

from __future__ import annotations

import importlib.util
import shutil
import sqlite3
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from mlbundle import __version__
from mlbundle.errors import EngineUnavailable, MlbundleError
from mlbundle.platforms import free_bytes, machine_facts, this_architecture
from mlbundle.resources import built_in_frameworks

if TYPE_CHECKING:
    from pathlib import Path

    from mlbundle.config import Settings

_LOW_DISK_BYTES = 2 << 30


@dataclass(frozen=True)
class Check:
    """One thing that was tried: it works, it is missing (`no`), or it works with a reservation (`warn`)."""

    name: str
    state: Literal["ok", "warn", "no"]
    found: str
    hint: str | None = None


def examine(settings: Settings) -> dict[str, Any]:
    """Return facts and checks as one JSON-ready document; `can_run` says whether any runtime works."""
    checks = [_python(), _sqlite(), *_storage(settings)]
    engine, images = _engine(settings)
    process = _process_runtime()
    checks += [engine, *images, process, _node()]
    facts = machine_facts()
    checks.append(_quiet(facts.governor))
    storable = all(check.state != "no" for check in checks if check.name.endswith("folder"))
    works = {"docker": _works(images), "process": process.state != "no"}
    ready = [name for name, working in works.items() if working and storable]
    return {
        "schema": "mlbundle/machine/v1",
        "mlbundle_version": __version__,
        "machine": facts.to_document(),
        "folders": {"data": str(settings.data_dir), "cache": str(settings.cache_dir)},
        "checks": [asdict(check) for check in checks],
        "runtimes": ready,
        "can_run": bool(ready),
    }


def _works(images: list[Check]) -> bool:
    return any(check.state == "ok" for check in images)


def _python() -> Check:
    return Check("python", "ok", sys.version.split()[0])


def _sqlite() -> Check:
    return Check("sqlite", "ok", sqlite3.sqlite_version)


def _storage(settings: Settings) -> list[Check]:
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


def _engine(settings: Settings) -> tuple[Check, list[Check]]:
    from mlbundle.runtime.images import engine_client

    try:
        client = engine_client()
        version = client.version()
    except EngineUnavailable as error:
        return Check("container engine", "no", error.message, error.hint), []
    except Exception as error:  # noqa: BLE001 - whatever the engine does, the doctor goes on
        return Check("container engine", "no", str(error), "restart the engine"), []
    engine = Check(
        "container engine", "ok", f"{version.get('Version')} ({version.get('Os')}/{version.get('Arch')})"
    )
    return engine, [_image(name, path, settings, client) for name, path in built_in_frameworks().items()]


def _image(name: str, path: Path, settings: Settings, client: Any) -> Check:
    from mlbundle.manifest.load import load_framework
    from mlbundle.runtime.images import resolve_image

    title = f"image {name} cpu"
    try:
        framework = load_framework(path).require()
        image = resolve_image(framework, this_architecture(), "cpu", settings, client)
    except MlbundleError as error:
        return Check(title, "no", error.message, error.hint)
    return Check(title, "ok", f"{image.ref} {image.config_digest}")


def _process_runtime() -> Check:
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        return Check("process runtime", "no", "this Python can't make environments", "install python3-venv")
    return Check("process runtime", "ok", "environments are made from hash-locked requirements")


def _node() -> Check:
    if shutil.which("node") is None:
        return Check("node", "warn", "not found", "only the tests that judge traces need it")
    return Check("node", "ok", str(shutil.which("node")))


def _quiet(governor: str | None) -> Check:
    if governor is None:
        return Check(
            "cpu governor", "warn", "can't be read", "clocks may vary: repeat runs before comparing them"
        )
    if governor != "performance":
        return Check(
            "cpu governor", "warn", governor, "for steady numbers: cpupower frequency-set -g performance"
        )
    return Check("cpu governor", "ok", governor)

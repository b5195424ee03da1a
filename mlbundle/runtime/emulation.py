"""Containers of another architecture: the kernel hands their programs to an emulator, if one is registered.

Linux keeps the registered ones below /proc/sys/fs/binfmt_misc (its Documentation/admin-guide/binfmt-misc.rst); QEMU's
are called `qemu-<its name of the architecture>`. Flag `F` means that the kernel holds the emulator open, so that a
container, which has other files, can use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlbundle.errors import EmulatorMissing

_QEMU_NAMES = {"amd64": "x86_64", "arm64": "aarch64", "ppc64le": "ppc64le"}
_REGISTERED = Path("/proc/sys/fs/binfmt_misc")


@dataclass(frozen=True)
class Emulator:
    """A registered emulator: of which architecture, whether it is enabled, and whether containers can use it."""

    architecture: str
    enabled: bool
    in_containers: bool

    @property
    def usable(self) -> bool:
        """Whether a container of that architecture runs."""
        return self.enabled and self.in_containers


def emulators(folder: Path = _REGISTERED) -> list[Emulator]:
    """Return the emulators that this machine's kernel knows, for the architectures that we know."""
    found = []
    for architecture, name in _QEMU_NAMES.items():
        try:
            lines = (folder / f"qemu-{name}").read_text("ascii", "replace").splitlines()
        except OSError:
            continue
        flags = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
        found.append(Emulator(architecture, enabled=lines[:1] == ["enabled"], in_containers="F" in flags))
    return found


def require_emulator(client: Any, architecture: str, folder: Path = _REGISTERED) -> None:
    """Raise EmulatorMissing unless containers of an architecture can run.

    Where we can't look (an engine on another machine or in a virtual one, a file system that is not mounted), it is
    left to the engine.
    """
    local = str(client.api.base_url).startswith("http+docker://")
    if not local or not (folder / "register").exists():
        return
    found = [emulator for emulator in emulators(folder) if emulator.architecture == architecture]
    if any(emulator.usable for emulator in found):
        return
    raise EmulatorMissing(
        f"nothing on this machine runs programs for {architecture} in a container"
        + (" (an emulator is registered, but disabled or without flag F)" if found else ""),
        where=str(folder),
        hint="install an emulator and register it (Debian: qemu-user-static, binfmt-support)",
    )

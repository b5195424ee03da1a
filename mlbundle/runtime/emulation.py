"""Containers of another architecture: the kernel hands their programs to an emulator, if one is registered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mlbundle.errors import EmulatorMissing
from mlbundle.platforms import emulators

_ROOT = Path("/")


def require_emulator(client: Any, architecture: str, root: Path = _ROOT) -> None:
    """Raise EmulatorMissing unless containers of an architecture can run.

    Where we can't look (an engine on another machine or in a virtual one, a file system that is not mounted), it is
    left to the engine.
    """
    local = str(client.api.base_url).startswith("http+docker://")
    registered = root / "proc/sys/fs/binfmt_misc"
    if not local or not (registered / "register").exists():
        return
    found = [emulator for emulator in emulators(root) if emulator.architecture == architecture]
    if any(emulator.enabled and emulator.fixed for emulator in found):
        return
    raise EmulatorMissing(
        f"nothing on this machine runs programs for {architecture} in a container"
        + (" (an emulator is registered, disabled or without flag F)" if found else ""),
        where=str(registered),
        hint="install an emulator and register it (Debian: qemu-user-static, binfmt-support)",
    )

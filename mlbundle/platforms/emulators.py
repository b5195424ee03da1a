"""Which foreign architectures this kernel can run through an emulator (binfmt_misc)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mlbundle.platforms.names import normalise_architecture
from mlbundle.platforms.sysfs import ROOT, children, read_text

_PREFIX = "qemu-"


@dataclass(frozen=True)
class Emulator:
    """A registered emulator. `fixed` (flag F): the kernel holds it open, so it works inside of containers too."""

    architecture: str
    interpreter: str
    enabled: bool
    fixed: bool


def emulators(root: Path = Path(ROOT)) -> tuple[Emulator, ...]:
    """Return the emulators of qemu that are registered, by architecture.

    The format of an entry is that of Linux's Documentation/admin-guide/binfmt-misc.rst.
    """
    found = []
    for entry in children(root / "proc/sys/fs/binfmt_misc", f"{_PREFIX}*"):
        lines = (read_text(entry) or "").splitlines()
        fields = dict(line.partition(" ")[::2] for line in lines)
        found.append(
            Emulator(
                architecture=normalise_architecture(entry.name.removeprefix(_PREFIX)),
                interpreter=fields.get("interpreter", ""),
                enabled="enabled" in lines,
                fixed="F" in fields.get("flags:", ""),
            )
        )
    return tuple(sorted(found, key=lambda emulator: emulator.architecture))

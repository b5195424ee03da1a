"""Registered emulators, read from made-up trees of binfmt_misc."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from mlbundle.errors import EmulatorMissing
from mlbundle.runtime.emulation import Emulator, emulators, require_emulator

LOCAL = SimpleNamespace(api=SimpleNamespace(base_url="http+docker://localhost"))
REMOTE = SimpleNamespace(api=SimpleNamespace(base_url="https://elsewhere:2376"))


def tree(folder: Path, *, state: str = "enabled", flags: str = "PF") -> Path:
    (folder / "register").write_text("")
    (folder / "status").write_text("enabled\n")
    text = f"{state}\ninterpreter /usr/bin/qemu-aarch64-static\nflags: {flags}\noffset 0\nmagic 7f45\n"
    (folder / "qemu-aarch64").write_text(text)
    return folder


def test_an_emulator_that_the_kernel_holds_open_serves_containers(tmp_path: Path) -> None:
    folder = tree(tmp_path)
    assert emulators(folder) == [Emulator("arm64", enabled=True, in_containers=True)]
    require_emulator(LOCAL, "arm64", folder)


@pytest.mark.parametrize("changed", [{"state": "disabled"}, {"flags": "P"}])
def test_one_that_does_not_is_told_apart_from_none(tmp_path: Path, changed: dict[str, str]) -> None:
    folder = tree(tmp_path, **changed)
    with pytest.raises(EmulatorMissing, match="disabled or without flag F"):
        require_emulator(LOCAL, "arm64", folder)
    with pytest.raises(EmulatorMissing, match=r"programs for ppc64le in a container$"):
        require_emulator(LOCAL, "ppc64le", folder)


def test_where_nobody_can_look_it_is_left_to_the_engine(tmp_path: Path) -> None:
    require_emulator(LOCAL, "arm64", tmp_path)
    require_emulator(REMOTE, "ppc64le", tree(tmp_path))

"""Broken bundles as cases, and what is expected of every one: a typed refusal, at once, and nothing left anywhere."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from bundle_forge import Forge

from mlbundle.cli.main import main

LIMIT_CPU_S = 8.0
"""Of one command; processor time, since the machine may be busy with something else."""

LIMIT_MEMORY_BYTES = 200 << 20
COMMANDS = ("inspect", "diff", "verify", "unpack", "add")
DOCUMENTS_ONLY = ("inspect", "diff")


@dataclass(frozen=True)
class Case:
    """A broken bundle; `attack` is its class.

    `seen_by_inspect`: a look at the documents finds it. `in_model`: it is not only in what is attached to the model,
    whose bytes `unpack` does not read.
    """

    name: str
    attack: int
    build: Callable[[], bytes]
    reference: str = "bundle-corrupt"
    seen_by_inspect: bool = True
    in_model: bool = True


class Cases(list[Case]):
    """The cases of one file."""

    def case(self, attack: int, reference: str = "bundle-corrupt", **seen: bool) -> Callable[..., Any]:
        """Take a function that builds a bundle as a case of its name."""

        def register(function: Callable[[], bytes]) -> Callable[[], bytes]:
            self.put(function.__name__, attack, function, reference, **seen)
            return function

        return register

    def put(
        self,
        name: str,
        attack: int,
        build: Callable[[], bytes],
        reference: str = "bundle-corrupt",
        **seen: bool,
    ) -> None:
        """Add a case."""
        assert name not in {case.name for case in self}, name
        self.append(Case(name, attack, build, reference, **seen))

    def parameters(self) -> list[Any]:
        """The cases as parameters of a test."""
        return [pytest.param(case, id=f"{case.attack:02d}-{case.name}") for case in self]


def everything(root: Path) -> dict[str, tuple[int, int]]:
    """Mode and size of all that is below a folder."""
    return {str(path): (path.lstat().st_mode, path.lstat().st_size) for path in root.rglob("*")}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a command in this process within its limits; return its status and its document."""
    capsys.readouterr()
    before_bytes, begun = _resident("VmRSS", reset=True), time.process_time()
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--json"])
    cpu_s, memory_bytes = time.process_time() - begun, _resident("VmHWM") - before_bytes
    printed = capsys.readouterr()
    assert "Traceback" not in printed.out + printed.err
    assert cpu_s < LIMIT_CPU_S, f"{arguments} took {cpu_s:.1f} s"
    assert memory_bytes < LIMIT_MEMORY_BYTES, f"{arguments} took {memory_bytes >> 20} MiB"
    return int(ended.value.code or 0), json.loads(printed.out)


def refuse(broken: Case, box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that every command that reads a bundle refuses this one, and leaves nothing behind."""
    (box / "evil.mlb").write_bytes(broken.build())
    (box / "good.mlb").write_bytes(Forge().build())
    before = everything(box.parent.parent)
    for command in COMMANDS:
        if command == "unpack" and not broken.in_model:
            continue
        arguments = (command, "good.mlb", "evil.mlb") if command == "diff" else (command, "evil.mlb")
        status, document = run(capsys, *arguments)
        told = (command, status, str(document)[:600])
        if command in DOCUMENTS_ONLY and not broken.seen_by_inspect:
            assert status in {0, 1}, told
            assert document["schema"] != "mlbundle/error/v1", told
            continue
        if command == "add" and not broken.seen_by_inspect and status == 0:
            # Blobs with their digests came in; what is wrong in a tar is said by whoever reads it.
            status, document = run(capsys, "verify", document["reference"])
            told = ("verify after add", status, str(document)[:600])
        assert document["schema"] == "mlbundle/error/v1", told
        assert (status, document["reference"]) == (5, broken.reference), told
        assert document["where"], told
        assert command == "add" or document["where"].startswith("evil.mlb"), told
    assert everything(box.parent.parent) == before


def _resident(name: str, *, reset: bool = False) -> int:
    """Return a line of /proc/self/status in bytes; `reset` makes VmHWM the peak from now on."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise AssertionError(name)

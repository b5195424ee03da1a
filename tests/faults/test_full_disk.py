"""Disks that are full, read-only or gone: said with exit 3, nothing is spoilt, and the same command works later."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from registry_fixture import RealRegistry
from store_checks import check_store, hidden, write_model
from support import Cli, Outcome, command_line, small_file_system

DISK_BYTES = 16 << 20
PAGE_BYTES = 4096
NOBODY = 65534


@dataclass
class Disk:
    """A small file system; `leave` takes all of its space but some bytes."""

    folder: Path

    def leave(self, free_bytes: int) -> None:
        self.room()
        status = os.statvfs(self.folder)
        with (self.folder / "other").open("wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, max(1, status.f_bavail * status.f_frsize - free_bytes))

    def room(self) -> None:
        (self.folder / "other").unlink(missing_ok=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_file_system(tmp_path / "disk", str(DISK_BYTES)) as folder:
        yield Disk(folder)


@pytest.fixture
def packed(cli: Cli, tmp_path: Path) -> Callable[[str], Path]:
    """Pack a bundle of some 3 MB, of which 1 MiB is in every bundle."""

    def pack(version: str) -> Path:
        path = tmp_path / f"net-{version}.mlb"
        assert cli("pack", folder_of(tmp_path, version), "-o", path).status == 0
        return path

    return pack


def folder_of(tmp_path: Path, version: str) -> Path:
    weights = random.Random(version).randbytes(2_000_000)
    return write_model(tmp_path / version, "net", version, weights, small_files=40)


def sweep(
    disk: Disk, needed_bytes: int, attempt: Callable[[], Outcome], intact: Callable[[], None]
) -> dict[str, int]:
    """Try with ever more room until it works; each failure must be said and leave all as it was."""
    said: Counter[str] = Counter()
    pages = needed_bytes // PAGE_BYTES
    for free_pages in (0, pages // 3, pages - 2, pages + 1, pages + 2, pages + 4, pages + 8):
        disk.leave(free_pages * PAGE_BYTES)
        outcome = attempt()
        if outcome.status == 0:
            break
        message = outcome.error(3, "storage-failed")["message"]
        said["No space left" if "No space left" in message else "too little is free"] += 1
        intact()
    assert said["too little is free"], "no try was refused before anything was written"
    disk.room()
    if outcome.status:
        outcome = attempt()
    assert outcome.status == 0, outcome.stderr
    return dict(said)


def test_a_full_disk_while_packing(
    disk: Disk, packed: Callable[[str], Path], cli: Cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, source = disk.folder / "net.mlb", folder_of(tmp_path, "2.0.0")
    shutil.copy(packed("1.0.0"), target)
    old = target.read_bytes()

    def intact() -> None:
        assert target.read_bytes() == old
        assert hidden(disk.folder) == set()

    said = sweep(
        disk,
        sum(path.stat().st_size for path in source.rglob("*") if path.is_file()),
        lambda: cli("pack", source, "-o", target, "--force", "--json"),
        intact,
    )
    tell(capsys, "pack", said)
    assert said["No space left"]
    assert target.read_bytes() == packed("2.0.0").read_bytes()


def test_a_full_disk_while_signing_in_place(
    disk: Disk, packed: Callable[[str], Path], cli: Cli, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, key = disk.folder / "net.mlb", tmp_path / "key"
    shutil.copy(packed("1.0.0"), target)
    old = target.read_bytes()
    assert cli("keygen", key, "--no-passphrase").status == 0

    def intact() -> None:
        assert target.read_bytes() == old
        assert hidden(disk.folder) == set()

    said = sweep(disk, len(old), lambda: cli("sign", target, "--key", key, "--json"), intact)
    tell(capsys, "sign", said)
    assert cli("verify", target, "--require-signature", "--key", f"{key}.pub").status == 0


def test_a_full_disk_while_unpacking(
    disk: Disk, packed: Callable[[str], Path], cli: Cli, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle, target = packed("1.0.0"), disk.folder / "net"

    def intact() -> None:
        assert not target.exists()
        assert hidden(disk.folder) == set()

    said = sweep(disk, bundle.stat().st_size, lambda: cli("unpack", bundle, "-o", target, "--json"), intact)
    tell(capsys, "unpack", said)
    assert said["No space left"]
    assert len(list(target.rglob("small*.txt"))) == 40


@pytest.mark.parametrize("command", ["add", "pull"])
def test_a_full_disk_while_a_bundle_comes_into_the_library(
    command: str,
    disk: Disk,
    packed: Callable[[str], Path],
    registry: RealRegistry,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    new = packed("2.0.0")
    source: tuple[str | Path, ...] = (new,)
    if command == "pull":
        source = (f"{registry.host}/full/net:2.0.0", "--plain-http")
        assert cli("push", new, *source).status == 0
    monkeypatch.setenv("MLBUNDLE_HOME", str(disk.folder / "home"))
    assert cli("add", packed("1.0.0")).status == 0
    data = disk.folder / "home" / "data"
    before = check_store(data)
    # What the two have in common is here already.
    needed_bytes = new.stat().st_size - (1 << 20)

    def intact() -> None:
        assert check_store(data) == before
        assert hidden(data) == set()
        # What this try brought would make the next one need less.
        assert cli("gc", "--partials").status == 0

    said = sweep(disk, needed_bytes, lambda: cli(command, *source, "--json"), intact)
    tell(capsys, command, said)
    assert [entry.version for entry in sorted(check_store(data), key=lambda entry: entry.version)] == [
        "1.0.0",
        "2.0.0",
    ]


@pytest.mark.parametrize("command", ["pack", "sign", "unpack", "add"])
def test_a_file_that_may_not_grow(
    command: str, packed: Callable[[str], Path], home: Path, tmp_path: Path
) -> None:
    """The limit on the size of files stands for a disk that fills in the middle: anybody may set it."""
    bundle, out = packed("1.0.0"), tmp_path / "out"
    out.mkdir()
    target = out / "net.mlb"
    shutil.copy(bundle, target)
    key = tmp_path / "key"
    subprocess.run(command_line("keygen", key, "--no-passphrase"), check=True, capture_output=True)
    arguments: tuple[str | Path, ...] = {
        "pack": (folder_of(tmp_path, "2.0.0"), "-o", target, "--force"),
        "sign": (target, "--key", key),
        "unpack": (target, "-o", out / "net"),
        "add": (target,),
    }[command]

    def attempt(limit_bytes: int) -> Outcome:
        done = subprocess.run(
            command_line(command, *arguments, "--json"),
            capture_output=True,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes)),
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    for limit_bytes in (0, 1_500_000):
        if command == "add" and not limit_bytes:
            continue  # the same as a data folder that can't be written
        # The answer goes into a pipe, which has no size.
        attempt(limit_bytes).error(3, "storage-failed")
        assert {path.name for path in out.iterdir()} == {"net.mlb"}
        assert target.read_bytes() == bundle.read_bytes()
    if command == "add":
        assert check_store(home / "data") == []
    assert attempt(resource.RLIM_INFINITY).status == 0


def test_a_data_folder_that_can_not_be_written_can_be_read() -> None:
    """Not as root, whom no permission stops: children become nobody after they have imported everything."""
    uid = NOBODY if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        home = folder / "home"
        bundles = []
        for version in ("1.0.0", "2.0.0"):
            bundles.append(folder / f"{version}.mlb")
            source = write_model(folder / version, "net", version, version.encode() * 1000)
            run_plainly(home, "pack", source, "-o", bundles[-1])
        run_plainly(home, "add", bundles[0])
        # A verified blob of root's may be read by all, as on a machine where one person fills the data folder.
        folders = [path for path in (home, *home.rglob("*")) if path.is_dir()]
        for path in folders:
            path.chmod(0o555)
        for path in home.rglob("*"):
            if path.is_file() and not path.name.startswith("."):
                path.chmod(0o444)
        outcomes = forked_as(
            uid,
            home,
            ["list"],
            ["verify", "net:1.0.0"],
            ["inspect", "net:1.0.0"],
            ["add", str(bundles[1])],
            ["rm", "net:1.0.0"],
            ["gc"],
        )
        for path in folders:
            path.chmod(0o755)
        for outcome in outcomes[:3]:
            assert outcome.status == 0, outcome.stdout + outcome.stderr
        for outcome in outcomes[3:]:
            assert outcome.error(3, "storage-failed")["hint"]
        assert [entry.version for entry in check_store(home / "data")] == ["1.0.0"]
        run_plainly(home, "add", bundles[1])


def test_an_output_folder_that_vanishes(tmp_path: Path) -> None:
    source = write_model(tmp_path / "net", "net", "1.0.0", random.Random(0).randbytes(60 << 20))
    out = tmp_path / "out"
    for _ in range(5):
        out.mkdir()
        pack = subprocess.Popen(
            command_line("pack", source, "-o", out / "net.mlb", "--json"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while not os.listdir(out) and pack.poll() is None:
            time.sleep(0.0002)
        pack.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, pack.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        in_time = not (out / "net.mlb").exists()
        shutil.rmtree(out)
        pack.send_signal(signal.SIGCONT)
        stdout, stderr = pack.communicate(timeout=60)
        if in_time:
            Outcome(pack.returncode, stdout, stderr).error(3, "storage-failed")
            assert not out.exists()
            return
    raise AssertionError("pack was always faster")


def run_plainly(home: Path, *arguments: str | Path) -> None:
    subprocess.run(
        command_line(*arguments),
        check=True,
        capture_output=True,
        env={**os.environ, "MLBUNDLE_HOME": str(home)},
    )


def forked_as(uid: int | None, home: Path, *commands: list[str]) -> list[Outcome]:
    orders = [{"arguments": [*command, "--json"], "uid": uid} for command in commands]
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("forked.py")],
        input=json.dumps(orders),
        capture_output=True,
        text=True,
        env={**os.environ, "MLBUNDLE_HOME": str(home)},
    )
    assert done.returncode == 0, done.stderr
    return [Outcome(**answer) for answer in json.loads(done.stdout)]


def tell(capsys: pytest.CaptureFixture[str], command: str, said: dict[str, int]) -> None:
    with capsys.disabled():
        print(f"\n{command} on a full disk: {said}")

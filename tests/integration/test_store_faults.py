"""The store under kills and full disks: every name keeps its promise, and the next command works.

Run as a script this file is the driver: it starts processes that add, remove and collect at once, and kills them.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from mlbundle.errors import StorageFailed
from mlbundle.store.collect import gc
from mlbundle.store.library import Library

KILLS = 90
WORKERS = 4
BLOBS = 48
BUNDLES = 24
SMALL = 1000
"""From this number on bundles are of a few small blobs."""


def hex_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def blob(number: int) -> bytes:
    """The same bytes for everybody; some blobs take several blocks to copy."""
    size_bytes = (number % 6) ** 4 * 5000 + number
    return random.Random(number).randbytes(64) * (size_bytes // 64 + 1)


def bundle(number: int) -> list[bytes]:
    if number >= SMALL:
        return [b"small", b"small %d" % number]
    chosen = random.Random(number).sample(range(BLOBS), 6)
    return [blob(i) for i in chosen]


class Source:
    """Serves the blobs of one bundle in pieces, slowly enough to be killed in the middle of any."""

    name = "driver"

    def __init__(self, blobs: list[bytes], pause_s: float = 0.0) -> None:
        self.blobs = {hex_of(data): data for data in blobs}
        self.pause_s = pause_s

    def size_of(self, hexadecimal: str) -> int | None:
        return len(self.blobs[hexadecimal])

    def read_at(self, hexadecimal: str, offset: int, size_bytes: int) -> bytes:
        return self.blobs[hexadecimal][offset : offset + size_bytes]

    def read_into(self, hexadecimal: str, view: memoryview, offset: int) -> None:
        time.sleep(random.random() * self.pause_s)
        view[:] = self.blobs[hexadecimal][offset : offset + len(view)]

    def where(self, hexadecimal: str, offset: int = 0) -> str:
        return f"driver, {hexadecimal}, byte {offset}"

    def close(self) -> None:
        pass


def add(data: Path, number: int, pause_s: float = 0.0) -> None:
    source = Source(bundle(number), pause_s)
    Library(data).add(
        name=f"bundle {number}",
        version="1.0.0",
        manifest_digest=f"sha256:{hex_of(b'manifest %d' % number)}",
        set_digest=f"sha256:{hex_of(b'set')}",
        index=b"{}",
        blobs=[(name, len(content)) for name, content in source.blobs.items()],
        source="driver",
        reader=source,
    )


def work(data: Path, seed: int) -> NoReturn:
    """Do what commands do, for ever."""
    random.seed(seed)
    library = Library(data)
    while True:
        chance = random.random()
        if chance < 0.6:
            add(data, random.randrange(BUNDLES), pause_s=0.004)
        elif chance < 0.85:
            entries = library.entries()
            if entries:
                library.remove(random.choice(entries))
        else:
            gc(data, partials=random.random() < 0.1)


def drive(data: Path, seed: int, kills: int) -> None:
    """Keep some workers busy and kill one after another at random moments."""
    chance = random.Random(seed)
    workers: list[int] = []
    in_the_middle = 0
    for kill in range(kills):
        while len(workers) < WORKERS:
            child = os.fork()
            if child == 0:
                try:
                    work(data, seed * 10_000 + kill * WORKERS + len(workers))
                finally:
                    # Only an error comes here: the worker's own loop has no end.
                    os._exit(9)
            workers.append(child)
        time.sleep(chance.random() * 0.12)
        _end(workers.pop(chance.randrange(len(workers))))
        in_the_middle += any(is_free(path) for path in (data / "blobs" / "partial").glob("*"))
    for worker in workers:
        _end(worker)
    print(json.dumps({"kills": kills, "in_the_middle": in_the_middle}))


def is_free(partial: Path) -> bool:
    """Whether a part of a blob is here that nobody is receiving."""
    try:
        with partial.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return partial.stat().st_size > 0
    except OSError:
        return False


def _end(worker: int) -> None:
    os.kill(worker, signal.SIGKILL)
    _, status = os.waitpid(worker, 0)
    if not os.WIFSIGNALED(status):
        sys.exit("a worker ended by itself: see its error above")


def check(data: Path) -> tuple[int, int]:
    """Every name keeps its promise; returns the numbers of blobs and entries."""
    library = Library(data)
    names = os.listdir(library.store.whole)
    for name in names:
        path = library.store.whole / name
        assert hex_of(path.read_bytes()) == name
        assert path.stat().st_mode & 0o222 == 0
    assert library.problems() == []
    for entry in library.entries():
        for name, size_bytes in entry.blobs:
            assert library.store.size_of(name) == size_bytes, f"{entry.reference} has lost sha256:{name}"
    return len(names), len(library.entries())


def test_kills_at_any_moment_leave_a_store_that_keeps_its_promises(tmp_path: Path) -> None:
    data, seed = tmp_path / "data", secrets.randbelow(1_000_000)
    done = subprocess.run(
        [sys.executable, __file__, str(data), str(seed), str(KILLS)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    print(f"seed {seed}, {done.stdout.strip()}")
    assert done.returncode == 0, f"seed {seed}\n{done.stderr}"
    told = json.loads(done.stdout)
    assert told["kills"] == KILLS
    assert told["in_the_middle"] > 0, "no kill left a part of a blob: they come too seldom to show anything"
    blobs, entries = check(data)
    library = Library(data)
    print(f"{blobs} blobs, {entries} entries, {len(os.listdir(library.store.partial))} partial files left")

    library.repair()
    hidden = {path.name for path in library.folder.iterdir() if path.name.startswith(".")}
    assert hidden == {".lock", ".write.lock"}
    for number in range(BUNDLES):
        add(data, number)
    assert check(data)[1] == BUNDLES
    for entry in library.entries()[: BUNDLES // 2]:
        library.remove(entry)
    wanted = {name for entry in library.entries() for name, _ in entry.blobs}
    gc(data, partials=True)
    assert set(os.listdir(library.store.whole)) == wanted
    assert os.listdir(library.store.partial) == []
    assert check(data)[1] == BUNDLES // 2
    assert not (data / "quarantine").exists(), "a kill never looks like damage"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    # Here, as this file is also the program of the processes that are killed, which have no tests on their path.
    from support import small_file_system

    with small_file_system(tmp_path / "disk", "2m") as folder:
        yield folder


def receive(library: Library, content: bytes) -> None:
    with library.store.receive(hex_of(content), len(content)) as part:
        if part is not None:
            part.write(memoryview(content)[part.received_bytes :])


def test_a_full_disk_is_said_and_spoils_nothing(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = small_disk / "data"
    library = Library(data)
    kept, big = os.urandom(300_000), os.urandom(1_500_000)
    receive(library, kept)
    too_big = os.urandom(2_500_000)
    with pytest.raises(StorageFailed, match="2500000 bytes are needed"):
        receive(library, too_big)
    assert os.listdir(library.store.partial) == []

    # There was room when the transfer began; somebody else takes it meanwhile.
    def receive_while_it_fills() -> None:
        with library.store.receive(hex_of(big), len(big)) as part:
            assert part is not None
            part.write(memoryview(big)[:500_000])
            (small_disk / "other").write_bytes(bytes(900_000))
            part.write(memoryview(big)[500_000:])

    with pytest.raises(StorageFailed) as caught:
        receive_while_it_fills()
    assert caught.value.message == "No space left on device"
    assert caught.value.hint
    assert library.store.size_of(hex_of(big)) is None
    library.store.verify(hex_of(kept))

    (small_disk / "other").unlink()
    with library.store.receive(hex_of(big), len(big)) as part:
        assert part is not None
        assert part.received_bytes == 500_000
        part.write(memoryview(big)[500_000:])
    library.store.verify(hex_of(big))


def test_a_disk_without_room_for_the_entry_leaves_the_library_as_it_was(small_disk: Path) -> None:
    data = small_disk / "data"
    add(data, SMALL)
    before = Library(data).entries()
    # All blobs of the second bundle are here: only its entry has to be written.
    for content in bundle(SMALL + 1):
        receive(Library(data), content)
    fill(small_disk / "other")
    with pytest.raises(StorageFailed, match="No space left"):
        add(data, SMALL + 1)
    assert Library(data).entries() == before
    assert check(data)[1] == 1
    (small_disk / "other").unlink()
    add(data, SMALL + 1)
    assert check(data)[1] == 2


def fill(path: Path) -> None:
    """Take all the space there is."""
    with path.open("wb", buffering=0) as stream:
        try:
            while True:
                stream.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


if __name__ == "__main__":
    drive(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

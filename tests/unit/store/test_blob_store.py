"""Blobs: named only when their bytes have the digest; transfers go on where they broke; damage is noticed."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlbundle.errors import BundleCorrupt, DigestMismatch, StorageFailed
from mlbundle.store import partial
from mlbundle.store.blobs import BlobStore

DATA = b"0123456789abcdef" * 1000


def hex_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


HEX = hex_of(DATA)


@pytest.fixture
def store(tmp_path: Path) -> BlobStore:
    return BlobStore(tmp_path / "data")


def put(store: BlobStore, data: bytes) -> str:
    with store.receive(hex_of(data), len(data)) as part:
        if part is not None:
            part.write(memoryview(data))
    return hex_of(data)


def feed(store: BlobStore, *pieces: bytes, then: type[Exception] | None = None) -> None:
    """Send these bytes as what is left of the blob `HEX`."""
    with store.receive(HEX, len(DATA)) as part:
        assert part is not None
        for piece in pieces:
            part.write(memoryview(piece))
        if then is not None:
            raise then


def break_off(store: BlobStore, data: bytes) -> None:
    """Leave a part of a blob, as a transfer does whose connection is cut."""
    with pytest.raises(ConnectionError):
        feed(store, data, then=ConnectionError)


def partials(store: BlobStore) -> list[str]:
    return os.listdir(store.partial)


def test_a_blob_that_was_received_is_read_at_any_place_and_is_read_only(store: BlobStore) -> None:
    assert store.size_of(HEX) is None
    assert put(store, DATA) == HEX
    assert store.size_of(HEX) == len(DATA)
    assert store.read_at(HEX, 0, len(DATA)) == DATA
    assert store.read_at(HEX, 15_990, 100) == DATA[15_990:]
    assert store.read_at(HEX, 99_999, 10) == b""
    buffer = bytearray(7)
    store.read_into(HEX, memoryview(buffer), 5)
    assert bytes(buffer) == DATA[5:12]
    assert stat.S_IMODE(store.path(HEX).stat().st_mode) == 0o444
    assert partials(store) == []
    assert str(store.path(HEX)) in store.where(HEX, 3)


def test_reading_beyond_the_end_names_the_place(store: BlobStore) -> None:
    put(store, DATA)
    with pytest.raises(BundleCorrupt) as caught:
        store.read_into(HEX, memoryview(bytearray(10)), len(DATA) - 5)
    assert f"byte {len(DATA)}" in str(caught.value.where)


def test_an_empty_blob_is_a_blob(store: BlobStore) -> None:
    assert store.size_of(put(store, b"")) == 0
    assert store.read_at(hex_of(b""), 0, 10) == b""


def test_a_blob_that_is_here_is_not_received_again(store: BlobStore) -> None:
    put(store, DATA)
    with store.receive(HEX, len(DATA)) as part:
        assert part is None
    with pytest.raises(DigestMismatch, match="not 5"), store.receive(HEX, 5):
        pass


@pytest.mark.parametrize("wrong", [DATA[:-1], DATA[:-1] + b"x", b""])
def test_wrong_bytes_leave_nothing(store: BlobStore, wrong: bytes) -> None:
    with pytest.raises(DigestMismatch):
        feed(store, wrong)
    assert store.size_of(HEX) is None
    assert partials(store) == []


def test_more_bytes_than_announced_are_refused_at_once(store: BlobStore) -> None:
    with pytest.raises(DigestMismatch, match="more than"):
        feed(store, DATA, b"x")
    assert store.size_of(HEX) is None
    assert partials(store) == []


def test_a_broken_transfer_goes_on_where_it_ended(store: BlobStore) -> None:
    break_off(store, DATA[:5000])
    assert store.size_of(HEX) is None
    with store.receive(HEX, len(DATA)) as part:
        assert part is not None
        assert part.received_bytes == 5000
        part.write(memoryview(DATA)[5000:])
    assert store.read_at(HEX, 0, len(DATA)) == DATA


def test_a_part_that_was_spoilt_is_noticed_and_goes(store: BlobStore) -> None:
    break_off(store, b"\0" * 5000)
    with pytest.raises(DigestMismatch):
        feed(store, DATA[5000:])
    assert partials(store) == []
    put(store, DATA)
    assert store.is_intact(HEX)


@pytest.mark.parametrize("left", [b"\0" * len(DATA), b"\0" * (len(DATA) + 1)])
def test_a_part_that_can_not_be_the_beginning_is_dropped(store: BlobStore, left: bytes) -> None:
    store.make_folders()
    (store.partial / HEX).write_bytes(left)
    with store.receive(HEX, len(DATA)) as part:
        assert part is not None
        assert part.received_bytes == 0
        part.write(memoryview(DATA))
    assert store.is_intact(HEX)


def test_a_whole_part_becomes_the_blob(store: BlobStore) -> None:
    store.make_folders()
    (store.partial / HEX).write_bytes(DATA)
    with store.receive(HEX, len(DATA)) as part:
        assert part is not None
        assert part.received_bytes == len(DATA)
    assert store.is_intact(HEX)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.one_of(st.just("mark"), st.just("rollback"), st.binary(max_size=40)), max_size=20),
    left=st.binary(max_size=30),
)
def test_marks_and_rollbacks_keep_bytes_and_hash_together(
    tmp_path_factory: pytest.TempPathFactory, steps: list, left: bytes
) -> None:
    expected, mark = bytearray(left), b""
    for step in steps:
        if step == "mark":
            mark = bytes(expected)
        elif step == "rollback":
            expected = bytearray(mark)
        else:
            expected += step
    expected += b"the end"
    store = BlobStore(tmp_path_factory.mktemp("data"))
    store.make_folders()
    hexadecimal = hex_of(bytes(expected))
    size_bytes = max(1000, len(expected))
    # The announced size is that of the whole; what is marked and forgotten in between may be longer for a while.
    path = store.partial / hexadecimal
    path.write_bytes(left)
    lock = partial.open_partial(path)
    assert lock is not None
    part = partial.PartialFile(path, hexadecimal, size_bytes, lock)
    assert part.received_bytes == len(left)
    for step in steps:
        if step == "mark":
            part.mark()
        elif step == "rollback":
            part.rollback()
        else:
            part.write(memoryview(step))
    part.write(memoryview(b"the end"))
    assert part.received_bytes == len(expected)
    part.leave()
    part.close()
    os.close(lock)
    assert path.read_bytes() == expected
    with store.receive(hexadecimal, len(expected)) as again:
        assert again is not None
        assert again.received_bytes == len(expected)
    assert store.read_at(hexadecimal, 0, 10_000) == expected


@pytest.mark.parametrize("name", ["", "../" + "a" * 61, "A" * 64, "a" * 63, "a" * 64 + "\n", "a" * 65])
def test_only_digests_are_file_names(store: BlobStore, name: str) -> None:
    for ask in (store.size_of, store.verify, store.is_intact, lambda n: store.read_at(n, 0, 1)):
        with pytest.raises(BundleCorrupt):
            ask(name)
    with pytest.raises(BundleCorrupt), store.receive(name, 1):
        pass


def test_a_blob_that_is_not_here_is_a_typed_error(store: BlobStore) -> None:
    with pytest.raises(BundleCorrupt) as caught:
        store.read_at(HEX, 0, 1)
    assert caught.value.hint
    assert not store.is_intact(HEX)


@pytest.mark.parametrize("kind", ["link", "folder", "fifo"])
def test_what_is_no_regular_file_is_refused_and_replaced(store: BlobStore, tmp_path: Path, kind: str) -> None:
    store.make_folders()
    outside = tmp_path / "outside"
    outside.write_bytes(DATA)
    path = store.path(HEX)
    if kind == "link":
        path.symlink_to(outside)
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    assert store.size_of(HEX) is None
    with pytest.raises(BundleCorrupt, match="no regular file"):
        store.read_at(HEX, 0, 1)
    put(store, DATA)
    assert store.read_at(HEX, 0, len(DATA)) == DATA
    assert outside.read_bytes() == DATA
    assert len(os.listdir(store.quarantine)) == 1


def test_a_partial_file_that_is_a_link_is_not_written_through(store: BlobStore, tmp_path: Path) -> None:
    store.make_folders()
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    (store.partial / HEX).symlink_to(outside)
    with pytest.raises(StorageFailed):
        put(store, DATA)
    assert outside.read_bytes() == b"mine"


def damage(path: Path, *, keep_times: bool = False) -> None:
    before = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as stream:
        stream.write(b"X")
    if keep_times:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_blob_that_was_written_to_is_noticed_and_received_again(store: BlobStore) -> None:
    put(store, DATA)
    assert store.is_intact(HEX)
    damage(store.path(HEX))
    assert not BlobStore(store.root.parent).is_intact(HEX)
    put(store, DATA)
    assert store.is_intact(HEX)
    assert store.read_at(HEX, 0, 1) == DATA[:1]
    (aside,) = store.quarantine.iterdir()
    assert aside.name.endswith(HEX)
    assert aside.read_bytes() == b"X" + DATA[1:]


def test_a_sound_blob_is_read_again_only_when_its_file_changed_or_on_request(store: BlobStore) -> None:
    put(store, DATA)
    # Another process, and damage that nothing but reading shows: not found by a look, found on request.
    damage(store.path(HEX), keep_times=True)
    again = BlobStore(store.root.parent)
    assert again.is_intact(HEX)
    with pytest.raises(DigestMismatch) as caught:
        again.verify(HEX)
    assert str(store.path(HEX)) == caught.value.where
    # As a backup that was played back leaves it: another inode, so it is read.
    copy = store.path(HEX).with_name("copy")
    copy.write_bytes(DATA)
    copy.rename(store.path(HEX))
    assert again.is_intact(HEX)
    assert BlobStore(store.root.parent).is_intact(HEX)


def test_damaged_or_missing_stamps_cost_a_reading_and_nothing_else(store: BlobStore) -> None:
    put(store, DATA)
    path = store.root / "stamps.txt"
    whole = path.read_bytes()
    for content in (b"", whole[:-30], b"\xff\0" * 100, whole[:70] + whole):
        path.write_bytes(content)
        assert BlobStore(store.root.parent).is_intact(HEX)
        damage(store.path(HEX))
        assert not BlobStore(store.root.parent).is_intact(HEX)
        put(BlobStore(store.root.parent), DATA)
    path.unlink()
    path.mkdir()
    assert BlobStore(store.root.parent).is_intact(HEX)


def test_too_little_space_is_said_before_anything_is_received(store: BlobStore) -> None:
    with pytest.raises(StorageFailed, match="bytes are needed") as caught, store.receive(HEX, 1 << 60):
        raise AssertionError("must not be reached")
    assert str(1 << 60) in caught.value.message
    assert caught.value.hint
    assert partials(store) == []


_LIMITED = """
import resource, signal, sys
from pathlib import Path
from mlbundle.errors import StorageFailed
from mlbundle.store.blobs import BlobStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, resource.RLIM_INFINITY))
try:
    with BlobStore(Path(sys.argv[1])).receive(sys.argv[2], 16000) as part:
        try:
            part.write(memoryview(b"0123456789abcdef" * 1000))
        except StorageFailed as error:
            assert part.received_bytes == 0, part.received_bytes
            part.write(memoryview(b"0123456789abcdef" * 100))
            raise
except StorageFailed as error:
    print(error.message)
"""


def test_a_disk_that_refuses_in_the_middle_is_typed_and_the_transfer_goes_on_later(store: BlobStore) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(store.root.parent), HEX],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == os.strerror(errno.EFBIG)
    with store.receive(HEX, len(DATA)) as part:
        assert part is not None
        # The piece that was refused half-way was never counted; the smaller one that followed was.
        assert part.received_bytes == 1600
        part.write(memoryview(DATA)[1600:])
    assert store.is_intact(HEX)


_UNPRIVILEGED = """
import os, sys
from pathlib import Path
from mlbundle.store.blobs import BlobStore
if os.geteuid() == 0:
    os.setuid(65534)
store = BlobStore(Path(sys.argv[1]))
store.make_folders()
part = store.partial / sys.argv[2]
part.write_bytes(b"0123456789abcdef" * 1000)
part.chmod(0o444)
with store.receive(sys.argv[2], 16000) as part:
    print(part.received_bytes)
"""


def test_a_kill_just_before_the_blob_has_its_name_stops_no_later_transfer() -> None:
    # The file is read-only already, and to root that means nothing.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", _UNPRIVILEGED, folder, HEX], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "16000\n"
        path = BlobStore(Path(folder)).path(HEX)
        assert path.read_bytes() == DATA
        assert stat.S_IMODE(path.stat().st_mode) == 0o444


_HOLD = """
import sys, time
from pathlib import Path
from mlbundle.store.blobs import BlobStore
data = b"0123456789abcdef" * 1000
with BlobStore(Path(sys.argv[1])).receive(sys.argv[2], len(data)) as part:
    part.write(memoryview(data)[:5000])
    print("held", flush=True)
    if sys.stdin.read():
        part.rollback()
        data = bytes(len(data))
    part.write(memoryview(data)[part.received_bytes:])
"""


def hold(store: BlobStore) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(store.root.parent), HEX],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_of_two_processes_one_receives_and_the_other_finds(store: BlobStore) -> None:
    other = hold(store)
    waited = threading.Event()
    with ThreadPoolExecutor(1) as pool:

        def receive() -> bool:
            with store.receive(HEX, len(DATA), waiting=waited.set) as part:
                return part is None

        found = pool.submit(receive)
        assert waited.wait(30)
        assert store.size_of(HEX) is None
        assert other.stdin is not None
        other.stdin.close()
        assert found.result(30)
    assert other.wait(30) == 0
    assert store.is_intact(HEX)


def test_when_the_other_process_had_wrong_bytes_the_one_that_waited_receives(store: BlobStore) -> None:
    other = hold(store)
    waited = threading.Event()

    def receive() -> None:
        with store.receive(HEX, len(DATA), waiting=waited.set) as part:
            assert part is not None
            assert part.received_bytes == 0
            part.write(memoryview(DATA))

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(receive)
        assert waited.wait(30)
        assert other.communicate(b"send something else", timeout=30) == (b"", None)
        done.result(30)
    assert other.returncode == 1
    assert store.is_intact(HEX)


def test_a_blob_that_comes_between_the_look_and_the_lock_is_found(
    store: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(*arguments: Any) -> int | None:
        monkeypatch.undo()
        put(BlobStore(store.root.parent), DATA)
        return partial.open_partial(*arguments)

    monkeypatch.setattr("mlbundle.store.blobs.open_partial", late)
    with store.receive(HEX, len(DATA)) as part:
        assert part is None
    assert partials(store) == []


def test_what_a_killed_process_received_is_taken_over(store: BlobStore) -> None:
    other = hold(store)
    other.send_signal(signal.SIGKILL)
    other.wait()
    with store.receive(HEX, len(DATA)) as part:
        assert part is not None
        assert part.received_bytes == 5000
        part.write(memoryview(DATA)[5000:])
    assert store.is_intact(HEX)


def test_who_waits_can_be_told_to_stop(store: BlobStore) -> None:
    other = hold(store)

    def enough() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError), store.receive(HEX, len(DATA), waiting=enough):
        pass
    other.kill()
    other.wait()


def test_many_threads_read_more_blobs_than_files_are_kept_open(store: BlobStore) -> None:
    blobs = {put(store, b"%d" % i * 100): b"%d" % i * 100 for i in range(150)}
    names = list(blobs)
    before = len(os.listdir("/proc/self/fd"))

    def read(seed: int) -> bool:
        order = names[seed:] + names[:seed]
        return all(store.read_at(name, 10, 50) == blobs[name][10:60] for name in order * 3)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(0, 150, 10)))
    assert len(os.listdir("/proc/self/fd")) - before <= 70
    store.close()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert store.read_at(names[0], 0, 1) == blobs[names[0]][:1]


def test_threads_that_want_the_same_blob_share_one_transfer(store: BlobStore) -> None:
    received = []

    def receive(_: int) -> None:
        with store.receive(HEX, len(DATA)) as part:
            if part is not None:
                received.append(part)
                part.write(memoryview(DATA))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(receive, range(8)))
    assert len(received) == 1


def test_a_folder_that_can_not_be_made_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(StorageFailed) as caught:
        put(BlobStore(tmp_path / "data"), DATA)
    assert caught.value.hint

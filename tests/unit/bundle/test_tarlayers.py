"""The tar of a layer is compared with the one that follows from the file table: that one is accepted, no other."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mlbundle.bundle.table import FileEntry
from mlbundle.bundle.tarlayers import TarChecker, tar_bytes
from mlbundle.errors import BundleCorrupt, DigestMismatch, IntegrityError


@dataclass(frozen=True)
class File:
    """A file that is to be in the tar."""

    path: str
    data: bytes
    mode: int = 0o644

    def entry(self) -> FileEntry:
        return FileEntry(self.path, len(self.data), hashlib.sha256(self.data).hexdigest(), self.mode, 4)


def python_tar(files: list[File]) -> bytes:
    """What Python's own tarfile makes of them, as ustar, with device numbers as the format wants them: zeros."""
    whole = b""
    for file in files:
        info = tarfile.TarInfo(file.path)
        info.size, info.mode = len(file.data), file.mode
        header = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
        assert len(header) == 512
        header[329:345] = b"0000000\0" * 2
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        whole += bytes(header) + file.data + bytes(-len(file.data) % 512)
    return whole + bytes(1024)


def check(files: list[File], pieces: list[bytes]) -> list[bytes]:
    """Feed the pieces; return what came out for each file."""
    out = [bytearray() for _ in files]

    def sink(held: bytearray) -> Callable[[memoryview], None]:
        def write(view: memoryview) -> None:
            held.extend(view)

        return write

    checker = TarChecker([file.entry() for file in files], iter([sink(held) for held in out]), "test")
    for piece in pieces:
        checker.feed(memoryview(piece))
    checker.finish()
    return [bytes(held) for held in out]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Cut bytes at some places; empty pieces are among them."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:stop] for start, stop in zip(edges, edges[1:], strict=False)]


parts = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="/"), min_size=1
)
paths = st.lists(parts, min_size=1, max_size=4).map("/".join).filter(lambda path: len(path.encode()) <= 100)
sizes = st.sampled_from([0, 1, 2, 511, 512, 513, 1024, 1500])
datas = st.builds(lambda size, fill: bytes([fill]) * size, sizes, st.integers(0, 255)) | st.binary(
    max_size=600
)
files = st.lists(
    st.builds(File, paths, datas, st.sampled_from([0o644, 0o755])),
    max_size=5,
    unique_by=lambda file: file.path,
)
places = st.lists(st.integers(0, 1 << 20), max_size=12)


@settings(deadline=None)
@given(files, places)
def test_the_tar_of_the_table_is_accepted_in_any_pieces(held: list[File], where: list[int]) -> None:
    whole = python_tar(held)
    assert len(whole) == tar_bytes(len(file.data) for file in held)
    assert check(held, cut(whole, where)) == [file.data for file in held]


@settings(max_examples=10, deadline=None)
@given(files)
def test_byte_by_byte(held: list[File]) -> None:
    whole = python_tar(held)
    assert check(held, [whole[n : n + 1] for n in range(len(whole))]) == [file.data for file in held]


@settings(max_examples=300, deadline=None)
@given(files, st.integers(0, 1 << 20), st.integers(1, 255), places)
def test_one_other_byte_is_refused(held: list[File], offset: int, by: int, where: list[int]) -> None:
    whole = bytearray(python_tar(held))
    whole[offset % len(whole)] ^= by
    with pytest.raises(IntegrityError, match=r"digest that names it|is not what the file table says"):
        check(held, cut(bytes(whole), where))


@settings(max_examples=200, deadline=None)
@given(files, st.integers(0, 1 << 20), places)
def test_a_shorter_tar_is_refused(held: list[File], size: int, where: list[int]) -> None:
    whole = python_tar(held)
    with pytest.raises(BundleCorrupt, match="ends too early"):
        check(held, cut(whole[: size % len(whole)], where))


@settings(deadline=None)
@given(files, st.binary(min_size=1, max_size=1100), places)
def test_a_longer_tar_is_refused(held: list[File], more: bytes, where: list[int]) -> None:
    with pytest.raises(BundleCorrupt, match="bytes follow the end"):
        check(held, cut(python_tar(held) + more, where))


@settings(max_examples=200, deadline=None)
@given(files, files, places)
def test_the_tar_of_another_table_is_refused(held: list[File], other: list[File], where: list[int]) -> None:
    assume(held != other)
    with pytest.raises(IntegrityError):
        check(held, cut(python_tar(other), where))


@settings(deadline=None)
@given(files, st.binary(max_size=4096), places)
def test_any_bytes_are_refused(held: list[File], data: bytes, where: list[int]) -> None:
    assume(data != python_tar(held))
    with pytest.raises(IntegrityError):
        check(held, cut(data, where))


def test_files_stand_in_the_order_of_the_table() -> None:
    one, two = File("a", b"1"), File("b", b"2")
    with pytest.raises(BundleCorrupt, match="the header of 'a' is not what the file table says"):
        check([one, two], [python_tar([two, one])])


@pytest.mark.parametrize("data", [b"", b"x", b"x" * 512])
def test_a_file_with_another_digest_is_named(data: bytes) -> None:
    """Also an empty one, of which no byte ever comes."""
    entry = FileEntry("data/a", len(data), "0" * 64, 0o644, 4)
    checker = TarChecker([entry], iter([None]), "x.mlb!group")
    with pytest.raises(DigestMismatch, match="data/a does not have the digest") as caught:
        checker.feed(memoryview(python_tar([File("data/a", data)])))
    assert (caught.value.where or "").startswith("x.mlb!group, byte ")


def test_the_place_of_a_fault_is_told() -> None:
    whole = bytearray(python_tar([File("a", b"1"), File("b", b"2")]))
    whole[1024 + 600] = 1
    with pytest.raises(BundleCorrupt, match="the padding of 'b'") as caught:
        check([File("a", b"1"), File("b", b"2")], [bytes(whole)])
    assert caught.value.where == "test, byte 1537 of the tar"


def test_a_long_path_is_split_as_the_format_says() -> None:
    """Python splits at another slash, so these bytes are made by hand: 155 bytes of prefix at most, the last slash."""
    path = "d" * 80 + "/" + "e" * 70 + "/" + "n" * 90
    prefix, name = ("d" * 80 + "/" + "e" * 70).encode(), b"n" * 90
    fields = b"0000644\0" + b"0000000\0" * 2 + b"00000000001\0" + b"00000000000\0"
    head = name.ljust(100, b"\0") + fields
    tail = (
        b"0"
        + bytes(100)
        + b"ustar\x0000"
        + bytes(64)
        + b"0000000\0" * 2
        + prefix.ljust(155, b"\0")
        + bytes(12)
    )
    checksum = sum(head) + sum(tail) + 8 * 32
    block = head + b"%06o\0 " % checksum + tail
    assert len(block) == 512
    assert check([File(path, b"1")], [block + b"1".ljust(512, b"\0") + bytes(1024)]) == [b"1"]

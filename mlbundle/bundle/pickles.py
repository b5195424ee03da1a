"""Finds Python pickles by their bytes, in any disguise, without ever loading one.

A pickle is a program; whoever loads it runs it. It hides in `.pkl`, `.pt`, `.joblib`, in `.npz` with object
arrays, compressed or not, so names are not asked. Looked at are: the opcodes themselves (all protocols, as
`pickletools` disassembles them), the same behind gzip, zlib, bzip2 or xz, inside the members of a zip, and
the header of `.npy` with objects. What is found is reported, never executed.
"""

from __future__ import annotations

import bz2
import lzma
import pickletools
import re
import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Protocol

    from mlbundle.bundle.reader import BundleReader

    class _Decompressor(Protocol):
        def decompress(self, data: bytes, max_length: int, /) -> bytes: ...

    ReadAt = Callable[[int, int], bytes]

WINDOW_BYTES = 4096
_ZIP_WINDOW_BYTES = 64 << 10
_MAX_LAYERS_DEEP = 3
_MAX_ZIP_ENTRIES = 10_000
_MAX_DIRECTORY_BYTES = 4 << 20
_CALLS = frozenset({"GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD"})
_NPY_OBJECTS = re.compile(rb"'descr':\s*(?:'[|<>=]?O|\[.*'[|<>=]?O)", re.DOTALL)


def find_pickles(reader: BundleReader) -> tuple[str, ...]:
    """Return the paths of the files of a bundle that hold a pickle, in order."""
    found: list[str] = []
    for layer in reader.layers:
        for file in layer.files:
            size_bytes = file.entry.size_bytes

            def read_at(offset: int, count: int, start: int = file.offset, size: int = size_bytes) -> bytes:
                return reader.read_at(start + offset, max(0, min(count, size - offset)))

            if holds_pickle(read_at, size_bytes):
                found.append(file.entry.path)
    return tuple(sorted(found, key=str.encode))


def holds_pickle(read_at: ReadAt, size_bytes: int) -> bool:
    """Return whether the file behind `read_at(offset, count)` holds a pickle."""
    window = read_at(0, WINDOW_BYTES)
    if _window_is_pickle(window, whole=size_bytes <= WINDOW_BYTES):
        return True
    return window.startswith(b"PK") and any(
        _window_is_pickle(start, whole=False) for start in _zip_members(read_at, size_bytes)
    )


def _window_is_pickle(window: bytes, *, whole: bool, depth: int = 0) -> bool:
    if window.startswith(b"\x93NUMPY"):
        return _NPY_OBJECTS.search(window) is not None
    if _is_opcodes(window, whole=whole):
        return True
    if depth >= _MAX_LAYERS_DEEP:
        return False
    inner = _decompressed(window)
    return bool(inner) and _window_is_pickle(inner, whole=False, depth=depth + 1)


def _is_opcodes(window: bytes, *, whole: bool) -> bool:
    """Disassemble the window; a protocol mark decides at once, protocols 0 and 1 need an end or a call."""
    if not window or (window[0] != 0x80 and window[0] >= 0x7F):
        return False
    names: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(window):
            if opcode.name in {"GLOBAL", "INST"} and not _is_dotted(str(argument)):
                return False
            names.append(opcode.name)
            if names[0] == "PROTO" and len(names) == 2:
                return True
    except (ValueError, EOFError, IndexError, OverflowError, struct.error):
        if names[:1] == ["PROTO"] and not whole and len(names) == 1:
            # The second opcode has an argument longer than the window: a frame, a long string.
            return len(window) == WINDOW_BYTES
        return not whole and not _CALLS.isdisjoint(names)
    return len(names) > 2 and _ends_with_one_object(names)


def _is_dotted(argument: str) -> bool:
    module, _, name = argument.partition(" ")
    return all(part.isidentifier() for part in (*module.split("."), *name.split(".")))


def _ends_with_one_object(names: list[str]) -> bool:
    """Run the opcodes' effect on the depth of the stack; text that happens to parse hardly leaves one object."""
    stack: list[str] = []
    by_name = {opcode.name: opcode for opcode in pickletools.opcodes}
    for name in names[:-1]:
        before, after = by_name[name].stack_before, by_name[name].stack_after
        if pickletools.markobject in before:
            if "mark" not in stack:
                return False
            while stack.pop() != "mark":
                pass
            taken = before.index(pickletools.markobject)
        else:
            taken = len(before)
        if taken > len(stack):
            return False
        del stack[len(stack) - taken :]
        stack += ["mark" if thing is pickletools.markobject else "object" for thing in after]
    return stack == ["object"]


def _decompressed(window: bytes) -> bytes:
    """Return the beginning of what a compressed window holds; empty for anything else."""
    makers: tuple[tuple[bool, Callable[[], _Decompressor]], ...] = (
        (window.startswith(b"\x1f\x8b"), lambda: zlib.decompressobj(31)),
        (window[:1] == b"\x78" and window[1:2] in {b"\x01", b"\x5e", b"\x9c", b"\xda"}, zlib.decompressobj),
        (window.startswith(b"BZh"), bz2.BZ2Decompressor),
        (window.startswith((b"\xfd7zXZ\0", b"\x5d\0\0")), lambda: lzma.LZMADecompressor(memlimit=64 << 20)),
    )
    for fits, maker in makers:
        if fits:
            try:
                return maker().decompress(window, WINDOW_BYTES)
            except (zlib.error, OSError, EOFError, ValueError, lzma.LZMAError):
                return b""
    return b""


def _zip_members(read_at: ReadAt, size_bytes: int) -> Iterator[bytes]:
    """Yield the beginnings of the members of a zip (APPNOTE 4.3), decompressed; stops where it is broken."""
    tail_bytes = min(size_bytes, _ZIP_WINDOW_BYTES + 22)
    tail = read_at(size_bytes - tail_bytes, tail_bytes)
    mark = tail.rfind(b"PK\x05\x06")
    if mark < 0 or len(tail) - mark < 22:
        return
    directory_bytes, directory_offset = struct.unpack_from("<II", tail, mark + 12)
    if directory_offset == 0xFFFFFFFF:
        directory_bytes, directory_offset = _zip64_directory(read_at, tail, mark)
    directory = read_at(directory_offset, min(directory_bytes, _MAX_DIRECTORY_BYTES))
    position = 0
    for _ in range(_MAX_ZIP_ENTRIES):
        if directory[position : position + 4] != b"PK\x01\x02" or len(directory) - position < 46:
            return
        name, extra, comment = struct.unpack_from("<HHH", directory, position + 28)
        (offset,) = struct.unpack_from("<I", directory, position + 42)
        (method,) = struct.unpack_from("<H", directory, position + 10)
        yield _zip_member(read_at, offset, method)
        position += 46 + name + extra + comment


def _zip64_directory(read_at: ReadAt, tail: bytes, mark: int) -> tuple[int, int]:
    if mark < 20 or tail[mark - 20 : mark - 16] != b"PK\x06\x07":
        return 0, 0
    (record_offset,) = struct.unpack_from("<Q", tail, mark - 12)
    record = read_at(record_offset, 56)
    if len(record) < 56 or record[:4] != b"PK\x06\x06":
        return 0, 0
    size, offset = struct.unpack_from("<QQ", record, 40)
    return int(size), int(offset)


def _zip_member(read_at: ReadAt, offset: int, method: int) -> bytes:
    header = read_at(offset, 30)
    if len(header) < 30 or header[:4] != b"PK\x03\x04":
        return b""
    name, extra = struct.unpack_from("<HH", header, 26)
    data = read_at(offset + 30 + name + extra, WINDOW_BYTES)
    if method == 8:
        try:
            return zlib.decompressobj(-15).decompress(data, WINDOW_BYTES)
        except zlib.error:
            return b""
    return data if method == 0 else b""

"""Finds Python pickles by their bytes, in any disguise, without ever loading one.

A pickle is a program; whoever loads it runs it. It hides in `.pkl`, `.pt`, `.joblib`, in `.npz` with object
arrays, compressed or not, so names are not asked. Looked at are: the opcodes themselves (all protocols, by the
table of `pickletools`), the same behind gzip, zlib, bzip2 or xz, inside the members of a zip, and the header of
`.npy` with objects. What is found is reported, never executed.
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

    from mlbundle.bundle.reader import BundleReader, Layer, PlacedFile

    class _Decompressor(Protocol):
        def decompress(self, data: bytes, max_length: int, /) -> bytes: ...

    ReadAt = Callable[[int, int], bytes]

WINDOW_BYTES = 16 << 10
_HEAD_BYTES = 512
_WRAPPERS = (b"\x93NUMPY", b"\x1f\x8b", b"\x78", b"BZh", b"\xfd7zXZ\0", b"\x5d\0\0")
_MAX_NESTING = 3
_MAX_OPCODES = 10_000
_MAX_LINES_BYTES = 16 << 20
_MAX_TAIL_BYTES = (64 << 10) + 22
_MAX_ZIP_ENTRIES = 10_000
_MAX_DIRECTORY_BYTES = 4 << 20
_CALLS = frozenset({"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD"})
_IMPORTS = frozenset({"GLOBAL", "INST"})
_NPY_OBJECTS = re.compile(rb"'descr':\s*(?:'[|<>=]?O|\[.*'[|<>=]?O)", re.DOTALL)
_OPCODES = {ord(opcode.code): opcode for opcode in pickletools.opcodes}
_LENGTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}


def find_pickles(
    reader: BundleReader, read_inflated: Callable[[Layer, int, int], bytes] | None = None
) -> tuple[str, ...]:
    """Return the paths of the files of a bundle that hold a pickle, in order.

    `read_inflated(layer, offset, size)` gives bytes of layers that are compressed; without it their files are not
    looked at.
    """
    looked_at = [layer for layer in reader.layers if read_inflated is not None or not layer.compressed]
    found = (
        file.entry.path
        for layer in looked_at
        for file in layer.files
        if holds_pickle(_reading(reader, layer, file, read_inflated), file.entry.size_bytes)
    )
    return tuple(sorted(found, key=str.encode))


def _reading(
    reader: BundleReader,
    layer: Layer,
    file: PlacedFile,
    read_inflated: Callable[[Layer, int, int], bytes] | None,
) -> ReadAt:
    """Return a function that reads one file and nothing beyond it."""

    def read_at(offset: int, count: int) -> bytes:
        size_bytes = max(0, min(count, file.entry.size_bytes - offset))
        if layer.compressed and read_inflated is not None:
            return read_inflated(layer, file.offset + offset, size_bytes)
        return reader.source.read_at(layer.hex, file.offset + offset, size_bytes)

    return read_at


def holds_pickle(read_at: ReadAt, size_bytes: int) -> bool:
    """Return whether the file behind `read_at(offset, count)` holds a pickle."""
    head = read_at(0, _HEAD_BYTES)
    if head.startswith(b"PK"):
        return any(_window_holds_pickle(start) for start in _zip_members(read_at, size_bytes))
    if _Opcodes(read_at, head).are_a_pickle():
        return True
    return head.startswith(_WRAPPERS) and _window_holds_pickle(read_at(0, WINDOW_BYTES))


def _window_holds_pickle(window: bytes, depth: int = 0) -> bool:
    if window.startswith(b"\x93NUMPY"):
        return _NPY_OBJECTS.search(window) is not None
    if _Opcodes(lambda offset, count: window[offset : offset + count], window).are_a_pickle():
        return True
    inner = _decompressed(window) if depth < _MAX_NESTING else b""
    return bool(inner) and _window_holds_pickle(inner, depth + 1)


class _Truncated(Exception):
    """The bytes end, or the lines are longer than we look."""


class _Opcodes:
    """Walks over bytes as if they were a pickle: opcode by opcode, arguments skipped, the stack kept in mind.

    A protocol mark and one more known opcode decide at once. Protocols 0 and 1 have no mark and look like
    text, so there the stack has to work out to one object at the end, or something has to be called before the
    bytes end (what is called is called even if the rest is missing).
    """

    def __init__(self, read_at: ReadAt, window: bytes) -> None:
        self._read_at = read_at
        self._window = window
        self._position = 0
        self._stack: list[str] = []
        self._calls = False
        self._budget = _MAX_LINES_BYTES

    def are_a_pickle(self) -> bool:
        """Return whether the bytes are a pickle, or the beginning of one."""
        marked = False
        try:
            for number in range(_MAX_OPCODES):
                opcode = _OPCODES.get(self._take(1)[0])
                if opcode is None:
                    return False
                if marked:
                    return True
                if opcode.name == "STOP":
                    return number > 1 and self._stack == ["object"]
                marked = opcode.name == "PROTO" and number == 0
                if not (self._skip_argument(opcode) and self._apply(opcode)):
                    return False
        except _Truncated:
            pass
        return self._calls

    def _take(self, count: int) -> bytes:
        start = self._position
        inside = start + count <= len(self._window)
        data = self._window[start : start + count] if inside else self._read_at(start, count)
        if len(data) < count:
            raise _Truncated
        self._position += count
        return data

    def _line(self) -> bytes:
        line = bytearray()
        while self._budget > 0:
            piece = self._read_at(self._position, WINDOW_BYTES)
            end = piece.find(b"\n")
            taken = len(piece) if end < 0 else end + 1
            self._position += taken
            self._budget -= taken
            line += piece[:taken]
            if end >= 0:
                return bytes(line[:-1])
            if not piece:
                break
        raise _Truncated

    def _skip_argument(self, opcode: pickletools.OpcodeInfo) -> bool:
        """Step over the argument; False when it can't be one: an import of something that is no name."""
        if opcode.arg is None:
            return True
        if opcode.arg.n == pickletools.UP_TO_NEWLINE:
            lines = [self._line() for _ in range(2 if opcode.name in _IMPORTS else 1)]
            return opcode.name not in _IMPORTS or all(map(_is_dotted, lines))
        length = opcode.arg.n
        if length in _LENGTHS:
            length = int.from_bytes(self._take(_LENGTHS[length]), "little")
        self._position += length
        return True

    def _apply(self, opcode: pickletools.OpcodeInfo) -> bool:
        """Do to the stack what the opcode does; False when the stack does not hold what it takes."""
        before, stack = opcode.stack_before, self._stack
        taken = len(before)
        if pickletools.markobject in before:
            if "mark" not in stack:
                return False
            while stack.pop() != "mark":
                pass
            taken = before.index(pickletools.markobject)
        if taken > len(stack):
            return False
        del stack[len(stack) - taken :]
        stack += ["mark" if thing is pickletools.markobject else "object" for thing in opcode.stack_after]
        self._calls = self._calls or opcode.name in _CALLS
        return True


def _is_dotted(line: bytes) -> bool:
    try:
        return all(part.isidentifier() for part in line.decode("utf-8").split("."))
    except UnicodeDecodeError:
        return False


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
    tail_bytes = min(size_bytes, _MAX_TAIL_BYTES)
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

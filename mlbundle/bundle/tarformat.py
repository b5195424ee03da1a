"""The subset of ustar that a bundle may use, written and read byte for byte.

POSIX.1-2017, pax, "ustar Interchange Format". Of it: regular files only, names and numbers in one canonical
form, no owner, no time. A header is accepted only when it is exactly the one that we would write for its
name, size and mode, so there is nothing in it that two readers could understand differently. A member of
8 GiB or more, which the size field can't hold, is preceded by one pax header with the single key `size`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from mlbundle.errors import BundleCorrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    ReadAt = Callable[[int, int], bytes]

BLOCK_BYTES = 512
END_BYTES = 2 * BLOCK_BYTES
MAX_USTAR_BYTES = (1 << 33) - 1
"""The largest size that eleven octal digits hold."""

MODE_PLAIN = 0o644
MODE_EXECUTABLE = 0o755
MODES = (MODE_PLAIN, MODE_EXECUTABLE)

_NAME_BYTES = 100
_PREFIX_BYTES = 155
_MAGIC = b"ustar\x0000"
_REGULAR = b"0"
_PAX = b"x"
_PAX_NAME = b"PaxHeaders/size"
_PAX_RECORD = re.compile(rb"([1-9][0-9]{0,2}) size=([1-9][0-9]{0,18})\n")
_ZERO_BLOCK = bytes(BLOCK_BYTES)
_KINDS = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"5": "a folder",
    b"6": "a fifo",
    b"7": "a reserved kind",
    b"g": "a global pax header",
    b"x": "a pax header",
    b"L": "a GNU long name",
    b"K": "a GNU long link",
    b"S": "a GNU sparse file",
}


class Member(NamedTuple):
    """One file of a tar: `header` and `offset` are the byte offsets of its header and of its data."""

    name: str
    size_bytes: int
    mode: int
    header: int
    offset: int

    @property
    def end(self) -> int:
        """Offset of the first byte after the data and its padding."""
        return self.offset + padded(self.size_bytes)


def padded(size_bytes: int) -> int:
    """Return `size_bytes` rounded up to whole blocks."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def split_name(path: str) -> tuple[bytes, bytes] | None:
    """Return (prefix, name) of a path in ustar, or None when it does not fit.

    A path over 100 bytes is split at the last slash among its first 156 bytes, as Go's archive/tar does.
    """
    raw = path.encode("utf-8")
    if len(raw) <= _NAME_BYTES:
        return b"", raw
    slash = raw.rfind(b"/", 0, _PREFIX_BYTES + 1)
    if slash <= 0 or len(raw) - slash - 1 > _NAME_BYTES:
        return None
    return raw[:slash], raw[slash + 1 :]


def header_bytes(size_bytes: int) -> int:
    """Return how many bytes precede the data of a member of this size."""
    return BLOCK_BYTES if size_bytes <= MAX_USTAR_BYTES else 3 * BLOCK_BYTES


def encode_header(path: str, size_bytes: int, mode: int = MODE_PLAIN) -> bytes:
    """Return the header of a member, with the pax header before it where the size needs one.

    Raises ValueError for a path that does not fit and a mode that is not 0644 or 0755.
    """
    split = split_name(path)
    if split is None or mode not in MODES:
        raise ValueError(f"no ustar header for {path!r} with mode {mode:o}")
    if size_bytes <= MAX_USTAR_BYTES:
        return _block(*split, size_bytes, mode, _REGULAR)
    record = _pax_record(size_bytes)
    extension = _block(b"", _PAX_NAME, len(record), MODE_PLAIN, _PAX) + record.ljust(BLOCK_BYTES, b"\0")
    return extension + _block(*split, 0, mode, _REGULAR)


def padding(size_bytes: int) -> bytes:
    """Return the zeros between the data and the next header."""
    return bytes(padded(size_bytes) - size_bytes)


def scan(read_at: ReadAt, start: int, end: int, *, where: str, limit: int) -> Iterator[Member]:
    """Yield the members of the tar that fills the bytes from `start` to `end`, reading headers only.

    `read_at(offset, size)` returns at most `size` bytes. Raises BundleCorrupt, with the byte offset, for
    anything but at most `limit` canonical members, zero padding, and two zero blocks at the very end.
    """
    position, count = start, 0
    while True:
        block = _read_block(read_at, position, end, where)
        if block == _ZERO_BLOCK:
            _check_end(read_at, position, end, where)
            return
        count += 1
        if count > limit:
            raise BundleCorrupt(f"more than {limit} members", where=f"{where}, byte {position}")
        member = _member(read_at, position, block, end, where)
        yield member
        position = member.end


def _block(prefix: bytes, name: bytes, size_bytes: int, mode: int, kind: bytes) -> bytes:
    head = b"".join((
        name.ljust(_NAME_BYTES, b"\0"),
        b"%07o\0" % mode,
        b"%07o\0" % 0,
        b"%07o\0" % 0,
        b"%011o\0" % size_bytes,
        b"%011o\0" % 0,
    ))  # fmt: skip
    tail = (
        kind + bytes(100) + _MAGIC + bytes(32 + 32) + b"%07o\0" % 0 * 2 + prefix.ljust(_PREFIX_BYTES, b"\0")
    )
    tail = tail.ljust(BLOCK_BYTES - len(head) - 8, b"\0")
    checksum = sum(head) + sum(tail) + 8 * ord(" ")
    return head + b"%06o\0 " % checksum + tail


def _pax_record(size_bytes: int) -> bytes:
    body = b" size=%d\n" % size_bytes
    length = len(body) + len(str(len(body) + 2))
    return b"%d" % length + body


def _read_block(read_at: ReadAt, position: int, end: int, where: str) -> bytes:
    block = read_at(position, BLOCK_BYTES) if position + BLOCK_BYTES <= end else b""
    if len(block) != BLOCK_BYTES:
        raise BundleCorrupt("the file ends too early", where=f"{where}, byte {position}", hint=_TRUNCATED)
    return block


_TRUNCATED = "it was cut short; copy or fetch it again"


def _check_end(read_at: ReadAt, position: int, end: int, where: str) -> None:
    if end - position < END_BYTES or read_at(position + BLOCK_BYTES, BLOCK_BYTES) != _ZERO_BLOCK:
        raise BundleCorrupt("the end marker is not whole", where=f"{where}, byte {position}", hint=_TRUNCATED)
    if end - position > END_BYTES:
        raise BundleCorrupt(
            f"{end - position - END_BYTES} bytes follow the end marker",
            where=f"{where}, byte {position + END_BYTES}",
        )


def _member(read_at: ReadAt, position: int, block: bytes, end: int, where: str) -> Member:
    here = f"{where}, byte {position}"
    pax_size = None
    header = position
    if block[156:157] == _PAX:
        pax_size = _pax_size(read_at, position, block, end, where)
        position += 2 * BLOCK_BYTES
        block = _read_block(read_at, position, end, where)
    name, mode, size_bytes = _fields(block, here)
    if pax_size is not None and size_bytes:
        raise BundleCorrupt("the pax header and the header both state a size", where=here)
    if block != _block(*_raw_name(block), size_bytes, mode, _REGULAR):
        raise BundleCorrupt(_why(block), where=here)
    size_bytes = size_bytes if pax_size is None else pax_size
    member = Member(name, size_bytes, mode, header, position + BLOCK_BYTES)
    if member.end + END_BYTES > end:
        raise BundleCorrupt(
            f"{ascii(name)[:100]} claims {size_bytes} bytes and the file ends before",
            where=here,
            hint=_TRUNCATED,
        )
    gap = member.end - member.offset - size_bytes
    if gap and read_at(member.end - gap, gap) != bytes(gap):
        raise BundleCorrupt(
            "the padding after the data is not zero", where=f"{where}, byte {member.end - gap}"
        )
    return member


def _raw_name(block: bytes) -> tuple[bytes, bytes]:
    return block[345:500].rstrip(b"\0"), block[:_NAME_BYTES].rstrip(b"\0")


def _fields(block: bytes, here: str) -> tuple[str, int, int]:
    prefix, name = _raw_name(block)
    try:
        path = (prefix + b"/" + name if prefix else name).decode("utf-8")
        mode, size_bytes = _octal(block[100:108]), _octal(block[124:136])
    except ValueError:
        raise BundleCorrupt(_why(block), where=here) from None
    if split_name(path) != (prefix, name) or not name or mode not in MODES:
        raise BundleCorrupt(_why(block), where=here)
    return path, mode, size_bytes


def _octal(field: bytes) -> int:
    if not re.fullmatch(rb"[0-7]+\0", field):
        raise ValueError("not octal")
    return int(field[:-1], 8)


def _pax_size(read_at: ReadAt, position: int, block: bytes, end: int, where: str) -> int:
    here = f"{where}, byte {position}"
    body = _read_block(read_at, position + BLOCK_BYTES, end, where)
    match = _PAX_RECORD.match(body)
    size_bytes = int(match.group(2)) if match else 0
    record = _pax_record(size_bytes)
    canonical = _block(b"", _PAX_NAME, len(record), MODE_PLAIN, _PAX) + record.ljust(BLOCK_BYTES, b"\0")
    if size_bytes <= MAX_USTAR_BYTES or block + body != canonical:
        raise BundleCorrupt("a pax header may only state a size that ustar can't hold", where=here)
    return size_bytes


def _why(block: bytes) -> str:
    """Say which rule a header that is not ours breaks."""
    kind = block[156:157]
    if block[257:265] != _MAGIC:
        return "the header is not ustar"
    stored, computed = block[148:156], sum(block) - sum(block[148:156]) + 8 * ord(" ")
    if stored != b"%06o\0 " % computed:
        return "the checksum of the header is wrong"
    if kind != _REGULAR:
        return f"the member is {_KINDS.get(kind, 'of an unknown kind')}; only regular files are allowed"
    if block[100:108] not in {b"%07o\0" % mode for mode in MODES}:
        return "the mode of the member is neither 0644 nor 0755"
    if any(block[157:257]):
        return "the member has a link target"
    return "the header is not in canonical form"

"""Layers that are tars: every byte of one follows from the file table and the files, so it is compared, not parsed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from mlbundle.bundle.tarformat import END_BYTES, encode_header, header_bytes, padded, padding
from mlbundle.errors import BundleCorrupt, DigestMismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mlbundle.bundle.table import FileEntry

    Sink = Callable[[memoryview], None]


def tar_bytes(sizes: Iterable[int]) -> int:
    """Return the size of a tar that holds files of these sizes."""
    return END_BYTES + sum(header_bytes(size) + padded(size) for size in sizes)


class TarChecker:
    """Takes the bytes of a tar in order and hands those of its files on.

    The tar must be exactly the one of `entries`: its headers, zeros between the files, the end marker. Each file
    goes to the next of `sinks`. Raises BundleCorrupt for other headers, DigestMismatch for other files.
    """

    def __init__(self, entries: Sequence[FileEntry], sinks: Iterator[Sink | None], where: str) -> None:
        self._sinks = sinks
        self._where = where
        self._segments = self._plan(entries)
        self._position = 0
        self._literal = memoryview(b"")
        self._entry: FileEntry | None = None
        self._left = 0
        self._sink: Sink | None = None
        self._hash: Any = None
        self._what = "the beginning"
        self._next()

    def feed(self, view: memoryview) -> None:
        """Take the next bytes."""
        while view:
            if self._entry is None and not self._literal:
                raise BundleCorrupt("bytes follow the end of the tar", where=self._here())
            count = self._data(view) if self._entry is not None else self._compare(view)
            self._position += count
            view = view[count:]

    def finish(self) -> None:
        """Raise BundleCorrupt unless the tar is complete."""
        if self._entry is not None or self._literal:
            raise BundleCorrupt("the tar ends too early", where=self._here())

    def _plan(self, entries: Sequence[FileEntry]) -> Iterator[tuple[str, bytes, FileEntry | None]]:
        for entry in entries:
            yield (
                f"the header of {entry.path!a}",
                encode_header(entry.path, entry.size_bytes, entry.mode),
                None,
            )
            yield entry.path, b"", entry
            yield f"the padding of {entry.path!a}", padding(entry.size_bytes), None
        yield "the end marker", bytes(END_BYTES), None

    def _next(self) -> None:
        """Go to the next segment that is not empty; an empty file is finished on the way."""
        for what, literal, entry in self._segments:
            self._what, self._literal, self._entry = what, memoryview(literal), entry
            if entry is not None:
                self._left, self._hash, self._sink = entry.size_bytes, hashlib.sha256(), next(self._sinks)
                if entry.size_bytes:
                    return
                self._end_of_file(entry)
            elif literal:
                return
        self._entry, self._literal = None, memoryview(b"")

    def _compare(self, view: memoryview) -> int:
        count = min(len(view), len(self._literal))
        if view[:count] != self._literal[:count]:
            raise BundleCorrupt(f"{self._what} is not what the file table says", where=self._here())
        self._literal = self._literal[count:]
        if not self._literal:
            self._next()
        return count

    def _data(self, view: memoryview) -> int:
        assert self._entry is not None
        piece = view[: self._left]
        self._hash.update(piece)
        if self._sink is not None:
            self._sink(piece)
        self._left -= len(piece)
        if not self._left:
            self._end_of_file(self._entry)
            self._next()
        return len(piece)

    def _end_of_file(self, entry: FileEntry) -> None:
        if self._hash.hexdigest() != entry.sha256:
            raise DigestMismatch(
                f"{entry.path} does not have the digest that names it",
                where=self._here(),
                hint="the file was damaged or changed; copy or fetch it again",
            )

    def _here(self) -> str:
        return f"{self._where}, byte {self._position} of the tar"

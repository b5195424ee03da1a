"""Writes the verified files of a bundle into a new folder; all of them or nothing."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from mlbundle.bundle.agreement import check_names
from mlbundle.bundle.output import require_room
from mlbundle.bundle.reader import BundleReader, PlacedFile, open_bundle
from mlbundle.bundle.verify import Copier, meter
from mlbundle.bundle.writeback import WriteBack
from mlbundle.errors import StorageFailed, UsageError
from mlbundle.files import lock_folder, sync_file_system, sync_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from mlbundle.bundle.table import FileEntry

    Progress = Callable[[int, int], None]

_MANY_FILES = 256
"""Above it the file system is synced once instead of file by file."""

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Unpacked:
    """A folder with files of a bundle, each with the sha256 of the file table; `of` is how many the bundle has."""

    path: Path
    manifest_digest: str
    config_digest: str
    set_digest: str
    files: tuple[FileEntry, ...]
    of: int


def unpack(
    path: Path, destination: Path, progress: Progress | None = None, *, patterns: Sequence[str] = ()
) -> Unpacked:
    """Write the files of a bundle file into the folder `destination`; see `unpack_reader`."""
    with open_bundle(path) as reader:
        return unpack_reader(reader, destination, progress, patterns=patterns)


def unpack_reader(
    reader: BundleReader,
    destination: Path,
    progress: Progress | None = None,
    *,
    patterns: Sequence[str] = (),
) -> Unpacked:
    """Write the files of an open bundle into the folder `destination`, which must not exist.

    With `patterns` only the files are written whose path matches one of them (`fnmatch`; a folder stands for all
    that is in it), and only the layers that hold them are read. Every byte is checked on its way. The files are
    written into a hidden folder beside `destination` that only we may enter, and appear under their name when all
    are right and on disk. Raises UsageError when `destination` exists or nothing matches, DigestMismatch,
    BundleCorrupt, StorageFailed.
    """
    if os.path.lexists(destination):
        raise UsageError(f"{destination} exists already", hint="name a new folder with -o")
    if not destination.parent.is_dir():
        raise UsageError(f"the folder {destination.parent} does not exist", where=str(destination))
    check_names(reader)
    chosen = choose_files(reader.files, patterns)
    require_room(destination.parent, sum(entry.size_bytes for entry in chosen), "the files take", "make room")
    try:
        with _staging(destination) as (folder, descriptor):
            _write_files(reader, {entry.path for entry in chosen}, descriptor, progress)
            _publish(folder, destination)
    except OSError as error:
        raise StorageFailed(
            f"can't write {destination}: {error.strerror}", hint="check free space and permissions"
        ) from error
    return Unpacked(
        path=destination,
        manifest_digest=reader.manifest_digest,
        config_digest=reader.config_digest,
        set_digest=reader.set_digest,
        files=chosen,
        of=len(reader.files),
    )


def choose_files(files: Sequence[FileEntry], patterns: Sequence[str]) -> tuple[FileEntry, ...]:
    """Return the files that one of the patterns matches, all where there is none; raises UsageError for none at all."""
    if not patterns:
        return tuple(files)
    chosen = tuple(entry for entry in files if any(_matches(entry.path, pattern) for pattern in patterns))
    if not chosen:
        raise UsageError(
            f"no file of the bundle matches {', '.join(patterns)}",
            hint="`mlbundle inspect --files` lists them",
        )
    return chosen


def _matches(path: str, pattern: str) -> bool:
    return fnmatchcase(path, pattern) or path.startswith(pattern.rstrip("/") + "/")


@contextmanager
def _staging(destination: Path) -> Iterator[tuple[Path, int]]:
    """Make a guard folder of mode 0700 beside `destination` and a plain one in it; both are gone at the end.

    The guard is locked while it is used, so that what a killed process left is known and goes with the next one.
    """
    _remove_leftovers(destination)
    guard = destination.with_name(f".{destination.name}.{secrets.token_hex(4)}.partial")
    guard.mkdir(mode=0o700)
    lock = lock_folder(guard)
    try:
        inner = guard / "files"
        inner.mkdir()
        descriptor = os.open(inner, _FOLDER_FLAGS)
        try:
            yield inner, descriptor
        finally:
            os.close(descriptor)
    finally:
        shutil.rmtree(guard, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _remove_leftovers(destination: Path) -> None:
    """Remove what killed processes left beside `destination`: guard folders that nobody holds."""
    name = re.compile(rf"\.{re.escape(destination.name)}\.[a-f0-9]{{8}}\.partial", re.ASCII)
    for path in destination.parent.iterdir():
        if name.fullmatch(path.name) and (lock := lock_folder(path)) is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _publish(folder: Path, destination: Path) -> None:
    if os.path.lexists(destination):
        raise UsageError(
            f"{destination} was made by somebody else meanwhile", hint="name a new folder with -o"
        )
    folder.rename(destination)
    sync_folder(destination.parent)


def _write_files(reader: BundleReader, chosen: set[str], root: int, progress: Progress | None) -> None:
    layers = [layer for layer in reader.layers if any(file.entry.path in chosen for file in layer.files)]
    report = meter(progress, sum(layer.size_bytes for layer in layers))
    with ThreadPoolExecutor(max_workers=1) as pool, closing(_Tree(root)) as tree:
        copier = Copier(reader.source, report, pool)
        many = len(chosen) > _MANY_FILES
        for layer in layers:
            with closing(_Sinks(tree, layer.files, chosen, sync=not many)) as sinks:
                copier.copy_layer(layer, sinks)
        if many:
            sync_file_system(root)
        else:
            tree.sync()


class _Tree:
    """A folder that is written to by descriptors only, so that no link can lead outside."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._folders: set[str] = set()
        self._open_path = ""
        self._open = os.dup(root)

    def close(self) -> None:
        os.close(self._open)

    def create(self, entry: FileEntry) -> int:
        """Make a new file, and its folders, and return its descriptor."""
        folder, _, name = entry.path.rpartition("/")
        return os.open(name, _FILE_FLAGS, entry.mode, dir_fd=self._enter(folder))

    def sync(self) -> None:
        """Bring all folders to the disk."""
        for folder in sorted(self._folders, reverse=True):
            os.fsync(self._enter(folder))
        os.fsync(self._root)

    def _enter(self, folder: str) -> int:
        if folder != self._open_path:
            os.close(self._open)
            self._open = os.dup(self._root)
            self._open_path = ""
            for part in folder.split("/") if folder else ():
                self._step(part)
        return self._open

    def _step(self, part: str) -> None:
        path = f"{self._open_path}/{part}" if self._open_path else part
        if path not in self._folders:
            os.mkdir(part, dir_fd=self._open)
            self._folders.add(path)
        deeper = os.open(part, _FOLDER_FLAGS, dir_fd=self._open)
        os.close(self._open)
        self._open, self._open_path = deeper, path


class _Sinks:
    """Opens the chosen files of a layer one after the other, as their bytes come."""

    def __init__(self, tree: _Tree, files: tuple[PlacedFile, ...], chosen: set[str], *, sync: bool) -> None:
        self._tree = tree
        self._sync = sync
        self._files = iter(files)
        self._chosen = chosen
        self._descriptor = -1
        self._write_back: WriteBack | None = None
        self._written_bytes = 0

    def __iter__(self) -> Iterator[Callable[[memoryview], None] | None]:
        return self

    def __next__(self) -> Callable[[memoryview], None] | None:
        self.close()
        entry = next(self._files).entry
        if entry.path not in self._chosen:
            return None
        self._descriptor = self._tree.create(entry)
        self._write_back, self._written_bytes = WriteBack(self._descriptor), 0
        return self._write

    def close(self) -> None:
        """Close the open file, after bringing it to the disk if that is not done for all at once."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                if self._sync:
                    os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _write(self, view: memoryview) -> None:
        while view:
            count = os.write(self._descriptor, view)
            view, self._written_bytes = view[count:], self._written_bytes + count
        if self._write_back is not None:
            self._write_back.reached(self._written_bytes)

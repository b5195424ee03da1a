"""The library: the bundles that are kept here, by name; `<data>/library/<manifest hex>.json` over the blob store.

An entry is written after all its blobs. Who adds holds the library's lock together with others; who removes blobs
holds it alone, so nothing of an unfinished add is ever taken for garbage.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from mlbundle.bundle.digests import is_hex, parse_digest
from mlbundle.errors import BundleCorrupt, DigestMismatch, MlbundleError
from mlbundle.files import locked, storage_failed, sync_folder, write_atomically
from mlbundle.store.blobs import BlobStore
from mlbundle.store.copying import copy_blobs
from mlbundle.store.entries import MAX_ENTRY_BYTES, LibraryEntry, check_entry, parse_entry, unique_blobs
from mlbundle.store.find import find_entry, named_entries, sort_key
from mlbundle.store.folders import children, hidden_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from mlbundle.bundle.blobs import BlobReader

    Progress = Callable[[int, int], None]
    """Called with bytes done and bytes in all."""

_SUFFIX = ".json"
_LOCK = ".lock"
_WRITE_LOCK = ".write.lock"
_TEMPORARY = re.compile(r"\.(?:[a-f0-9]{64}\.json|stamps\.txt)\.\w+", re.ASCII)
"""What `write_atomically` calls an entry, or the stamps, before it is whole."""


@dataclass(frozen=True)
class Problem:
    """An entry file that can't be used; `damaged` when it may be moved aside, unlike one of a newer version."""

    path: Path
    message: str
    damaged: bool


@dataclass(frozen=True)
class Repair:
    """What `repair` did and found.

    `verified` blobs were read and are sound; `removed` are temporary files of dead processes, `set_aside` the new
    places of damaged files; `incomplete` are entries with the blobs that they lack: to be added or pulled again.
    """

    verified: int
    removed: tuple[Path, ...]
    set_aside: tuple[Path, ...]
    incomplete: tuple[tuple[LibraryEntry, tuple[str, ...]], ...]


class Library:
    """The bundles of one data folder; safe between threads and processes."""

    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir / "library"
        self.store = BlobStore(data_dir)

    @contextmanager
    def adding(self) -> Iterator[None]:
        """Keep blobs that no entry names yet from being collected while the block runs. Raises StorageFailed."""
        with locked(self.folder / _LOCK, shared=True):
            yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until nobody adds or collects, and keep them out while the block runs. Raises StorageFailed."""
        with locked(self.folder / _LOCK):
            yield

    def add(
        self,
        *,
        name: str,
        version: str,
        manifest_digest: str,
        set_digest: str,
        index: bytes,
        blobs: Sequence[tuple[str, int]],
        source: str,
        reader: BlobReader | None,
        progress: Progress | None = None,
        merge_index: Callable[[bytes, bytes], bytes] | None = None,
    ) -> LibraryEntry:
        """Add a bundle: copy the blobs that the store lacks from `reader`, then write the entry.

        `blobs` are all blobs of the bundle as (hex, size in bytes). Adding the same manifest again keeps the blobs
        that the entry has; the index is the new one, or what `merge_index(old, new)` makes of both.
        Raises DigestMismatch and BundleCorrupt for a source that is damaged or lacks a blob, StorageFailed.
        """
        entry = LibraryEntry(
            name=name,
            version=version,
            manifest_digest=manifest_digest,
            set_digest=set_digest,
            added_at=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            source=source,
            index=index,
            blobs=unique_blobs(blobs, where=source),
        )
        check_entry(entry, where=source)
        with self.adding():
            copy_blobs(self.store, reader, entry.blobs, progress)
            with locked(self.folder / _WRITE_LOCK):
                old = self._read(entry.manifest_digest)
                if old is not None:
                    entry = _merged(old, entry, merge_index)
                if entry != old:
                    write_atomically(self._path(entry.manifest_digest), entry.render())
        return entry

    def entries(self) -> list[LibraryEntry]:
        """Return all sound entries by name and version; `problems` tells of the others. Raises StorageFailed."""
        found, _ = self.scan()
        return sorted(found, key=sort_key)

    def problems(self) -> list[Problem]:
        """Return the entry files that can't be used. Raises StorageFailed."""
        _, problems = self.scan()
        return sorted(problems, key=lambda problem: problem.path)

    def find(self, text: str) -> LibraryEntry:
        """Return the entry that a reference means (forms: `mlbundle.store.find`).

        Raises ReferenceNotFound with what was probably meant, UsageError when several match.
        """
        found, _ = self.scan()
        return find_entry(found, text)

    def entry(self, manifest_digest: str) -> LibraryEntry | None:
        """Return the entry of a bundle, None when there is none. Raises BundleCorrupt, StorageFailed."""
        return _read_entry(self._path(manifest_digest))

    def stamps(self) -> Iterator[tuple[str, str]]:
        """Yield for each entry the hex form of its manifest digest, and what changes when its file is written anew.

        No entry is read. Raises StorageFailed.
        """
        try:
            with os.scandir(self.folder) as items:
                for item in items:
                    if _is_entry_name(item.name):
                        with suppress(FileNotFoundError):
                            status = item.stat(follow_symlinks=False)
                            yield item.name.removesuffix(_SUFFIX), f"{status.st_mtime_ns}-{status.st_size}"
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_failed(error, self.folder) from error

    def all_named(self, text: str) -> list[LibraryEntry]:
        """Return all entries of a label, else of a name, in order; maybe none. Raises StorageFailed."""
        found, _ = self.scan()
        return named_entries(found, text)

    def incomplete(self) -> set[str]:
        """Return the manifest digests of the entries that lack blobs, by names and sizes. Raises StorageFailed."""
        found, _ = self.scan()
        sizes = {path.name: status.st_size for path, status in children(self.store.whole)}
        return {
            entry.manifest_digest
            for entry in found
            if any(sizes.get(hexadecimal) != size for hexadecimal, size in entry.blobs)
        }

    def remove(self, entry: LibraryEntry) -> None:
        """Remove an entry; its blobs stay until they are collected. Raises StorageFailed."""
        path = self._path(entry.manifest_digest)
        with self.adding(), locked(self.folder / _WRITE_LOCK):
            try:
                path.unlink(missing_ok=True)
                sync_folder(self.folder)
            except OSError as error:
                raise storage_failed(error, path) from error

    def repair(self, progress: Progress | None = None) -> Repair:
        """Read every blob again; move what is damaged to `<data>/quarantine`; say which entries lack blobs.

        Raises StorageFailed, also for files that can't be read for want of a permission.
        """
        with self.adding():
            suspects, verified = self._verify_all(progress)
        with self.alone():
            removed = self._remove_temporary()
            set_aside = [self.store.set_aside(p.path) for p in self.scan()[1] if p.damaged]
            set_aside += [place for path in suspects if (place := self._set_aside_suspect(path)) is not None]
            entries = self.entries()
        incomplete = [(entry, lacking) for entry in entries if (lacking := missing_blobs(self.store, entry))]
        return Repair(
            verified=verified,
            removed=tuple(removed),
            set_aside=tuple(set_aside),
            incomplete=tuple(incomplete),
        )

    def scan(self) -> tuple[list[LibraryEntry], list[Problem]]:
        """Return all sound entries and all other entry files, in no order. Raises StorageFailed."""
        entries, problems = [], []
        for path in self._files():
            try:
                entry = _read_entry(path)
            except MlbundleError as error:
                problems.append(Problem(path, error.message, isinstance(error, BundleCorrupt)))
                continue
            if entry is not None:
                entries.append(entry)
        return entries, problems

    def temporary_files(self) -> list[Path]:
        """Return what was being written; while we are `alone` these are of writers that were killed.

        Raises StorageFailed.
        """
        found = (*hidden_files(self.folder), *hidden_files(self.store.root))
        return [path for path in found if _TEMPORARY.fullmatch(path.name)]

    def _path(self, manifest_digest: str) -> Path:
        return self.folder / f"{parse_digest(manifest_digest, where=str(self.folder))}{_SUFFIX}"

    def _read(self, manifest_digest: str) -> LibraryEntry | None:
        path = self._path(manifest_digest)
        try:
            return _read_entry(path)
        except BundleCorrupt:
            self.store.set_aside(path)
            return None

    def _files(self) -> list[Path]:
        try:
            with os.scandir(self.folder) as found:
                return [Path(item.path) for item in found if _is_entry_name(item.name)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise storage_failed(error, self.folder) from error

    def _remove_temporary(self) -> list[Path]:
        removed = self.temporary_files()
        for path in removed:
            try:
                path.unlink()
            except OSError as error:
                raise storage_failed(error, path) from error
        return removed

    def _verify_all(self, progress: Progress | None) -> tuple[list[Path], int]:
        """Return the files among the blobs that are none, or damaged, and the number of sound ones."""
        files = children(self.store.whole)
        total = sum(
            status.st_size for path, status in files if is_hex(path.name) and stat.S_ISREG(status.st_mode)
        )
        done, suspects = 0, []

        def report(count: int) -> None:
            nonlocal done
            done += count
            if progress is not None:
                progress(done, max(done, total))

        for path, _ in files:
            try:
                self.store.verify(path.name, report)
            except (BundleCorrupt, DigestMismatch):
                suspects.append(path)
        return suspects, len(files) - len(suspects)

    def _set_aside_suspect(self, path: Path) -> Path | None:
        if is_hex(path.name):
            return self.store.set_aside_if_damaged(path.name)
        return self.store.set_aside(path)


def _is_entry_name(name: str) -> bool:
    return name.endswith(_SUFFIX) and is_hex(name.removesuffix(_SUFFIX))


def missing_blobs(store: BlobStore, entry: LibraryEntry) -> tuple[str, ...]:
    """Return the blobs of an entry that are not in the store with the size that the entry says."""
    return tuple(hexadecimal for hexadecimal, size in entry.blobs if store.size_of(hexadecimal) != size)


def _merged(
    old: LibraryEntry, new: LibraryEntry, merge_index: Callable[[bytes, bytes], bytes] | None
) -> LibraryEntry:
    index = merge_index(old.index, new.index) if merge_index and old.index != new.index else new.index
    blobs = unique_blobs((*new.blobs, *old.blobs), where=new.source)
    # Something was attached to the library's own bundle: it still comes from where it came from.
    source = old.source if new.source == old.reference else new.source
    return replace(new, added_at=old.added_at, source=source, index=index, blobs=blobs)


def _read_entry(path: Path) -> LibraryEntry | None:
    """Return the entry of a file, None when there is none. Raises BundleCorrupt when damaged, StorageFailed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_ENTRY_BYTES:
                raise BundleCorrupt("the entry is no regular file, or far too big", where=str(path))
            content = stream.readall()
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        raise BundleCorrupt("the entry is no regular file, or far too big", where=str(path)) from None
    except OSError as error:
        raise storage_failed(error, path) from error
    entry = parse_entry(content, where=str(path))
    if f"{entry.manifest_hex}{_SUFFIX}" != path.name:
        raise BundleCorrupt("the entry is of another bundle than its file name says", where=str(path))
    return entry

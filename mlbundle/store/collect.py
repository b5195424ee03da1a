"""What the data folder holds, and removing what nothing refers to.

Blobs and partial files go while nobody adds to the library; unpacked trees while nobody unpacks. A file that mlbundle
did not name is never touched.
"""

from __future__ import annotations

import re
import secrets
import shutil
import stat
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mlbundle.bundle.digests import PREFIX, is_hex
from mlbundle.errors import StorageFailed
from mlbundle.files import locked, storage_failed
from mlbundle.store import staging
from mlbundle.store.bundles import is_held
from mlbundle.store.find import sort_key
from mlbundle.store.folders import children, tree_size
from mlbundle.store.library import Library
from mlbundle.store.partial import remove_if_free

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from mlbundle.store.entries import LibraryEntry

OLD_S = 24 * 3600.0
"""After this time nobody is expected to go on with a broken transfer."""

_STAMP = ".stamp.json"
_LEFTOVER = re.compile(r"\.[a-f0-9]{64}\.(?:[a-f0-9]{8}\.partial|stamp\.json\.\w+)", re.ASCII)

Kind = Literal["blob", "partial", "tree", "quarantine", "staging"]


@dataclass(frozen=True)
class Collected:
    """What `gc` removed, or would remove: files and their bytes in all, and how many things of each kind."""

    files: int
    size_bytes: int
    blobs: int
    partials: int
    trees: int
    quarantine: int = 0


@dataclass(frozen=True)
class Amount:
    """A number of files and their bytes in all."""

    files: int = 0
    size_bytes: int = 0


@dataclass(frozen=True)
class BundleUsage:
    """The bytes of one bundle of the library: in blobs that it has alone, and in those of other bundles too."""

    entry: LibraryEntry
    own_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class Usage:
    """What the data folder and the cache hold.

    `shared_blobs` and `unused_blobs`, those of several bundles and those of none, are parts of `blobs`;
    `python_environments` and `wheels` are parts of `cache`; `other` is all of the data folder that has no name here.
    """

    blobs: Amount
    shared_blobs: Amount
    unused_blobs: Amount
    partials: Amount
    trees: Amount
    runs: Amount
    quarantine: Amount
    other: Amount
    cache: Amount
    python_environments: Amount
    wheels: Amount
    bundles: tuple[BundleUsage, ...]


@dataclass(frozen=True)
class _Garbage:
    kind: Kind
    path: Path
    files: int
    size_bytes: int


def gc(
    data_dir: Path,
    *,
    keep: Iterable[str] = (),
    partials: bool = False,
    quarantine: bool = False,
    cache_dir: Path | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Collected:
    """Remove blobs that no library entry refers to, old partial files, and unpacked trees that nobody needs.

    Temporary files of writers that were killed go, too, and count as partial files.

    `keep` are manifest digests whose trees stay though the library has no such bundle: those of runs; it is asked
    while nobody can unpack. Trees that a process uses stay, too. `partials` removes partial files of any age, except
    those that are being written; `quarantine` what was set aside as damaged. In `cache_dir` goes what killed packers
    left; it counts as partial files.
    `progress` is called with bytes removed and bytes in all. With `dry_run` nothing is removed.
    Raises StorageFailed, before anything is removed when an entry can't be read: its blobs would be lost.
    """
    library = Library(data_dir)
    with library.alone():
        entries = _sound_entries(library)
        garbage = [*_unused_blobs(library, entries), *_old_partials(library, 0.0 if partials else OLD_S)]
        garbage += [_Garbage("partial", path, *tree_size(path)) for path in library.temporary_files()]
        if quarantine:
            garbage += [
                _Garbage("quarantine", path, *tree_size(path))
                for path, _ in children(library.store.quarantine)
            ]
        if cache_dir is not None:
            garbage += [_Garbage("staging", path, *tree_size(path)) for path in staging.leftovers(cache_dir)]
        removed = garbage if dry_run else _remove_all(garbage, _remove_file, progress)
        if not dry_run:
            library.store.stamps.keep_only(lambda name: library.store.size_of(name) is not None)
    trees = data_dir / "bundles"
    if trees.is_dir():
        with locked(trees / ".lock"):
            # In this order: a run that ends meanwhile lets go of its tree after its record has named it.
            wanted = {path.name for path, _ in children(trees) if is_held(path)}
            wanted |= {entry.manifest_hex for entry in entries} | {text.removeprefix(PREFIX) for text in keep}
            garbage = _unused_trees(trees, wanted)
            removed += garbage if dry_run else _remove_all(garbage, _remove_tree, progress)
    return _sum(removed)


def du(data_dir: Path, cache_dir: Path | None = None) -> Usage:
    """Return what the data folder and the cache hold. Takes no lock; raises StorageFailed."""
    library = Library(data_dir)
    entries, _ = library.scan()
    users = Counter(hexadecimal for entry in entries for hexadecimal, _ in entry.blobs)
    blobs = [(path.name, status.st_size) for path, status in children(library.store.whole)]
    named = {"blobs", "sha256", "partial", "bundles", "runs", "quarantine"}
    others = [
        path for path, _ in (*children(data_dir), *children(library.store.root)) if path.name not in named
    ]
    return Usage(
        blobs=_amount(size for _, size in blobs),
        shared_blobs=_amount(size for name, size in blobs if users[name] > 1),
        unused_blobs=_amount(size for name, size in blobs if not users[name]),
        partials=Amount(*tree_size(library.store.partial)),
        trees=Amount(*tree_size(data_dir / "bundles")),
        runs=Amount(*tree_size(data_dir / "runs")),
        quarantine=Amount(*tree_size(library.store.quarantine)),
        other=_add(Amount(*tree_size(path)) for path in others),
        cache=_cached(cache_dir),
        python_environments=_cached(cache_dir, "envs"),
        wheels=_cached(cache_dir, "wheels"),
        bundles=tuple(_bundle_usage(entry, users) for entry in sorted(entries, key=sort_key)),
    )


def _cached(cache_dir: Path | None, *names: str) -> Amount:
    return Amount() if cache_dir is None else Amount(*tree_size(cache_dir.joinpath(*names)))


def _bundle_usage(entry: LibraryEntry, users: Counter[str]) -> BundleUsage:
    own_bytes = sum(size for hexadecimal, size in entry.blobs if users[hexadecimal] == 1)
    return BundleUsage(entry=entry, own_bytes=own_bytes, shared_bytes=entry.size_bytes - own_bytes)


def _sound_entries(library: Library) -> list[LibraryEntry]:
    entries, problems = library.scan()
    if problems:
        first = min(problems, key=lambda problem: problem.path)
        raise StorageFailed(
            f"{len(problems)} of the entries of the library can't be read, so it is not known what they need: "
            f"{first.message}",
            where=str(first.path),
            hint="`mlbundle repair` moves it aside, or move the file away, and nothing of its bundle is kept",
        )
    return entries


def _unused_blobs(library: Library, entries: Iterable[LibraryEntry]) -> list[_Garbage]:
    used = {hexadecimal for entry in entries for hexadecimal, _ in entry.blobs}
    return [
        _Garbage("blob", path, 1, status.st_size)
        for path, status in children(library.store.whole)
        if _is_blob(path, status) and path.name not in used
    ]


def _old_partials(library: Library, least_age_s: float) -> list[_Garbage]:
    now = time.time()
    return [
        _Garbage("partial", path, 1, status.st_size)
        for path, status in children(library.store.partial)
        if _is_blob(path, status) and now - status.st_mtime >= least_age_s
    ]


def _is_blob(path: Path, status: os.stat_result) -> bool:
    return is_hex(path.name) and stat.S_ISREG(status.st_mode)


def _unused_trees(folder: Path, wanted: set[str]) -> list[_Garbage]:
    found = []
    for path, _ in children(folder):
        name = path.name.removesuffix(_STAMP)
        if (is_hex(name) and name not in wanted) or _LEFTOVER.fullmatch(path.name):
            found.append(_Garbage("tree", path, *tree_size(path)))
    # A stamp goes before its tree: a tree without a stamp is unpacked again, a stamp alone says nothing either.
    return sorted(found, key=lambda garbage: not garbage.path.name.endswith(_STAMP))


def _remove_all(
    garbage: Sequence[_Garbage],
    remove: Callable[[_Garbage], bool],
    progress: Callable[[int, int], None] | None,
) -> list[_Garbage]:
    total = sum(item.size_bytes for item in garbage)
    done, removed = 0, []
    for item in garbage:
        try:
            if remove(item):
                removed.append(item)
        except OSError as error:
            raise storage_failed(error, item.path) from error
        done += item.size_bytes
        if progress is not None:
            progress(done, total)
    return removed


def _remove_file(garbage: _Garbage) -> bool:
    if garbage.kind == "partial":
        return remove_if_free(garbage.path)
    if garbage.kind == "staging":
        return staging.remove_if_free(garbage.path)
    if garbage.path.is_dir() and not garbage.path.is_symlink():
        shutil.rmtree(garbage.path)
    else:
        garbage.path.unlink(missing_ok=True)
    return True


def _remove_tree(garbage: _Garbage) -> bool:
    path = garbage.path
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return True
    if is_hex(path.name):
        # Renamed first: a kill in the middle leaves no folder that looks whole.
        path = path.rename(path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial"))
    for folder in (path, *(child for child in path.rglob("*") if child.is_dir() and not child.is_symlink())):
        folder.chmod(0o700)
    shutil.rmtree(path)
    return True


def _sum(removed: Sequence[_Garbage]) -> Collected:
    return Collected(
        files=sum(item.files for item in removed),
        size_bytes=sum(item.size_bytes for item in removed),
        blobs=sum(item.kind == "blob" for item in removed),
        partials=sum(item.kind in {"partial", "staging"} for item in removed),
        trees=sum(is_hex(item.path.name) for item in removed if item.kind == "tree"),
        quarantine=sum(item.kind == "quarantine" for item in removed),
    )


def _amount(sizes: Iterable[int]) -> Amount:
    found = list(sizes)
    return Amount(len(found), sum(found))


def _add(amounts: Iterable[Amount]) -> Amount:
    found = list(amounts)
    return Amount(sum(a.files for a in found), sum(a.size_bytes for a in found))

"""All bundles that can be chosen, in SQL: built-in ones, the library's, those of a folder, those of a registry.

`<cache>/shelf.sqlite` keeps what was read of the library's bundles, so that thousands of them are listed, filtered and
sorted at once; it may be thrown away at any time. What else is on the shelf is there as long as the shelf is open.
"""

from __future__ import annotations

import json
import re
import sqlite3
import sys
import threading
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mlbundle.bundle.digests import PREFIX, is_hex
from mlbundle.errors import MlbundleError
from mlbundle.runs.bundle_facts import BundleFacts, facts_from_document, facts_of_blobs
from mlbundle.runs.bundle_filter import BundleFilter
from mlbundle.store.library import Library

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mlbundle.config import Settings
    from mlbundle.store.entries import LibraryEntry

Where = Literal["built in", "library", "folder", "registry", "to make"]
SORTS = ("name", "where", "task", "framework", "size", "state")
"""What the shelf can be sorted by."""

_FILE = "shelf.sqlite"
_VERSION = 1
_BATCH = 200
_BUSY_TIMEOUT_S = 5.0
_CACHE_KIB = 512
_DIGITS = re.compile(r"\d+", re.ASCII)
_COLUMNS = (
    "key", "stamp", "where", "reference", "name", "version", "task", "framework", "arch", "accelerator", "size",
    "digest", "description", "source", "read", "problem", "facts", "name_key", "version_key", "search",
)  # fmt: skip
_TYPES = {"size": "INTEGER", "read": "INTEGER NOT NULL", "key": "TEXT PRIMARY KEY"}
_SHOWN = (
    "key", "where", "reference", "name", "version", "task", "framework", "arch", "accelerator", "size", "digest",
    "description", "source", "read", "problem",
)  # fmt: skip
_ORDER = {
    "name": "name_key, version_key",
    "where": '"where", name_key, version_key',
    "task": "task = '', task, name_key, version_key",
    "framework": "framework, name_key, version_key",
    "size": "size DESC, name_key, version_key",
    "state": "coalesce(rank, 99), name_key, version_key",
}


@dataclass(frozen=True)
class BundleRow:
    """One bundle of the shelf: `reference` is what commands take, `framework` the names of its frameworks.

    `read` says whether its manifest was read; before that, task, architectures and the like are empty. `problem` is why
    it can't be. `state` is what was last found of what can run here, empty when nobody has asked.
    """

    key: str
    where: Where
    reference: str
    name: str
    version: str
    task: str = ""
    framework: str = ""
    arch: str = ""
    accelerator: str = ""
    size: int | None = None
    digest: str | None = None
    description: str = ""
    source: str = ""
    read: bool = False
    problem: str = ""
    state: str = ""


class Shelf:
    """The bundles, in SQL; safe between threads. Close it when it is no longer needed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._library = Library(settings.data_dir)
        self._lock = threading.RLock()
        self._facts: dict[str, BundleFacts] = {}
        self._connection = self._connect()

    def close(self) -> None:
        """Close the database and the store; closing twice does no harm."""
        with self._lock:
            self._connection.close()
            self._library.store.close()

    def put(self, rows: Iterable[tuple[BundleRow, BundleFacts | None]]) -> None:
        """Put bundles that are not the library's on the shelf, in place of those with the same keys."""
        with self._lock, self._connection as connection:
            for row, facts in rows:
                if facts is not None:
                    self._facts[row.key] = facts
                connection.execute(_insert("others"), _values(row, facts, stamp="", keep_facts=False))

    def drop(self, where: Where) -> None:
        """Take all bundles of one kind from the shelf; the library's stay in the library."""
        with self._lock, self._connection as connection:
            connection.execute('DELETE FROM others WHERE "where" = ?', (where,))

    def sync(self, cancelled: Callable[[], bool] = lambda: False) -> int:
        """Take in what came to the library and let go what went; returns how many changed. Raises StorageFailed."""
        with self._lock:
            known = dict(self._connection.execute("SELECT key, stamp FROM library"))
        # What is as it was is let go at once: of thousands nearly all.
        new = [(key, stamp) for key, stamp in self._library.stamps() if known.pop(key, None) != stamp]
        gone = list(known)
        with self._lock, self._connection as connection:
            connection.executemany("DELETE FROM library WHERE key = ?", ((key,) for key in gone))
        for start in range(0, len(new), _BATCH):
            if cancelled():
                break
            self._take_in(new[start : start + _BATCH])
        return len(gone) + len(new)

    def read_some(self, keys: Sequence[str] = (), *, limit: int = 50) -> list[str]:
        """Read the manifests of up to `limit` bundles of the library that were not read yet; returns their keys.

        Those of `keys`, else the first ones by name.
        """
        marks = ",".join("?" * len(keys))
        condition = f"read = 0 AND key IN ({marks})" if keys else "read = 0"
        with self._lock:
            unread = self._connection.execute(
                f"SELECT key FROM library WHERE {condition} ORDER BY name_key LIMIT ?",  # noqa: S608 - marks only
                (*keys, limit),
            ).fetchall()
        for (key,) in unread:
            self._read_manifest(key)
        return [key for (key,) in unread]

    def unread(self) -> int:
        """Return how many bundles were not read yet."""
        with self._lock:
            return int(self._connection.execute("SELECT count(*) FROM library WHERE read = 0").fetchone()[0])

    def page(
        self, wanted: BundleFilter | None = None, *, sort: str = "name", offset: int = 0, limit: int = 500
    ) -> list[BundleRow]:
        """Return the bundles that fit, sorted, from `offset` on."""
        conditions, values = (wanted or BundleFilter()).conditions()
        where = " AND ".join(["1", *conditions])
        names = ", ".join(f'"{name}"' for name in _SHOWN)
        with self._lock:
            rows = self._connection.execute(
                f"SELECT {names}, coalesce(state, '') FROM shelf WHERE {where} "  # noqa: S608 - our own names
                f"ORDER BY {_ORDER[sort]}, key LIMIT ? OFFSET ?",
                (*values, limit, offset),
            ).fetchall()
        return [_row(row) for row in rows]

    def labels(self, limit: int) -> list[str]:
        """Return the names with versions of the bundles of the library, the first ones by name."""
        with self._lock:
            rows = self._connection.execute(
                "SELECT name || ':' || version FROM library ORDER BY name_key, version_key, key LIMIT ?",
                (limit,),
            )
            return [str(label) for (label,) in rows]

    def count(self, wanted: BundleFilter | None = None) -> int:
        """Return how many bundles fit."""
        conditions, values = (wanted or BundleFilter()).conditions()
        where = " AND ".join(["1", *conditions])
        with self._lock:
            found = self._connection.execute(f"SELECT count(*) FROM shelf WHERE {where}", values)  # noqa: S608
            return int(found.fetchone()[0])

    def row(self, key: str) -> BundleRow | None:
        """Return one bundle, None when it is gone."""
        names = ", ".join(f'"{name}"' for name in _SHOWN)
        with self._lock:
            row = self._connection.execute(
                f"SELECT {names}, coalesce(state, '') FROM shelf WHERE key = ?",  # noqa: S608 - our own names
                (key,),
            ).fetchone()
        return None if row is None else _row(row)

    def facts(self, key: str) -> BundleFacts | None:
        """Return what the manifests of a bundle say, None where they can't be read."""
        if key in self._facts:
            return self._facts[key]
        self.read_some([key])
        with self._lock:
            row = self._connection.execute("SELECT facts FROM library WHERE key = ?", (key,)).fetchone()
        if row is None or not row[0]:
            return None
        with suppress(ValueError, KeyError, TypeError, AttributeError):  # written by another version
            return facts_from_document(json.loads(row[0]))
        return None

    def entry(self, key: str) -> LibraryEntry | None:
        """Return the library's entry of a bundle, None when it is gone or none of the library. Raises StorageFailed."""
        return self._library.entry(PREFIX + key) if is_hex(key) else None

    def missing(self, key: str) -> tuple[str, ...]:
        """Return the blobs that a bundle of the library lacks. Raises StorageFailed, BundleCorrupt."""
        from mlbundle.store.library import missing_blobs

        entry = self.entry(key)
        return () if entry is None else missing_blobs(self._library.store, entry)

    def remove(self, key: str) -> LibraryEntry | None:
        """Take a bundle out of the library; returns what it was. Raises StorageFailed."""
        entry = self.entry(key)
        if entry is not None:
            self._library.remove(entry)
            with self._lock, self._connection as connection:
                connection.execute("DELETE FROM library WHERE key = ?", (key,))
        return entry

    def note_state(self, key: str, state: str, rank: int) -> None:
        """Keep what can run here of a bundle, to filter and sort by; `rank` 0 comes first."""
        with self._lock, self._connection as connection:
            connection.execute("INSERT OR REPLACE INTO states VALUES (?, ?, ?)", (key, state, rank))

    def forget_states(self) -> None:
        """Forget all states: what is here has changed."""
        with self._lock, self._connection as connection:
            connection.execute("DELETE FROM states")

    def _take_in(self, stamps: Sequence[tuple[str, str]]) -> None:
        values = []
        for key, stamp in stamps:
            with suppress(MlbundleError):  # `list` and `repair` say what is wrong with the entry
                entry = self.entry(key)
                if entry is not None:
                    values.append(_values(_row_of_entry(entry), None, stamp=stamp))
        with self._lock, self._connection as connection:
            connection.executemany(_insert("library"), values)

    def _read_manifest(self, key: str) -> None:
        facts, problem = None, ""
        try:
            entry = self.entry(key)
            if entry is not None:
                facts = facts_of_blobs(self._library.store, entry.index, f"{entry.reference}#")
        except MlbundleError as error:
            problem = error.message
        except (KeyError, ValueError) as error:
            problem = f"its documents are not as they should be: {error}"
        row = self.row(key)
        if row is None:
            return
        values = dict(zip(_COLUMNS, _values(row, facts, stamp=""), strict=True))
        names = [name for name in _COLUMNS if name not in {"key", "stamp"}]
        settings = ", ".join(f'"{name}" = ?' for name in names)
        values |= {"read": 1, "problem": problem}
        with self._lock, self._connection as connection:
            connection.execute(
                f"UPDATE library SET {settings} WHERE key = ?",  # noqa: S608 - our own names
                [*(values[name] for name in names), key],
            )

    def _connect(self) -> sqlite3.Connection:
        path = self.settings.cache_dir / _FILE
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            return _opened(str(path))
        except sqlite3.OperationalError:  # no such folder, no permission, or somebody keeps it locked
            return _opened(":memory:")
        except sqlite3.DatabaseError:  # damaged: it is only a cache
            for leftover in (path, path.with_name(f"{_FILE}-wal"), path.with_name(f"{_FILE}-shm")):
                with suppress(OSError):
                    leftover.unlink()
        with suppress(sqlite3.Error):
            return _opened(str(path))
        return _opened(":memory:")


def library_labels(settings: Settings, limit: int) -> list[str]:
    """Return the names with versions of the bundles of the library, the first by name. Raises StorageFailed."""
    with closing(Shelf(settings)) as shelf:
        shelf.sync()
        return shelf.labels(limit)


def _opened(place: str) -> sqlite3.Connection:
    """Return a database with its tables; those of another version are made anew."""
    connection = sqlite3.connect(place, timeout=_BUSY_TIMEOUT_S, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA temp_store=MEMORY")
        # The system keeps the file in memory anyway.
        connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
        with connection:
            if connection.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
                connection.execute("DROP TABLE IF EXISTS library")
                connection.execute(f"PRAGMA user_version = {_VERSION}")
            columns = ", ".join(f'"{name}" {_TYPES.get(name, "TEXT NOT NULL")}' for name in _COLUMNS)
            columns = columns.replace('"digest" TEXT NOT NULL', '"digest" TEXT')
            connection.execute(f"CREATE TABLE IF NOT EXISTS library ({columns})")
            connection.execute("CREATE INDEX IF NOT EXISTS by_name ON library (name_key, version_key)")
            connection.execute(f"CREATE TEMP TABLE others ({columns})")
            connection.execute("CREATE TEMP TABLE states (key TEXT PRIMARY KEY, state TEXT, rank INTEGER)")
            shown = ", ".join(f'"{name}"' for name in (*_SHOWN, "name_key", "version_key", "search"))
            connection.execute(
                f"CREATE TEMP VIEW shelf AS SELECT b.*, s.state, s.rank FROM "  # noqa: S608 - our own names
                # What could be made and is in the library is there once.
                f"(SELECT {shown} FROM others WHERE \"where\" != 'to make' "
                "OR name_key NOT IN (SELECT name_key FROM main.library) "
                f"UNION ALL SELECT {shown} FROM main.library) AS b "
                "LEFT JOIN states AS s ON s.key = b.key"
            )
        connection.execute("SELECT count(*) FROM library").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _insert(table: str) -> str:
    marks = ", ".join("?" * len(_COLUMNS))
    return f"INSERT OR REPLACE INTO {table} VALUES ({marks})"  # noqa: S608 - our own names


def _row_of_entry(entry: LibraryEntry) -> BundleRow:
    return BundleRow(
        key=entry.manifest_hex,
        where="library",
        reference=entry.reference,
        name=entry.name,
        version=entry.version,
        size=entry.size_bytes,
        digest=entry.manifest_digest,
        source=entry.source,
    )


def _row(values: Sequence[object]) -> BundleRow:
    # Thousands have the same tasks, frameworks and sources: each is kept once.
    kept = (sys.intern(value) if isinstance(value, str) else value for value in values)
    fields = dict(zip((*_SHOWN, "state"), kept, strict=True))
    return BundleRow(**{**fields, "read": bool(fields["read"])})  # type: ignore[arg-type]


def _values(
    row: BundleRow, facts: BundleFacts | None, *, stamp: str, keep_facts: bool = True
) -> tuple[object, ...]:
    """Return what the database keeps of a bundle; what is filtered by is in lower case."""
    task, framework, arch, accelerator = row.task, row.framework, row.arch, row.accelerator
    description = row.description
    if facts is not None:
        task, description = facts.task, facts.description or row.description
        framework = " ".join(dict.fromkeys(form.framework for form in facts.forms))
        arch, accelerator = " ".join(facts.architectures), " ".join(facts.accelerators)
    words = " ".join((row.name, row.version, task, framework, description, row.digest or "", row.source))
    return (
        row.key, stamp, row.where, row.reference, row.name, row.version, task.casefold(), framework.casefold(), arch,
        accelerator, row.size, row.digest, description, row.source, int(facts is not None or row.read), row.problem,
        json.dumps(facts.to_document()) if facts is not None and keep_facts else "",
        row.name.casefold(), _DIGITS.sub(lambda match: match[0].zfill(12), row.version), words.casefold(),
    )  # fmt: skip

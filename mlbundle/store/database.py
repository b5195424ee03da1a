"""The evaluation database: an SQLite index over run records, opened by several processes at once (WAL).

The run folders are the truth; the index can be rebuilt from them.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from mlbundle.errors import StorageFailed
from mlbundle.files import storage_failed
from mlbundle.store.headline import headline_of, is_quick
from mlbundle.store.run_filter import RunFilter, only, order_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


def _fill_forms(connection: sqlite3.Connection) -> None:
    """Fill the columns of version 2 from the records; the records themselves stay as they are."""
    for run_id, text in connection.execute("SELECT run_id, record FROM runs").fetchall():
        with suppress(ValueError, TypeError, KeyError, AttributeError):  # written by another program
            form = _form(json.loads(text))
            connection.execute(
                "UPDATE runs SET variant = ?, isolation = ? WHERE run_id = ?",
                (form["variant"], form["isolation"], run_id),
            )


def _fill_headlines(connection: sqlite3.Connection) -> None:
    """Fill the columns of version 3 from the records."""
    for run_id, text in connection.execute("SELECT run_id, record FROM runs").fetchall():
        with suppress(ValueError, TypeError, KeyError, AttributeError):  # written by another program
            found = _headline(json.loads(text))
            connection.execute(
                "UPDATE runs SET headline = ?, headline_value = ?, headline_unit = ?, quick = ? WHERE run_id = ?",
                (*found.values(), run_id),
            )


# One entry a version, of statements and functions; PRAGMA user_version says how many have been applied.
_MIGRATIONS: tuple[tuple[str | Callable[[sqlite3.Connection], None], ...], ...] = (
    (
        """
        CREATE TABLE runs (
            run_id TEXT PRIMARY KEY,
            started_at TEXT NOT NULL,
            finished_at TEXT,
            status TEXT NOT NULL,
            valid INTEGER NOT NULL,
            model TEXT NOT NULL,
            model_version TEXT NOT NULL,
            manifest_digest TEXT NOT NULL,
            framework TEXT NOT NULL,
            framework_version TEXT NOT NULL,
            runtime TEXT NOT NULL,
            image_digest TEXT,
            scenario TEXT NOT NULL,
            trace_level TEXT NOT NULL,
            trimmed_mean_ns REAL,
            p50_ns REAL,
            p90_ns REAL,
            p99_ns REAL,
            throughput_per_s REAL,
            accuracy REAL,
            record TEXT NOT NULL
        ) STRICT
        """,
        "CREATE INDEX runs_by_model ON runs (model, started_at)",
    ),
    (
        "ALTER TABLE runs ADD COLUMN variant TEXT",
        "ALTER TABLE runs ADD COLUMN isolation TEXT",
        _fill_forms,
    ),
    (
        "ALTER TABLE runs ADD COLUMN headline TEXT",
        "ALTER TABLE runs ADD COLUMN headline_value REAL",
        "ALTER TABLE runs ADD COLUMN headline_unit TEXT",
        "ALTER TABLE runs ADD COLUMN quick INTEGER NOT NULL DEFAULT 0",
        _fill_headlines,
    ),
    # All columns but the record: lists, filters and sorting read a few MB of it and not the records, which are GBs.
    (
        """
        CREATE INDEX runs_listed ON runs (
            run_id, started_at, finished_at, status, valid, model, model_version, manifest_digest, framework,
            framework_version, variant, runtime, isolation, image_digest, scenario, trace_level, trimmed_mean_ns,
            p50_ns, p90_ns, p99_ns, throughput_per_s, accuracy, headline, headline_value, headline_unit, quick
        )
        """,
    ),
)
_COLUMNS = (
    "run_id", "started_at", "finished_at", "status", "valid", "model", "model_version", "manifest_digest",
    "framework", "framework_version", "variant", "runtime", "isolation", "image_digest", "scenario", "trace_level",
    "trimmed_mean_ns", "p50_ns", "p90_ns", "p99_ns", "throughput_per_s", "accuracy", "headline", "headline_value",
    "headline_unit", "quick", "record",
)  # fmt: skip
ROW_COLUMNS = tuple(name for name in _COLUMNS if name != "record")
DATABASE = "runs.sqlite"
"""Its name in the data folder."""

_REBUILT = "move the file away: it is an index and is rebuilt from the run folders"
_HELD = "another program holds it: try again when that has ended"
_NOT_WRITABLE = "set MLBUNDLE_HOME to a folder you can write to; `mlbundle doctor` shows the folders"
# Primary result code (sqlite.org/rescode.html) -> what to do; of others the file is the cause.
_HINTS = {
    sqlite3.SQLITE_BUSY: _HELD,
    sqlite3.SQLITE_LOCKED: _HELD,
    sqlite3.SQLITE_READONLY: _NOT_WRITABLE,
    sqlite3.SQLITE_CANTOPEN: _NOT_WRITABLE,
    sqlite3.SQLITE_PERM: _NOT_WRITABLE,
    sqlite3.SQLITE_FULL: "free some space: `mlbundle du` says what takes it",
}
# The system keeps the file in memory anyway.
_CACHE_KIB = 512
_BUSY_TIMEOUT_S = 30.0
_BUSY_STEP_S = 0.01


class RunDatabase:
    """The index of runs."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, record: Mapping[str, Any]) -> None:
        """Add or replace the row of one run record; adding the same record twice changes nothing."""
        row = _row(record)
        marks = ", ".join("?" for _ in _COLUMNS)
        with self._open() as connection, connection:
            connection.execute(
                f"INSERT OR REPLACE INTO runs ({', '.join(_COLUMNS)}) VALUES ({marks})",  # noqa: S608 - our own names
                [row[name] for name in _COLUMNS],
            )

    def rows(
        self, *, limit: int = 50, model: str | None = None, framework: str | None = None
    ) -> list[dict[str, Any]]:
        """Return the latest runs, newest first, without their whole records.

        `model` may have wildcards; `framework` is the name of a framework or of a form of the model.
        """
        chosen = only(RunFilter(), model=model, framework=framework)
        with self._open() as connection:
            found = connection.execute(
                f"SELECT {', '.join(ROW_COLUMNS)} FROM runs WHERE {chosen.where} "  # noqa: S608 - our own names
                "ORDER BY run_id DESC LIMIT ?",
                [*chosen.values, limit],
            ).fetchall()
        return _row_documents(found)

    def page(
        self,
        chosen: RunFilter,
        *,
        sort: str = "run",
        descending: bool = True,
        offset: int = 0,
        limit: int = 500,
    ) -> tuple[list[dict[str, Any]], int]:
        """Return some of the runs that a filter lets through, sorted, and how many there are of them in all.

        `sort` is one of `run_filter.SORTS`. Raises KeyError for another one.
        """
        order = order_by(sort, descending=descending)
        source = f"FROM runs INDEXED BY runs_listed WHERE {chosen.where}"
        with self._open() as connection:
            rows = connection.execute(
                f"SELECT {', '.join(ROW_COLUMNS)} {source} ORDER BY {order} LIMIT ? OFFSET ?",
                [*chosen.values, limit, offset],
            )
            found = _row_documents(rows)
            total = connection.execute(f"SELECT count(*) {source}", chosen.values).fetchone()[0]
        return found, int(total)

    def rows_of(self, run_ids: Sequence[str]) -> list[dict[str, Any]]:
        """Return the rows of some runs (hundreds, not all) in their order; one that has none is left out."""
        marks = ",".join("?" * len(run_ids))
        with self._open() as connection:
            found = connection.execute(
                f"SELECT {', '.join(ROW_COLUMNS)} FROM runs WHERE run_id IN ({marks})",  # noqa: S608 - marks only
                list(run_ids),
            ).fetchall()
        rows = {row["run_id"]: row for row in _row_documents(found)}
        return [rows[run_id] for run_id in run_ids if run_id in rows]

    def remove(self, run_id: str) -> None:
        """Remove the row of a run; nothing happens when there is none."""
        with self._open() as connection, connection:
            connection.execute("DELETE FROM runs WHERE run_id = ?", (run_id,))

    def run_ids(self, prefix: str = "") -> list[str]:
        """Return the ids that begin with `prefix`, newest first."""
        with self._open() as connection:
            rows = connection.execute(
                "SELECT run_id FROM runs WHERE substr(run_id, 1, ?) = ? ORDER BY run_id DESC",
                (len(prefix), prefix),
            ).fetchall()
        return [str(row[0]) for row in rows]

    def count(self) -> int:
        """Return how many runs have a row."""
        with self._open() as connection:
            return int(connection.execute("SELECT count(*) FROM runs").fetchone()[0])

    def unknown(self, run_ids: Sequence[str]) -> list[str]:
        """Return which of some runs (a thousand, not all) have no row, in their order."""
        marks = ",".join("?" * len(run_ids))
        with self._open() as connection:
            rows = connection.execute(f"SELECT run_id FROM runs WHERE run_id IN ({marks})", run_ids)  # noqa: S608
            known = {str(row[0]) for row in rows}
        return [run_id for run_id in run_ids if run_id not in known]

    def record(self, run_id: str) -> dict[str, Any] | None:
        """Return the whole record of one run."""
        with self._open() as connection:
            row = connection.execute("SELECT record FROM runs WHERE run_id = ?", (run_id,)).fetchone()
        if row is None:
            return None
        document: dict[str, Any] = json.loads(row[0])
        return document

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT_S)) as connection:
                connection.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")
                _use_wal(connection)
                _migrate(connection, self._path)
                yield connection
        except sqlite3.Error as error:
            raise StorageFailed(
                f"the evaluation database can't be used: {error}",
                where=str(self._path),
                hint=_HINTS.get(_code(error), _REBUILT),
            ) from error
        except OSError as error:
            raise storage_failed(error, self._path) from error


def _code(error: sqlite3.Error) -> int:
    """Return the primary result code; 0 for an error of the module itself."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _use_wal(connection: sqlite3.Connection) -> None:
    """Change to WAL. SQLite does not wait for that: who writes a new index at this moment is waited for here."""
    deadline = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_BUSY_STEP_S)


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version == len(_MIGRATIONS):
        return
    if version > len(_MIGRATIONS):
        raise StorageFailed(
            f"the evaluation database is of version {version}, this mlbundle knows {len(_MIGRATIONS)}",
            where=str(path),
            hint="use a newer mlbundle",
        )
    previous, connection.isolation_level = connection.isolation_level, None
    connection.execute("BEGIN IMMEDIATE")
    # Somebody else may have migrated while we waited for the lock.
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    for number in range(version, len(_MIGRATIONS)):
        for step in _MIGRATIONS[number]:
            if isinstance(step, str):
                connection.execute(step)
            else:
                step(connection)
        connection.execute(f"PRAGMA user_version = {number + 1}")
    connection.execute("COMMIT")
    connection.isolation_level = previous


def _row_documents(rows: Iterable[tuple[Any, ...]]) -> list[dict[str, Any]]:
    found = []
    for values in rows:
        # Most rows have the same names and digests: each is kept once.
        kept = (sys.intern(value) if isinstance(value, str) else value for value in values)
        row = dict(zip(ROW_COLUMNS, kept, strict=True))
        row["valid"], row["quick"] = bool(row["valid"]), bool(row["quick"])
        found.append(row)
    return found


def _row(record: Mapping[str, Any]) -> dict[str, Any]:
    result = record.get("result") or {}
    latency = result.get("latency_ns") or {}
    image = record.get("image") or {}
    return {
        "run_id": record["run_id"],
        "started_at": record["started_at"],
        "finished_at": record.get("finished_at"),
        "status": record["status"],
        "valid": int(bool((record.get("validity") or {}).get("valid"))),
        "model": record["bundle"]["name"],
        "model_version": record["bundle"]["version"],
        "manifest_digest": record["bundle"]["manifest_digest"],
        "framework": record["framework"]["name"],
        "framework_version": record["framework"]["version"],
        **_form(record),
        "runtime": record["runtime"],
        "image_digest": image.get("config_digest"),
        "scenario": record["scenario"]["name"],
        "trace_level": record["trace_level"],
        "trimmed_mean_ns": latency.get("trimmed_mean"),
        "p50_ns": latency.get("p50"),
        "p90_ns": latency.get("p90"),
        "p99_ns": latency.get("p99"),
        "throughput_per_s": result.get("throughput_per_s"),
        "accuracy": (record.get("accuracy") or {}).get("value"),
        **_headline(record),
        "record": json.dumps(record, separators=(",", ":")),
    }


def _headline(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a run is listed by: name, value and unit of its headline, and whether it was a quick one."""
    found = headline_of(record)
    return {
        "headline": None if found is None else found.name,
        "headline_value": None if found is None else found.value,
        "headline_unit": None if found is None else found.unit,
        "quick": int(is_quick(record)),
    }


def _form(record: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the form of the model, and how pinned what it ran in was; records of old versions tell neither."""
    variant, isolation = record["framework"].get("variant"), record.get("isolation")
    return {
        "variant": None if variant is None else str(variant),
        "isolation": None if isolation is None else str(isolation),
    }

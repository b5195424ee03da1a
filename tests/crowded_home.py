"""Homes with very many bundles and runs, as years of use leave them: made quickly, read as any other."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from mlbundle.config import Settings
from mlbundle.store.database import DATABASE, RunDatabase
from mlbundle.store.entries import LibraryEntry

_FIRST = datetime(2020, 1, 1, tzinfo=UTC)
_MOST_LINKS = 20_000  # of one file; ext4 takes 65,000
_NAMES = ("resnet", "bert", "unet", "yolo", "whisper", "llama", "vit", "mobilenet")


def add_bundles(settings: Settings, count: int) -> None:
    """Put entries into the library whose blobs are elsewhere, as after a copy of the entries alone."""
    folder = settings.data_dir / "library"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        digest = hashlib.sha256(b"%d" % number).hexdigest()
        entry = LibraryEntry(
            name=f"{_NAMES[number % len(_NAMES)]}-{number:05d}",
            version=f"1.{number % 10}.0",
            manifest_digest=f"sha256:{digest}",
            set_digest=f"sha256:{digest}",
            added_at="2026-01-01T00:00:00Z",
            source=f"oci://registry.example/models/{number}",
            index=b"{}",
            blobs=((digest, 1_000_000 + number),),
        )
        (folder / f"{digest}.json").write_bytes(entry.render())


def add_runs(settings: Settings, record: dict[str, Any], count: int) -> None:
    """Make finished runs that are like a record, each with its row and its folder; the first is of 2020."""
    database = RunDatabase(settings.data_dir / DATABASE)
    database.add(record)
    settings.runs_dir.mkdir(parents=True, exist_ok=True)
    original = settings.data_dir / "record.json"
    rows = []
    for number in range(count):
        if number % _MOST_LINKS == 0:
            original.unlink(missing_ok=True)
            original.write_text(json.dumps(record))
        begun = _FIRST + timedelta(minutes=number)
        run_id = f"{begun:%Y%m%dT%H%M%SZ}-{number:06x}"
        (settings.runs_dir / run_id).mkdir()
        os.link(original, settings.runs_dir / run_id / "record.json")
        model = f"{_NAMES[number % len(_NAMES)]}-{number % 97}"
        rows.append((run_id, f"{begun:%Y-%m-%dT%H:%M:%S.000Z}", model, 1e6 + number, record["run_id"]))
    _insert(settings.data_dir / DATABASE, rows)
    original.unlink(missing_ok=True)


def _insert(path: Path, rows: list[tuple[Any, ...]]) -> None:
    with sqlite3.connect(path) as connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(runs)")]
        own = {"run_id": "?", "started_at": "?", "model": "?", "headline_value": "?"}
        chosen = ", ".join(own.get(name, name) for name in names)
        order = [name for name in names if name in own]
        place = {name: number for number, name in enumerate(own)}
        connection.executemany(
            f"INSERT INTO runs ({', '.join(names)}) SELECT {chosen} FROM runs WHERE run_id = ?",
            [(*(row[place[name]] for name in order), row[-1]) for row in rows],
        )
    connection.close()

"""The folder of a sweep: `<data>/sweeps/<id>/` with its plan, a log of cells, and what each attempt said.

    plan.json           the plan, written once, before the folder has its name
    cells.jsonl         a line when an attempt begins and one when it has ended, each on the disk before we go on
    attempts/0003-1/    what attempt 1 of cell 3 wrote: stdout.json (the record, or an error) and stderr.log
    driver.lock         held by who drives the sweep
    cell.lock           held by the run that is under way, even if its driver is gone

A kill at any moment loses nothing: what has begun and not ended is settled by what the attempt wrote.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from mlbundle.errors import IntegrityError, ReferenceNotFound, UsageError
from mlbundle.files import storage_failed, sync_folder, write_atomically
from mlbundle.runs.sweep_plan import SweepPlan, plan_from_document

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from mlbundle.config import Settings

PLAN = "plan.json"
LOG = "cells.jsonl"
DRIVER_LOCK = "driver.lock"
CELL_LOCK = "cell.lock"
COMPLETED, FAILED, LACKING, INTERRUPTED = "completed", "failed", "lacking", "interrupted"
"""How an attempt ends: with a record; by the fault of what was run; for want of something here; before its end."""

_SWEEP_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")
_REMOVED = re.compile(r"\.\d{8}T\d{6}Z-[0-9a-f]{6}\.removed")
_SHOWN = 20


@dataclass(frozen=True)
class CellState:
    """What is known of a cell: how many attempts began, how the last one that ended did (a line of the log).

    `begun_at` is when the one that is under way began, UTC, ISO 8601.
    """

    attempts: int = 0
    last: dict[str, Any] | None = None
    under_way: bool = False
    begun_at: str = ""

    @property
    def outcome(self) -> str | None:
        """How the cell ended, None when it has not."""
        return None if self.last is None else str(self.last["outcome"])

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to be run again: a record, or a failure that would come again."""
        return self.outcome in {COMPLETED, FAILED}


class SweepFolder:
    """The folder of one sweep, to be read; writing takes the driver's lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sweep_id = path.name

    def plan(self) -> SweepPlan:
        """Return the plan. Raises IntegrityError, StorageFailed."""
        return plan_from_document(_read_json(self.path / PLAN), str(self.path / PLAN))

    def states(self) -> dict[int, CellState]:
        """Return what is known of each cell that has begun, by number. Raises IntegrityError, StorageFailed."""
        states: dict[int, CellState] = {}
        for line in self._lines():
            before = states.get(line["cell"], CellState())
            if line["event"] == "begun":
                begun_at = str(line.get("at", ""))
                states[line["cell"]] = CellState(
                    line["attempt"], before.last, under_way=True, begun_at=begun_at
                )
            else:
                states[line["cell"]] = CellState(before.attempts, line)
        return states

    def append(self, line: dict[str, Any]) -> None:
        """Write a line of the log, to the disk. Only for who holds the driver's lock. Raises StorageFailed."""
        path = self.path / LOG
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(descriptor, json.dumps(line, separators=(",", ":")).encode("ascii") + b"\n")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise storage_failed(error, path) from error

    def attempt_folder(self, cell: int, attempt: int) -> Path:
        """Return the folder of an attempt."""
        return self.path / "attempts" / f"{cell:04d}-{attempt}"

    @contextmanager
    def driving(self) -> Iterator[None]:
        """Hold the sweep while the block runs. Raises UsageError when somebody else drives it."""
        with _lock_file(self.path / DRIVER_LOCK) as descriptor:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(
                    f"sweep {self.sweep_id} goes on in another process",
                    where=str(self.path),
                    hint="wait for its end, or stop it with Ctrl-C where it was started",
                ) from None
            self._drop_torn_line()
            yield

    @contextmanager
    def cell_lock(self) -> Iterator[int]:
        """Give the descriptor of a lock that a run inherits; waits for a run whose driver is gone."""
        with _lock_file(self.path / CELL_LOCK) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor

    def is_driven(self) -> bool:
        """Whether a process drives the sweep now."""
        with _lock_file(self.path / DRIVER_LOCK) as descriptor:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            return False

    def _lines(self) -> Iterator[dict[str, Any]]:
        path = self.path / LOG
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_failed(error, path) from error
        # What follows the last line end is being written, or was when the power went.
        for number, text in enumerate(content.split(b"\n")[:-1], start=1):
            try:
                line = json.loads(text)
                good = (
                    type(line["cell"]) is int
                    and type(line["attempt"]) is int
                    and line["event"] in {"begun", "ended"}
                    and (line["event"] == "begun" or isinstance(line["outcome"], str))
                )
            except (ValueError, KeyError, TypeError):
                good = False
            if not good:
                raise IntegrityError(
                    "the log of the sweep is damaged",
                    where=f"{path}:{number}",
                    hint="remove that line; its cell is then run again",
                )
            yield line

    def _drop_torn_line(self) -> None:
        path = self.path / LOG
        with suppress(FileNotFoundError):
            content = path.read_bytes()
            if content and not content.endswith(b"\n"):
                os.truncate(path, content.rfind(b"\n") + 1)


def new_sweep(settings: Settings, plan: SweepPlan, command: Sequence[str]) -> SweepFolder:
    """Make the folder of a sweep; a kill leaves none, or one with a whole plan. Raises StorageFailed."""
    now = datetime.now(UTC)
    sweep_id = f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    unborn = sweeps_dir(settings) / f".{sweep_id}"
    document = {
        **plan.to_document(),
        "sweep_id": sweep_id,
        "created_at": now.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "command": list(command),
    }
    write_atomically(unborn / PLAN, json.dumps(document, indent=1).encode("ascii"))
    path = unborn.with_name(sweep_id)
    try:
        unborn.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        raise storage_failed(error, path) from error
    return SweepFolder(path)


def sweeps_dir(settings: Settings) -> Path:
    """Return the folder of the sweeps."""
    return settings.data_dir / "sweeps"


def sweep_folders(settings: Settings) -> list[SweepFolder]:
    """Return all sweeps, newest first."""
    try:
        names = [path for path in sweeps_dir(settings).iterdir() if _SWEEP_ID.fullmatch(path.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [SweepFolder(path) for path in sorted(names, reverse=True) if path.is_dir()]


def find_sweep(settings: Settings, text: str) -> SweepFolder:
    """Return the sweep of an id, the beginning of one, or `latest`. Raises ReferenceNotFound."""
    folders = sweep_folders(settings)
    found = folders[:1] if text == "latest" else [f for f in folders if text and f.sweep_id.startswith(text)]
    if not found:
        raise ReferenceNotFound(f"no sweep is called {text!r}", hint="`mlbundle sweep list` shows them")
    if len(found) > 1:
        raise ReferenceNotFound(
            f"{len(found)} sweeps begin with {text!r}",
            context=[folder.sweep_id for folder in found[:_SHOWN]],
            hint="give more of the id",
        )
    return found[0]


def remove_sweep(folder: SweepFolder) -> None:
    """Remove a sweep; its runs stay. Raises UsageError when it goes on, StorageFailed."""
    removed = folder.path.with_name(f".{folder.sweep_id}.removed")
    with folder.driving():
        try:
            folder.path.rename(removed)
            sync_folder(folder.path.parent)
        except OSError as error:
            raise storage_failed(error, folder.path) from error
    for path in removed.parent.iterdir():  # and what an earlier removal left
        if _REMOVED.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def created_at(folder: SweepFolder) -> str:
    """Return when a sweep was planned, UTC, ISO 8601."""
    return str(_read_json(folder.path / PLAN).get("created_at", ""))


@contextmanager
def _lock_file(path: Path) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise storage_failed(error, path) from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise storage_failed(error, path) from error
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise IntegrityError(
            "the plan of the sweep can't be read",
            where=str(path),
            hint="`mlbundle sweep rm` removes the sweep; its runs are kept",
        )
    return document

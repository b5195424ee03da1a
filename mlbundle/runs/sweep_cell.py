"""One attempt of a cell: `mlbundle run` in a process of its own, and what it left as a line of the log."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from mlbundle.errors import EXIT_ENVIRONMENT, EXIT_INTERRUPTED, EXIT_TERMINATED, EngineDied
from mlbundle.files import storage_failed
from mlbundle.runs.folder import read_record, run_folders
from mlbundle.runs.sweep_state import COMPLETED, FAILED, INTERRUPTED, LACKING
from mlbundle.runs.verdict import require_good
from mlbundle.store.headline import headline_of, is_quick

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mlbundle.config import Settings
    from mlbundle.runs.sweep_attempt import SweepAttempt
    from mlbundle.runs.sweep_axes import Cell

STDOUT, STDERR = "stdout.json", "stderr.log"
_MOST_OUTPUT_BYTES = 64 << 20
_MOST_LINES_BYTES = 1 << 16
_POLL_S = 0.5
_GRACE_S = 20.0
_PR_SET_PDEATHSIG = 1


class CellProcess:
    """A run that is under way; its output goes to files in `folder`, so it outlives us."""

    def __init__(self, cell: Cell, attempt: SweepAttempt, folder: Path, held: int) -> None:
        self._stderr_read = 0
        self._folder = folder
        try:
            folder.mkdir(parents=True)
            with (folder / STDOUT).open("wb") as out, (folder / STDERR).open("wb") as err:
                self._process = subprocess.Popen(
                    # -P: a folder `mlbundle` where the user stands is not ours.
                    [sys.executable, "-P", "-m", "mlbundle", *cell.arguments, "--json"],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env={**os.environ, **attempt.variables()},
                    pass_fds=(held,),
                    # Ctrl-C is for us alone: we tell the run.
                    start_new_session=True,
                    preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 - we have no threads
                )
        except OSError as error:
            raise storage_failed(error, folder) from error

    def lines(self) -> Iterator[str]:
        """Yield what the run says on its way, until it has ended."""
        while not self._ended(_POLL_S):
            yield from self._said()
        yield from self._said()

    @property
    def status(self) -> int:
        """The exit status of a run that has ended; negative for a signal."""
        return self._process.wait()

    def stop(self) -> None:
        """End the run: it gets the time to take its worker away."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def _ended(self, timeout_s: float) -> bool:
        """Wait without waking up meanwhile: a measurement is going on beside us."""
        if self._process.poll() is not None:
            return True
        try:
            descriptor = os.pidfd_open(self._process.pid)
        except (AttributeError, OSError):  # not Linux
            time.sleep(timeout_s)
        else:
            try:
                select.select([descriptor], [], [], timeout_s)
            finally:
                os.close(descriptor)
        return self._process.poll() is not None

    def _said(self) -> Iterator[str]:
        with suppress(OSError), (self._folder / STDERR).open("rb") as stream:
            stream.seek(self._stderr_read)
            text = stream.read(_MOST_LINES_BYTES)
            whole = text.rfind(b"\n") + 1 or (len(text) if len(text) == _MOST_LINES_BYTES else 0)
            self._stderr_read += whole
            yield from text[:whole].decode("utf-8", "replace").splitlines()


def begun_line(attempt: SweepAttempt) -> dict[str, Any]:
    """Return the line of the log that an attempt begins."""
    return {"cell": attempt.cell, "attempt": attempt.attempt, "event": "begun", "at": _now()}


def ended_line(
    attempt: SweepAttempt,
    folder: Path,
    settings: Settings,
    *,
    status: int | None,
    wall_s: float | None,
    since: str,
) -> dict[str, Any]:
    """Return the line of the log of an attempt that has ended, from what it wrote.

    `status` is None when nobody saw its end: then only a record, or an error of the run's own, counts. `since` is when
    it began: its run, which says in its record whose it is, is looked for among those since then where stdout has none.
    A run that was completed counts, whatever came after it.
    """
    document = _read_output(folder / STDOUT)
    record = document if document is not None and _schema(document).startswith("mlbundle/run/") else None
    if record is None:
        record = _find_record(attempt, settings, since)
    completed = record is not None and record.get("status") == "completed"
    line: dict[str, Any] = {
        "cell": attempt.cell,
        "attempt": attempt.attempt,
        "event": "ended",
        "at": _now(),
        "wall_s": None if wall_s is None else round(wall_s, 3),
        "exit_status": status,
        "outcome": COMPLETED if completed else _outcome(document, status),
        "run_id": None if record is None else record.get("run_id"),
        "error": None,
    }
    if record is not None and completed:
        return {**line, **_of_record(record)}
    error = document if document is not None and _schema(document).startswith("mlbundle/error/") else None
    if error is not None:
        line["error"] = {name: error.get(name) for name in ("reference", "message", "where", "hint")}
    elif status is not None:
        line["error"] = _crash(status, folder)
    return line


def _outcome(document: dict[str, Any] | None, status: int | None) -> str:
    """Return how an attempt without a completed record ended."""
    error = document if document is not None and _schema(document).startswith("mlbundle/error/") else None
    if error is None:
        # Killed by somebody, memory run out: nothing that the bundle is known to have done.
        return INTERRUPTED if status is None else LACKING if status < 0 else FAILED
    if error.get("exit_code") in {EXIT_INTERRUPTED, EXIT_TERMINATED}:
        return INTERRUPTED
    is_ours = error.get("fault") == "environment" or error.get("reference") == EngineDied.reference
    return LACKING if is_ours or error.get("exit_code") == EXIT_ENVIRONMENT else FAILED


def _of_record(record: dict[str, Any]) -> dict[str, Any]:
    """Return what the log keeps of a record: the headline, so that a sweep can be shown without its runs."""
    from mlbundle.errors import CheckFailed

    good: CheckFailed | None = None
    try:
        require_good(record)
    except CheckFailed as error:
        good = error
    result, accuracy = record.get("result") or {}, record.get("accuracy") or {}
    latency = result.get("latency_ns") or {}
    framework = record.get("framework") or {}
    headline = headline_of(record)
    return {
        "run_id": record.get("run_id"),
        "good": good is None,
        "reason": None if good is None else good.message,
        "framework": framework.get("name"),
        "framework_version": framework.get("version"),
        "runtime": record.get("runtime"),
        "trimmed_mean_ns": latency.get("trimmed_mean"),
        "p50_ns": latency.get("p50"),
        "p90_ns": latency.get("p90"),
        "p99_ns": latency.get("p99"),
        "throughput_per_s": result.get("throughput_per_s"),
        "queries": result.get("queries"),
        "accuracy": accuracy.get("value"),
        "accuracy_passed": accuracy.get("passed"),
        "headline": None if headline is None else headline.name,
        "headline_value": None if headline is None else headline.value,
        "headline_unit": None if headline is None else headline.unit,
        "quick": is_quick(record),
    }


def _crash(status: int, folder: Path) -> dict[str, Any]:
    how = f"was killed by {_signal_name(-status)}" if status < 0 else f"ended with status {status}"
    hint = f"its last words are in {folder / STDERR}"
    return {
        "reference": "run-crashed",
        "message": f"the run {how} without an answer",
        "where": None,
        "hint": hint,
    }


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _find_record(attempt: SweepAttempt, settings: Settings, since: str) -> dict[str, Any] | None:
    """Return the record that an attempt left in the folder of its run."""
    wanted = attempt.to_document()
    for folder in run_folders(settings):
        if folder.name[:16] < _stamp(since):
            continue
        record = read_record(folder)
        if record is not None and record.get("sweep") == wanted:
            return {**record, "run_id": folder.name}
    return None


def _stamp(iso: str) -> str:
    return iso.replace("-", "").replace(":", "")[:15] + "Z"


def _read_output(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("rb") as stream:
            document = json.loads(stream.read(_MOST_OUTPUT_BYTES))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def _schema(document: dict[str, Any]) -> str:
    return str(document.get("schema", ""))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@cache
def _prctl() -> Any:
    """Return prctl(2), None where there is none; looked up before a fork."""
    return getattr(ctypes.CDLL(None), "prctl", None) if sys.platform == "linux" else None


def _die_with(parent: int) -> Any:
    """Return what makes a new process end when we do (Linux; elsewhere the run goes on to its end, under its lock)."""
    prctl = _prctl()
    if prctl is None:
        return None

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(EXIT_TERMINATED)

    return ask

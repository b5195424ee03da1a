"""`mlbundle tui --demo`: the real UI over runs that were recorded, in a home of its own that is gone afterwards.

Nothing is measured: what is started is a recording that happens again, at the speed at which it happened.
"""

from __future__ import annotations

import dataclasses
import shutil
import tarfile
import tempfile
import threading
import time
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbundle.errors import MlbundleError, ReferenceNotFound, UsageError
from mlbundle.runs.asking import Asker
from mlbundle.runs.catalog import refresh_runs
from mlbundle.runs.folder import EVENTS, JOB, RECORD, RunFolder, new_run_id, read_record, run_folders
from mlbundle.runs.following import EventTail
from mlbundle.runs.queue import MACHINE_BUSY
from mlbundle.wire.events import End, Warned
from mlbundle_tui.context import Context
from mlbundle_tui.demo_answers import DemoAnswers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mlbundle.config import Settings
    from mlbundle.runs.plan import RunOptions
    from mlbundle.wire.events import Event

RECORDED = Path(__file__).resolve().parent / "recorded" / "home.tar.xz"
_JOIN_S = 2.0
_LOOK_S = 0.1
_TIME = "%Y-%m-%dT%H:%M:%S.000Z"


@contextmanager
def demo_context(settings: Settings, *, readonly: bool = False) -> Iterator[Context]:
    """Give what the screens are given, over a fresh copy of the recording; it is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="mlbundle-demo-"))
    try:
        unpack(RECORDED, folder)
        own = dataclasses.replace(settings, data_dir=folder / "data", cache_dir=folder / "cache")
        refresh_runs(own)
        launcher = ReplayLauncher(own)
        try:
            with closing(Asker()) as asker:
                answers = DemoAnswers(launcher.recordings, launcher.choose, asker)
                yield Context(
                    own,
                    launcher=launcher,
                    readonly=readonly,
                    demo=True,
                    ask=answers.ask,
                    judge=answers.judge,
                )
        finally:
            launcher.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def unpack(archive: Path, folder: Path) -> None:
    """Write the files of an archive of ours into a folder."""
    with tarfile.open(archive, mode="r:xz") as stream:
        for entry in stream:
            data = stream.extractfile(entry)
            assert data is not None
            path = folder / entry.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.read())


@dataclasses.dataclass(frozen=True)
class Recording:
    """A recorded run: its folder, its record, its events in order."""

    folder: Path
    record: Mapping[str, Any]
    events: Sequence[Event]

    @property
    def begun_ns(self) -> int:
        """When its first event was."""
        return min(event.t_ns for event in self.events)

    @property
    def lasted_ns(self) -> int:
        """From the first event to the last."""
        return max(event.t_ns for event in self.events) - self.begun_ns

    def fits(self, options: RunOptions) -> bool:
        """Whether it is of what is asked for; whatever else was asked, it is what it is."""
        record = self.record
        return (
            record["status"] == "completed"
            and record["bundle"]["name"] == options.reference
            and record["scenario"]["name"] == options.scenario
            and options.framework in {None, record["framework"]["name"], record["framework"]["variant"]}
        )


class ReplayLauncher:
    """Lets recorded runs happen again: events at their times, then files and record. One at a time, as on a machine."""

    def __init__(self, settings: Settings, *, speed: float = 1.0) -> None:
        self._settings = settings
        self._speed = speed
        self.recordings = [_recording(folder) for folder in run_folders(settings)]
        self._turn = threading.Lock()
        self._going: dict[str, tuple[threading.Thread, threading.Event]] = {}

    def start(
        self,
        options: RunOptions,
        report: Callable[[str], None] = lambda _line: None,
        _stop: threading.Event | None = None,
    ) -> str:
        """Let the recording that fits happen again, under a new id. Raises UsageError when there is none."""
        chosen = self.choose(options)
        report(f"a recording: run {chosen.folder.name} happens again")
        return self._replay(chosen)

    def choose(self, options: RunOptions) -> Recording:
        """Return the recording that fits. Raises UsageError when there is none, which lists what there is."""
        fitting = [recording for recording in self.recordings if recording.fits(options)]
        if not fitting:
            raise UsageError(
                "the demo has no recording of such a run",
                hint=f"recorded: {', '.join(sorted(self._names()))}",
            )
        # Without a framework the manifest's first is meant, which was recorded first.
        framework = fitting[0].record["framework"]["name"]
        alike = [r for r in fitting if r.record["framework"]["name"] == framework]
        traced = [r for r in alike if r.record["trace_level"] == options.trace_level]
        return max(traced or alike, key=lambda recording: recording.lasted_ns)

    def stop(self, run_id: str) -> None:
        """End a replay. Raises ReferenceNotFound."""
        if run_id not in self._going:
            raise ReferenceNotFound(f"no run of the demo is called {run_id!r}", hint="it is over already")
        self._going[run_id][1].set()
        self._going[run_id][0].join(_JOIN_S)

    def close(self) -> None:
        """End all replays."""
        for _, stopped in self._going.values():
            stopped.set()
        for thread, _ in self._going.values():
            thread.join(_JOIN_S)

    def _names(self) -> set[str]:
        records = [r.record for r in self.recordings if r.record["status"] == "completed"]
        return {f"{r['bundle']['name']} {r['scenario']['name']} {r['framework']['name']}" for r in records}

    def _replay(self, recording: Recording) -> str:
        folder = RunFolder(self._settings.runs_dir, new_run_id())
        run_id = folder.path.name
        stopped = threading.Event()
        replay = _Replay(recording, folder, stopped, self._turn, self._speed)
        thread = threading.Thread(target=replay.run, name=f"replay {run_id}", daemon=True)
        self._going[run_id] = thread, stopped
        # Who asks for the run next finds what it is.
        shutil.copyfile(recording.folder / JOB, folder.path / JOB)
        folder.append(dataclasses.replace(recording.events[0], t_ns=0), source=recording.events[0].source)
        thread.start()
        return run_id


class _Replay:
    """One recording that happens again, in a thread."""

    def __init__(
        self,
        recording: Recording,
        folder: RunFolder,
        stopped: threading.Event,
        turn: threading.Lock,
        speed: float,
    ) -> None:
        self._recording, self._folder = recording, folder
        self._stopped, self._turn, self._speed = stopped, turn, speed

    def run(self) -> None:
        """Wait for the turn, let all events happen, write the record. The folder may be gone when the demo ends."""
        started_at = datetime.now(UTC)
        with suppress(MlbundleError, OSError), self._folder:
            completed = False
            if self._await_turn():
                try:
                    completed = self._events()
                finally:
                    self._turn.release()
            self._finish(started_at, completed=completed)

    def _await_turn(self) -> bool:
        """Return whether it is this one's turn; else it was stopped before."""
        if self._turn.acquire(blocking=False):
            return True
        busy = Warned(reference=MACHINE_BUSY, message="waiting for another recording to end")
        self._folder.append(busy, source="host")
        while not self._stopped.is_set():
            if self._turn.acquire(timeout=_LOOK_S):
                return True
        return False

    def _events(self) -> bool:
        begun_ns = time.monotonic_ns()
        for event in self._recording.events[1:]:
            due_ns = int((event.t_ns - self._recording.begun_ns) / self._speed)
            wait_s = (begun_ns + due_ns - time.monotonic_ns()) / 1e9
            if self._stopped.wait(max(0.0, wait_s)):
                return False
            if not isinstance(event, End):  # after the files
                moved = dataclasses.replace(event, t_ns=begun_ns + due_ns)
                self._folder.append(moved, source=event.source)
        return True

    def _finish(self, started_at: datetime, *, completed: bool) -> None:
        record = {
            **self._recording.record,
            "run_id": self._folder.path.name,
            "started_at": started_at.strftime(_TIME),
            "finished_at": datetime.now(UTC).strftime(_TIME),
        }
        if completed:
            for path in sorted(p for p in self._recording.folder.rglob("*") if p.is_file()):
                name = path.relative_to(self._recording.folder)
                if str(name) not in {EVENTS, RECORD}:
                    target = self._folder.path / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, target)
        else:
            reasons = ["the run is cancelled"]
            record |= {"status": "cancelled", "validity": {"valid": False, "reasons": reasons}}
            record |= {"result": None, "accuracy": None}
        self._folder.append(End(status=str(record["status"])), source="host")
        self._folder.write_record(record)


def _recording(folder: Path) -> Recording:
    record = read_record(folder)
    assert record is not None, folder
    tail = EventTail(folder)
    try:
        return Recording(folder, record, list(tail.read_all()))
    finally:
        tail.close()

"""What a runtime is: something that starts a worker and connects us to its standard streams."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from mlbundle.runtime.archive import WorkerArchive

LOG_CAP_BYTES = 16 << 20
TAIL_LINES = 12
_KEPT_LINES = 64
_CRASH = "Fatal Python error"


@dataclass(frozen=True)
class Limits:
    """What the worker may use. `cpus` empty: all that this process may run on."""

    memory_bytes: int
    pids: int
    out_bytes: int
    scratch_bytes: int
    threads: int
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True)
class Launch:
    """One start of a worker."""

    run_id: str
    worker: WorkerArchive
    assets: Path
    log: Path
    limits: Limits


@dataclass(frozen=True)
class ExitState:
    """How a worker ended: its exit status, negative for a signal, None when nobody knows."""

    status: int | None
    detail: str = ""


@dataclass(frozen=True)
class Place:
    """Where on this machine a worker runs: the id of its first process, and the container that it must be in."""

    pid: int
    container: str | None = None


def worker_variables(limits: Limits) -> dict[str, str]:
    """Return the environment variables that every worker gets, wherever it runs.

    The thread counts are for the libraries below the frameworks, which read them when they are loaded; the
    frameworks themselves are told by their predictors.
    """
    threads = str(limits.threads)
    return {
        "OMP_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "TF_NUM_INTRAOP_THREADS": threads,
        "TF_NUM_INTEROP_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "1",
        "ORT_DISABLE_TELEMETRY": "1",
        "PYTHONHASHSEED": "0",
    }


class Connection(Protocol):
    """A running worker."""

    def send(self, data: bytes, timeout_s: float) -> None:
        """Write to the worker's stdin; raises WorkerHung when it does not read for `timeout_s`."""

    def read(self, timeout_s: float) -> bytes | None:
        """Return what the worker wrote to stdout; None after `timeout_s` of silence, b'' at the end."""

    def scratch_bytes(self) -> int | None:
        """Return how much the worker wrote to its scratch folder, None where the system limits it by itself."""

    def place(self) -> Place | None:
        """Return where to look at the worker from outside; None where it can't be seen from here."""

    def tail(self) -> list[str]:
        """Return the last lines of the worker's stderr."""

    def wait(self, timeout_s: float) -> ExitState:
        """Wait for the end of the worker."""

    def stop(self) -> None:
        """Kill the worker and remove whatever it leaves behind; may be called at any time, several times."""


class Runtime(Protocol):
    """A way to run a worker.

    `left` says that something of a run may still be there when it has ended, because the engine went away.
    """

    name: str
    left: bool

    def start(self, launch: Launch) -> Connection:
        """Start a worker; raises EnvironmentLacks or RunFailed."""

    def paths(self, launch: Launch) -> dict[str, str]:
        """Return where the worker finds `assets` and `scratch`."""

    def describe(self) -> dict[str, Any]:
        """Return how isolated the worker is, for the run record."""


class WorkerLog:
    """stderr of the worker: all of it (up to a cap) in a file, the last lines in memory."""

    def __init__(self, path: Path) -> None:
        self._stream = path.open("ab")
        self._written = 0
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._partial = b""

    def write(self, data: bytes) -> None:
        """Take a piece of stderr."""
        room = LOG_CAP_BYTES - self._written
        if room > 0:
            # A full disk must not end a run whose log is all that no longer fits: the tail is kept in any case.
            with suppress(OSError):
                self._stream.write(data[:room])
                self._stream.flush()
            self._written += len(data[:room])
        *whole, self._partial = (self._partial + data).split(b"\n")
        self._partial = self._partial[-4096:]
        for line in whole:
            self._keep(line)

    def tail(self) -> list[str]:
        """Return the lines worth showing: where in Python a crash was, else the last, the unfinished one included."""
        last = [self._clean(self._partial)] if self._partial.strip() else []
        lines = [*self._lines, *last]
        # A crash names the innermost call first: the end of its lines is our own code, which says nothing.
        crashes = [number for number, line in enumerate(lines) if line.startswith(_CRASH)]
        return lines[crashes[-1] :][:TAIL_LINES] if crashes else lines[-TAIL_LINES:]

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            self._stream.close()

    def _keep(self, line: bytes) -> None:
        if line.strip():
            self._lines.append(self._clean(line))

    @staticmethod
    def _clean(line: bytes) -> str:
        # A worker's output must not reach the user's terminal as control sequences.
        text = line[:500].decode("utf-8", "replace").rstrip()
        return "".join(c if c.isprintable() or c == "\t" else "\N{REPLACEMENT CHARACTER}" for c in text)

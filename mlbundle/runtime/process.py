"""The `process` runtime: a child process with the Python of an environment made for the framework.

It isolates little: own session, own environment variables, own scratch folder, a cap on file sizes. Code of a
bundle runs here only when the user said so.
"""

from __future__ import annotations

import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlbundle.errors import EnvironmentLacks, WorkerHung
from mlbundle.runtime.base import ExitState, Launch, Place, WorkerLog, worker_variables
from mlbundle.runtime.interpreter import existing_python

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlbundle.runtime.environments import PythonEnvironment

_READ_BYTES = 1 << 16
_TAIL_READS = 64
_SCRATCH_PREFIX = "mlbundle-scratch-"
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")


class ProcessRuntime:
    """Runs the worker with a given Python.

    `limit_memory` is False where a limit on a process's data can't be kept: a GPU's driver reserves more than it uses.
    """

    name = "process"
    left = False

    def __init__(
        self,
        python: Path,
        environment: Mapping[str, Any],
        *,
        isolation: str,
        variables: Mapping[str, str] | None = None,
        hold: object = None,
        limit_memory: bool = True,
    ) -> None:
        """`variables` are further ones of the worker's; `hold` is kept as long as the runtime is there."""
        self._python = python
        self._environment = dict(environment)
        self._isolation = isolation
        self._passed_on = passed_on() if variables is None else dict(variables)
        self._hold = hold
        self._limits_memory = limit_memory and sys.platform == "linux"

    @classmethod
    def of_environment(
        cls, environment: PythonEnvironment, lock_name: str, *, limit_memory: bool = True
    ) -> ProcessRuntime:
        """Return the runtime of a hash-locked environment."""
        described = {"lock": lock_name, "lock_sha256": environment.lock_sha256}
        return cls(
            environment.python,
            described,
            isolation="hash-locked",
            hold=environment.hold,
            limit_memory=limit_memory,
        )

    @classmethod
    def of_existing(cls, python: Path, framework: str, *, limit_memory: bool = True) -> ProcessRuntime:
        """Return the runtime of a Python that is there already, as the user found or made it: unpinned.

        PYTHONPATH is passed on, as a cluster sets it. Raises EnvironmentLacks when the worker can't run in it.
        """
        variables = passed_on("PYTHONPATH")
        interpreter = existing_python(python, framework, variables)
        return cls(
            python,
            interpreter.to_document(),
            isolation="unpinned",
            variables=variables,
            limit_memory=limit_memory,
        )

    def start(self, launch: Launch) -> ProcessConnection:
        """Start the worker in a session of its own."""
        scratch = _scratch(launch)
        command = [str(self._python), "-s", str(launch.worker.path)]
        log = WorkerLog(launch.log)
        try:
            scratch.mkdir(mode=0o700)
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=scratch,
                env=self._variables(launch, scratch),
                start_new_session=True,
                bufsize=0,
            )
        except BaseException as error:
            log.close()
            shutil.rmtree(scratch, ignore_errors=True)
            if isinstance(error, OSError):
                raise EnvironmentLacks(
                    f"can't start the worker: {error.strerror}",
                    where=str(self._python),
                    hint="see `mlbundle doctor`",
                ) from error
            raise
        self._limit(process.pid, launch)
        return ProcessConnection(process, log, scratch)

    def paths(self, launch: Launch) -> dict[str, str]:
        """Return the host's own paths: nothing is mounted."""
        return {"assets": str(launch.assets), "scratch": str(_scratch(launch))}

    def describe(self) -> dict[str, Any]:
        """Return what separates the worker from this machine: not much."""
        memory = "memory that each process has for itself" if self._limits_memory else None
        return {
            "isolation": self._isolation,
            "summary": (
                f"child process, {self._isolation} Python environment; sees this machine's files and network; "
                + (f"limit on the {memory}" if memory else "no memory limit")
            ),
            "network": True,
            "memory_limit": memory,
            "environment": self._environment,
        }

    def _variables(self, launch: Launch, scratch: Path) -> dict[str, str]:
        return self._passed_on | {
            "HOME": str(scratch),
            "TMPDIR": str(scratch),
            "PYTHONDONTWRITEBYTECODE": "1",
            **worker_variables(launch.limits),
        }

    def _limit(self, pid: int, launch: Launch) -> None:
        """Limit the worker before it has read its job; what it starts has the same limits."""
        if sys.platform != "linux":
            return
        limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: launch.limits.scratch_bytes}
        if self._limits_memory:
            # Not the address space: frameworks reserve many times what they use.
            limits[resource.RLIMIT_DATA] = launch.limits.memory_bytes
        for kind, most in limits.items():
            with suppress(ProcessLookupError, PermissionError, ValueError):
                resource.prlimit(pid, kind, (most, most))


def passed_on(*further: str) -> dict[str, str]:
    """Return those of our environment variables that a worker gets, and `further` ones where they are set."""
    return {name: os.environ[name] for name in (*_PASSED_ON, *further) if os.environ.get(name)}


def _scratch(launch: Launch) -> Path:
    return Path(tempfile.gettempdir()) / f"{_SCRATCH_PREFIX}{launch.run_id}"


def left_scratch() -> dict[str, Path]:
    """Return the scratch folders that lie about: id of their run -> folder."""
    found = Path(tempfile.gettempdir()).glob(f"{_SCRATCH_PREFIX}*")
    return {path.name.removeprefix(_SCRATCH_PREFIX): path for path in found}


class ProcessConnection:
    """A worker process and its three streams."""

    def __init__(self, process: subprocess.Popen[bytes], log: WorkerLog, scratch: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._log = log
        self._scratch = scratch
        self._open = [self._stdout, self._stderr]

    def send(self, data: bytes, timeout_s: float) -> None:
        """Write to the worker; one that is gone is noticed by `read`. Raises WorkerHung."""
        os.set_blocking(self._stdin.fileno(), False)
        view = memoryview(data)
        with suppress(BrokenPipeError):
            while view:
                if not select.select([], [self._stdin], [], timeout_s)[1]:
                    raise WorkerHung(
                        f"the worker did not read its job for {timeout_s:.0f} s",
                        hint="see worker.log in the run's folder",
                    )
                view = view[os.write(self._stdin.fileno(), view) :]

    def read(self, timeout_s: float) -> bytes | None:
        """Return bytes of stdout; stderr goes to the log on the way."""
        if self._stdout not in self._open:
            return b""
        ready, _, _ = select.select(self._open, [], [], timeout_s)
        if self._stderr in ready:
            self._take_stderr()
        if self._stdout not in ready:
            return None
        data = os.read(self._stdout.fileno(), _READ_BYTES)
        if not data:
            self._open.remove(self._stdout)
        return data

    def scratch_bytes(self) -> int | None:
        """Add up the files in the scratch folder."""
        total = 0
        for folder, _, names in os.walk(self._scratch):
            for name in names:
                with suppress(OSError):
                    total += (Path(folder) / name).lstat().st_size
        return total

    def place(self) -> Place | None:
        """Return the process of the supervisor."""
        return Place(self._process.pid)

    def tail(self) -> list[str]:
        """Return the last lines of stderr, after reading what is still in the pipe."""
        for _ in range(_TAIL_READS):  # bounded: a worker may write for ever
            if self._stderr not in self._open or not select.select([self._stderr], [], [], 0)[0]:
                break
            self._take_stderr()
        return self._log.tail()

    def wait(self, timeout_s: float) -> ExitState:
        """Wait for the worker's exit status."""
        try:
            return ExitState(self._process.wait(timeout_s))
        except subprocess.TimeoutExpired:
            return ExitState(None, "it closed its output and did not end")

    def stop(self) -> None:
        """Kill the whole session, close the streams, remove the scratch folder."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._stdin, self._stdout, self._stderr):
            with suppress(OSError):
                stream.close()
        self._log.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _take_stderr(self) -> None:
        data = os.read(self._stderr.fileno(), _READ_BYTES)
        if data:
            self._log.write(data)
        else:
            self._open.remove(self._stderr)

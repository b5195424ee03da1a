"""Keeps the UI off the CPUs that a run is pinned to, as long as that goes on."""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mlbundle.runs.folder import is_driven

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_TASKS = Path("/proc/self/task")


class QuietCpus:
    """The CPUs of this process, less those of the runs that it keeps off. Safe between threads.

    `driven` says whether a run's folder has a process that drives it.
    """

    def __init__(self, driven: Callable[[Path], bool] = is_driven) -> None:
        self._driven = driven
        self._lock = threading.Lock()
        self._whole: set[int] | None = None
        self._runs: dict[Path, frozenset[int]] = {}

    def keep_off(self, folder: Path, cpus: Iterable[int]) -> None:
        """Leave these CPUs to a run until it has ended; nothing where none would be left, or can't be chosen."""
        if not hasattr(os, "sched_setaffinity"):
            return
        with self._lock:
            if self._whole is None:
                self._whole = os.sched_getaffinity(0)
            self._runs[folder] = frozenset(cpus)
            self._settle()

    def look(self) -> bool:
        """Take back the CPUs of runs that have ended; returns whether there are others still."""
        with self._lock:
            ended = [folder for folder in self._runs if not self._driven(folder)]
            for folder in ended:
                del self._runs[folder]
            if ended:
                self._settle()
            return bool(self._runs)

    @contextmanager
    def on_all_cpus(self) -> Iterator[None]:
        """Let this thread, and what it starts, have all CPUs for the block."""
        whole = self._whole
        if whole is None:
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, whole)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    def _settle(self) -> None:
        assert self._whole is not None
        taken: frozenset[int] = frozenset().union(*self._runs.values())
        left = (self._whole - taken) or self._whole
        # Each thread has CPUs of its own; those to come inherit them.
        tasks = [int(task.name) for task in _TASKS.iterdir()] if _TASKS.is_dir() else [0]
        for task in tasks:
            with suppress(OSError):  # ended meanwhile
                os.sched_setaffinity(task, left)


_QUIET = QuietCpus()
keep_off, look, on_all_cpus = _QUIET.keep_off, _QUIET.look, _QUIET.on_all_cpus
"""Those of this process."""

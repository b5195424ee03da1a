"""Starts runs in processes of their own, as `mlbundle run --detach` does, and stops them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlbundle_tui.affinity import on_all_cpus

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from mlbundle.config import Settings
    from mlbundle.runs.plan import RunOptions


class DetachedLauncher:
    """Runs that go on whatever becomes of the UI. Its methods wait: call them beside the event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def start(
        self,
        options: RunOptions,
        report: Callable[[str], None] = lambda _line: None,
        stop: threading.Event | None = None,
    ) -> str:
        """Start what `options.command` says and return the run's id; `report` hears how it is planned,
        which `stop` ends.

        Raises the command's own error.
        """
        from mlbundle.runs.detach import start_by_command

        # What we start inherits the CPUs of this thread, and must not inherit that we keep off some.
        with on_all_cpus():
            return start_by_command(options.command[2:], report, stop)

    def stop(self, run_id: str) -> None:
        """Cancel a run that goes on or waits, and wait for its record. Raises what `stop_run` raises."""
        from mlbundle.runs.stop import stop_run

        stop_run(self._settings, run_id)

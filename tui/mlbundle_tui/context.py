"""What every screen is given: settings, what may be done, how runs are started, and the clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from mlbundle.runs.asking import Ask, answer

if TYPE_CHECKING:
    import threading
    from pathlib import Path

    from mlbundle.config import Settings
    from mlbundle.runs.plan import RunOptions
    from mlbundle.runs.readiness import Here, Readiness
    from mlbundle.runs.shelf import BundleRow, Shelf


class Launcher(Protocol):
    """Starts and stops runs; they go on whatever becomes of the UI."""

    def start(
        self, options: RunOptions, report: Callable[[str], None] = ..., stop: threading.Event | None = ..., /
    ) -> str:
        """Start a run and return its id; `report` hears of what takes time before it begins, which `stop` ends.

        Raises MlbundleError, Interrupted where it was stopped.

        Both methods wait: they are called beside the event loop.
        """

    def stop(self, run_id: str) -> None:
        """Cancel a run that goes on. Raises MlbundleError."""


Judge = Callable[["BundleRow", "Shelf", "Here"], "Readiness"]
"""Says what can run here of a bundle, and notes it on the shelf."""


def _judge(row: BundleRow, shelf: Shelf, here: Here) -> Readiness:
    from mlbundle.runs.shelf_states import judge

    return judge(row, shelf, here)


@dataclass(frozen=True)
class Context:
    """Settings, launcher and clock (seconds, monotonic); `readonly` hides what changes anything.

    `demo` says that the data were recorded: nothing is measured here. `ask` has questions about this machine answered,
    in the tests by this process and otherwise by others, so that this one stays small; `judge` says what can run here.
    """

    settings: Settings
    launcher: Launcher | None = None
    readonly: bool = False
    demo: bool = False
    folder: Path | None = None
    clock: Callable[[], float] = field(default=time.monotonic)
    ask: Ask = answer
    judge: Judge = _judge

    @property
    def may_run(self) -> bool:
        """Whether runs can be started and stopped."""
        return self.launcher is not None and not self.readonly

"""What every screen is given: settings, what may be done, how runs are started, and the clock."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from mlbundle.runs.asking import Ask, answer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mlbundle.config import Settings
    from mlbundle.runs.plan import RunOptions


class Launcher(Protocol):
    """Starts and stops runs; they go on whatever becomes of the UI."""

    def start(self, options: RunOptions, report: Callable[[str], None] = ...) -> str:
        """Start a run and return its id; `report` hears of what takes time before it begins. Raises MlbundleError.

        Both methods wait: they are called beside the event loop.
        """

    def stop(self, run_id: str) -> None:
        """Cancel a run that goes on. Raises MlbundleError."""


@dataclass(frozen=True)
class Context:
    """Settings, launcher and clock (seconds, monotonic); `readonly` hides what changes anything.

    `demo` says that the data were recorded: nothing is measured here. `ask` has questions about this machine answered,
    in the tests by this process and otherwise by others, so that this one stays small.
    """

    settings: Settings
    launcher: Launcher | None = None
    readonly: bool = False
    demo: bool = False
    folder: Path | None = None
    clock: Callable[[], float] = field(default=time.monotonic)
    ask: Ask = answer

    @property
    def may_run(self) -> bool:
        """Whether runs can be started and stopped."""
        return self.launcher is not None and not self.readonly

"""Shows a run while it happens, on stderr: one line that changes on a terminal, a line a phase elsewhere."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import click

from mlbundle.cli import output
from mlbundle.wire.events import NOTICE, Event, Log, Phase, Progress, Warned, Window
from mlbundle.wording import units

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_DOING = {
    "create": "creating the worker",
    "start": "starting the worker",
    "load": "loading the model",
    "warm-up": "warming up",
    "measure": "measuring",
    "profile": "profiling",
    "accuracy": "checking accuracy",
    "collect": "collecting",
    "verify": "verifying",
}

# Passes that profile come in this order, each deeper than the one before; a pass that failed is done, too.
_DEPTHS = ("framework", "system", "serial")
_LEAST_LEFT_S = 0.1


class LiveView:
    """Consumes events; writes at most as often as they come (windows: twice a second)."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty() and output.verbosity() >= 0
        self._phase = ""
        self._detail = ""
        self._share = ""
        self._profiles_done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._clear()

    def show(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, Phase) and event.state == "begun" and event.name in _DOING:
            self._begin(event.name)
        elif isinstance(event, Phase) and event.state == "done" and event.name == "profile":
            self._profiles_done += 1
        elif isinstance(event, Window):
            latencies = f"p50 {units.duration(event.p50_ns)}  p99 {units.duration(event.p99_ns)}"
            self._detail = f"{units.rate(event.throughput)}  {latencies}"
        elif isinstance(event, Progress) and event.total:
            # Nobody reads of times that are over when they are read.
            seen = event.eta_s is not None and event.eta_s >= _LEAST_LEFT_S
            left = f", {units.duration(event.eta_s * 1e9)} left" if seen and event.eta_s is not None else ""
            if event.unit == "trials":
                self._phase = "searching for the peak"
                trial = min(int(event.done) + 1, int(event.total))
                self._share = f"trial {trial} of {event.total:.0f} at most{left}"
            else:
                self._share = f"{100 * event.done / event.total:3.0f} %{left}"
        elif isinstance(event, Warned):
            self._clear()
            output.warn(event.message, hint=event.hint)
        elif isinstance(event, Log):
            self._clear()
            output.narrate(event.message, level=0 if event.level == NOTICE else 1)
        self._draw()

    def _begin(self, phase: str) -> None:
        self._phase, self._detail, self._share = _DOING[phase], "", ""
        if phase == "profile" and self._profiles_done < len(_DEPTHS):
            self._phase = f"profiling {_DEPTHS[self._profiles_done]}"
        if not self._terminal:
            output.narrate(f"{self._phase} ...")

    def _draw(self) -> None:
        if self._terminal and self._phase:
            width = shutil.get_terminal_size().columns - 1
            click.echo(
                f"\r{f'{self._phase}  {self._share}  {self._detail}'[:width]:<{width}}", nl=False, err=True
            )

    def _clear(self) -> None:
        if self._terminal:
            click.echo("\r\x1b[K", nl=False, err=True)

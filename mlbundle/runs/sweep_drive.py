"""Drives a sweep: one cell after another, each in a process of its own; goes on where an earlier driver stopped."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mlbundle.runs.sweep_attempt import SweepAttempt
from mlbundle.runs.sweep_cell import CellProcess, begun_line, ended_line
from mlbundle.runs.sweep_estimate import Estimate, experience_of_runs, key_of_cell, kind_of_cell
from mlbundle.runs.sweep_state import COMPLETED, FAILED, INTERRUPTED, LACKING, CellState

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from mlbundle.config import Settings
    from mlbundle.runs.sweep_axes import Cell
    from mlbundle.runs.sweep_plan import SweepPlan
    from mlbundle.runs.sweep_state import SweepFolder

_MOST_ATTEMPTS = 2
"""How often a cell is begun by one driver: what lacks here is tried once more."""


@dataclass(frozen=True)
class Progress:
    """What a driver tells.

    `begun` and `ended`: an attempt; `said`: a line of the run's stderr; `settled`: what an earlier driver had begun.
    `remaining` is for the cells that are not done yet, `done` of `total` are.
    """

    kind: Literal["begun", "said", "ended", "settled"]
    cell: Cell
    attempt: int
    done: int
    total: int
    remaining: Estimate
    text: str = ""
    line: dict[str, Any] | None = None
    will_retry: bool = False


def drive(folder: SweepFolder, plan: SweepPlan, settings: Settings) -> Generator[Progress]:
    """Run every cell that is not done, and tell how it goes.

    A failure of a cell ends that cell alone. Raises UsageError when somebody else drives the sweep, StorageFailed
    when its log can't be written; KeyboardInterrupt passes through after the run under way was stopped.
    """
    with folder.driving():
        yield from _Driver(folder, plan, settings).run()


class _Driver:
    def __init__(self, folder: SweepFolder, plan: SweepPlan, settings: Settings) -> None:
        self._folder = folder
        self._plan = plan
        self._settings = settings
        self._states = folder.states()
        self._experience = experience_of_runs(settings, plan.manifest_digest)

    def run(self) -> Iterator[Progress]:
        with self._folder.cell_lock():  # a run without a driver is waited for
            pass
        yield from self._settle()
        self._learn_from_log()
        for cell in self._plan.cells:
            if not self._state(cell).is_done:
                yield from self._run_cell(cell)

    def _settle(self) -> Iterator[Progress]:
        """End what an earlier driver began: with what the run wrote, or as interrupted."""
        for cell in self._plan.cells:
            state = self._state(cell)
            if state.under_way:
                line = ended_line(
                    self._named(cell, state.attempts),
                    self._folder.attempt_folder(cell.number, state.attempts),
                    self._settings,
                    status=None,
                    wall_s=None,
                    since=state.begun_at,
                )
                self._end(cell, line)
                yield self._progress("settled", cell, line=line)

    def _learn_from_log(self) -> None:
        for cell in self._plan.cells:
            line = self._state(cell).last
            if line is not None:
                self._learn(cell, line)

    def _learn(self, cell: Cell, line: dict[str, Any]) -> None:
        if line["outcome"] == COMPLETED and line.get("wall_s") is not None:
            self._experience.learn(key_of_cell(cell), cell.planned_s, line["wall_s"], kind_of_cell(cell))

    def _run_cell(self, cell: Cell) -> Iterator[Progress]:
        for chance in range(1, _MOST_ATTEMPTS + 1):
            line = yield from self._attempt(cell)
            again = line["outcome"] == LACKING and chance < _MOST_ATTEMPTS
            yield self._progress("ended", cell, line=line, will_retry=again)
            if not again:
                return

    def _attempt(self, cell: Cell) -> Generator[Progress, None, dict[str, Any]]:
        attempt = self._state(cell).attempts + 1
        named = self._named(cell, attempt)
        begun = begun_line(named)
        self._folder.append(begun)
        self._states[cell.number] = CellState(attempt, self._state(cell).last, under_way=True)
        yield self._progress("begun", cell)
        started_s = time.monotonic()
        attempt_folder = self._folder.attempt_folder(cell.number, attempt)
        with self._folder.cell_lock() as held:
            process = CellProcess(cell, named, attempt_folder, held)
            try:
                for text in process.lines():
                    yield self._progress("said", cell, text=text)
            finally:
                # Ctrl-C, or a consumer that lost interest; a run that has ended is not touched.
                process.stop()
        line = ended_line(
            named,
            attempt_folder,
            self._settings,
            status=process.status,
            wall_s=time.monotonic() - started_s,
            since=begun["at"],
        )
        self._end(cell, line)
        return line

    def _end(self, cell: Cell, line: dict[str, Any]) -> None:
        self._folder.append(line)
        self._states[cell.number] = CellState(self._state(cell).attempts, line)
        self._learn(cell, line)

    def _named(self, cell: Cell, attempt: int) -> SweepAttempt:
        return SweepAttempt(self._folder.sweep_id, cell.number, attempt)

    def _state(self, cell: Cell) -> CellState:
        return self._states.get(cell.number, CellState())

    def _progress(
        self, kind: Literal["begun", "said", "ended", "settled"], cell: Cell, **more: Any
    ) -> Progress:
        left = [other for other in self._plan.cells if not self._state(other).is_done]
        return Progress(
            kind=kind,
            cell=cell,
            attempt=self._state(cell).attempts,
            done=len(self._plan.cells) - len(left),
            total=len(self._plan.cells),
            remaining=self._experience.of_cells(left),
            **more,
        )


def status_of(plan: SweepPlan, states: dict[int, CellState]) -> dict[str, int]:
    """Return how many cells are good, not good (invalid, or not as claimed), failed, lacking something, and left."""
    counts = {"good": 0, "not_good": 0, FAILED: 0, LACKING: 0, "left": 0}
    for cell in plan.cells:
        state = states.get(cell.number, CellState())
        if state.outcome == COMPLETED:
            assert state.last is not None
            counts["good" if state.last.get("good") else "not_good"] += 1
        elif state.outcome in {None, INTERRUPTED}:
            counts["left"] += 1
        else:
            counts[str(state.outcome)] += 1
    return counts

"""How long cells will take: what is planned to be measured, and what earlier runs took beside it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from mlbundle.runs.folder import read_record, run_folders
from mlbundle.wire.scenarios import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mlbundle.config import Settings
    from mlbundle.runs.sweep_axes import Cell

_GUESSED_OVERHEAD_S = 6.0
_WARM_UP_S = 1.0
_LIKELY_BATCH_SIZES = 8
_OFFICIAL_S = 600.0
_QUICK_S = 10.0
_MOST_RECORDS = 50


class Estimate(NamedTuple):
    """Seconds that cells will take; `unknown` of them are not in it, `guessed` are told from runs of another kind."""

    seconds: float
    unknown: int = 0
    guessed: int = 0


def planned_seconds(scenario: str, options: Mapping[str, Any]) -> float | None:
    """Return how long a job will measure, in seconds; None where its options do not say."""
    spec = BY_NAME.get(scenario)
    if spec is None or options.get("find_peak"):
        return None
    if spec.loadgen is not None:
        one_s = options.get("duration_s") or (_QUICK_S if options.get("quick") else _OFFICIAL_S)
        return float(one_s) * (1 + len(options.get("compliance") or ()))
    if scenario == "cold-start":
        return float(options["repeats"])
    if options.get("queries") or options.get("samples"):
        return None
    if options.get("arrivals"):
        return float(options["arrivals"][-1] / 1e9)
    warm_up = options.get("warmup", 0)
    once = float(options["duration_s"]) + (_WARM_UP_S if warm_up == "auto" else float(warm_up))
    times = options.get("repeats", 1)
    if scenario == "batched":
        times = len(options.get("batch_sizes") or range(_LIKELY_BATCH_SIZES))
    return once * float(times)


@dataclass
class Experience:
    """What cells took so far: whole durations by what was run, and what came on top of measuring, in seconds.

    That is known by scenario and form of the model too: frameworks differ in how long they take to load, scenarios in
    what they do beside measuring.
    """

    whole_s: dict[str, list[float]] = field(default_factory=dict)
    overheads_s: list[float] = field(default_factory=list)
    own_overheads_s: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def learn(
        self, key: str, planned_s: float | None, took_s: float, kind: tuple[str, str] | None = None
    ) -> None:
        """Take in that something took `took_s`; `kind` is its scenario and the form of the model."""
        self.whole_s.setdefault(key, []).append(took_s)
        if planned_s is not None:
            overhead_s = max(0.0, took_s - planned_s)
            self.overheads_s.append(overhead_s)
            if kind is not None:
                self.own_overheads_s.setdefault(kind, []).append(overhead_s)

    def of_cell(self, cell: Cell) -> float | None:
        """Return the seconds that a cell will take, None when nothing tells."""
        same = self.whole_s.get(key_of_cell(cell))
        if same:
            return median(same)
        if cell.planned_s is None:
            return None
        overheads_s = self.own_overheads_s.get(kind_of_cell(cell)) or self.overheads_s
        return cell.planned_s + (median(overheads_s) if overheads_s else _GUESSED_OVERHEAD_S)

    def of_cells(self, cells: Sequence[Cell]) -> Estimate:
        """Return the seconds that cells will take together."""
        each = [self.of_cell(cell) for cell in cells]
        guessed = [
            cell
            for cell, seconds in zip(cells, each, strict=True)
            if seconds is not None
            and key_of_cell(cell) not in self.whole_s
            and kind_of_cell(cell) not in self.own_overheads_s
        ]
        return Estimate(sum(s for s in each if s is not None), sum(s is None for s in each), len(guessed))


def kind_of_cell(cell: Cell) -> tuple[str, str]:
    """Return the scenario of a cell and the form of the model."""
    return cell.scenario, cell.values.get("framework", "").casefold()


def key_of_cell(cell: Cell) -> str:
    """Return what cells of the same values have in common."""
    return json.dumps([cell.scenario, sorted(cell.values.items())])


def experience_of_runs(settings: Settings, manifest_digest: str) -> Experience:
    """Return what the latest completed runs took beside measuring; those of this bundle, if there are any."""
    own, others = Experience(), Experience()
    for folder in run_folders(settings)[-_MOST_RECORDS:]:
        record = read_record(folder)
        if record is None or record.get("status") != "completed":
            continue
        try:
            took = datetime.fromisoformat(record["finished_at"]) - datetime.fromisoformat(
                record["started_at"]
            )
            planned = planned_seconds(record["scenario"]["name"], record["scenario"]["options"])
            known = own if record["bundle"]["manifest_digest"] == manifest_digest else others
            framework = record["framework"]
            # The cell of a sweep may name either.
            for form in {str(framework.get("variant") or ""), str(framework["name"])} - {""}:
                known.learn("", planned, took.total_seconds(), (record["scenario"]["name"], form.casefold()))
        except (KeyError, TypeError, ValueError):  # a record of another version
            continue
    return own if own.overheads_s else others
